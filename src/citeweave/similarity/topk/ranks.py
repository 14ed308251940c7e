"""The ranks that are asked for, and which of sorted candidates can hold them.

    bands (20, 25] and (3998, 4000], 256 beside each     ->   columns 0 to 280 and 3,742 to 4,255 of some 6,000
    ranks among what is left                                  21 to 25 and 538 to 539

Candidates that stand in the order of their quick scores are narrowed by leaving out the same columns for every query, so
that ranks move by the same number for all. Does not look at scores: whoever narrows has to check that all that a band may
hold is within its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from citeweave.similarity.topk.kernels import Longs


@dataclass(frozen=True, slots=True)
class Ranks:
    """The bands asked for, as arrays: band i has the ranks lows[i] < rank <= highs[i]."""

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
        """Where each band begins when they stand side by side, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.highs - self.lows)])

    def reach(self, needs: Longs) -> Longs:
        """How many members each band has for queries with so many ranks, (queries, bands)."""
        members: Longs = np.clip(needs[:, None] - self.lows, 0, self.highs - self.lows)
        return members

    def columns_around(self, beside: int) -> Columns:
        """The columns of sorted candidates that hold the bands and so many on both sides of each."""
        spans: list[Span] = []
        for low, high in sorted(zip(self.lows.tolist(), self.highs.tolist(), strict=True)):
            start, stop = max(0, low - beside), high + beside
            if spans and start <= spans[-1].stop:
                start, stop, bands = spans[-1].start, max(stop, spans[-1].stop), spans.pop().bands
            else:
                bands = ()
            spans.append(Span(start, stop, (*bands, (low, high))))
        return Columns(tuple(spans))


class Span(NamedTuple):
    """Columns start to stop - 1, and the bands that lie in them."""

    start: int
    stop: int
    bands: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of sorted candidates.

    >>> columns = Ranks.of([(20, 25), (3998, 4000)]).columns_around(256)
    >>> [(span.start, span.stop) for span in columns.spans], columns.ranks_left(Ranks.of([(3998, 4000)]))
    ([(0, 281), (3742, 4256)], Ranks(lows=array([537]), highs=array([539])))
    """

    spans: tuple[Span, ...]
    """Ascending, with columns left out between any two."""

    def count(self, width: Any) -> Any:
        """How many of the first `width` columns these are; of a number, or of an array of numpy or torch."""
        return sum((width - span.start).clip(0, span.stop - span.start) for span in self.spans)

    def ranks_left(self, ranks: Ranks) -> Ranks:
        """The ranks of the same candidates when all other columns are gone."""
        return Ranks(self.count(ranks.lows), self.count(ranks.highs))
