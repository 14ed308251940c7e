"""Papers of several segments as rows of one table: what is shown of them, their ids, and who cites whom.

    papers = IndexedPapers(segments)
    papers.paper(7).title, papers.rows(["doi:10.1/x"]), papers.citing(papers.key_of(7))

The part of an index that needs no vectors and no files; `index.py` has the rest. A key is `hash_texts` of an id.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import lines
from citeweave.corpus.layout import LOCAL, STUB
from citeweave.corpus.text import sentence_texts
from citeweave.hashing import Keys, hash_texts
from citeweave.search.segment import Segment
from citeweave.similarity.provenance import id_keys


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper that was found."""

    id: str
    title: str
    year: int | None
    score: float
    """A cosine unless the search says otherwise; higher is better."""

    row: int
    """Of the index."""

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "title": self.title, "year": self.year, "score": self.score, "row": self.row}


@dataclass(frozen=True, slots=True)
class IndexedPaper:
    """All that an index knows of a paper."""

    row: int
    id: str
    title: str
    abstract: str
    year: int | None
    venue: str
    authors: tuple[str, ...]
    fields: tuple[str, ...]
    ids: tuple[str, ...]
    """Further ids."""

    local_id: bool = False
    """The id is a name inside one file."""

    stub: bool = False
    """Known only as a reference of other papers."""

    extra_json: str = ""
    """What else the source tells, as JSON."""

    @property
    def extra(self) -> dict[str, Any]:
        """What else the source tells; empty where that cannot be read."""
        try:
            told = json.loads(self.extra_json or "{}")
        except (ValueError, RecursionError):
            return {}
        return told if isinstance(told, dict) else {}


class IndexedPapers:
    """The rows of segments one behind the other, deleted papers included."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        sizes = [segment.size for segment in segments]
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        """First row of every segment, and the number of rows, (segments + 1,)."""
        self.size = int(self.starts[-1])
        self._starts = self.starts.tolist()  # asked for row by row

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Rows whose papers are not deleted, (size,)."""
        return joined([segment.alive for segment in self.segments])

    @cached_property
    def years(self) -> NDArray[np.int16]:
        """Year of every row, 0 where unknown, (size,)."""
        return np.concatenate([np.empty(0, np.int16), *(segment.years for segment in self.segments)])

    def place(self, row: int) -> tuple[Segment, int]:
        """The segment of a row, and the row there."""
        if not 0 <= row < self.size:
            raise IndexError(row)
        segment = self.segments[bisect_right(self._starts, row) - 1]
        return segment, row - segment.start

    def id(self, row: int) -> str:
        segment, at = self.place(row)
        return segment.ids[at]

    def title(self, row: int) -> str:
        segment, at = self.place(row)
        return segment.titles[at]

    def year(self, row: int) -> int:
        """0 where it is not known."""
        segment, at = self.place(row)
        return int(segment.years[at])

    def paper(self, row: int) -> IndexedPaper:
        segment, at = self.place(row)
        flags = int(segment.flags[at])
        return IndexedPaper(
            row=row,
            id=segment.ids[at],
            title=segment.titles[at],
            abstract=segment.abstracts[at],
            year=int(segment.years[at]) or None,
            venue=segment.venues[at],
            authors=lines(segment.authors[at]),
            fields=lines(segment.fields[at]),
            ids=lines(segment.other_ids[at]),
            local_id=bool(flags & LOCAL),
            stub=bool(flags & STUB),
            extra_json=segment.extras[at],
        )

    def hit(self, row: int, score: float) -> Hit:
        segment, at = self.place(row)
        return Hit(segment.ids[at], segment.titles[at], int(segment.years[at]) or None, score, row)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of every id, -1 where no living paper has it."""
        return self.rows_of_keys(id_keys(ids))

    def rows_of_keys(self, keys: Keys) -> NDArray[np.int64]:
        """The row of the paper that has an id with this key, -1 where none has."""
        found = np.full(len(keys), -1, np.int64)
        for segment in reversed(self.segments):  # what was written last counts
            open_ = np.flatnonzero(found < 0)
            rows = segment.rows_of(np.asarray(keys, np.uint64)[open_])
            known = rows >= 0
            known[known] = segment.alive[rows[known]]
            found[open_[known]] = segment.start + rows[known]
        return found

    def key_of(self, row: int) -> np.uint64:
        """The key of a paper's own id."""
        segment, at = self.place(row)
        return np.uint64(segment.keys[at])

    def keys_of(self, rows: NDArray[Any]) -> Keys:
        """The keys of several papers' own ids."""
        found = np.empty(len(rows), np.uint64)
        for segment, at, own in self.split(rows):
            found[at] = segment.keys[own]
        return found

    def references(self, row: int) -> Keys:
        """Keys of the papers that a paper cites, ascending; those in the index by their own id."""
        segment, at = self.place(row)
        return self._own_keys(segment.references(at))

    def citing(self, key: np.uint64 | int) -> NDArray[np.int64]:
        """Rows of the living papers that cite the paper with this key, whichever of its ids they name; ascending."""
        keys = [np.uint64(key)]
        row = int(self.rows_of_keys(np.array(keys, np.uint64))[0])
        if row >= 0:
            segment, at = self.place(row)
            names = [segment.ids[at], *lines(segment.other_ids[at])]
            keys = list({*keys, *hash_texts(names).tolist()})
        found = [np.empty(0, np.int64)]
        for segment in self.segments:
            for each in keys:
                rows = segment.citing(np.uint64(each))
                found.append(segment.start + rows[segment.alive[rows]].astype(np.int64))
        return np.unique(np.concatenate(found))

    def _own_keys(self, keys: Keys) -> Keys:
        """Keys of any id of a paper -> those of its own id, distinct and ascending."""
        rows = self.rows_of_keys(keys)
        known = rows >= 0
        found = np.array(keys)
        found[known] = self.keys_of(rows[known])
        return np.unique(found)

    def sentence_texts(self, row: int) -> list[str]:
        """The sentences of a paper's abstract, or its title where it has none."""
        segment, at = self.place(row)
        return sentence_texts(segment.abstracts[at]) or [text for text in [segment.titles[at]] if text]

    def split(self, rows: NDArray[Any]) -> list[tuple[Segment, NDArray[np.int64], NDArray[np.int64]]]:
        """Rows by segment: the segment, places in `rows`, and rows of the segment."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"a row outside of 0 to {self.size - 1}")
        of = np.searchsorted(self.starts, rows, side="right") - 1
        found = []
        for number in np.unique(of).tolist():
            at = np.flatnonzero(of == number)
            found.append((self.segments[number], at, rows[at] - self.starts[number]))
        return found


def joined(parts: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Masks of segments as one of the index."""
    found = np.concatenate([np.empty(0, bool), *parts])
    found.flags.writeable = False
    return found
