"""Ragged rows: lists of different lengths, one after the other in flat arrays.

    lists     [[7, 8], [], [9]]
    values    [7, 8, 9]
    offsets   [0, 2, 2, 3]         row i owns the values offsets[i] to offsets[i + 1]

Functions here turn lengths, offsets and owners into each other. `Ragged` is the base of dataclasses whose first field is
the offsets. Values are the business of those who have them; files with offsets are `core/columns.py`'s.

>>> lists = Ragged(to_offsets([2, 0, 1]))
>>> len(lists), lists.lengths().tolist(), lists.owners().tolist(), lists.span(0)
(3, [2, 0, 1], [0, 0, 2], slice(0, 2, None))
>>> lists.places(np.array([2, 0])).tolist()  # where the values of rows 2 and 0 are
[2, 0, 1]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


def to_offsets(lengths: Sequence[int] | NDArray[Any]) -> Longs:
    """Return the offsets of rows with these lengths, shape (rows + 1,).

    >>> to_offsets([2, 0, 1]).tolist()
    [0, 2, 2, 3]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def owners_of(offsets: NDArray[Any]) -> Longs:
    """Return the row that every value belongs to, shape (values,).

    >>> owners_of(np.array([0, 2, 2, 3])).tolist()
    [0, 0, 2]
    """
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def count_owners(owners: NDArray[Any], rows: int) -> Longs:
    """Return the offsets of rows whose values are sorted by owner, shape (rows + 1,).

    >>> count_owners(np.array([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    return to_offsets(np.bincount(owners, minlength=rows))


def run_offsets(values: NDArray[Any]) -> Longs:
    """Return the offsets of the runs of equal neighbors, shape (runs + 1,).

    >>> run_offsets(np.array([7, 7, 9, 7])).tolist()
    [0, 2, 3, 4]
    """
    starts = np.ones(len(values) + 1, bool)
    starts[1:-1] = values[1:] != values[:-1]
    return np.flatnonzero(starts)


def number_within(lengths: NDArray[Any]) -> Longs:
    """Return for every value of rows with these lengths its number within its row.

    >>> number_within(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return spans(np.zeros(len(lengths), np.int64), lengths)


def spans(starts: NDArray[Any], lengths: NDArray[Any]) -> Longs:
    """Return the places starts[i], starts[i] + 1, ... of every span of values, one span after the other.

    >>> spans(np.array([10, 20]), np.array([2, 3])).tolist()
    [10, 11, 20, 21, 22]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    places: Longs = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
    return places


def split_rows(lengths: NDArray[Any], max_values: int) -> Iterator[slice]:
    """Yield ranges of rows with at most `max_values` values together; a longer row is alone.

    >>> list(split_rows(np.array([3, 1, 4, 6, 2]), 5))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + max_values, side="right")))
        yield slice(start, stop)
        start = stop


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths in flat arrays; classes with values inherit from it."""

    offsets: Longs
    """Shape (rows + 1,): row i owns the values offsets[i] to offsets[i + 1]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self) -> Longs:
        """Return how many values each row has, shape (rows,)."""
        return np.diff(self.offsets)

    def owners(self) -> Longs:
        """Return the row of every value, shape (values,)."""
        return owners_of(self.offsets)

    def span(self, row: int) -> slice:
        """Return where the values of one row are."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def places(self, rows: NDArray[Any]) -> Longs:
        """Return where the values of these rows are, one row after the other."""
        return spans(self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows])
