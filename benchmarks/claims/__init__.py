"""The study of the texts' claims: every recipe under its text's conditions. See `__main__.py`."""
