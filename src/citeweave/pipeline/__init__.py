"""Whole recipes: from a corpus to trained models and their reports."""
