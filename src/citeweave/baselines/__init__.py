"""Baselines: TF-IDF, Doc2Vec, fastText, SIF, ELMo, SGC and Citeomatic, trained on the corpus itself; USE Lite."""
