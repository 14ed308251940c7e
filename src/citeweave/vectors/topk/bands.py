"""Rank bands of a top-k search, such as ranks 21 to 25: which ranks are searched, and the neighbors at these ranks.

    bands (20, 25] and (3998, 4000], 256 beside each     ->   columns 0 to 280 and 3,742 to 4,255 of some 6,000
    ranks among the remaining columns                         21 to 25 and 538 to 539

Candidates sorted by approximate score are narrowed by leaving out the same columns for every query, so that ranks shift by
the same number for all. Does not look at scores: the caller has to check that all that a band may hold is within its
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from citeweave.core.errors import UserError
from citeweave.vectors.topk.kernels import Floats, Ints, Longs


@dataclass(frozen=True, slots=True)
class Band:
    """A rank band: the ranks low < rank <= high; ranks count from 1, without the query itself."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise UserError(f"band ({self.low}, {self.high}]: it must be 0 <= low < high, such as (20, 25]")


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The neighbors at the ranks of one band, one line per query, in the order of the ranks."""

    rows: Ints
    """Rows of the matrix, (queries, high - low); -1 where the pool has no vector of that rank."""

    scores: Floats
    """Higher is nearer: cosine, inner product, or minus the L2 distance; NaN where the row is -1."""

    @classmethod
    def empty(cls, queries: int, width: int) -> Neighbors:
        """Return the neighbors of a band that holds none: rows of -1."""
        return cls(np.full((queries, width), -1, np.int32), np.full((queries, width), np.nan, np.float32))


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank bands of a search as arrays: band i has the ranks lows[i] < rank <= highs[i]."""

    lows: Longs
    highs: Longs

    @classmethod
    def of(cls, bands: Sequence[tuple[int, int]]) -> Ranks:
        lows, highs = np.array(bands, np.int64).reshape(-1, 2).T
        return cls(np.ascontiguousarray(lows), np.ascontiguousarray(highs))

    def __len__(self) -> int:
        return len(self.lows)

    @property
    def deepest(self) -> int:
        return int(self.highs.max())

    @property
    def columns(self) -> Longs:
        """Where the columns of each band begin when bands are side by side, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.highs - self.lows)])

    def member_counts(self, depths: Longs) -> Longs:
        """Return how many members each band has for queries with so many ranks, (queries, bands)."""
        members: Longs = np.clip(depths[:, None] - self.lows, 0, self.highs - self.lows)
        return members

    def columns_around(self, beside: int) -> CandidateColumns:
        """Return the columns of sorted candidates that hold the bands and `beside` more on both sides of each."""
        spans: list[ColumnSpan] = []
        for low, high in sorted(zip(self.lows.tolist(), self.highs.tolist(), strict=True)):
            start, stop = max(0, low - beside), high + beside
            if spans and start <= spans[-1].stop:
                start, stop, bands = spans[-1].start, max(stop, spans[-1].stop), spans.pop().bands
            else:
                bands = ()
            spans.append(ColumnSpan(start, stop, (*bands, (low, high))))
        return CandidateColumns(tuple(spans))


class ColumnSpan(NamedTuple):
    """Columns start to stop - 1 of sorted candidates, and the bands within them."""

    start: int
    stop: int
    bands: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CandidateColumns:
    """The columns of sorted candidates that can hold the members of the bands.

    >>> columns = Ranks.of([(20, 25), (3998, 4000)]).columns_around(256)
    >>> [(span.start, span.stop) for span in columns.spans], columns.remaining_ranks(Ranks.of([(3998, 4000)]))
    ([(0, 281), (3742, 4256)], Ranks(lows=array([537]), highs=array([539])))
    """

    spans: tuple[ColumnSpan, ...]
    """Ascending, with columns left out between two spans."""

    def count(self, width: Any) -> Any:
        """Count how many of the first `width` columns these are; for a number or an array of numpy or torch."""
        return sum((width - span.start).clip(0, span.stop - span.start) for span in self.spans)

    def remaining_ranks(self, ranks: Ranks) -> Ranks:
        """Return the ranks of the same candidates when all other columns are removed."""
        return Ranks(self.count(ranks.lows), self.count(ranks.highs))


@dataclass(frozen=True, slots=True)
class BandResults:
    """Positions and scores of the members of all bands side by side, (queries, columns); -1 and NaN where there is none."""

    positions: Ints
    scores: Floats

    @classmethod
    def empty(cls, queries: int, ranks: Ranks) -> BandResults:
        shape = (queries, int(ranks.columns[-1]))
        return cls(np.full(shape, -1, np.int32), np.full(shape, np.nan, np.float32))

    def put(self, which: Longs, other: BandResults) -> None:
        """Replace the band results of some queries."""
        self.positions[which], self.scores[which] = other.positions, other.scores
