"""How a map of an index is made (`search/mapping.py`): the plane, its groups and their names, the folder on disk."""
