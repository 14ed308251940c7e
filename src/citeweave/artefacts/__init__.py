"""Folders that appear whole or not at all, and that are still what was written."""
