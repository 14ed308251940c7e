"""The compiled loops of `scan.py`: one pass over the rows, the best quick scores, exact scores of chosen rows.

    rows (rows, dimension) . query  ->  quick score of every row, and the keys of the best of each part
    quick score + its error bound >= a score that is reached   ->   rows that must be scored exactly

Every loop works on a range of rows of its own. Threads share only `floors`, which say what cannot be among the best any
more: it saves work and changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from citeweave.similarity.topk.kernels import (
    COSINE,
    L2,
    NOT_HALF,
    WORST,
    Bytes,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    Words,
    exact_score,
    key,
    norm_of,
    push,
    quick_cosines,
    quick_dot,
    quick_dot_and_square,
    quick_squared_distance,
    score_of,
    widen,
)

CHUNK = 64
"""Rows that all queries are multiplied with while they are in the nearest cache."""

_SMALL, _LARGE = np.float32(1e-20), np.float32(1e30)
"""Squares of lengths between which float32 loses nothing."""

_LARGE_HALF = np.float32(0.99) * NOT_HALF**2
"""The square of a row of float16 with a number that is not finite is above."""


@njit(cache=True, nogil=True)
def _offer(line: Floats, first: int, itself: int, heap: Keys, count: int, floor: np.uint64) -> int:
    """Put the rows of a chunk, which begins at `first`, among the best of a query; returns how many these are."""
    if first <= itself < first + len(line):
        line[itself - first] = -np.inf
    worst = min(floor, heap[0] if count == len(heap) else WORST)
    cut = np.float32(-np.inf) if worst == WORST else score_of(worst)
    for at in range(len(line)):
        if line[at] >= cut and line[at] > -np.inf:
            count = push(heap, count, key(line[at], first + at))
            worst = min(floor, heap[0] if count == len(heap) else WORST)
            cut = np.float32(-np.inf) if worst == WORST else score_of(worst)
    return count


@njit(cache=True, nogil=True)
def scan_codes(
    codes: Bytes, scales: Floats, allowed: Flags, start: int, stop: int, words: Words, halves: Bytes, units: Doubles,
    by_halves: bool, itself: Longs, quick: Floats, best: Keys, floors: Keys,
) -> None:  # fmt: skip
    """Rows start to stop into quick (queries, rows) and best (queries, kept)."""
    sums, counts = np.empty(CHUNK, np.int32), np.zeros(len(units), np.int64)
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        if len(allowed) and not allowed[first:last].any():
            quick[:, first:last] = -np.inf
            continue
        for query in range(len(units)):
            line = quick[query, first:last]
            quick_cosines(
                codes, scales, first, last, words[query], halves[query], units[query], by_halves, sums, line
            )  # fmt: skip
            if len(allowed):
                for at in range(last - first):
                    line[at] = line[at] if allowed[first + at] else -np.inf
            counts[query] = _offer(line, first, itself[query], best[query], counts[query], floors[query])
    for query in range(len(units)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])


@njit(cache=True, nogil=True)
def scan_rows(
    matrix: Any, allowed: Flags, start: int, stop: int, vectors: Floats, directions: Floats, norms: Doubles, metric: int,
    itself: Longs, quick: Floats, best: Keys, floors: Keys, broken: Longs,
) -> float:  # fmt: skip
    """Rows start to stop into quick (queries, rows) and best (queries, kept); returns the largest norm that was met."""
    buffer, counts, longest = np.empty(matrix.shape[1], np.float32), np.zeros(len(norms), np.int64), 0.0
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        for row in range(first, last):
            if len(allowed) and not allowed[row]:
                quick[:, row] = -np.inf
                continue
            if metric == L2:
                norm = _quick_distances(matrix[row], vectors, buffer, quick[:, row])
            else:
                norm = _quick_products(matrix[row], directions, norms, metric, buffer, quick[:, row])
            if norm < 0:  # float32 is not enough
                widen(matrix[row], buffer)
                norm = norm_of(buffer)
                for query in range(len(norms)):
                    quick[query, row] = exact_score(vectors[query], buffer, norms[query] * norm, metric)
                if not math.isfinite(norm):
                    broken[0], broken[1] = max(broken[0], 0) + 1, row if broken[1] < 0 else broken[1]
            longest = max(longest, norm)
        for query in range(len(norms)):
            line = quick[query, first:last]
            counts[query] = _offer(line, first, itself[query], best[query], counts[query], floors[query])
    for query in range(len(norms)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])
    return longest


@njit(cache=True, nogil=True)
def _quick_products(line: Any, directions: Floats, norms: Doubles, metric: int, buffer: Floats, out: Floats) -> float:
    """Quick cosines or inner products of a row with all queries; returns its norm, -1 where float32 is not enough."""
    if len(norms) == 1:
        total, square = quick_dot_and_square(line, directions[0])
    else:
        widen(line, buffer)
        total, square = quick_dot_and_square(buffer, directions[0])
    if not _SMALL < square < (_LARGE if line.itemsize == 4 else _LARGE_HALF):
        return -1.0
    norm = np.sqrt(square)
    for query in range(len(norms)):
        if query:
            total = quick_dot(buffer, directions[query])
        out[query] = total / norm if metric == COSINE else np.float32(total * norms[query])
    return np.float64(norm)


@njit(cache=True, nogil=True)
def _quick_distances(line: Any, vectors: Floats, buffer: Floats, out: Floats) -> float:
    """Minus the quick distances of a row from all queries; returns 0, or -1 where float32 is not enough."""
    is_wide = len(vectors) == 1 and line.itemsize == 4
    if not is_wide:
        widen(line, buffer)
    for query in range(len(vectors)):
        if not is_wide:
            square = quick_squared_distance(buffer, vectors[query])
        else:
            square = quick_squared_distance(line, vectors[query])
        if not _SMALL < square < _LARGE:
            return -1.0
        out[query] = -np.sqrt(square)
    return 0.0


@njit(cache=True, nogil=True)
def find_likely(
    quick: Floats, errors: Floats, start: int, stop: int, of_row: float, of_score: float, constant: float, least: float,
    found: Ints,
) -> int:  # fmt: skip
    """Rows start to stop whose score may be `least` or more; see `ErrorBound`."""
    count = 0
    for row in range(start, stop):
        value = np.float64(quick[row])
        error = of_score * abs(value) + constant
        if len(errors):
            error += np.float64(errors[row]) * of_row
        if value > -np.inf and value + error >= least:
            found[count] = row
            count += 1
    return count


@njit(cache=True, nogil=True)
def score_rows(matrix: Any, rows: Ints, query: Floats, norm: float, metric: int, keys: Keys) -> None:
    """keys[i] = the key of row rows[i], with its exact score."""
    line = np.empty(matrix.shape[1], np.float32)
    for at in range(len(rows)):
        widen(matrix[rows[at]], line)
        length = norm_of(line) if metric == COSINE else 0.0
        keys[at] = key(exact_score(query, line, norm * length, metric), rows[at])


@njit(cache=True, nogil=True)
def split_keys(keys: Keys, rows: Ints, scores: Floats) -> None:
    """The rows and scores in keys."""
    for at in range(len(keys)):
        rows[at], scores[at] = np.int32(keys[at] & np.uint64(0xFFFFFFFF)), score_of(keys[at])
