"""What lies in the folder of a saved encoder beside its weights: card, deltas, learned mixes."""
