"""What is asked of a nearest-neighbour search, checked before any work: pool, queries, bands, and the memory for it.

    question = ask(pool, queries, [Band(20, 25)], metric="cosine")
    plan = plan_for(question, workers=2, memory=512 << 20)      # plan.block = 2048 queries at a time

Does not search; see `nearest.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError, choose
from citeweave.similarity.searching.ranks import Ranks
from citeweave.similarity.searching.rescoring import COSINE, DOT, L2
from citeweave.similarity.searching.scanning import TILE, Block, Pool, capacity_for, norms_of
from citeweave.similarity.searching.selecting import Doubles, Ints, Longs
from citeweave.similarity.searching.settling import TOGETHER

METRICS = ("cosine", "dot", "l2")
"""Cosine of the angle, inner product, minus the Euclidean distance: higher is nearer."""

_CODES = {"cosine": COSINE, "dot": DOT, "l2": L2}
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
class Question:
    """Queries, and the bands of a pool that are wanted of each."""

    pool: Pool
    queries: NDArray[Any]
    norms: Doubles
    """Of the queries."""

    itself: Ints
    """The position of each query in the pool, -1 where it is not there."""

    ranks: Ranks

    def block(self, part: slice) -> Block:
        """Some of the queries, prepared."""
        vectors, norms = np.array(self.queries[part], np.float32, order="C"), self.norms[part]
        needs = np.minimum(self.ranks.deepest, len(self.pool) - (self.itself[part] >= 0))
        ready, margins = self.pool.prepare(vectors, norms), self.pool.margins(norms)
        return Block(vectors, norms, ready, self.itself[part], margins, needs.astype(np.int64))


def ask(
    pool: NDArray[Any],
    queries: NDArray[Any],
    bands: Sequence[Band],
    *,
    metric: str = "cosine",
    pool_rows: NDArray[Any] | None = None,
    itself: NDArray[Any] | None = None,
) -> Question:
    """Check everything that a user can get wrong, and measure the vectors."""
    code = _CODES[choose(metric, METRICS, "metric")]
    _check_matrix(pool, "pool")
    _check_matrix(queries, "queries")
    if pool.shape[1] != queries.shape[1]:
        raise UserError(
            f"the pool has vectors of {pool.shape[1]} numbers and the queries of {queries.shape[1]}; "
            "embed both with the same model"
        )
    rows = None if pool_rows is None else _checked_rows(pool_rows, len(pool))
    size = len(pool) if rows is None else len(rows)
    if not size:
        raise UserError("the pool is empty; give at least one vector to search in")
    if not bands:
        raise UserError("no band is asked for; give at least one, such as (0, 10]")
    for band in bands:
        if band.high > size:
            raise UserError(f"band ({band.low}, {band.high}] ends behind the pool of {size:,} vectors; ask for less")
    own = _own_positions(itself, rows, len(pool), len(queries))
    lengths, norms = norms_of(pool, rows, "pool"), norms_of(queries, None, "queries")
    scale = _scale(code, float(lengths.max()), float(norms.max(initial=0.0)))
    ranks = Ranks.of([(band.low, band.high) for band in bands])
    return Question(Pool(pool, rows, lengths, code, scale), queries, norms, own, ranks)


def _scale(metric: int, longest: float, longest_query: float) -> float:
    """The length that becomes 1. Scores that float32 cannot hold are an error."""
    score = {COSINE: 1.0, DOT: longest * longest_query, L2: longest + longest_query}[metric]
    if score > float(np.finfo(np.float32).max):
        raise UserError(
            f"vectors as long as {longest:.2g} in the pool and {longest_query:.2g} among the queries have scores that "
            "float32 cannot hold; scale them down"
        )
    return {COSINE: 1.0, DOT: longest, L2: max(longest, longest_query)}[metric]


def _check_matrix(matrix: NDArray[Any], what: str) -> None:
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or not matrix.shape[1]:
        raise UserError(
            f"the {what} of shape {matrix.shape} and type {matrix.dtype}: it must be a matrix of floating-point "
            "numbers, one vector a row"
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


def _own_positions(itself: NDArray[Any] | None, rows: Longs | None, limit: int, queries: int) -> Ints:
    if itself is None:
        return np.full(queries, -1, np.int32)
    own = _integers(itself, "itself")
    if len(own) != queries:
        raise UserError(f"itself has {len(own):,} rows for {queries:,} queries; give one a query, -1 for none")
    if len(own) and not -1 <= own.min() <= own.max() < limit:
        raise UserError(
            f"itself reaches from {own.min()} to {own.max()}; it must be -1 or one of the rows 0 to {limit - 1}"
        )
    if rows is None:
        return own.astype(np.int32)
    at = np.minimum(np.searchsorted(rows, own), len(rows) - 1)
    return np.where(rows[at] == own, at, -1).astype(np.int32)


def _integers(values: NDArray[Any], what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise UserError(f"{what} of shape {array.shape} and type {array.dtype}: it must be a list of row numbers")
    return array


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is worked on at once."""

    block: int
    """Queries compared together."""

    room: int
    """Candidates that are held to be scored again."""

    workers: int


def plan_for(question: Question, *, workers: int, memory: int) -> Plan:
    """The largest block that fits into so many bytes of working memory, without the arguments and the results.

    Every worker has room of its own, more for longer vectors: where that does not fit there are fewer of them.
    """
    if workers < 0:
        raise UserError(f"workers is {workers}; it must be 0 (one a core) or more")
    workers = workers or os.cpu_count() or 1
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
    return Plan(int(block), room, workers)
