"""Filters by year, venue, author, field, keyword, collection and id: which papers a search may return; counts of facets.

    where = Filter(years=(2015, None), venues=("NeurIPS", "ICML"))
    filter_rows(index, where)                (size,) bool: live papers from 2015 on of either venue
    count_facets(index, rows)                {"years": {2019: 3}, "venues": [{"name": "ICML", "count": 2}], "fields": [...]}
    names_of(index, "venues").rows_with(["neurips"])     (size,) bool, regardless of case and blanks
    author_rows(index, "Devlin, J.")                     (size,) bool, however the name is written: `author_names.py`

Every condition must hold; of several names of one kind, or ids, any one will do. Names are compared as complete names,
but for authors. A paper whose year is unknown is in no range of years. The names of a kind are read and numbered once per
open index, when they are first needed: a column holds one name per line, keywords and collections stand in what the
source says besides (`paper_details.py`). Does not search.
"""

from __future__ import annotations

import difflib
import reprlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.core.compiled import numba_is_loaded
from citeweave.corpus.corpus import STUB
from citeweave.corpus.plain_text import clean_text
from citeweave.search.author_names import AuthorNames, name_words
from citeweave.search.index import Index
from citeweave.search.paper_details import SOURCE_LISTS, source_lists
from citeweave.search.query import Filter

Mask = NDArray[np.bool_]

_FEW_BYTES = 1 << 22
"""Bytes of a column whose texts are sorted sooner than numba is loaded."""

_AROUND, _MAX_COMPARED = 200, 200
"""Names before, behind and among the most frequent that are compared with an unknown one; characters of it."""


def fold_name(name: str) -> str:
    """Fold the case and blanks of a venue or field, as filters compare names.

    >>> fold_name(" Nature  Methods ") == fold_name("NATURE METHODS")
    True
    """
    return clean_text(name).casefold()


def fold_author(name: str) -> str:
    """Fold the name of an author: its words without case, accents and punctuation, the given names first.

    >>> fold_author("Ng, Andrew Y.") == fold_author("andrew y ng")
    True
    """
    return " ".join(name_words(name)) or fold_name(name)


class AttributeNames:
    """The venues, or other names of one kind, of all papers of an open index, numbered to be filtered and counted fast."""

    def __init__(
        self, codes: NDArray[np.integer[Any]], texts: Sequence[str], fold: Callable[[str], str] = fold_name
    ) -> None:
        self._fold = fold
        self._codes, self._texts = codes.astype(np.int32), len(texts)
        """Which of the distinct texts each paper has, (papers,)."""
        papers = np.bincount(self._codes, minlength=self._texts)  # (texts,)
        self._numbers: dict[str, int] = {}
        spellings: dict[str, int] = {}
        uses: Counter[str] = Counter()
        pair_texts, pair_names = array("q"), array("q")
        for text, (lines, count) in enumerate(zip(texts, papers.tolist(), strict=True)):
            written = lines.split("\n")
            for name in written:
                if name not in spellings:
                    cleaned = clean_text(name)
                    folded = fold(cleaned) if cleaned else ""
                    spellings[name] = self._numbers.setdefault(folded, len(self._numbers)) if folded else -1
                uses[name] += count
            numbers = {number for name in written if (number := spellings[name]) >= 0}
            pair_names.extend(numbers)
            pair_texts.extend([text] * len(numbers))
        self._pair_texts, self._pair_names = np.array(pair_texts, np.int64), np.array(pair_names, np.int64)
        best: dict[int, tuple[bool, int, str]] = {}
        for name, number in spellings.items():
            rank = (name.islower(), -uses[name], clean_text(name))
            best[number] = min(best.get(number, rank), rank)
        self.names = [best[number][2] for number in range(len(self._numbers))]
        """The names by number, in the spelling of the most papers that is not all in small letters."""

    @classmethod
    def of_column(cls, column: TextColumn, fold: Callable[[str], str] = fold_name) -> AttributeNames:
        """Number the names in a column of texts, one name per line; names that `fold` makes equal are the same."""
        few = column.data.size <= _FEW_BYTES and not numba_is_loaded()  # hashing would load it
        texts = np.array(column.take(np.arange(len(column))), object) if few else column.keys()
        _, first, codes = np.unique(texts, return_index=True, return_inverse=True)
        return cls(codes, column.take(first), fold)

    @cached_property
    def authors(self) -> AuthorNames:
        """These names as those of authors, to be found however they are written."""
        return AuthorNames(self.names, self._numbers)

    def knows(self, name: str) -> bool:
        """Return whether some paper has this name."""
        return self._fold(name) in self._numbers

    def rows_with(self, names: Iterable[str]) -> Mask:
        """Filter by name: return the mask of papers that have at least one of these names, (size,)."""
        known = (self._numbers.get(self._fold(name)) for name in names)
        return self.rows_numbered([number for number in known if number is not None])

    def rows_numbered(self, numbers: Sequence[int]) -> Mask:
        """Return the mask of papers that have at least one of the names with these numbers, (size,)."""
        wanted = np.zeros(len(self.names), np.bool_)
        wanted[np.asarray(numbers, np.int64)] = True
        texts = np.zeros(self._texts, np.bool_)
        texts[self._pair_texts[wanted[self._pair_names]]] = True
        return np.asarray(texts[self._codes])

    def closest(self, name: str) -> str:
        """Return the known venue or field spelled most like a filter's unknown one, empty where none is close."""
        folded = self._fold(name)[:_MAX_COMPARED]
        ordered = sorted(self._numbers)
        place = bisect_left(ordered, folded)
        near = ordered[max(0, place - _AROUND) : place + _AROUND]
        frequent = [self._fold(known) for known, _ in self.counts(np.arange(len(self._codes)), _AROUND)]
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
            places[self._numbers[self._fold(name)]] = place
        np.minimum.at(best, self._pair_texts, places[self._pair_names])
        return best[self._codes[rows]].astype(np.uint8), shown


_Kinds = dict[str, AttributeNames]
_known: WeakKeyDictionary[TextColumn, _Kinds] = WeakKeyDictionary()
"""Names of each kind, by the column of an open index in which they stand."""


def names_of(index: Index, kind: str) -> AttributeNames:
    """Return the numbered venues, fields, authors, keywords or collections of an index's papers, read once."""
    column: TextColumn = index.extras if kind in SOURCE_LISTS else getattr(index, kind)
    kinds = _known.setdefault(column, {})
    if kind not in kinds:
        if kind in SOURCE_LISTS:
            kinds |= {name: AttributeNames(*lists) for name, lists in source_lists(column).items()}
        else:
            kinds[kind] = AttributeNames.of_column(column, fold_author if kind == "authors" else fold_name)
    return kinds[kind]


def fields_of(index: Index) -> AttributeNames:
    """Return the numbered fields of an index's papers, read once."""
    return names_of(index, "fields")


def author_rows(index: Index, *authors: str) -> Mask:
    """Return the mask of papers by at least one of these authors, however their names are written, (size,)."""
    names = names_of(index, "authors")
    return names.rows_numbered([number for author in authors for number in names.authors.matching(author)])


# --- filters ---------------------------------------------------------------------------------------------

FACETS = 50
"""Names of each kind that `count_facets` lists."""

_NAMED = {"venues": "venue", "fields": "field", "keywords": "keyword", "collections": "collection"}
FACET_KINDS = ("years", *_NAMED, "authors")
"""Conditions that compare complete names, and what one of the names is called."""

_MAX_UNKNOWN = 3
"""Unknown names of a kind that a note names."""


def filter_rows(index: Index, where: Filter) -> Mask:
    """Return the mask of papers that pass a filter, (size,)."""
    mask = np.ones(len(index.years), np.bool_)
    first, last = where.years
    if first is not None or last is not None:
        low, high = 1 if first is None else max(first, 1), 9999 if last is None else last
        mask &= (index.years >= low) & (index.years <= high)
    for kind in _NAMED:
        if wanted := getattr(where, kind):
            mask &= names_of(index, kind).rows_with(wanted)
    if where.authors:
        mask &= author_rows(index, *where.authors)
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
    """Return a note on names of a filter that no paper has, with the closest known ones; or empty."""
    notes: list[str] = []
    for kind, what in {**_NAMED, "authors": "author"}.items():
        if wanted := getattr(where, kind):
            names = names_of(index, kind)
            known = names.knows if kind in _NAMED else names.authors.matching
            unknown = [name for name in wanted if not known(name)]
            closest = names.closest if kind in _NAMED else names.authors.closest
            notes += [unknown_name(what, name, closest(name)) for name in unknown[:_MAX_UNKNOWN]]
    return "; ".join(notes)


def unknown_name(what: str, name: str, closest: str) -> str:
    """Return a note on a name that no paper has, with the closest known one if there is any.

    >>> unknown_name("venue", "Natrue", "Nature")
    "no paper has the venue 'Natrue', did you mean 'Nature'?"
    """
    return f"no paper has the {what} {_shown(name)}{f', did you mean {_shown(closest)}?' if closest else ''}"


def count_facets(
    index: Index, rows: NDArray[Any], *, max_names: int = FACETS, kinds: Sequence[str] = FACET_KINDS
) -> dict[str, Any]:
    """Count facets of the papers in these rows (or in a mask): years, and names of each kind, frequent names first."""
    facets: dict[str, Any] = {}
    for kind in kinds:
        if kind == "years":
            years, counts = np.unique(index.years[rows], return_counts=True)
            facets[kind] = {y: count for y, count in zip(years.tolist(), counts.tolist(), strict=True) if y}
        else:
            facets[kind] = _listed(names_of(index, kind).counts(rows, max_names))
    return facets


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
