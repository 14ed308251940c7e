"""The checked request of a top-k search: pool, queries, metric, and rank bands such as the ranks 21 to 25.

    request = check_request(pool, queries, [Band(20, 25)], metric="cosine")

    bands (20, 25] and (3998, 4000], 256 beside each     ->   columns 0 to 280 and 3,742 to 4,255 of some 6,000
    ranks among the remaining columns                         21 to 25 and 538 to 539

Candidates sorted by approximate score are narrowed by leaving out the same columns for every query, so that ranks shift by
the same number for all. Does not look at scores: the caller has to check that all that a band may hold is within its
columns. Does not search: see `engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, choose
from citeweave.core.executor import run_in_threads
from citeweave.core.ragged import to_offsets
from citeweave.vectors.topk.codes import Codes
from citeweave.vectors.topk.kernels import (
    COSINE,
    DOT,
    L2,
    Doubles,
    Flags,
    Floats,
    Ints,
    Longs,
    as_float32,
    measure,
    numbers_of,
)

TILE = 4096
"""Rows of the pool in one matrix product on the CPU."""

METRIC_CODES = {"cosine": COSINE, "dot": DOT, "l2": L2}
METRICS = tuple(METRIC_CODES)
"""Cosine, inner product, minus the Euclidean distance: higher is nearer."""

_MAX_ROWS = 2**31 - 1
_UNIT = 2.0**-24  # half the distance from 1 to the next float32


# --- rank bands ---------------------------------------------------------------------------------------------


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

    def put(self, queries: slice | Longs, other: Neighbors) -> None:
        """Replace the neighbors of some queries."""
        self.rows[queries], self.scores[queries] = other.rows, other.scores


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
        return to_offsets(self.highs - self.lows)

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


# --- the pool, and blocks of queries ------------------------------------------------------------------------


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


@compiled()
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


# --- the request --------------------------------------------------------------------------------------------


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


class RequestOptions(TypedDict, total=False):
    """Keyword options of a top-k request, all of which may be left out."""

    metric: str
    """One of METRICS; the default is cosine."""

    codes: Codes | None
    """The int8 codes of the pool, which make searches for few queries by cosine two to four times as fast."""

    pool_rows: NDArray[Any] | None
    """Ascending: only these rows of the pool's matrix count; results are still rows of the complete matrix."""

    allowed: NDArray[np.bool_] | None
    """(rows,): rows that are False do not count; where fewer rows are left than ranks, results end with -1."""

    itself: NDArray[Any] | None
    """(queries,): each query's own row, or -1; it is not a neighbor of that query and has no rank."""


def check_request(
    pool: NDArray[Any], queries: NDArray[Any], bands: Sequence[Band], **options: Unpack[RequestOptions]
) -> TopkRequest:
    """Check the request of a top-k search, except for numbers of the pool that are not finite."""
    code = METRIC_CODES[choose(options.get("metric", "cosine"), METRICS, "metric")]
    _check_matrix(pool, "pool")
    _check_matrix(queries, "queries")
    if pool.shape[1] != queries.shape[1]:
        raise UserError(
            f"the pool has vectors of {pool.shape[1]} numbers and the queries of {queries.shape[1]}; "
            "embed both with the same model"
        )
    if (codes := options.get("codes")) is not None:
        codes.check(pool)
    rows = _checked_rows(options.get("pool_rows"), len(pool))
    check_bands(bands, len(pool) if rows is None else len(rows))
    own = _checked_itself(options.get("itself"), len(pool), len(queries))
    norms, mask = norms_of(queries, None, "queries"), _checked_mask(options.get("allowed"), len(pool))
    return TopkRequest(pool, queries, norms, own, tuple(bands), code, rows, mask, codes)


def check_bands(bands: Sequence[Band], size: int) -> None:
    """Refuse rank bands that a pool of this size cannot have."""
    if not size:
        raise UserError("the pool is empty; give at least one vector to search in")
    if not bands:
        raise UserError("there is no band; give at least one, such as (0, 10]")
    for band in bands:
        if band.high > size:
            raise UserError(
                f"band ({band.low}, {band.high}] ends beyond the pool of {size:,} vectors; choose a smaller one"
            )


def _checked_mask(allowed: NDArray[Any] | None, size: int) -> Flags | None:
    if allowed is None:
        return None
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


def _checked_rows(rows: NDArray[Any] | None, limit: int) -> Longs | None:
    if rows is None:
        return None
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
