"""What can be judged: vectors, encoders, sentence vectors, lexical rankers, scores from a file."""
