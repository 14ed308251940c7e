"""Vectors of papers and sentences: storage, exact top-k search, document distances, BM25."""
