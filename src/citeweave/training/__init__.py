"""Training encoders: losses, batches, the trainer and its checkpoints."""
