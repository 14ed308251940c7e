"""Rules that choose positives and negatives, the miner, and the audit of what it chose."""
