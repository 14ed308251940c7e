"""Corpora: papers, citations and citing sentences, imported from any source, merged, and stored as columns."""
