"""What a corpus is on disk: its columns and their types, declared once.

Writers (`intake/`) and readers (`corpus.py`) both go by these tables; another layout is another VERSION.
"""

from __future__ import annotations

import numpy as np

KIND = "corpus"
VERSION = 1

PAPER_TEXTS = ("id", "title", "abstract", "venue", "authors", "fields", "ids", "extra")
PAPER_NUMBERS = {"year": np.int16, "citation_count": np.int32, "updated": np.int32}
UNKNOWN_COUNT = -1

LOCAL, STUB = 1, 2
"""Bits of the column `flags`: the id is a name inside one file; the paper is known only as a reference."""

CITATION_COLUMNS = {
    "citing": np.int32,
    "cited": np.int32,
    "intents": np.uint8,
    "strength": np.float32,
    "influential": np.bool_,
}
REFERENCE_COLUMNS = {
    "citing": np.int32,
    "key": np.uint64,
    "intents": np.uint8,
    "strength": np.float32,
    "influential": np.bool_,
}
