"""What is wrong with samples: collisions, false negatives, repeats, coverage, leaks."""
