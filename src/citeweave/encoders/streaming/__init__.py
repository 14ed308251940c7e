"""Embedding whole corpora: what is read, in which shards, on which devices."""
