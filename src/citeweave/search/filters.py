"""Names that papers carry, such as venues and fields, as numbers: to be filtered and counted without reading a text twice.

    names = venues_of(index)
    names.rows_with(["neurips"])       (size,) bool, whatever the case and the blanks
    names.counts(mask, 20)             [("NeurIPS", 12), ...], the most frequent first

Every text of a column is read once for each opened segment, its names are numbered once for each opened state. A column
holds one name a line. Of several spellings of one name the one with the most papers is shown.

Filters: which papers of an index a search may return, and what a set of papers is made of.

    where = Filter(years=(2015, None), venues=("NeurIPS", "ICML"))
    filter_rows(index, where)                (size,) bool: live papers from 2015 on of either venue
    facets(index, rows)                      {"years": {2019: 3}, "venues": [{"name": "ICML", "count": 2}], "fields": [...]}

    >>> Filter.from_json({"years": [2015, None], "fields": ["cs.CL"]}).as_json()
    {'years': [2015, None], 'fields': ['cs.CL']}

Every condition must hold; of several venues, fields or ids any one will do. Venues and fields are compared whole, without
regard to case and blanks. A paper whose year is not known is in no range of years. Does not search.
"""

from __future__ import annotations

import difflib
import reprlib
import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.core.errors import UserError, choose
from citeweave.corpus.corpus import STUB
from citeweave.corpus.plain_text import clean_text

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


class AttributeNames:
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
_names: weakref.WeakKeyDictionary[Any, dict[str, AttributeNames]] = weakref.WeakKeyDictionary()


def venues_of(index: NamedIndex) -> AttributeNames:
    """The venues of an index's papers."""
    return _names_of(index, "venues", [segment.venues for segment in index.segments])


def fields_of(index: NamedIndex) -> AttributeNames:
    """The fields of an index's papers."""
    return _names_of(index, "fields", [segment.fields for segment in index.segments])


def _names_of(index: NamedIndex, what: str, columns: Sequence[TextColumn]) -> AttributeNames:
    known = _names.setdefault(index, {})
    if what not in known:
        alive = np.concatenate([np.empty(0, np.bool_), *(segment.alive for segment in index.segments)])
        known[what] = AttributeNames([_distinct(column) for column in columns], alive)
    return known[what]


def _distinct(column: TextColumn) -> Distinct:
    known = _columns.get(column)
    if known is None:
        _, first, codes = np.unique(column.keys(), return_index=True, return_inverse=True)
        names = [tuple(filter(None, map(clean_text, text.split("\n")))) for text in column.take(first)]
        known = _columns[column] = Distinct(codes.astype(np.int32), names)
    return known


# Filters: which papers of an index a search may return, and what a set of papers is made of.

MOST_NAMES, MOST_IDS, LONGEST = 1000, 100_000, 1000
"""Most venues or fields and most ids of one filter; most letters of each."""

FACETS = 50
"""Venues and fields that `facets` names."""

_NAMED = 3
"""Unknown venues or fields that are named."""


class FilteredSegment(NamedSegment, Protocol):
    """What is asked of a segment."""

    @property
    def abstracts(self) -> TextColumn: ...
    @property
    def years(self) -> NDArray[np.int16]: ...
    @property
    def flags(self) -> NDArray[np.uint8]: ...


class FilteredIndex(Protocol):
    """What is asked of an index."""

    @property
    def segments(self) -> Sequence[FilteredSegment]: ...
    @property
    def alive(self) -> Mask: ...
    def rows(self, ids: Sequence[str], /) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on papers; none of them by default."""

    years: tuple[int | None, int | None] = (None, None)
    """The first and the last year, either or both of which may be left open."""

    venues: tuple[str, ...] = ()
    """Published in one of these."""

    fields: tuple[str, ...] = ()
    """Of at least one of these."""

    ids: tuple[str, ...] = ()
    """One of these papers, where any are named; unknown ids are passed over."""

    not_ids: tuple[str, ...] = ()
    """None of these papers."""

    has_abstract: bool | None = None
    """With an abstract, or without one."""

    local: bool | None = None
    """In the library itself, or known only because others cite it."""

    def __post_init__(self) -> None:
        first, last = _check_years(self.years)
        if first is not None and last is not None and first > last:
            raise UserError(f"years are from {first} to {last}; the first must not be later than the last")
        for name in ("venues", "fields", "ids", "not_ids"):
            _check_texts(getattr(self, name), name, MOST_IDS if name.endswith("ids") else MOST_NAMES)
        for name in ("has_abstract", "local"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise UserError(f"{name} is {_shown(value)}; give true, false or nothing")

    def __bool__(self) -> bool:
        """Whether there is any condition."""
        return self != Filter()

    @classmethod
    def from_json(cls, value: object) -> Filter:
        """A filter as a client sends it: any of the conditions by name."""
        if not isinstance(value, dict):
            raise UserError(f'a filter is {_shown(value)}; give an object such as {{"years": [2015, null]}}')
        names = [field.name for field in fields(cls)]
        for name in value:
            choose(str(name)[:LONGEST], names, "a condition of a filter")
        given: dict[str, Any] = {
            str(name): tuple(part) if isinstance(part, list) else part for name, part in value.items()
        }
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """The conditions that there are; `from_json` reads it."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        empty = Filter()
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in held.items()
            if value != getattr(empty, name)
        }


def filter_rows(index: FilteredIndex, where: Filter) -> Mask:
    """The live papers for which every condition holds, (size,)."""
    mask = index.alive.copy()
    first, last = where.years
    if first is not None or last is not None:
        low, high = 1 if first is None else max(first, 1), 9999 if last is None else last
        mask &= _over(index, lambda part: (part.years >= low) & (part.years <= high))
    if where.venues:
        mask &= venues_of(index).rows_with(where.venues)
    if where.fields:
        mask &= fields_of(index).rows_with(where.fields)
    if where.has_abstract is not None:
        mask &= _over(index, lambda part: (part.abstracts.lengths() > 0) == where.has_abstract)
    if where.local is not None:
        mask &= _over(index, lambda part: ((part.flags & STUB) == 0) == where.local)
    if where.ids:
        mask &= _named(index, where.ids)
    if where.not_ids:
        mask &= ~_named(index, where.not_ids)
    return mask


def unknown_names(index: FilteredIndex, where: Filter) -> str:
    """Which venues and fields of a filter no paper of the index has, with the nearest that some has; or empty."""
    lines: list[str] = []
    for what, wanted, names_of in (("venue", where.venues, venues_of), ("field", where.fields, fields_of)):
        unknown = [name for name in wanted if not names_of(index).knows(name)]
        for name in unknown[:_NAMED]:
            near = names_of(index).nearest(name)
            hint = f", did you mean {_shown(near)}?" if near else ""
            lines.append(f"no paper has the {what} {_shown(name)}{hint}")
    return "; ".join(lines)


def facets(index: FilteredIndex, rows: NDArray[Any], *, most: int = FACETS) -> dict[str, Any]:
    """How many of these rows (or of a mask over all rows) are of each year, venue and field; frequent names first."""
    all_years = np.concatenate([np.empty(0, np.int16), *(segment.years for segment in index.segments)])
    years, counts = np.unique(all_years[rows], return_counts=True)
    return {
        "years": {year: count for year, count in zip(years.tolist(), counts.tolist(), strict=True) if year},
        "venues": _listed(venues_of(index).counts(rows, most)),
        "fields": _listed(fields_of(index).counts(rows, most)),
    }


def _listed(counts: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "count": count} for name, count in counts]


def _over(index: FilteredIndex, condition: Callable[[FilteredSegment], Mask]) -> Mask:
    return np.concatenate([np.empty(0, np.bool_), *(condition(segment) for segment in index.segments)])


def _named(index: FilteredIndex, ids: tuple[str, ...]) -> Mask:
    rows = index.rows(ids)
    mask = np.zeros(len(index.alive), np.bool_)
    mask[rows[rows >= 0]] = True
    return mask


def _check_years(years: object) -> tuple[int | None, int | None]:
    if not isinstance(years, tuple) or len(years) != 2:
        raise UserError(f"years are {_shown(years)}; give the first and the last one, either may be null")
    for year in years:
        if year is not None and (not isinstance(year, int) or isinstance(year, bool) or not 0 <= year <= 9999):
            raise UserError(f"a year is {_shown(year)}; give a whole number from 0 to 9999, or null")
    return years[0], years[1]


def _check_texts(texts: object, name: str, most: int) -> None:
    if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{name} are {_shown(texts)}; give a list of texts")
    if len(texts) > most:
        raise UserError(f"{len(texts):,} {name} are more than the {most:,} that one filter takes; ask in parts")
    if any(len(text) > LONGEST for text in texts):
        raise UserError(f"one of {name} has more than {LONGEST:,} letters; give shorter ones")


def _shown(value: object) -> str:
    """A client's value, cut short.

    >>> _shown("x" * 1000)
    "'xxxxxxxxxxxx...xxxxxxxxxxxxx'"
    """
    return reprlib.repr(value)
