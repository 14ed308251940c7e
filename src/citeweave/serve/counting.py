"""How many papers an index has, and how many of them have what.

    {"papers": 1900, "around": 700, "with_vectors": 1900, "with_sentences": 1588, "with_abstract": 1588}

Papers around a library, which are known by what it cites and what cites it, are counted by themselves.
"""

from __future__ import annotations

from citeweave.search.filters import Filter, filter_rows
from citeweave.search.index import Index


def count_papers(index: Index) -> dict[str, int]:
    """Counts of the living papers of an index."""
    own = filter_rows(index, Filter(local=True))  # (size,)
    return {
        "papers": int(own.sum()),
        "around": int((index.alive & ~own).sum()),
        "with_vectors": int((index.with_vector & own).sum()),
        "with_sentences": int((index.with_sentences & own).sum()),
        "with_abstract": int(filter_rows(index, Filter(local=True, has_abstract=True)).sum()),
    }
