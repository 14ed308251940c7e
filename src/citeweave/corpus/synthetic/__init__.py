"""Synthetic literature with a known ground truth, written as a corpus."""
