"""Nearest vectors in milliseconds: a scan of int8 codes proposes, exact scores decide."""
