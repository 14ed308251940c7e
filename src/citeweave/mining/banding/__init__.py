"""Which ranks to take positives and hard negatives from, by the collisions they would make."""
