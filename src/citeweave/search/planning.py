"""What has to happen to an index so that it has the papers of a corpus as they are now.

    plan = plan_change(index, records, rows, all_others_go=True)
    plan.fresh, plan.moved        rows of the corpus: text to embed, text as before
    plan.gone                     rows of the index that will be deleted, replaced ones among them

Papers are compared by hashes of their columns (`writing/papers.py`). Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.search.index import Index
from citeweave.search.writing.papers import hash_records
from citeweave.search.writing.records import Records


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows by what happens to them."""

    fresh: NDArray[np.int64]
    """Rows of the corpus: new papers, and papers with another title or abstract."""

    moved: NDArray[np.int64]
    """Rows of the corpus, ascending: papers of which something else changed."""

    before: NDArray[np.int64]
    """Rows of the index: those that the moved papers have now."""

    gone: NDArray[np.int64]
    """Rows of the index, ascending."""

    unchanged: int
    updated: int

    @property
    def added(self) -> int:
        return len(self.fresh) + len(self.moved) - self.updated

    @property
    def deleted(self) -> int:
        """Papers that go and do not come again."""
        return len(self.gone) - self.updated

    @property
    def nothing(self) -> bool:
        return not len(self.fresh) and not len(self.moved) and not len(self.gone)


def plan_change(index: Index, records: Records, rows: NDArray[np.int64], *, all_others_go: bool) -> Plan:
    """The plan for the papers at these rows, ascending; with `all_others_go` no other paper stays."""
    hashed = hash_records(records)
    keys = records.texts["id"].keys()[rows]
    found = index.rows_of_keys(keys)  # by any id, (rows,)
    own = np.zeros(len(rows), bool)
    own[found >= 0] = index.keys_of(found[found >= 0]) == keys[found >= 0]
    same_text, same = own.copy(), own.copy()
    texts, wholes = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint64)
    for segment, at, inner in index.split(found[own]):
        places = np.flatnonzero(own)[at]
        texts[places], wholes[places] = segment.text_keys[inner], segment.record_keys[inner]
    same_text &= texts == hashed.text[rows]
    same &= wholes == hashed.record[rows]
    moved = same_text & ~same
    kept = found[same]
    leaving = np.flatnonzero(index.alive) if all_others_go else _replaced(index, records, rows[~same], found[~same])
    return Plan(
        fresh=rows[~same & ~moved],
        moved=rows[moved],
        before=found[moved],
        gone=np.setdiff1d(leaving, kept),
        unchanged=len(kept),
        updated=int((own & ~same).sum()),
    )


def _replaced(index: Index, records: Records, rows: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the index that give way to these papers: those with one of their ids as its own, or the other way round."""
    taken = np.zeros(len(records), bool)
    taken[rows] = True
    keys = np.asarray(records.ids.keys)[taken[records.ids.rows]]
    claimed = index.rows_of_keys(keys)
    known = claimed >= 0
    own = index.keys_of(claimed[known]) == keys[known]
    return np.unique(np.concatenate([found[found >= 0], claimed[known][own]]))
