"""Names that papers carry, such as venues and fields, as numbers: to be filtered and counted without reading a text twice.

    names = venues_of(index)
    names.rows_with(["neurips"])       (size,) bool, whatever the case and the blanks
    names.counts(mask, 20)             [("NeurIPS", 12), ...], the most frequent first

Every text of a column is read once for each opened segment, its names are numbered once for each opened state. A column
holds one name a line. Of several spellings of one name the one with the most papers is shown.
"""

from __future__ import annotations

import difflib
import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn
from citeweave.corpus.cleaning import clean_text

Mask = NDArray[np.bool_]

_AROUND, _LONGEST = 200, 200
"""Names before, behind and among the most frequent that are compared with a wrong one; characters of it."""


class NamedSegment(Protocol):
    """What is asked of a segment; its columns hold one text a paper."""

    @property
    def venues(self) -> TextColumn: ...
    @property
    def fields(self) -> TextColumn: ...
    @property
    def alive(self) -> Mask: ...


class NamedIndex(Protocol):
    """What is asked of an index."""

    @property
    def segments(self) -> Sequence[NamedSegment]: ...


def fold_name(name: str) -> str:
    """A name as it is compared.

    >>> fold_name(" Nature  Methods ") == fold_name("NATURE METHODS")
    True
    """
    return clean_text(name).casefold()


class Distinct(NamedTuple):
    """The different texts of a column."""

    codes: NDArray[np.int32]
    """(papers,): which of the texts each paper has."""

    names: list[tuple[str, ...]]
    """The names in each text."""


class Names:
    """The names of all papers of an opened state."""

    def __init__(self, columns: Sequence[Distinct], alive: Mask) -> None:
        ends = np.cumsum([0, *(len(column.names) for column in columns)])
        shifted = [column.codes + np.int32(end) for column, end in zip(columns, ends, strict=False)]
        self._codes = np.concatenate([np.empty(0, np.int32), *shifted])  # (size,): texts of all segments
        self._texts = int(ends[-1])
        papers = np.bincount(self._codes[alive], minlength=self._texts)  # (texts,)
        self._numbers: dict[str, int] = {}
        spellings: defaultdict[int, Counter[str]] = defaultdict(Counter)
        pairs: list[tuple[int, int]] = []
        for text, names in enumerate(names for column in columns for names in column.names):
            for folded, name in {fold_name(name): name for name in names}.items():
                number = self._numbers.setdefault(folded, len(self._numbers))
                pairs.append((text, number))
                spellings[number][name] += int(papers[text])
        both = np.array(pairs, np.int64).reshape(-1, 2)
        self._pair_texts, self._pair_names = both[:, 0], both[:, 1]
        # in the order of the numbers, as each was met first when it got its number
        self.names = [min(known, key=lambda name: (-known[name], name)) for known in spellings.values()]
        """The names as they are shown."""

    def knows(self, name: str) -> bool:
        """Whether some paper carries this name."""
        return fold_name(name) in self._numbers

    def rows_with(self, names: Iterable[str]) -> Mask:
        """Papers that carry at least one of these names, (size,)."""
        wanted = np.zeros(len(self.names), np.bool_)
        known = (self._numbers.get(fold_name(name)) for name in names)
        wanted[[number for number in known if number is not None]] = True
        texts = np.zeros(self._texts, np.bool_)
        texts[self._pair_texts[wanted[self._pair_names]]] = True
        return np.asarray(texts[self._codes])

    def nearest(self, name: str) -> str:
        """The known name that looks most like one that no paper carries, empty where none does."""
        folded = fold_name(name)[:_LONGEST]
        ordered = sorted(self._numbers)
        place = bisect_left(ordered, folded)
        near = ordered[max(0, place - _AROUND) : place + _AROUND]
        frequent = [fold_name(known) for known, _ in self.counts(np.arange(len(self._codes)), _AROUND)]
        found = difflib.get_close_matches(folded, dict.fromkeys([*near, *frequent]), 1)
        return self.names[self._numbers[found[0]]] if found else ""

    def counts(self, rows: NDArray[Any], most: int) -> list[tuple[str, int]]:
        """The most frequent names among these rows (or of a mask) with their papers; of equal counts by the alphabet."""
        papers = np.bincount(self._codes[rows], minlength=self._texts)  # (texts,)
        counts = np.bincount(self._pair_names, papers[self._pair_texts], minlength=len(self.names)).astype(np.int64)
        if len(counts) > most:
            least = max(1, int(np.partition(counts, len(counts) - most)[len(counts) - most])) if most else 1
        else:
            least = 1
        found = [(self.names[number], int(counts[number])) for number in np.flatnonzero(counts >= least).tolist()]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:most]

    def number_rows(self, rows: NDArray[np.int64], most: int) -> tuple[NDArray[np.uint8], list[str]]:
        """The most frequent names of these rows; for each row the first that it has of them, or their number if none."""
        assert most < 256
        shown = [name for name, _ in self.counts(rows, most)]
        best = np.full(self._texts, len(shown), np.int64)
        places = np.full(len(self.names), len(shown), np.int64)
        for place, name in enumerate(shown):
            places[self._numbers[fold_name(name)]] = place
        np.minimum.at(best, self._pair_texts, places[self._pair_names])
        return best[self._codes[rows]].astype(np.uint8), shown


_columns: weakref.WeakKeyDictionary[TextColumn, Distinct] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[Any, dict[str, Names]] = weakref.WeakKeyDictionary()


def venues_of(index: NamedIndex) -> Names:
    """The venues of an index's papers."""
    return _names_of(index, "venues", [segment.venues for segment in index.segments])


def fields_of(index: NamedIndex) -> Names:
    """The fields of an index's papers."""
    return _names_of(index, "fields", [segment.fields for segment in index.segments])


def _names_of(index: NamedIndex, what: str, columns: Sequence[TextColumn]) -> Names:
    known = _names.setdefault(index, {})
    if what not in known:
        alive = np.concatenate([np.empty(0, np.bool_), *(segment.alive for segment in index.segments)])
        known[what] = Names([_distinct(column) for column in columns], alive)
    return known[what]


def _distinct(column: TextColumn) -> Distinct:
    known = _columns.get(column)
    if known is None:
        _, first, codes = np.unique(column.keys(), return_index=True, return_inverse=True)
        names = [tuple(filter(None, map(clean_text, text.split("\n")))) for text in column.take(first)]
        known = _columns[column] = Distinct(codes.astype(np.int32), names)
    return known
