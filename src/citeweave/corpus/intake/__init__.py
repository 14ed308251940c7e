"""From files to a corpus: staged parts, merging, columns, links. `importing.py` beside this room is its verb."""
