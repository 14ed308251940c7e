"""Filters by year, venue, field and id: which papers of an index a search may return; counts of facets.

    where = Filter(years=(2015, None), venues=("NeurIPS", "ICML"))
    filter_rows(index, where)                (size,) bool: live papers from 2015 on of either venue
    count_facets(index, rows)                {"years": {2019: 3}, "venues": [{"name": "ICML", "count": 2}], "fields": [...]}
    _venues_of(index).rows_with(["neurips"])  (size,) bool, regardless of case and blanks

Every condition must hold; of several venues, fields or ids any one will do. Venues and fields are compared as complete
names. A paper whose year is unknown is in no range of years. A column holds one name per line; its texts are read and its
names are numbered once per open index. Does not search.
"""

from __future__ import annotations

import difflib
import reprlib
import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.corpus.corpus import STUB
from citeweave.corpus.plain_text import clean_text
from citeweave.search.index import Index
from citeweave.search.query import Filter

Mask = NDArray[np.bool_]

_AROUND, _MAX_COMPARED = 200, 200
"""Names before, behind and among the most frequent that are compared with an unknown one; characters of it."""


def fold_name(name: str) -> str:
    """Fold the case and blanks of a venue or field, as filters compare names.

    >>> fold_name(" Nature  Methods ") == fold_name("NATURE METHODS")
    True
    """
    return clean_text(name).casefold()


class AttributeNames:
    """The venues, or the fields, of all papers of an open index, numbered to be filtered and counted fast."""

    def __init__(self, column: TextColumn) -> None:
        _, first, codes = np.unique(column.keys(), return_index=True, return_inverse=True)
        self._codes, self._texts = codes.astype(np.int32), len(first)
        """Which of the distinct texts each paper has, (papers,)."""
        papers = np.bincount(self._codes, minlength=self._texts)  # (texts,)
        self._numbers: dict[str, int] = {}
        spellings: defaultdict[int, Counter[str]] = defaultdict(Counter)
        pairs: list[tuple[int, int]] = []
        for text, lines in enumerate(column.take(first)):
            names = filter(None, map(clean_text, lines.split("\n")))
            for folded, name in {fold_name(name): name for name in names}.items():
                number = self._numbers.setdefault(folded, len(self._numbers))
                pairs.append((text, number))
                spellings[number][name] += int(papers[text])
        both = np.array(pairs, np.int64).reshape(-1, 2)
        self._pair_texts, self._pair_names = both[:, 0], both[:, 1]
        # in the order of the numbers, as each was added when it got its number
        self.names = [min(counts, key=lambda name: (-counts[name], name)) for counts in spellings.values()]
        """The names by number, in the spelling of the most papers."""

    def knows(self, name: str) -> bool:
        """Return whether some paper has this venue or field."""
        return fold_name(name) in self._numbers

    def rows_with(self, names: Iterable[str]) -> Mask:
        """Filter by name: return the mask of papers that have at least one of these venues or fields, (size,)."""
        wanted = np.zeros(len(self.names), np.bool_)
        known = (self._numbers.get(fold_name(name)) for name in names)
        wanted[[number for number in known if number is not None]] = True
        texts = np.zeros(self._texts, np.bool_)
        texts[self._pair_texts[wanted[self._pair_names]]] = True
        return np.asarray(texts[self._codes])

    def closest(self, name: str) -> str:
        """Return the known venue or field spelled most like a filter's unknown one, empty where none is close."""
        folded = fold_name(name)[:_MAX_COMPARED]
        ordered = sorted(self._numbers)
        place = bisect_left(ordered, folded)
        near = ordered[max(0, place - _AROUND) : place + _AROUND]
        frequent = [fold_name(known) for known, _ in self.counts(np.arange(len(self._codes)), _AROUND)]
        matches = difflib.get_close_matches(folded, dict.fromkeys([*near, *frequent]), 1)
        return self.names[self._numbers[matches[0]]] if matches else ""

    def counts(self, rows: NDArray[Any], max_names: int) -> list[tuple[str, int]]:
        """Count facets: the most frequent venues or fields of these rows (or of a mask); ties alphabetically."""
        papers = np.bincount(self._codes[rows], minlength=self._texts)  # (texts,)
        counts = np.bincount(self._pair_names, papers[self._pair_texts], minlength=len(self.names)).astype(np.int64)
        threshold = 1
        if len(counts) > max_names > 0:
            threshold = max(1, int(np.partition(counts, len(counts) - max_names)[len(counts) - max_names]))
        pairs = [(self.names[number], int(counts[number])) for number in np.flatnonzero(counts >= threshold).tolist()]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:max_names]

    def number_rows(self, rows: NDArray[np.int64], max_names: int) -> tuple[NDArray[np.uint8], list[str]]:
        """Number each row by its most frequent facet, a venue or field to filter by; return those names, their count for rows with none."""
        assert max_names < 256
        shown = [name for name, _ in self.counts(rows, max_names)]
        best = np.full(self._texts, len(shown), np.int64)
        places = np.full(len(self.names), len(shown), np.int64)
        for place, name in enumerate(shown):
            places[self._numbers[fold_name(name)]] = place
        np.minimum.at(best, self._pair_texts, places[self._pair_names])
        return best[self._codes[rows]].astype(np.uint8), shown


_names: weakref.WeakKeyDictionary[TextColumn, AttributeNames] = weakref.WeakKeyDictionary()


def _venues_of(index: Index) -> AttributeNames:
    """Return the numbered venues of an index's papers, read once."""
    return _names_of(index.venues)


def fields_of(index: Index) -> AttributeNames:
    """Return the numbered fields of an index's papers, read once."""
    return _names_of(index.fields)


def _names_of(column: TextColumn) -> AttributeNames:
    known = _names.get(column)
    if known is None:
        known = _names[column] = AttributeNames(column)
    return known


# --- filters ---------------------------------------------------------------------------------------------

FACETS = 50
"""Venues and fields that `count_facets` lists."""

_MAX_UNKNOWN = 3
"""Unknown venues or fields that a note names."""


def filter_rows(index: Index, where: Filter) -> Mask:
    """Return the mask of papers that pass a filter, (size,)."""
    mask = np.ones(len(index.years), np.bool_)
    first, last = where.years
    if first is not None or last is not None:
        low, high = 1 if first is None else max(first, 1), 9999 if last is None else last
        mask &= (index.years >= low) & (index.years <= high)
    if where.venues:
        mask &= _venues_of(index).rows_with(where.venues)
    if where.fields:
        mask &= fields_of(index).rows_with(where.fields)
    if where.has_abstract is not None:
        mask &= (index.abstracts.lengths() > 0) == where.has_abstract
    if where.local is not None:
        mask &= ((index.flags & STUB) == 0) == where.local
    if where.ids:
        mask &= _rows_with_ids(index, where.ids)
    if where.not_ids:
        mask &= ~_rows_with_ids(index, where.not_ids)
    return mask


def unknown_names(index: Index, where: Filter) -> str:
    """Return a note on venues and fields of a filter that no paper has, with the closest known ones; or empty."""
    lines: list[str] = []
    for what, wanted, names_of in (("venue", where.venues, _venues_of), ("field", where.fields, fields_of)):
        unknown = [name for name in wanted if not names_of(index).knows(name)]
        for name in unknown[:_MAX_UNKNOWN]:
            near = names_of(index).closest(name)
            hint = f", did you mean {_shown(near)}?" if near else ""
            lines.append(f"no paper has the {what} {_shown(name)}{hint}")
    return "; ".join(lines)


def count_facets(index: Index, rows: NDArray[Any], *, max_names: int = FACETS) -> dict[str, Any]:
    """Count facets of the papers in these rows (or in a mask): by year, venue and field; frequent names first."""
    years, counts = np.unique(index.years[rows], return_counts=True)
    return {
        "years": {year: count for year, count in zip(years.tolist(), counts.tolist(), strict=True) if year},
        "venues": _listed(_venues_of(index).counts(rows, max_names)),
        "fields": _listed(fields_of(index).counts(rows, max_names)),
    }


def _listed(counts: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "count": count} for name, count in counts]


def _rows_with_ids(index: Index, ids: tuple[str, ...]) -> Mask:
    rows = index.rows(ids)
    mask = np.zeros(len(index.years), np.bool_)
    mask[rows[rows >= 0]] = True
    return mask


def _shown(value: object) -> str:
    """Return an untrusted value for a message, shortened.

    >>> _shown("x" * 1000)
    "'xxxxxxxxxxxx...xxxxxxxxxxxxx'"
    """
    return reprlib.repr(value)
