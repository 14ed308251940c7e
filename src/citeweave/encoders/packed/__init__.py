"""Texts end to end without padding: the stream, the attention inside it, and BERT's layers over it."""
