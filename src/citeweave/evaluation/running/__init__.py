"""How one task of each kind is judged."""
