"""Filters: which papers of an index a search may return, and what a set of papers is made of.

    where = Filter(years=(2015, None), venues=("NeurIPS", "ICML"))
    filter_rows(index, where)                (size,) bool: live papers from 2015 on of either venue
    facets(index, rows)                      {"years": {2019: 3}, "venues": [{"name": "ICML", "count": 2}], "fields": [...]}

    >>> Filter.from_json({"years": [2015, None], "fields": ["cs.CL"]}).as_json()
    {'years': [2015, None], 'fields': ['cs.CL']}

Every condition must hold; of several venues, fields or ids any one will do. Venues and fields are compared whole, without
regard to case and blanks. A paper whose year is not known is in no range of years. Does not search.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn
from citeweave.corpus.layout import STUB
from citeweave.errors import UserError, choose
from citeweave.search.naming import NamedSegment, fields_of, venues_of

MOST_NAMES, MOST_IDS, LONGEST = 1000, 100_000, 1000
"""Most venues or fields and most ids of one filter; most letters of each."""

FACETS = 50
"""Venues and fields that `facets` names."""

_NAMED = 3
"""Unknown venues or fields that are named."""

Mask = NDArray[np.bool_]


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
