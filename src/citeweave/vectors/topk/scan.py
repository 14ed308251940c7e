"""A scan of all rows for a few queries: approximate scores of the rows select candidates, exact scores decide.

    rows = Rows.of(matrix, metric=COSINE, codes=codes, allowed=years > 2019)
    best_keys(rows, Queries.of(vectors), 10)             one sorted array of keys per query: exact score and row
    compare(matrix, query).low, .high                    lower and upper bounds of the cosine of every row
    pair_scores(queries, matrix, offsets, rows, "l2")    each query with its own candidates, in float64

    1. Every row gets an approximate score, from int8 codes (`codes.py`) or from its float16 or float32 numbers. The best
       few are scored exactly, and the k-th of these is a lower bound of the k-th score of all rows.
    2. A row whose approximate score plus its error bound does not reach it is out; all others are scored exactly.

The result is that of comparing everything, for any number of threads. The matrix is read once and never copied; working
memory is one float32 per row and query. Many queries at a time are faster by matrix products: see `blocks.py`.

Error bounds of sums of n float32 products, u = 2^-24, in any order (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1): n u for p . x with |p| = 1, relative to |x|; half of it more for |x| itself, from a sum of
squares; half of n u for a distance, relative to the distance. 16 u are added for the rounding of the query, of the
root, of the quotient and of the exact score. Rows so long or so short that float32 would overflow or underflow are
scored exactly at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, choose
from citeweave.core.executor import run_in_threads
from citeweave.core.ragged import owners_of
from citeweave.vectors.topk.codes import Codes, QueryCodes, halves_are_faster, scan_codes
from citeweave.vectors.topk.kernels import (
    COSINE,
    DOT,
    L2,
    WORST,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    find_likely,
    measure,
    numbers_of,
    read_only,
    scan_rows,
    score_of,
    score_rows,
    split_keys,
)
from citeweave.vectors.topk.request import METRIC_CODES, METRICS, check_scores

PART = 16_384
"""Rows that a thread scans at a time."""

SCANNED_TOGETHER = 8
"""Queries scanned for at a time."""

SCORED = 512
"""Rows that a thread scores exactly at a time."""

PAIRS_TOGETHER = 8192
"""Chosen pairs that a thread scores at a time."""

MAX_DIMENSION = 65_536
"""Longer rows are not scanned: their error bounds are too wide."""

_UNIT = 2.0**-24


@dataclass(frozen=True, slots=True)
class Rows:
    """The matrix of rows that a scan searches, with its codes and the rows that count."""

    matrix: NDArray[Any]
    """(rows, dimension), float32, or float16 as its bits in int16, which compiled code can read."""

    metric: int
    codes: Codes | None
    allowed: Flags
    """(rows,), or empty where all rows count."""

    @classmethod
    def of(
        cls,
        matrix: NDArray[Any],
        *,
        metric: int = COSINE,
        codes: Codes | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Rows:
        assert can_scan(matrix), matrix.dtype
        if codes is not None:
            codes = Codes(*(read_only(getattr(codes, name)) for name in Codes.__slots__)) if metric == COSINE else None
        chosen = np.empty(0, np.bool_) if allowed is None else np.ascontiguousarray(allowed, np.bool_)
        return cls(numbers_of(matrix), metric, codes, read_only(chosen))

    def __len__(self) -> int:
        return len(self.matrix)

    def keys(self, queries: Queries, query: int, rows: Ints, workers: int = 0) -> Keys:
        """Score the rows that a scan selected exactly; return their sort keys, in the order of `rows`."""
        keys, vector, norm = np.empty(len(rows), np.uint64), queries.vectors[query], float(queries.norms[query])

        def score(part: int) -> None:
            own = slice(part * SCORED, (part + 1) * SCORED)
            score_rows(self.matrix, rows[own], vector, norm, self.metric, keys[own])

        run_in_threads(-(-len(rows) // SCORED), score, workers)
        return keys


def can_scan(matrix: NDArray[Any]) -> bool:
    """Return whether the compiled scan can read this matrix without conversion."""
    fits = matrix.dtype in (np.float16, np.float32) and matrix.flags.c_contiguous and matrix.flags.aligned
    return bool(fits) and matrix.shape[1] <= MAX_DIMENSION


@dataclass(frozen=True, slots=True)
class Queries:
    """The query vectors of a scan; their numbers are finite."""

    vectors: Floats
    """(queries, dimension)"""

    norms: Doubles
    itself: Longs
    """(queries,) the row of each query, which is not its own neighbor, or -1."""

    @classmethod
    def of(cls, vectors: NDArray[Any], itself: NDArray[Any] | None = None) -> Queries:
        own = np.full(len(vectors), -1, np.int64) if itself is None else np.asarray(itself, np.int64)
        ready = np.array(vectors, np.float32, order="C")
        norms = np.empty(len(ready))
        measure(ready, norms)
        return cls(ready, norms, own)

    def __len__(self) -> int:
        return len(self.norms)

    def part(self, start: int, stop: int) -> Queries:
        return Queries(self.vectors[start:stop], self.norms[start:stop], self.itself[start:stop])

    def directions(self) -> Floats:
        """Return the queries normalized to length 1; one of zeros stays zero."""
        return (self.vectors / np.where(self.norms > 0, self.norms, 1.0)[:, None]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """Error bound of an approximate score v of a row: `of_row` * its code's error + `of_score` * |v| + `constant`."""

    of_row: float
    of_score: float
    constant: float


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan: approximate scores of all rows with their error bounds, and the best of each part."""

    approximate_scores: Floats
    """(queries, rows), -inf where a row does not count."""

    best: Keys
    """(parts, queries, kept) keys of the best approximate scores of each part, filled up with WORST."""

    bounds: list[ErrorBound]
    """One per query."""


def best_keys(rows: Rows, queries: Queries, k: int, *, exact: bool = True, workers: int = 0) -> list[Keys]:
    """Scan for the k nearest rows of each query; return their sorted keys, the nearest first.

    Without `exact` a scan of codes skips its proof, and may miss a few rows.
    """
    keys: list[Keys] = []
    for start in range(0, len(queries), SCANNED_TOGETHER):
        part = queries.part(start, min(start + SCANNED_TOGETHER, len(queries)))
        scanned = scan(rows, part, _shortlist(rows, k), workers)
        keys += [_nearest(rows, part, query, scanned, k, exact, workers) for query in range(len(part))]
    return keys


def _shortlist(rows: Rows, k: int) -> int:
    """Return how many of the best approximate scores are scored exactly first."""
    return min(max(4 * k, 64) if rows.codes is not None else k + 16, max(len(rows), 1))


def memory_for(rows: int, queries: int, k: int) -> int:
    """Return the bytes of working memory that a scan (`best_keys`) needs at most, without its results."""
    together = min(queries, SCANNED_TOGETHER)
    kept = min(max(4 * k, 64), PART)
    return rows * (4 * together + 1 + 32) + 8 * kept * together * (rows // PART + 1)


def _nearest(rows: Rows, queries: Queries, query: int, scanned: Scan, k: int, exact: bool, workers: int) -> Keys:
    first = rows_of(scanned.best[:, query], _shortlist(rows, k))
    keys = rows.keys(queries, query, first, workers)
    if exact or rows.codes is None:
        reached = float(score_of(np.partition(keys, k - 1)[k - 1])) if len(keys) >= k else -np.inf
        errors = np.empty(0, np.float32) if rows.codes is None else rows.codes.errors
        likely = likely_rows(scanned.approximate_scores[query], errors, scanned.bounds[query], reached, workers)
        keys = rows.keys(queries, query, likely, workers)
    return np.sort(np.partition(keys, k - 1)[:k] if len(keys) > k else keys)


def rows_of(keys: Keys, count: int) -> Ints:
    """Return the rows of the `count` smallest sort keys (parts, kept), ascending."""
    flat = keys[keys != WORST]
    chosen = np.partition(flat, count - 1)[:count] if len(flat) > count else flat
    return np.sort((chosen & np.uint64(0xFFFFFFFF)).astype(np.int32))


def likely_rows(approximate: Floats, errors: Floats, bound: ErrorBound, threshold: float, workers: int = 0) -> Ints:
    """Return the rows of a scan whose exact score may reach `threshold`, ascending; `errors` is empty without codes."""
    size = 4 * PART
    likely: list[Ints] = [np.empty(0, np.int32)] * (-(-len(approximate) // size))

    def work(part: int) -> None:
        start, stop = part * size, min((part + 1) * size, len(approximate))
        rows = np.empty(stop - start, np.int32)
        limits = bound.of_row, bound.of_score, bound.constant, threshold
        likely[part] = rows[: find_likely(approximate, errors, start, stop, *limits, rows)].copy()

    run_in_threads(len(likely), work, workers)
    return np.concatenate([np.empty(0, np.int32), *likely])


# --- one query compared with all rows ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryScan:
    """A scan of all rows of a matrix for one query: bounds of every cosine, and exact cosines on demand."""

    rows: Rows
    query: Queries
    low: Doubles
    high: Doubles
    """(rows,) each: lower and upper bounds of the cosine."""

    def exact(self, rows: NDArray[Any]) -> Floats:
        """Return the exact cosines of these rows, the same as from `nearest`; (rows,)."""
        keys = self.rows.keys(self.query, 0, np.ascontiguousarray(rows, np.int32))
        scores = np.empty(len(keys), np.float32)
        split_keys(keys, np.empty(len(keys), np.int32), scores)
        return scores


def compare(matrix: NDArray[Any], query: NDArray[Any], codes: Codes | None = None) -> QueryScan:
    """Scan every row for bounds of its cosine with one query, for callers whose score combines several cosines."""
    rows, queries = Rows.of(matrix, codes=codes), Queries.of(query[None])
    scanned = scan(rows, queries, 1)
    bound, approximate = scanned.bounds[0], scanned.approximate_scores[0].astype(np.float64)
    errors = bound.constant + bound.of_score * np.abs(approximate)
    if codes is not None:
        errors = errors + np.asarray(codes.errors, np.float64) * bound.of_row
    return QueryScan(rows, queries, approximate - errors, approximate + errors)


# --- the scan ------------------------------------------------------------------------------------------


def scan(rows: Rows, queries: Queries, kept: int, workers: int = 0) -> Scan:
    """Scan all rows for each query: compute approximate scores, and the best `kept` of each part."""
    parts = -(-len(rows) // PART)
    approximate = np.empty((len(queries), len(rows)), np.float32)
    best = np.full((parts, len(queries), min(kept, PART)), WORST)
    floors = np.full(len(queries), WORST)  # keys behind these cannot be among the best: saves work, changes nothing
    if rows.codes is not None:
        return _scan_codes(rows, rows.codes, queries, Scan(approximate, best, []), floors, workers)
    longest, broken = np.zeros(parts), np.full((parts, 2), -1, np.int64)
    directions = queries.directions() if rows.metric != L2 else queries.vectors

    def work(part: int) -> None:
        start, stop = part * PART, min((part + 1) * PART, len(rows))
        longest[part] = scan_rows(
            rows.matrix, rows.allowed, start, stop, queries.vectors, directions, queries.norms, rows.metric,
            queries.itself, approximate, best[part], floors, broken[part],
        )  # fmt: skip

    run_in_threads(parts, work, workers)
    _refuse_broken(broken)
    reach = float(longest.max(initial=0.0))
    check_scores(rows.metric, reach, float(queries.norms.max(initial=0.0)))
    return Scan(approximate, best, [_error_of_sums(rows, norm, reach) for norm in queries.norms.tolist()])


def _error_of_sums(rows: Rows, norm: float, longest: float) -> ErrorBound:
    """Return the error bound of float32 sums for a query of this norm, as derived at the top of this file."""
    dimension = rows.matrix.shape[1]
    if rows.metric == L2:
        return ErrorBound(0.0, 1.01 * (dimension / 2 + 16) * _UNIT, 0.0)
    if rows.metric == DOT:
        return ErrorBound(0.0, 0.0, 1.01 * (dimension + 16) * _UNIT * norm * longest + 2.0**-147)
    return ErrorBound(0.0, 0.0, 1.01 * (1.5 * dimension + 16) * _UNIT)


def _scan_codes(rows: Rows, codes: Codes, queries: Queries, into: Scan, floors: Keys, workers: int) -> Scan:
    coded = QueryCodes.of(queries.vectors, queries.norms)
    by_halves = halves_are_faster()

    def work(part: int) -> None:
        start, stop = part * PART, min((part + 1) * PART, len(rows))
        scan_codes(
            codes.matrix, codes.scales, rows.allowed, start, stop, read_only(coded.words), read_only(coded.halves),
            coded.units, by_halves, queries.itself, into.approximate_scores, into.best[part], floors,
        )  # fmt: skip

    run_in_threads(len(into.best), work, workers)
    errors = [coded.error(query) for query in range(len(queries))]
    bounds = [ErrorBound(factor, 0.0, constant) for factor, constant in errors]
    return Scan(into.approximate_scores, into.best, bounds)


def _refuse_broken(broken: Longs) -> None:
    """Refuse rows with numbers that are not finite; `broken` (parts, 2) holds their number, -1 for none, and the first."""
    bad = broken[broken[:, 0] > 0]
    if len(bad):
        raise UserError(
            f"row {bad[0, 1]} of the pool holds a number that is not finite ({bad[:, 0].sum():,} such rows); "
            "leave those rows out, or make the vectors again"
        )


# --- chosen pairs ---------------------------------------------------------------------------------------


def pair_scores(
    queries: NDArray[Any],
    pool: NDArray[Any],
    offsets: NDArray[np.integer[Any]],
    candidates: NDArray[np.integer[Any]],
    metric: str,
) -> NDArray[np.float64]:
    """Score chosen pairs: query i (a row of `queries`) with the rows candidates[offsets[i]:offsets[i + 1]] of `pool`.

    One number per pair, higher is nearer: the cosine, 0 where a vector is all zeros; the inner product; or minus the L2
    distance. NaN where the candidate is -1, a paper without vector. Numbers are widened to float64 before they are
    multiplied or subtracted. Memory-mapped matrices are read in blocks.

    >>> pool = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    >>> pair_scores(pool[[0, 1]], pool, np.array([0, 2, 4]), np.array([1, 0, 2, -1]), "cosine").tolist()
    [0.8, 1.0, 0.0, nan]
    """
    code = METRIC_CODES[choose(metric, METRICS, "metric")]
    if queries.ndim != 2 or pool.ndim != 2 or queries.shape[1] != pool.shape[1]:
        raise UserError(
            f"queries of shape {queries.shape} cannot be scored with candidates of shape {pool.shape}; "
            "both must come from one model"
        )
    pairs = len(candidates)
    assert len(offsets) == len(queries) + 1 and offsets[0] == 0 and offsets[-1] == pairs
    if pairs and not (candidates.min() >= -1 and candidates.max() < len(pool)):
        raise IndexError(f"candidates are rows {candidates.min()} to {candidates.max()} of {len(pool)}")
    owners = owners_of(offsets)  # (pairs,)
    rows = np.ascontiguousarray(candidates, np.int64)
    wide = _widened(queries)
    scores = np.empty(pairs)

    def work(number: int) -> None:
        part = slice(number * PAIRS_TOGETHER, (number + 1) * PAIRS_TOGETHER)
        if pool.dtype in (np.float32, np.float64):
            _score_pairs(wide, np.asarray(pool), owners[part], rows[part], code, scores[part])
        else:
            vectors = _widened(pool[np.maximum(rows[part], 0)])  # (pairs of the block, dimension)
            places = np.where(rows[part] < 0, -1, np.arange(len(vectors)))
            _score_pairs(wide, vectors, owners[part], places, code, scores[part])

    run_in_threads(-(-pairs // PAIRS_TOGETHER), work)
    return scores


def _widened(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix as float32 or float64 without loss, so that the compiled pair scores can read it."""
    if matrix.dtype in (np.float32, np.float64):
        return np.asarray(matrix)
    return matrix.astype(np.float32 if matrix.dtype == np.float16 else np.float64)


@compiled()
def _score_pairs(queries: Any, pool: Any, owners: Longs, rows: Longs, metric: int, out: Doubles) -> None:
    last, length = -1, 0.0
    for pair in range(len(rows)):
        if rows[pair] < 0:
            out[pair] = np.nan
            continue
        query, vector = queries[owners[pair]], pool[rows[pair]]
        if metric == L2:
            out[pair] = -math.sqrt(_squared_distance(query, vector))
        elif metric == DOT:
            out[pair] = _product(query, vector)
        else:
            if owners[pair] != last:
                last, length = owners[pair], math.sqrt(_product(query, query))
            # two roots: the product of two squares may be more than a float64 holds
            lengths = length * math.sqrt(_product(vector, vector))
            out[pair] = _product(query, vector) / lengths if lengths > 0 else 0.0


# "reassoc" lets the compiler sum in several registers at once; the order is the same for every pair


@compiled(fastmath={"reassoc", "contract"})
def _product(one: NDArray[Any], other: NDArray[Any]) -> float:
    total = 0.0
    for at in range(len(one)):
        total += np.float64(one[at]) * np.float64(other[at])
    return total


@compiled(fastmath={"reassoc", "contract"})
def _squared_distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    total = 0.0
    for at in range(len(one)):
        difference = np.float64(one[at]) - np.float64(other[at])
        total += difference * difference
    return total
