"""How near papers are to each other: vectors, and the ways to compare them."""
