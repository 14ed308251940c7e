"""Which rows of a matrix of sentences belong to which papers, and pairs of papers cut into parts that fit into memory.

    >>> papers = PaperRows.of(np.array([0, 2, 5, 6]), np.array([1, -1, 2]))
    >>> papers.lengths.tolist(), papers.rows().tolist()
    ([3, 0, 1], [2, 3, 4, 5])
    >>> list(pieces(np.array([3, 1, 4, 2]), most=5))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]

Only rows and sizes; vectors are read in `transport.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


class PaperRows(NamedTuple):
    """Rows of the matrix by paper: paper i has flat[starts[i]:starts[i] + lengths[i]]."""

    flat: Longs | None
    """None: the rows themselves, so that nothing is copied where papers take part whole."""

    starts: Longs
    lengths: Longs

    @classmethod
    def of(cls, offsets: Longs, papers: NDArray[np.integer[Any]]) -> PaperRows:
        """All rows of the papers; none of paper -1."""
        known = np.maximum(papers, 0)
        starts = offsets[known]
        return cls(None, starts, np.where(papers >= 0, offsets[known + 1] - starts, 0))

    def restricted(self, numbers: NDArray[np.int32], sentences: Sequence[NDArray[np.integer[Any]] | None]) -> PaperRows:
        """Only the rows whose number is wanted; None wants all."""
        assert self.flat is None and len(sentences) == len(self.starts)
        chosen = [np.empty(0, np.int64)]
        for start, length, wanted in zip(self.starts, self.lengths, sentences, strict=True):
            rows = np.arange(start, start + length)
            chosen.append(rows if wanted is None else rows[np.isin(numbers[rows], wanted)])
        lengths = np.array([len(rows) for rows in chosen[1:]], np.int64)
        return PaperRows(np.concatenate(chosen), np.cumsum(lengths) - lengths, lengths)

    def take(self, papers: NDArray[np.int64] | slice) -> PaperRows:
        return PaperRows(self.flat, self.starts[papers], self.lengths[papers])

    def rows(self) -> Longs:
        """Of all papers, one after the other."""
        ends = np.cumsum(self.lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts - ends + self.lengths, self.lengths)
        return places if self.flat is None else self.flat[places]


def pieces(lengths: Longs, most: int) -> Iterator[slice]:
    """Consecutive papers with at most so many sentences together; a longer one is alone."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(start, stop)
        start = stop


def batches(n: Longs, m: Longs, most: int) -> Iterator[Longs]:
    """Positions of pairs of about the same size, the largest first; n x m of a batch with its padding are at most this."""
    order = np.lexsort((m, n))[::-1].copy()  # torch knows no steps backwards
    start = 0
    while start < len(order):
        ahead = order[start : start + most]
        # the widest that the batch may become, the more pairs it has
        each = np.maximum.accumulate(n[ahead]) * np.maximum.accumulate(m[ahead])
        size = max(1, int((np.arange(1, len(ahead) + 1) * each <= most).sum()))
        yield ahead[:size]
        start += size
