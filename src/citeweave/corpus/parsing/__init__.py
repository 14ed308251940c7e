"""Cutting records out of files: JSON, XML, BibTeX, LaTeX, citing sentences. Shared by the readers."""
