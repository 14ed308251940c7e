"""Samples in the formats of other projects: SPECTER, SciNCL, SciRepEval, sentence-transformers."""
