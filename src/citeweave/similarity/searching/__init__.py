"""How `nearest.py` finds exact ranks: checking the question, scanning the pool, settling the order."""
