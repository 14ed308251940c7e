"""Records from the services of the literature, saved as files that `importing.py` reads."""
