"""Approximate scores of a block of queries by matrix products, on the CPU or a GPU: candidates of a top-k search.

    pool (680,967 x 128, float16 on disk) -> tile (4,096 x 128, float32, scaled) -> scores (queries x 4,096)
    -> per query a little more than the k best positions, with every one that rounding might have put out of order

    CpuScan(pool, k=4000, block=2048, workers=8).scan(block)       numpy
    TorchScan(pool, k=4000, device="cuda").scan(block)             the same candidates with torch, mostly on a GPU

No copy of the pool is made, only one norm per row. In a large pool, a sample gives each query's cut, and of every tile only
what is above the cut is kept, some thousands of a million. On a GPU, where bands hold only a few of these, the others stay
on the device (`_narrowed`), and a query whose cut was guessed too high keeps the best of every tile instead.

Does not decide ranks: exact scores do, in `engine.py`, so the device makes no difference. Does not use TF32 or half
precision: their errors are larger than the margin of an approximate score. Torch is imported when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.executor import run_in_threads, run_range_in_threads
from citeweave.core.randomness import stream
from citeweave.vectors.topk.bands import CandidateColumns, Ranks
from citeweave.vectors.topk.kernels import (
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
from citeweave.vectors.topk.scan_kernels import CHUNK, filter_tile, raise_cuts

TILE = 4096
"""Rows of the pool in one matrix product on the CPU."""

SAMPLE = 16_384
"""Rows of a large pool from which the first cut is guessed; changes the speed, never the result."""

GPU_TILE = 65_536
"""Rows of the pool in one matrix product on a GPU."""

BESIDE = 256
"""Candidates kept on both sides of a band; fewer are within the margin of its borders, unless vectors repeat."""

RESIDENT = 8 << 30
"""A pool of at most so many bytes as float32 stays on the GPU from block to block."""

_UNIT = 2.0**-24
"""Half the distance from 1 to the next float32."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of vectors that blocks of queries are compared with; a position counts in the pool, a row in the matrix."""

    matrix: NDArray[Any]
    rows: Longs | None
    """The row at each position, ascending; None where every row of the matrix is in the pool."""

    norms: Doubles
    """(size of the pool,)"""

    metric: int
    scale: float
    """Vectors are divided by this so that none is longer than 1, where they are not normalized one by one."""

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def width(self) -> int:
        """The length of a prepared vector; for the L2 distance one more than of the vector itself."""
        return int(self.matrix.shape[1]) + (self.metric == L2)

    def vectors(self, positions: slice | NDArray[Any]) -> Floats:
        """Return the pool's vectors at these positions as float32, (positions, dimension)."""
        rows = positions if self.rows is None else self.rows[positions]
        return as_float32(self.matrix[rows])

    def fill(self, tile: Floats, positions: slice | Longs) -> int:
        """Prepare a block of vectors, at these positions, in the first rows of `tile` (rows, width); return how many.

        Products with a prepared query have the order of the scores. For L2, -|q - v|^2 / 2 = q.v - |v|^2 / 2 less
        what is the same for all v; the second term is an additional number of v, for which the query has a 1.
        """
        vectors, norms = self.vectors(positions), self.norms[positions]
        dimension = vectors.shape[1]
        tile[: len(vectors), :dimension] = vectors
        factors = inverse(norms if self.metric == COSINE else np.full(len(norms), self.scale))
        _scale(tile, dimension, factors)
        if self.metric == L2:
            tile[: len(vectors), dimension] = -0.5 * (norms * factors) ** 2
        return len(vectors)

    def prepare(self, queries: Floats, norms: Doubles) -> Floats:
        """Prepare a block of queries for matrix products with tiles of the pool, (queries, width)."""
        dimension = queries.shape[1]
        ready = np.ones((len(queries), self.width), np.float32)
        ready[:, :dimension] = queries
        _scale(ready, dimension, inverse(np.full(len(norms), self.scale) if self.metric == L2 else norms))
        return ready

    def margins(self, norms: Doubles) -> Doubles:
        """Return twice the largest error of approximate scores for a block of queries of these norms.

        A product of n float32 numbers of vectors no longer than 1, summed in any order, is wrong by at most n u /
        (1 - n u), u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). 16 u more are for
        the rounding of the vectors, of the exact score and of cuts; L2 has sums up to 2 in place of 1. The second term
        is for exact scores so small that float32 has fewer digits for them.
        """
        error = 1.01 * (self.matrix.shape[1] + 16) * _UNIT * (2 if self.metric == L2 else 1)
        unit = {COSINE: np.ones(len(norms)), DOT: norms * self.scale, L2: np.full(len(norms), self.scale)}[self.metric]
        margins: Doubles = 2 * (error + 2.0**-147 * inverse(unit))
        return margins


def inverse(values: Doubles) -> Doubles:
    """Return 1 / value, and 0 for 0, so that a vector of zeros stays zero when scaled."""
    return np.divide(1.0, values, out=np.zeros(len(values)), where=values > 0)


@njit(cache=True, nogil=True)
def _scale(vectors: Floats, width: int, factors: Doubles) -> None:
    """Multiply the first `width` numbers of each vector by its factor, rounding once."""
    for row in range(len(factors)):
        for at in range(width):
            vectors[row, at] = np.float32(vectors[row, at] * factors[row])


def norms_of(matrix: NDArray[Any], rows: Longs | None, what: str, workers: int = 0) -> Doubles:
    """Return each vector's norm, block by block; a number that is not finite is an error that names its row."""
    size = len(matrix) if rows is None else len(rows)
    norms = np.empty(size)

    def work(part: int) -> None:
        own = slice(part * TILE, min((part + 1) * TILE, size))
        vectors = matrix[own if rows is None else rows[own]]
        if vectors.dtype not in (np.float16, np.float32) or not vectors.flags.c_contiguous:
            vectors = as_float32(vectors)
        measure(numbers_of(vectors), norms[own])

    run_in_threads(-(-size // TILE), work, workers)
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        row = int(bad[0]) if rows is None else int(rows[bad[0]])
        raise UserError(
            f"row {row} of the {what} holds a number that is not finite ({len(bad):,} such rows); "
            "leave those rows out, or make the vectors again"
        )
    return norms


def check_scores(metric: int, longest: float, longest_query: float) -> None:
    """Refuse vectors so long that their scores overflow float32."""
    score = {COSINE: 1.0, DOT: longest * longest_query, L2: longest + longest_query}[metric]
    if score > float(np.finfo(np.float32).max):
        raise UserError(
            f"vectors as long as {longest:.2g} in the pool and {longest_query:.2g} among the queries have scores that "
            "overflow float32; scale them down"
        )


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """A block of queries prepared for matrix products with the pool."""

    vectors: Floats
    """The original vectors, (queries, dimension)."""

    norms: Doubles
    ready: Floats
    """Prepared for products, (queries, width of the pool)."""

    itself: Ints
    """The query's own position in the pool, or -1."""

    margins: Doubles
    depths: Longs
    """The deepest rank of each query: that of the bands, or the size of the pool."""

    def __len__(self) -> int:
        return len(self.norms)

    def take(self, which: Longs) -> QueryBlock:
        """Return some of the prepared queries."""
        return QueryBlock(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class KeptCandidates:
    """The candidates of a block of queries: per query, all positions whose approximate score is above the cut, unordered."""

    scores: Floats
    positions: Ints
    """(queries, capacity), as `scores`; only the first `counts` of each query are valid."""

    counts: Longs
    """-1 for an overflowing query: more positions are within the margin of the border than there is room for."""

    cuts: Floats
    ranks: Ranks | None = None
    """The bands' ranks among these positions, where positions between the bands were left out; None = unchanged."""


def capacity_for(k: int, size: int, spare: int = 1024) -> int:
    """Return the room for a query's candidates in a search of the k best; when full, it is cut down to about half."""
    return min(2 * k + spare, size + CHUNK)


class CpuScan:
    """Scans a pool for blocks of queries on the CPU: the product on numpy's threads, all else on `workers` threads."""

    def __init__(self, pool: Pool, k: int, block: int, workers: int) -> None:
        self._pool, self._k, self._workers = pool, k, workers
        capacity, height = capacity_for(k, len(pool)), min(TILE, -(-len(pool) // CHUNK) * CHUNK)
        self._tile = np.zeros((height, pool.width), np.float32)
        self._products = np.empty((block, height), np.float32)
        self._scores = np.empty((block, capacity), np.float32)
        self._positions = np.empty((block, capacity), np.int32)
        self._sample: Longs | None = None
        if len(pool) >= 8 * SAMPLE:
            self._sample = np.sort(stream(0, "first cut").choice(len(pool), SAMPLE, replace=False))

    def scan(self, block: QueryBlock, *, guess: bool = True) -> KeptCandidates:
        """Return at least the k best candidates of a block's queries and all within the margin; valid until the next.

        A guessed first cut may be too high, which `find_windows` detects; without a guess it never is.
        """
        size = len(block)
        counts, cuts = np.zeros(size, np.int64), np.full(size, -np.inf, np.float32)
        kept = KeptCandidates(self._scores[:size], self._positions[:size], counts, cuts)
        if guess and self._sample is not None:
            rank = guessed_rank(self._k, SAMPLE, len(self._pool))
            self._walk(block, kept, rank, self._sample)
            run_range_in_threads(
                size,
                lambda low, high: raise_cuts(rank, block.margins, cuts, counts, kept.scores, low, high),
                self._workers,
            )
        self._walk(block, kept, self._k, None)
        return kept

    def _walk(self, block: QueryBlock, kept: KeptCandidates, k: int, sample: Longs | None) -> None:
        total = len(self._pool) if sample is None else len(sample)
        itself = block.itself if sample is None else np.full(len(block), -1, np.int32)
        room = capacity_for(k, total, spare=1024 if sample is None else 128)
        approximate = self._products[: len(block)]
        tile = approximate.reshape(len(block), -1, CHUNK)
        for start in range(0, total, len(self._tile)):
            part = slice(start, min(start + len(self._tile), total))
            width = self._pool.fill(self._tile, part if sample is None else sample[part])
            np.matmul(block.ready, self._tile.T, out=approximate)
            run_range_in_threads(
                len(block),
                lambda low, high, start=start, width=width: filter_tile(  # type: ignore[misc]
                    tile, start, width, k, room, itself, block.margins, kept.cuts, kept.counts, kept.scores, kept.positions, low, high
                ),
                self._workers,
            )  # fmt: skip


def guessed_rank(k: int, sample: int, size: int) -> int:
    """Return a rank in a sample that is almost certainly beyond rank k of the pool: four standard deviations.

    >>> guessed_rank(4000, 16_384, 680_967)
    140
    """
    expected = k * sample / size
    return math.ceil(expected + 4 * math.sqrt(expected) + 4)


def has_cuda() -> bool:
    """Return whether torch is installed and finds a GPU."""
    return find_spec("torch") is not None and bool(require("torch", extra="minilm").cuda.is_available())


class TorchScan:
    """Scans a pool for blocks of queries with torch, on a GPU or any other device."""

    def __init__(
        self,
        pool: Pool,
        k: int,
        device: str,
        *,
        ranks: Ranks | None = None,
        tile: int = GPU_TILE,
        sample: int = SAMPLE,
        beside: int = BESIDE,
    ) -> None:
        """Prepare to scan for the k best of each query, or for these ranks, of which k is the deepest."""
        self._torch = require("torch", extra="minilm")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("device is 'cuda', but torch finds no GPU; use device 'cpu' or 'auto'")
        self._pool, self._k, self._device, self._height = pool, k, device, tile
        # with room for those within the margin; a query with more of them is not proved and is scanned again
        self._wanted = min(k + max(64, k // 32), len(pool))
        self._tiles: dict[int, Any] = {}
        self._ranks, self._beside = ranks, beside
        self._rank = guessed_rank(k, sample, len(pool))
        self._sample = self._sampled(sample) if len(pool) >= 8 * sample >= 8 * self._rank else None

    def scan(self, block: QueryBlock, *, guess: bool = True) -> KeptCandidates:
        """Return the k best candidates of a block and some more; `find_windows` detects a cut guessed too high."""
        torch = self._torch
        with self._full_precision(), torch.inference_mode():
            queries = torch.from_numpy(block.ready).to(self._device)  # (queries, width)
            itself = torch.from_numpy(block.itself).to(self._device, torch.int64)
            if not guess or self._sample is None:
                return self._best(queries, itself)
            best = torch.topk(queries @ self._sample.T, self._rank).values[:, -1].cpu().numpy()
            cuts = (best - block.margins).astype(np.float32)  # (queries,)
            return self._above(queries, itself, cuts, block)

    def _best(self, queries: Any, itself: Any) -> KeptCandidates:
        """Return the best candidates of every tile, merged."""
        torch = self._torch
        scores = torch.empty((len(queries), 0), device=self._device)
        positions = torch.empty((len(queries), 0), device=self._device, dtype=torch.int64)
        for start, approximate in self._products(queries, itself):
            best, at = torch.topk(approximate, min(self._wanted, approximate.shape[1]), sorted=False)
            scores, positions = torch.cat([scores, best], 1), torch.cat([positions, at + start], 1)
            if scores.shape[1] > self._wanted:
                scores, at = torch.topk(scores, self._wanted, sorted=False)
                positions = positions.gather(1, at)
        scores, order = torch.sort(scores, descending=True)
        return self._kept(scores, positions.gather(1, order))

    def _above(self, queries: Any, itself: Any, cuts: Floats, block: QueryBlock) -> KeptCandidates:
        """Return all candidates above the cuts; a query with more of them than there is room for overflows."""
        torch, size = self._torch, len(queries)
        limits, room = torch.from_numpy(cuts).to(self._device)[:, None], capacity_for(self._k, len(self._pool))
        # one additional cell, for what does not fit
        scores = torch.full((size * room + 1,), -torch.inf, device=self._device)
        positions = torch.empty(size * room + 1, device=self._device, dtype=torch.int32)
        counts = torch.zeros(size, device=self._device, dtype=torch.int64)
        for start, approximate in self._products(queries, itself):
            row, at = torch.nonzero(approximate > limits, as_tuple=True)  # row after row
            added = torch.bincount(row, minlength=size)
            firsts = torch.cumsum(added, 0) - added
            place = torch.arange(len(row), device=self._device) - firsts[row] + counts[row]
            cell = torch.where(place < room, row * room + place, size * room)
            scores[cell], positions[cell] = approximate[row, at], (at + start).to(torch.int32)
            counts += added
        counts = torch.where(counts > room, -1, counts)
        width = max(1, int(counts.max())) if size else 1
        best, where = (values[:-1].view(size, room)[:, :width] for values in (scores, positions))
        if self._ranks is not None and (block.depths == self._k).all() and width >= self._k:
            columns = self._ranks.columns_around(self._beside)
            if 2 * int(columns.count(np.int64(width))) <= width:
                return self._narrowed(best, where, counts, cuts, block, columns)
        kept_scores, kept_positions, kept = (values.contiguous().cpu().numpy() for values in (best, where, counts))
        return KeptCandidates(kept_scores, kept_positions, kept, cuts)

    def _narrowed(
        self, best: Any, where: Any, counts: Any, cuts: Floats, block: QueryBlock, columns: CandidateColumns
    ) -> KeptCandidates:
        """Return only the columns around the bands, of candidates sorted by score (queries, width).

        By `find_windows`, a member of the band of ranks a to b has an approximate score from q_b - m to q_a + m. So nothing of
        a band is lost if the first of its columns is above q_a + m and the last below q_b - m: what was left out is
        farther away still. A query for which that does not hold counts as overflowing.
        """
        assert self._ranks is not None
        torch, width = self._torch, best.shape[1]
        best, order = torch.sort(best, dim=1, descending=True)
        margins, complete = torch.from_numpy(block.margins).to(self._device), counts >= 0  # (queries,)
        for start, stop, bands in columns.spans:
            for low, high in bands:
                if start:
                    complete &= best[:, start].double() > best[:, low].double() + margins
                if stop < width:
                    complete &= best[:, stop - 1].double() < best[:, high - 1].double() - margins
        left = torch.cat(
            [torch.arange(span.start, min(span.stop, width), device=self._device) for span in columns.spans]
        )
        kept = torch.where(complete, columns.count(counts), -1)
        scores, at, kept = (values.cpu().numpy() for values in (best[:, left], where.gather(1, order[:, left]), kept))
        return KeptCandidates(scores, at, kept, cuts, columns.remaining_ranks(self._ranks))

    def _products(self, queries: Any, itself: Any) -> Iterator[tuple[int, Any]]:
        """Yield where each tile of the pool begins, and the approximate scores of its rows, (queries, rows of the tile)."""
        torch = self._torch
        for start in range(0, len(self._pool), self._height):
            approximate = queries @ self._tile(start).T
            mine = torch.nonzero((itself >= start) & (itself < start + approximate.shape[1]))[:, 0]
            approximate[mine, itself[mine] - start] = -torch.inf
            yield start, approximate

    def _kept(self, scores: Any, positions: Any) -> KeptCandidates:
        kept = np.ascontiguousarray(scores.cpu().numpy())
        at = np.ascontiguousarray(positions.cpu().numpy(), np.int32)
        is_complete = kept.shape[1] == len(self._pool)
        cuts = np.full(len(kept), -np.inf, np.float32) if is_complete else kept[:, -1].copy()
        return KeptCandidates(kept, at, np.isfinite(kept).sum(axis=1), cuts)

    def _sampled(self, size: int) -> Any:
        chosen = np.sort(stream(0, "first cut").choice(len(self._pool), size, replace=False))
        ready = np.empty((size, self._pool.width), np.float32)
        self._pool.fill(ready, chosen)
        return self._torch.from_numpy(ready).to(self._device)

    def _tile(self, start: int) -> Any:
        if start not in self._tiles:
            size = min(self._height, len(self._pool) - start)
            tile = np.empty((size, self._pool.width), np.float32)
            self._pool.fill(tile, slice(start, start + size))
            ready = self._torch.from_numpy(tile).to(self._device)
            if 4 * len(self._pool) * self._pool.width > RESIDENT:
                return ready
            self._tiles[start] = ready
        return self._tiles[start]

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        before = self._torch.get_float32_matmul_precision()
        self._torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            self._torch.set_float32_matmul_precision(before)
