"""citeweave: vector representations of scientific papers from their text and their citations."""

__version__ = "0.1.0"
