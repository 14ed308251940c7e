"""Recipes as complete runs, from a corpus to trained models and their reports, and what they cost."""
