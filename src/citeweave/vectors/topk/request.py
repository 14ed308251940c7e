"""The checked request of a top-k search: pool, queries, rank bands and metric, and how much memory it may take.

    request = check_request(pool, queries, [Band(20, 25)], metric="cosine")
    plan = plan_memory(request.prepare(), workers=2, memory=512 << 20)      # plan.block = 2048 queries at a time

Does not search: see `engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.executor import available_cores
from citeweave.vectors.topk.bands import Band, Ranks
from citeweave.vectors.topk.blocks import TILE, Pool, QueryBlock, capacity_for, check_scores, norms_of
from citeweave.vectors.topk.codes import Codes
from citeweave.vectors.topk.kernels import COSINE, DOT, L2, Doubles, Flags, Ints, Longs

RESCORED_TOGETHER = 4096
"""Pairs rescored exactly at a time by one thread."""

METRICS = ("cosine", "dot", "l2")
"""Cosine, inner product, minus the Euclidean distance: higher is nearer."""

METRIC_CODES = {"cosine": COSINE, "dot": DOT, "l2": L2}
_MAX_ROWS = 2**31 - 1
_MIN_BLOCK, _MAX_BLOCK = 16, 2048


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A top-k request ready for blocks of queries: the norms of the pool are computed."""

    pool: Pool
    queries: NDArray[Any]
    norms: Doubles
    """(queries,)"""

    itself: Ints
    """The position of each query in the pool, -1 where it is not in it."""

    ranks: Ranks

    def block(self, part: slice) -> QueryBlock:
        """Prepare some of the queries for products with the pool."""
        vectors, norms = np.array(self.queries[part], np.float32, order="C"), self.norms[part]
        depths = np.minimum(self.ranks.deepest, len(self.pool) - (self.itself[part] >= 0))
        ready, margins = self.pool.prepare(vectors, norms), self.pool.margins(norms)
        return QueryBlock(vectors, norms, ready, self.itself[part], margins, depths.astype(np.int64))


@dataclass(frozen=True, slots=True)
class TopkRequest:
    """A top-k request with checked arguments: queries, and the rank bands of a pool to return for each."""

    matrix: NDArray[Any]
    queries: NDArray[Any]
    norms: Doubles
    """(queries,)"""

    itself: Longs
    """The row of each query in the matrix, or -1."""

    bands: tuple[Band, ...]
    metric: int
    pool_rows: Longs | None
    """Only these rows count, ascending; None where all do."""

    allowed: Flags | None
    """(rows of the matrix,) rows that are False do not count; None where all do."""

    codes: Codes | None

    @property
    def deepest(self) -> int:
        return max(band.high for band in self.bands)

    def mask(self) -> Flags | None:
        """Return which rows of the matrix the top-k request searches, (rows,); None where all are."""
        if self.pool_rows is None:
            return self.allowed
        mask = np.zeros(len(self.matrix), np.bool_)
        mask[self.pool_rows] = True if self.allowed is None else self.allowed[self.pool_rows]
        return mask

    def rows(self) -> Longs | None:
        """Return the rows that are searched, ascending; None where all are."""
        if self.allowed is None:
            return self.pool_rows
        return np.flatnonzero(self.allowed) if self.pool_rows is None else self.pool_rows[self.allowed[self.pool_rows]]

    def prepare(self, workers: int = 0) -> PreparedRequest:
        """Prepare the top-k request: compute the norms of the pool; numbers that are not finite are an error."""
        rows = self.rows()
        norms = norms_of(self.matrix, rows, "pool", workers)
        longest, query = float(norms.max(initial=0.0)), float(self.norms.max(initial=0.0))
        check_scores(self.metric, longest, query)
        scale = {COSINE: 1.0, DOT: longest, L2: max(longest, query)}[self.metric]
        pool = Pool(self.matrix, rows, norms, self.metric, scale)
        ranks = Ranks.of([(band.low, band.high) for band in self.bands])
        return PreparedRequest(pool, self.queries, self.norms, _positions(self.itself, rows), ranks)


def check_request(
    pool: NDArray[Any],
    queries: NDArray[Any],
    bands: Sequence[Band],
    *,
    metric: str = "cosine",
    codes: Codes | None = None,
    pool_rows: NDArray[Any] | None = None,
    allowed: NDArray[Any] | None = None,
    itself: NDArray[Any] | None = None,
) -> TopkRequest:
    """Check the request of a top-k search, except for numbers of the pool that are not finite."""
    code = METRIC_CODES[choose(metric, METRICS, "metric")]
    _check_matrix(pool, "pool")
    _check_matrix(queries, "queries")
    if pool.shape[1] != queries.shape[1]:
        raise UserError(
            f"the pool has vectors of {pool.shape[1]} numbers and the queries of {queries.shape[1]}; "
            "embed both with the same model"
        )
    if codes is not None:
        codes.check(pool)
    rows = None if pool_rows is None else _checked_rows(pool_rows, len(pool))
    _check_bands(bands, len(pool) if rows is None else len(rows))
    own = _checked_itself(itself, len(pool), len(queries))
    norms = norms_of(queries, None, "queries")
    mask = None if allowed is None else _checked_mask(allowed, len(pool))
    return TopkRequest(pool, queries, norms, own, tuple(bands), code, rows, mask, codes)


def _check_bands(bands: Sequence[Band], size: int) -> None:
    if not size:
        raise UserError("the pool is empty; give at least one vector to search in")
    if not bands:
        raise UserError("there is no band; give at least one, such as (0, 10]")
    for band in bands:
        if band.high > size:
            raise UserError(
                f"band ({band.low}, {band.high}] ends beyond the pool of {size:,} vectors; choose a smaller one"
            )


def _checked_mask(allowed: NDArray[Any], size: int) -> Flags:
    mask = np.asarray(allowed)
    if mask.shape != (size,) or mask.dtype != np.bool_:
        raise UserError(
            f"allowed has the shape {mask.shape} and type {mask.dtype}; it must be one bool per row, ({size:,},)"
        )
    return mask


def _check_matrix(matrix: NDArray[Any], what: str) -> None:
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or not matrix.shape[1]:
        raise UserError(
            f"the {what} of shape {matrix.shape} and type {matrix.dtype}: it must be a matrix of floating-point "
            "numbers, one vector per row"
        )
    if len(matrix) > _MAX_ROWS:
        raise UserError(f"the {what} of {len(matrix):,} rows: at most {_MAX_ROWS:,} can be searched; split it")


def _checked_rows(rows: NDArray[Any], limit: int) -> Longs:
    checked = _integers(rows, "pool_rows").astype(np.int64)
    if len(checked) and not 0 <= checked.min() <= checked.max() < limit:
        raise UserError(
            f"pool_rows reaches from {checked.min()} to {checked.max()}; the matrix has the rows 0 to {limit - 1}"
        )
    wrong = np.flatnonzero(np.diff(checked) <= 0)
    if len(wrong):
        one, other = checked[wrong[0]], checked[wrong[0] + 1]
        raise UserError(f"pool_rows must ascend, but {other} follows {one}; sort it and take each row once")
    return checked


def _checked_itself(itself: NDArray[Any] | None, limit: int, queries: int) -> Longs:
    if itself is None:
        return np.full(queries, -1, np.int64)
    own = _integers(itself, "itself")
    if len(own) != queries:
        raise UserError(f"itself has {len(own):,} rows for {queries:,} queries; give one per query, -1 for none")
    if len(own) and not -1 <= own.min() <= own.max() < limit:
        raise UserError(
            f"itself reaches from {own.min()} to {own.max()}; it must be -1 or one of the rows 0 to {limit - 1}"
        )
    return own.astype(np.int64)


def _positions(itself: Longs, rows: Longs | None) -> Ints:
    """Return the positions of rows in the pool, -1 where they are not in it."""
    if rows is None or not len(rows):
        return itself.astype(np.int32)
    at = np.minimum(np.searchsorted(rows, itself), len(rows) - 1)
    return np.where(rows[at] == itself, at, -1).astype(np.int32)


def _integers(values: NDArray[Any], what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise UserError(f"{what} of shape {array.shape} and type {array.dtype}: it must be a list of row numbers")
    return array


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How many queries and candidates of a top-k request are handled at once."""

    block: int
    """Queries compared at a time."""

    room: int
    """Candidates held at a time to be rescored."""

    workers: int


def plan_memory(request: PreparedRequest, *, workers: int, memory: int) -> MemoryPlan:
    """Plan a top-k request: the largest block of queries that fits into `memory` bytes, without arguments and results.

    Every worker has its own memory, more for longer vectors; where that does not fit there are fewer workers.
    """
    workers = workers or available_cores()
    size, width, bands = len(request.pool), request.pool.width, len(request.ranks)
    capacity, queries = capacity_for(request.ranks.deepest, size), len(request.queries)
    # a candidate to be rescored takes 4 (position) + 8 (its query) + 8 bytes (its key)
    room = max(memory // 8 // 20, bands * capacity)
    tile = 4 * min(TILE, size) * width
    fixed, a_worker = 8 * (size + queries) + 2 * tile, 4 * capacity + 8 * RESCORED_TOGETHER * width
    each = 8 * capacity + 4 * min(TILE, size) + 12 * width + 48 * bands + 8 * int(request.ranks.columns[-1]) + 64
    smallest = min(_MIN_BLOCK, queries)
    workers = max(1, min(workers, (memory - fixed - 20 * room - smallest * each) // a_worker))
    fixed += workers * a_worker
    block = min((memory - fixed - 20 * room) // each, _MAX_BLOCK, max(queries, 1))
    if block < smallest:
        # an eighth of the memory, or what one query may need, is for candidates
        minimum = max((fixed + smallest * each) * 8 // 7, fixed + smallest * each + 20 * bands * capacity) + 64
        raise UserError(
            f"memory is {memory:,} bytes; {queries:,} queries in {size:,} vectors need at least {minimum:,} "
            f"({-(-minimum >> 20)} MiB); give that much memory"
        )
    return MemoryPlan(int(block), room, workers)
