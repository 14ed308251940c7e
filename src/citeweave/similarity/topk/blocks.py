"""Quick scores of a block of queries by matrix products: the pool is prepared tile by tile, multiplied and sifted.

    pool (680,967 x 128, float16 on disk) -> tile (4,096 x 128, float32, scaled) -> quick scores (queries x 4,096)
    -> per query a little more than the k best positions, with every one that rounding might have put out of order

No copy of the pool is made, only one norm per row. Does not decide ranks: see `settle.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.randomness import stream
from citeweave.similarity.topk.kernels import (
    COSINE,
    DOT,
    L2,
    Doubles,
    Floats,
    Ints,
    Longs,
    as_float32,
    measure,
    numbers_of,
)
from citeweave.similarity.topk.ranks import Ranks
from citeweave.similarity.topk.selection import CHUNK, raise_cuts, sift
from citeweave.threads import share, share_range

TILE = 4096
"""Rows of the pool taken at a time: enough for one product to be worth its start."""

SAMPLE = 16_384
"""Rows of a large pool from which the first cut is guessed; it decides the speed, never the result."""

_UNIT = 2.0**-24
"""Half the distance from 1 to the next float32."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The vectors that are searched. A position counts the rows of the pool; a row is one of the matrix."""

    matrix: NDArray[Any]
    rows: Longs | None
    """The row at each position, ascending; None where every row of the matrix is in the pool."""

    norms: Doubles
    """(size of the pool,)"""

    metric: int
    scale: float
    """What vectors are divided by so that none is longer than 1, where they are not normalised one by one."""

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def width(self) -> int:
        """Numbers in a prepared vector; for the L2 distance one more than in the vector itself."""
        return int(self.matrix.shape[1]) + (self.metric == L2)

    def vectors(self, positions: slice | NDArray[Any]) -> Floats:
        """The vectors at these positions as they are, (number, dimension)."""
        rows = positions if self.rows is None else self.rows[positions]
        return as_float32(self.matrix[rows])

    def fill(self, tile: Floats, positions: slice | Longs) -> int:
        """Prepare the vectors at these positions in the first rows of `tile` (rows, width); returns how many.

        Products with a prepared query are in the order of the scores. For L2, -|q - v|^2 / 2 = q.v - |v|^2 / 2 less
        what is the same for all v: the second term is one more number of v, for which the query has a 1.
        """
        vectors, norms = self.vectors(positions), self.norms[positions]
        dimension = vectors.shape[1]
        tile[: len(vectors), :dimension] = vectors
        factors = inverse(norms if self.metric == COSINE else np.full(len(norms), self.scale))
        _stretch(tile, dimension, factors)
        if self.metric == L2:
            tile[: len(vectors), dimension] = -0.5 * (norms * factors) ** 2
        return len(vectors)

    def prepare(self, queries: Floats, norms: Doubles) -> Floats:
        """Queries for products with tiles, (queries, width)."""
        dimension = queries.shape[1]
        ready = np.ones((len(queries), self.width), np.float32)
        ready[:, :dimension] = queries
        _stretch(ready, dimension, inverse(np.full(len(norms), self.scale) if self.metric == L2 else norms))
        return ready

    def margins(self, norms: Doubles) -> Doubles:
        """Twice the largest error of a quick score, for queries of these norms.

        A product of n float32 numbers of vectors no longer than 1, summed in any order, is wrong by at most n u /
        (1 - n u), u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). 16 u more are for
        the rounding of the vectors, of the exact score and of cuts; L2 has sums up to 2 in place of 1. The second term
        is for exact scores so small that float32 has less digits for them.
        """
        error = 1.01 * (self.matrix.shape[1] + 16) * _UNIT * (2 if self.metric == L2 else 1)
        unit = {COSINE: np.ones(len(norms)), DOT: norms * self.scale, L2: np.full(len(norms), self.scale)}[self.metric]
        margins: Doubles = 2 * (error + 2.0**-147 * inverse(unit))
        return margins


def inverse(values: Doubles) -> Doubles:
    """1 / value, and 0 for 0: a vector of zeros stays one."""
    return np.divide(1.0, values, out=np.zeros(len(values)), where=values > 0)


@njit(cache=True, nogil=True)
def _stretch(vectors: Floats, width: int, factors: Doubles) -> None:
    """Multiply the first `width` numbers of each of the first vectors by its factor, rounding once."""
    for row in range(len(factors)):
        for at in range(width):
            vectors[row, at] = np.float32(vectors[row, at] * factors[row])


def norms_of(matrix: NDArray[Any], rows: Longs | None, what: str, workers: int = 0) -> Doubles:
    """The norm of each vector; a number that is not finite is an error that names its row."""
    size = len(matrix) if rows is None else len(rows)
    norms = np.empty(size)

    def work(part: int) -> None:
        own = slice(part * TILE, min((part + 1) * TILE, size))
        vectors = matrix[own if rows is None else rows[own]]
        if vectors.dtype not in (np.float16, np.float32) or not vectors.flags.c_contiguous:
            vectors = as_float32(vectors)
        measure(numbers_of(vectors), norms[own])

    share(-(-size // TILE), work, workers)
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        row = int(bad[0]) if rows is None else int(rows[bad[0]])
        raise UserError(
            f"row {row} of the {what} holds a number that is not finite ({len(bad):,} such rows); "
            "leave those rows out, or make the vectors again"
        )
    return norms


def check_scores(metric: int, longest: float, longest_query: float) -> None:
    """Scores that float32 cannot hold are an error."""
    score = {COSINE: 1.0, DOT: longest * longest_query, L2: longest + longest_query}[metric]
    if score > float(np.finfo(np.float32).max):
        raise UserError(
            f"vectors as long as {longest:.2g} in the pool and {longest_query:.2g} among the queries have scores that "
            "float32 cannot hold; scale them down"
        )


@dataclass(frozen=True, slots=True)
class Block:
    """Some queries, ready to be compared."""

    vectors: Floats
    """As they came, (queries, dimension)."""

    norms: Doubles
    ready: Floats
    """Prepared for products, (queries, width of the pool)."""

    itself: Ints
    """The query's own position in the pool, or -1."""

    margins: Doubles
    needs: Longs
    """How many ranks the query has: those asked for, or as many as there are."""

    def __len__(self) -> int:
        return len(self.norms)

    def take(self, which: Longs) -> Block:
        """Some of the queries."""
        return Block(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Kept:
    """What a scan leaves: per query, all positions whose quick score is over the cut, in no order."""

    scores: Floats
    positions: Ints
    """(queries, capacity), as `scores`; only the first `counts` of each query count."""

    counts: Longs
    """-1 for a crowded query: more positions are too near to the border than there is room for."""

    cuts: Floats
    ranks: Ranks | None = None
    """The bands' ranks among these positions, where what lies between the bands was left out; None = as asked."""


def capacity_for(k: int, size: int, spare: int = 1024) -> int:
    """Room for one query's candidates when k of a pool of this size are wanted; full, it is cut down to about half."""
    return min(2 * k + spare, size + CHUNK)


class CpuScan:
    """Scans on the CPU. The product runs on numpy's own threads, all else on `workers` threads."""

    def __init__(self, pool: Pool, k: int, block: int, workers: int) -> None:
        self._pool, self._k, self._workers = pool, k, workers
        capacity, height = capacity_for(k, len(pool)), min(TILE, -(-len(pool) // CHUNK) * CHUNK)
        self._tile = np.zeros((height, pool.width), np.float32)
        self._quick = np.empty((block, height), np.float32)
        self._scores = np.empty((block, capacity), np.float32)
        self._positions = np.empty((block, capacity), np.int32)
        self._sample: Longs | None = None
        if len(pool) >= 8 * SAMPLE:
            self._sample = np.sort(stream(0, "first cut").choice(len(pool), SAMPLE, replace=False))

    def scan(self, block: Block, *, guess: bool = True) -> Kept:
        """At least the k best of each query and all within the margin; valid until the next scan.

        A first cut that was guessed may be too high, which `find_windows` notices; without a guess it never is.
        """
        size = len(block)
        counts, cuts = np.zeros(size, np.int64), np.full(size, -np.inf, np.float32)
        kept = Kept(self._scores[:size], self._positions[:size], counts, cuts)
        if guess and self._sample is not None:
            rank = guessed_rank(self._k, SAMPLE, len(self._pool))
            self._walk(block, kept, rank, self._sample)
            share_range(
                size,
                lambda low, high: raise_cuts(rank, block.margins, cuts, counts, kept.scores, low, high),
                self._workers,
            )
        self._walk(block, kept, self._k, None)
        return kept

    def _walk(self, block: Block, kept: Kept, k: int, sample: Longs | None) -> None:
        total = len(self._pool) if sample is None else len(sample)
        itself = block.itself if sample is None else np.full(len(block), -1, np.int32)
        room = capacity_for(k, total, spare=1024 if sample is None else 128)
        quick = self._quick[: len(block)]
        tile = quick.reshape(len(block), -1, CHUNK)
        for start in range(0, total, len(self._tile)):
            part = slice(start, min(start + len(self._tile), total))
            width = self._pool.fill(self._tile, part if sample is None else sample[part])
            np.matmul(block.ready, self._tile.T, out=quick)
            share_range(
                len(block),
                lambda low, high, start=start, width=width: sift(  # type: ignore[misc]
                    tile, start, width, k, room, itself, block.margins, kept.cuts, kept.counts, kept.scores, kept.positions, low, high
                ),
                self._workers,
            )  # fmt: skip


def guessed_rank(k: int, sample: int, size: int) -> int:
    """A rank in a sample that is all but surely behind rank k of the whole: four standard deviations behind.

    >>> guessed_rank(4000, 16_384, 680_967)
    140
    """
    expected = k * sample / size
    return math.ceil(expected + 4 * math.sqrt(expected) + 4)
