"""Time, memory and disk of a recipe's stages from sizes and measured constants, before anything is run."""
