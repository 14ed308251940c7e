"""Corpora of texts that are not papers, made from a corpus: citing sentences, sentences of abstracts."""
