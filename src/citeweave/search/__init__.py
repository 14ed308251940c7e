"""Indexes of papers, and what is asked of them: similar papers, texts, what to cite in a sentence."""
