"""The table: every recipe and baseline from one start, on one corpus, with one budget. See `__main__.py`."""
