"""Filters as conditions that databases understand: whole numbers only, long lists of ids in blocks.

    >>> expression(Conditions(first_year=2015, keys=(3, 5)), Spelling("({})", "array_has_any"))
    'year >= 2015 and key in (3,5)'

    >>> [(part.first_key, part.last_key, part.not_keys) for part in in_blocks(Conditions(not_keys=(7, 3, 5)), block=2)]
    [(None, 5, (3, 5)), (6, None, (7,))]

The parts that `in_blocks` gives have no paper in common, and together they have all: the best of a search are the best of
its parts. A database takes some 30 microseconds for each id of such a list; the index itself has masks and takes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from citeweave.search.filters import Filter
from citeweave.search.stores.protocol import Conditions, name_keys, store_keys

BLOCK = 5000
"""Ids in one expression."""


class Spelling(NamedTuple):
    """How two databases differ."""

    numbers: str
    """A list of numbers behind `in`, with {} for them."""

    any_of: str
    """The function that tells whether an array holds any of some numbers."""


def conditions_of(where: Filter | None) -> Conditions | None:
    """None where no paper can fulfil the filter."""
    if where is None:
        return Conditions()
    first, last = where.years
    if (first is not None or last is not None) and not first:
        first = 1  # 0 stands for an unknown year, which is in no range
    keys, not_keys = set(store_keys(where.ids).tolist()), set(store_keys(where.not_ids).tolist())
    if where.ids:
        keys, not_keys = keys - not_keys, set()
        if not keys:
            return None
    return Conditions(
        first_year=first,
        last_year=last,
        venues=tuple(name_keys(where.venues)),
        fields=tuple(name_keys(where.fields)),
        keys=tuple(sorted(keys)),
        not_keys=tuple(sorted(not_keys)),
        has_abstract=where.has_abstract,
        stub=None if where.local is None else not where.local,
    )


def in_blocks(asked: Conditions, *, block: int = BLOCK) -> Iterator[Conditions]:
    """Conditions with at most `block` ids each, whose papers together are those asked for."""
    if len(asked.keys) > block:
        for start in range(0, len(asked.keys), block):
            yield asked._replace(keys=asked.keys[start : start + block])
    elif len(asked.not_keys) > block:
        keys = np.sort(np.array(asked.not_keys, np.int64))
        starts = range(0, len(keys), block)
        for start in starts:
            left_out = keys[start : start + block].tolist()
            first = None if start == 0 else int(keys[start - 1]) + 1
            last = None if start == starts[-1] else left_out[-1]
            yield asked._replace(not_keys=tuple(left_out), first_key=first, last_key=last)
    else:
        yield asked


def expression(asked: Conditions, spelling: Spelling) -> str:
    """One block of conditions as a text, empty where there are none; made of numbers and our own words only."""
    parts = [
        f"{column} {sign} {int(value)}"
        for column, sign, value in (
            ("year", ">=", asked.first_year),
            ("year", "<=", asked.last_year),
            ("key", ">=", asked.first_key),
            ("key", "<=", asked.last_key),
        )
        if value is not None
    ]
    for column, wanted in (("has_abstract", asked.has_abstract), ("stub", asked.stub)):
        if wanted is not None:
            parts.append(f"{column} in {spelling.numbers.format(int(wanted))}")
    for column, names in (("venue_keys", asked.venues), ("field_keys", asked.fields)):
        if names:
            parts.append(f"{spelling.any_of}({column}, [{_listed(names)}])")
    if asked.keys:
        parts.append(f"key in {spelling.numbers.format(_listed(asked.keys))}")
    if asked.not_keys:
        parts.append(f"key not in {spelling.numbers.format(_listed(asked.not_keys))}")
    return " and ".join(parts)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(str(int(number)) for number in numbers)
