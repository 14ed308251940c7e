"""Writing segments: their papers, vectors and citing sentences, out of a corpus or out of other segments."""
