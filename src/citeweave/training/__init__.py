"""Training encoders on samples: losses, batches, the trainer and its checkpoints."""
