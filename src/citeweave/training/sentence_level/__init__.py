"""Training on sentences: where they are, which belong together, and what losses make of them."""
