"""Citation intents: why a sentence cites a paper, predicted by a small classifier of citing sentences."""
