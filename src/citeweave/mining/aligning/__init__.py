"""Sentences of two papers that are treated as aligned: the parts of `mining/alignment.py`."""
