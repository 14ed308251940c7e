"""Samples in other people's formats: SciNCL, SPECTER, SciRepEval, sentence-transformers; in and out."""
