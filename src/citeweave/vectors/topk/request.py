"""From kept candidates to ranks: score exactly what is near the borders of the bands, and put it in order.

    band of ranks 3999 and 4000: 3,997 candidates are surely better, 6 may be members -> 6 exact scores, not 4,000

Order is by exact score, the highest first, then by row, the lowest first. Does not search: see `blocks.py` and `gpu.py`.

What is asked of a top-k search, checked before any work: pool, queries, bands; and how much memory it may take.

    request = check_request(pool, queries, [Band(20, 25)], metric="cosine")
    plan = plan_for(request.question(), workers=2, memory=512 << 20)      # plan.block = 2048 queries at a time

Does not search; see `engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.executor import cores, share_range
from citeweave.vectors.topk.blocks import (
    TILE,
    KeptCandidates,
    Pool,
    QueryBlock,
    capacity_for,
    check_scores,
    norms_of,
)
from citeweave.vectors.topk.codes import Codes
from citeweave.vectors.topk.kernels import (
    COSINE,
    DOT,
    L2,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    Ranks,
    exact_score,
    key,
    row_of,
    score_of,
)
from citeweave.vectors.topk.scan_kernels import collect, find_windows

TOGETHER = 4096
"""Pairs scored exactly at a time by one thread."""


@dataclass(frozen=True, slots=True)
class BandResults:
    """Positions and scores of all bands side by side, (queries, columns); -1 and NaN where there is nothing."""

    positions: Ints
    scores: Floats

    @classmethod
    def empty(cls, queries: int, ranks: Ranks) -> BandResults:
        shape = (queries, int(ranks.columns[-1]))
        return cls(np.full(shape, -1, np.int32), np.full(shape, np.nan, np.float32))

    def put(self, which: Longs, other: BandResults) -> None:
        """Take over the lines of some queries."""
        self.positions[which], self.scores[which] = other.positions, other.scores


@dataclass(frozen=True, slots=True)
class Settler:
    """Finds the members of bands among candidates; `room` is how many may be held to be scored again."""

    pool: Pool
    ranks: Ranks
    workers: int
    room: int

    def settle(self, block: QueryBlock, kept: KeptCandidates) -> tuple[BandResults, Flags]:
        """The members of the bands, and of which queries they are sure; the lines of the others are empty."""
        size, bands = len(block), len(self.ranks)
        ranks = kept.ranks or self.ranks
        needs = np.minimum(block.needs, ranks.deepest)
        edges, sure = np.full((size, bands, 2), np.inf), np.zeros(size, np.bool_)
        above, sizes = np.zeros((size, bands), np.int64), np.zeros((size, bands), np.int64)
        steps = np.unique(np.concatenate([ranks.lows + 1, ranks.highs]))[::-1].copy()
        at = np.stack([np.searchsorted(-steps, -ranks.lows - 1), np.searchsorted(-steps, -ranks.highs)], axis=1)
        share_range(
            size,
            lambda low, high: find_windows(
                kept.scores, kept.counts, kept.cuts, block.margins, needs, steps, at, edges, above, sizes, sure, low, high
            ),
            self.workers,
        )  # fmt: skip
        take = np.where(sure[:, None], self.ranks.reach(block.needs), 0)
        skip = ranks.lows - above
        assert np.all((take == 0) | ((skip >= 0) & (skip + take <= sizes))), "a member is outside its window"
        placed = BandResults.empty(size, self.ranks)
        for part in self._parts(sizes):
            members = self._members(kept, edges, sizes, part)
            keys = self._keys(block, np.repeat(np.arange(part.start, part.stop), sizes[part].sum(axis=1)), members)
            self._place(keys, sizes, skip, take, part, placed)
        return placed, sure

    def exhaust(self, block: QueryBlock) -> BandResults:
        """The same by exact scores of the whole pool: for the few queries with more ties than a scan can hold."""
        size = len(block)
        # to a vector of zeros all are equal, and the first rows are the nearest
        alike = (block.norms == 0) & (self.pool.metric != L2)
        best: list[Keys] = [np.empty(0, np.uint64) for _ in range(size)]
        for start in range(0, len(self.pool), TILE):
            found = np.arange(start, min(start + TILE, len(self.pool)), dtype=np.int32)
            for query in np.flatnonzero(~alike | (block.needs >= start)).tolist():
                others = found[found != block.itself[query]]
                keys = np.concatenate([best[query], self._keys(block, np.full(len(others), query), others)])
                need = int(block.needs[query])
                best[query] = np.partition(keys, need - 1)[:need] if need < len(keys) else keys
        placed = BandResults.empty(size, self.ranks)
        take = self.ranks.reach(block.needs)
        for query in range(size):
            part = slice(query, query + 1)
            keys = np.tile(best[query], len(self.ranks))
            sizes = np.full((size, len(self.ranks)), len(best[query]))
            self._place(keys, sizes, np.broadcast_to(self.ranks.lows, take.shape), take, part, placed)
        return placed

    def _parts(self, sizes: Longs) -> Iterator[slice]:
        """Ranges of queries whose windows fit into the room, at least one query each."""
        ends, start = np.cumsum(sizes.sum(axis=1)), 0
        while start < len(sizes):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + self.room, side="right")))
            yield slice(start, stop)
            start = stop

    def _members(self, kept: KeptCandidates, edges: Doubles, sizes: Longs, part: slice) -> Ints:
        ends = np.cumsum(sizes[part])  # (queries * bands,)
        members = np.empty(int(ends[-1]), np.int32)
        scores, positions, counts = kept.scores[part], kept.positions[part], np.maximum(kept.counts[part], 0)
        share_range(
            len(counts),
            lambda low, high: collect(scores, positions, counts, edges[part], ends, members, low, high),
            self.workers,
        )
        return members

    def _keys(self, block: QueryBlock, owners: Longs, members: Ints) -> Keys:
        keys = np.empty(len(members), np.uint64)

        def score(low: int, high: int) -> None:
            for start in range(low, high, TOGETHER):
                part = slice(start, min(start + TOGETHER, high))
                found = members[part]
                vectors, norms = self.pool.vectors(found), self.pool.norms[found]
                _rescore(block.vectors, block.norms, owners[part], vectors, norms, found, self.pool.metric, keys[part])

        share_range(len(members), score, self.workers)
        return keys

    def _place(self, keys: Keys, sizes: Longs, skip: Longs, take: Longs, part: slice, placed: BandResults) -> None:
        ends, columns = np.cumsum(sizes[part]), self.ranks.columns[:-1].copy()
        positions, scores = placed.positions[part], placed.scores[part]
        skip, take = np.ascontiguousarray(skip[part]), np.ascontiguousarray(take[part])
        share_range(
            len(positions),
            lambda low, high: _place(keys, ends, skip, take, columns, positions, scores, low, high),
            self.workers,
        )


@njit(cache=True, nogil=True)
def _rescore(
    queries: Floats,
    norms: Doubles,
    owners: Longs,
    vectors: Floats,
    lengths: Doubles,
    found: Ints,
    metric: int,
    out: Keys,
) -> None:
    """The keys of pairs: query `owners[i]` with `vectors[i]`, of length `lengths[i]`, at the position `found[i]`."""
    for at in range(len(owners)):
        own = owners[at]
        score = exact_score(queries[own], vectors[at], norms[own] * lengths[at], metric)
        out[at] = key(score, found[at])


@njit(cache=True, nogil=True)
def _place(
    keys: Keys,
    ends: Longs,
    skip: Longs,
    take: Longs,
    columns: Longs,
    positions: Ints,
    scores: Floats,
    low: int,
    high: int,
) -> None:
    """Sort each window and write its members `skip` to `skip + take` to the columns of its band.

    `skip` and `take` are (queries, bands), `columns` says where the band begins in `positions` and `scores`
    (queries, columns).
    """
    bands = len(columns)
    for query in range(low, high):
        for band in range(bands):
            window = query * bands + band
            members = keys[ends[window - 1] if window else 0 : ends[window]]
            if take[query, band]:
                members.sort()
            for at in range(take[query, band]):
                one = members[skip[query, band] + at]
                scores[query, columns[band] + at] = score_of(one)
                positions[query, columns[band] + at] = row_of(one)


# What is asked of a top-k search, checked before any work: pool, queries, bands; and how much memory it may take.

METRICS = ("cosine", "dot", "l2")
"""Cosine of the angle, inner product, minus the Euclidean distance: higher is nearer."""

METRIC_CODES = {"cosine": COSINE, "dot": DOT, "l2": L2}
_MOST_ROWS = 2**31 - 1
_LEAST_BLOCK, _MOST_BLOCK = 16, 2048


@dataclass(frozen=True, slots=True)
class Band:
    """The ranks low < rank <= high; ranks count from 1, without the query itself."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise UserError(f"band ({self.low}, {self.high}]: it must be 0 <= low < high, such as (20, 25]")


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The members of one band, one line per query, in the order of the ranks."""

    rows: Ints
    """Rows of the matrix, (queries, high - low); -1 where the pool has no vector of that rank."""

    scores: NDArray[np.float32]
    """Higher is nearer: cosine, inner product, or minus the L2 distance; NaN where the row is -1."""

    @classmethod
    def empty(cls, queries: int, width: int) -> Neighbors:
        return cls(np.full((queries, width), -1, np.int32), np.full((queries, width), np.nan, np.float32))


@dataclass(frozen=True, slots=True)
class Question:
    """A request made ready for blocks of queries: the norms of the pool are known."""

    pool: Pool
    queries: NDArray[Any]
    norms: Doubles
    """Of the queries."""

    itself: Ints
    """The position of each query in the pool, -1 where it is not there."""

    ranks: Ranks

    def block(self, part: slice) -> QueryBlock:
        """Some of the queries, prepared."""
        vectors, norms = np.array(self.queries[part], np.float32, order="C"), self.norms[part]
        needs = np.minimum(self.ranks.deepest, len(self.pool) - (self.itself[part] >= 0))
        ready, margins = self.pool.prepare(vectors, norms), self.pool.margins(norms)
        return QueryBlock(vectors, norms, ready, self.itself[part], margins, needs.astype(np.int64))


@dataclass(frozen=True, slots=True)
class TopkRequest:
    """Queries, and the bands of a pool that are wanted for each; all arguments checked."""

    matrix: NDArray[Any]
    queries: NDArray[Any]
    norms: Doubles
    """Of the queries."""

    itself: Longs
    """The row of each query in the matrix, or -1."""

    bands: tuple[Band, ...]
    metric: int
    pool_rows: Longs | None
    """Only these rows count, ascending; None where all do."""

    allowed: Flags | None
    """(rows of the matrix,) of those, only the rows count for which this is true; None where all do."""

    codes: Codes | None

    @property
    def deepest(self) -> int:
        return max(band.high for band in self.bands)

    def mask(self) -> Flags | None:
        """(rows of the matrix,) which rows count; None where all do."""
        if self.pool_rows is None:
            return self.allowed
        mask = np.zeros(len(self.matrix), np.bool_)
        mask[self.pool_rows] = True if self.allowed is None else self.allowed[self.pool_rows]
        return mask

    def rows(self) -> Longs | None:
        """The rows that count, ascending; None where all do."""
        if self.allowed is None:
            return self.pool_rows
        return np.flatnonzero(self.allowed) if self.pool_rows is None else self.pool_rows[self.allowed[self.pool_rows]]

    def question(self, workers: int = 0) -> Question:
        """Measure the pool; numbers that are not finite are an error."""
        rows = self.rows()
        norms = norms_of(self.matrix, rows, "pool", workers)
        longest, query = float(norms.max(initial=0.0)), float(self.norms.max(initial=0.0))
        check_scores(self.metric, longest, query)
        scale = {COSINE: 1.0, DOT: longest, L2: max(longest, query)}[self.metric]
        pool = Pool(self.matrix, rows, norms, self.metric, scale)
        ranks = Ranks.of([(band.low, band.high) for band in self.bands])
        return Question(pool, self.queries, self.norms, _positions(self.itself, rows), ranks)


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
    """Check everything that a user can get wrong, except for numbers of the pool that are not finite."""
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
        raise UserError("no band is asked for; give at least one, such as (0, 10]")
    for band in bands:
        if band.high > size:
            raise UserError(f"band ({band.low}, {band.high}] ends behind the pool of {size:,} vectors; ask for less")


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
    if len(matrix) > _MOST_ROWS:
        raise UserError(f"the {what} of {len(matrix):,} rows: at most {_MOST_ROWS:,} can be searched; split it")


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
    """The positions of these rows in the pool, -1 where they are not in it."""
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
    """How much is worked on at once."""

    block: int
    """Queries compared together."""

    room: int
    """Candidates that are held to be scored again."""

    workers: int


def plan_for(question: Question, *, workers: int, memory: int) -> MemoryPlan:
    """The largest block that fits into so many bytes of working memory, without the arguments and the results.

    Every worker has room of its own, more for longer vectors: where that does not fit there are fewer of them.
    """
    workers = workers or cores()
    size, width, bands = len(question.pool), question.pool.width, len(question.ranks)
    capacity, queries = capacity_for(question.ranks.deepest, size), len(question.queries)
    # a candidate that is scored again takes 4 (position) + 8 (its query) + 8 bytes (its key)
    room = max(memory // 8 // 20, bands * capacity)
    tile = 4 * min(TILE, size) * width
    fixed, a_worker = 8 * (size + queries) + 2 * tile, 4 * capacity + 8 * TOGETHER * width
    each = 8 * capacity + 4 * min(TILE, size) + 12 * width + 48 * bands + 8 * int(question.ranks.columns[-1]) + 64
    smallest = min(_LEAST_BLOCK, queries)
    workers = max(1, min(workers, (memory - fixed - 20 * room - smallest * each) // a_worker))
    fixed += workers * a_worker
    block = min((memory - fixed - 20 * room) // each, _MOST_BLOCK, max(queries, 1))
    if block < smallest:
        # the room of the least memory is an eighth of it, or what one query may need
        least = max((fixed + smallest * each) * 8 // 7, fixed + smallest * each + 20 * bands * capacity) + 64
        raise UserError(
            f"memory is {memory:,} bytes; {queries:,} queries in {size:,} vectors need at least {least:,} "
            f"({-(-least >> 20)} MiB); give that much memory"
        )
    return MemoryPlan(int(block), room, workers)
