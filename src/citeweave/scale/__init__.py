"""Shards over many processes and machines, on engines that exist."""
