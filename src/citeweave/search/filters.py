"""Filters by year, venue, field and id: which papers of an index a search may return; counts of facets.

    where = Filter(years=(2015, None), venues=("NeurIPS", "ICML"))
    filter_rows(index, where)                (size,) bool: live papers from 2015 on of either venue
    count_facets(index, rows)                {"years": {2019: 3}, "venues": [{"name": "ICML", "count": 2}], "fields": [...]}
    _venues_of(index).rows_with(["neurips"])  (size,) bool, regardless of case and blanks

    >>> Filter.from_json({"years": [2015, None], "fields": ["cs.CL"]}).as_json()
    {'years': [2015, None], 'fields': ['cs.CL']}

Every condition must hold; of several venues, fields or ids any one will do. Venues and fields are compared as complete
names. A paper whose year is unknown is in no range of years. A column holds one name per line; its texts are read once
per open segment, and its names are numbered once per open index. Does not search.
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

_AROUND, _MAX_COMPARED = 200, 200
"""Names before, behind and among the most frequent that are compared with an unknown one; characters of it."""


class NamedSegment(Protocol):
    """A segment whose papers can be filtered by venue and field, one text per paper."""

    @property
    def venues(self) -> TextColumn: ...
    @property
    def fields(self) -> TextColumn: ...
    @property
    def alive(self) -> Mask: ...


class NamedIndex(Protocol):
    """An index whose papers have venues and fields."""

    @property
    def segments(self) -> Sequence[NamedSegment]: ...


def fold_name(name: str) -> str:
    """Fold the case and blanks of a venue or field, as filters compare names.

    >>> fold_name(" Nature  Methods ") == fold_name("NATURE METHODS")
    True
    """
    return clean_text(name).casefold()


class DistinctTexts(NamedTuple):
    """The distinct texts of a column of venues or fields, so that a filter reads each once."""

    codes: NDArray[np.int32]
    """(papers,): which of the texts each paper has."""

    names: list[tuple[str, ...]]
    """The names in each text."""


class AttributeNames:
    """The venues, or the fields, of all papers of an open index, numbered to be filtered and counted fast."""

    def __init__(self, columns: Sequence[DistinctTexts], alive: Mask) -> None:
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


_columns: weakref.WeakKeyDictionary[TextColumn, DistinctTexts] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[Any, dict[str, AttributeNames]] = weakref.WeakKeyDictionary()


def _venues_of(index: NamedIndex) -> AttributeNames:
    """Return the numbered venues of an index's papers, read once."""
    return _names_of(index, "venues", [segment.venues for segment in index.segments])


def fields_of(index: NamedIndex) -> AttributeNames:
    """Return the numbered fields of an index's papers, read once."""
    return _names_of(index, "fields", [segment.fields for segment in index.segments])


def _names_of(index: NamedIndex, what: str, columns: Sequence[TextColumn]) -> AttributeNames:
    known = _names.setdefault(index, {})
    if what not in known:
        alive = np.concatenate([np.empty(0, np.bool_), *(segment.alive for segment in index.segments)])
        known[what] = AttributeNames([_distinct_texts(column) for column in columns], alive)
    return known[what]


def _distinct_texts(column: TextColumn) -> DistinctTexts:
    known = _columns.get(column)
    if known is None:
        _, first, codes = np.unique(column.keys(), return_index=True, return_inverse=True)
        names = [tuple(filter(None, map(clean_text, text.split("\n")))) for text in column.take(first)]
        known = _columns[column] = DistinctTexts(codes.astype(np.int32), names)
    return known


# --- filters ---------------------------------------------------------------------------------------------

MAX_NAMES, MAX_IDS, MAX_CHARACTERS = 1000, 100_000, 1000
"""Venues or fields, and ids, of one filter; characters of each."""

FACETS = 50
"""Venues and fields that `count_facets` lists."""

_MAX_UNKNOWN = 3
"""Unknown venues or fields that a note names."""


class FilteredSegment(NamedSegment, Protocol):
    """A segment with the columns that a filter compares."""

    @property
    def abstracts(self) -> TextColumn: ...
    @property
    def years(self) -> NDArray[np.int16]: ...
    @property
    def flags(self) -> NDArray[np.uint8]: ...


class FilteredIndex(Protocol):
    """An index whose papers can be filtered."""

    @property
    def segments(self) -> Sequence[FilteredSegment]: ...
    @property
    def alive(self) -> Mask: ...
    def rows(self, ids: Sequence[str], /) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter by year, venue, field and id: which papers a search may return; all by default."""

    years: tuple[int | None, int | None] = (None, None)
    """The first and the last year, either or both of which may be left open."""

    venues: tuple[str, ...] = ()
    """Published in one of these."""

    fields: tuple[str, ...] = ()
    """Of at least one of these."""

    ids: tuple[str, ...] = ()
    """One of these papers, where any are named; unknown ids are ignored."""

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
            _check_texts(getattr(self, name), name, MAX_IDS if name.endswith("ids") else MAX_NAMES)
        for name in ("has_abstract", "local"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise UserError(f"{name} is {_shown(value)}; give true, false or nothing")

    def __bool__(self) -> bool:
        """Return whether the filter has any condition."""
        return self != Filter()

    @classmethod
    def from_json(cls, value: object) -> Filter:
        """Parse a filter from untrusted JSON: any of the conditions by name."""
        if not isinstance(value, dict):
            raise UserError(f'a filter is {_shown(value)}; give an object such as {{"years": [2015, null]}}')
        names = [field.name for field in fields(cls)]
        for name in value:
            choose(str(name)[:MAX_CHARACTERS], names, "a condition of a filter")
        conditions: dict[str, Any] = {
            str(name): tuple(part) if isinstance(part, list) else part for name, part in value.items()
        }
        return cls(**conditions)

    def as_json(self) -> dict[str, Any]:
        """Return the conditions of the filter as JSON, which `from_json` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        empty = Filter()
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != getattr(empty, name)
        }


def filter_rows(index: FilteredIndex, where: Filter) -> Mask:
    """Return the mask of live papers that pass a filter, (size,)."""
    mask = index.alive.copy()
    first, last = where.years
    if first is not None or last is not None:
        low, high = 1 if first is None else max(first, 1), 9999 if last is None else last
        mask &= _map_segments(index, lambda part: (part.years >= low) & (part.years <= high))
    if where.venues:
        mask &= _venues_of(index).rows_with(where.venues)
    if where.fields:
        mask &= fields_of(index).rows_with(where.fields)
    if where.has_abstract is not None:
        mask &= _map_segments(index, lambda part: (part.abstracts.lengths() > 0) == where.has_abstract)
    if where.local is not None:
        mask &= _map_segments(index, lambda part: ((part.flags & STUB) == 0) == where.local)
    if where.ids:
        mask &= _rows_with_ids(index, where.ids)
    if where.not_ids:
        mask &= ~_rows_with_ids(index, where.not_ids)
    return mask


def unknown_names(index: FilteredIndex, where: Filter) -> str:
    """Return a note on venues and fields of a filter that no paper has, with the closest known ones; or empty."""
    lines: list[str] = []
    for what, wanted, names_of in (("venue", where.venues, _venues_of), ("field", where.fields, fields_of)):
        unknown = [name for name in wanted if not names_of(index).knows(name)]
        for name in unknown[:_MAX_UNKNOWN]:
            near = names_of(index).closest(name)
            hint = f", did you mean {_shown(near)}?" if near else ""
            lines.append(f"no paper has the {what} {_shown(name)}{hint}")
    return "; ".join(lines)


def count_facets(index: FilteredIndex, rows: NDArray[Any], *, max_names: int = FACETS) -> dict[str, Any]:
    """Count facets of the papers in these rows (or in a mask): by year, venue and field; frequent names first."""
    all_years = np.concatenate([np.empty(0, np.int16), *(segment.years for segment in index.segments)])
    years, counts = np.unique(all_years[rows], return_counts=True)
    return {
        "years": {year: count for year, count in zip(years.tolist(), counts.tolist(), strict=True) if year},
        "venues": _listed(_venues_of(index).counts(rows, max_names)),
        "fields": _listed(fields_of(index).counts(rows, max_names)),
    }


def _listed(counts: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "count": count} for name, count in counts]


def _map_segments(index: FilteredIndex, condition: Callable[[FilteredSegment], Mask]) -> Mask:
    return np.concatenate([np.empty(0, np.bool_), *(condition(segment) for segment in index.segments)])


def _rows_with_ids(index: FilteredIndex, ids: tuple[str, ...]) -> Mask:
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


def _check_texts(texts: object, name: str, limit: int) -> None:
    if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{name} are {_shown(texts)}; give a list of texts")
    if len(texts) > limit:
        raise UserError(f"{len(texts):,} {name} are more than the {limit:,} that one filter takes; search in parts")
    if any(len(text) > MAX_CHARACTERS for text in texts):
        raise UserError(f"one of {name} has more than {MAX_CHARACTERS:,} characters; give shorter ones")


def _shown(value: object) -> str:
    """Return an untrusted value for a message, shortened.

    >>> _shown("x" * 1000)
    "'xxxxxxxxxxxx...xxxxxxxxxxxxx'"
    """
    return reprlib.repr(value)
