"""How good vectors are."""
