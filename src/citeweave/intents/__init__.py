"""Citation intents: why a sentence cites a paper, told by a small classifier over citing sentences."""
