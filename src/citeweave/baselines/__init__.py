"""Baselines of the texts: simple encoders, trained on the given corpus."""
