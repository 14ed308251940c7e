"""How two papers match, sentence by sentence: distances, weights of sentence pairs, transport plans."""
