"""The compiled loops of a quick search: scan codes, keep the best, find who may still be among them, score exactly.

    codes (rows, width) . query  ->  quick cosine of every row, and the keys of the best of the range
    quick cosine + its error bound >= a score that is sure   ->   rows that must be scored exactly

A key is a score and a place in one number, smaller the better (`searching/rescoring.py`). `plainly` is None where the
processor has the instruction: numba then compiles that way alone. Every loop works on a range of rows of its own and
threads share only `floors`, which say what cannot be among the best any more: it saves work and changes nothing.
"""

# ruff: noqa: PLR0913

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.similarity.quick.dots import HIGH, ROWS, STEP, dot_plainly, dot_quickly
from citeweave.similarity.searching.rescoring import COSINE, Keys, _key, _score, exact_score
from citeweave.similarity.searching.selecting import Doubles, Floats, Ints, Longs

CHUNK = 64
"""Rows that all queries are multiplied with while they are in the nearest cache."""

SLACK = 2e-7
"""Rounding of a quick cosine and of an exact one to float32: 2^-24 of a number below 1.1 each, and some more."""

WORST = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A key behind all others."""

Codes8 = NDArray[np.int8]
Flags = NDArray[np.bool_]


@njit(cache=True, nogil=True)
def multiply(
    codes: Codes8, width: int, scales: Floats, start: int, stop: int, query: Codes8, query_at: int, factor: float,
    high: Ints, low: Ints, out: Floats, plainly: Any,
) -> None:  # fmt: skip
    """Quick cosines of rows start to stop, at most CHUNK, from out[0] on; high and low have CHUNK places."""
    steps, last = width // STEP, (stop - 1) * width
    for row in range(start, stop, ROWS):
        at = row * width
        # at the end the last row stands in for those that are not there
        two, three, four = min(at + width, last), min(at + 2 * width, last), min(at + 3 * width, last)
        if plainly is None:
            dot_quickly(codes, at, two, three, four, steps, query, query_at, high, low, row - start)
        else:
            dot_plainly(codes, at, two, three, four, steps, query, query_at, high, low, row - start)
    for at in range(stop - start):
        total = np.int64(HIGH) * np.int64(high[at]) + np.int64(low[at])
        out[at] = np.float32(np.float64(total) * (factor * np.float64(scales[start + at])))


@njit(cache=True, nogil=True)
def push(heap: Keys, count: int, key: np.uint64) -> int:
    """Put a key among the smallest len(heap) ones, the largest of which is heap[0]; how many there are now."""
    size = len(heap)
    if count < size:
        at = count
        while at and heap[(at - 1) >> 1] < key:
            heap[at] = heap[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap[at] = key
        return count + 1
    if key >= heap[0]:
        return count
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return count


@njit(cache=True, nogil=True)
def scan(
    codes: Codes8, width: int, scales: Floats, allowed: Flags, start: int, stop: int, queries: Codes8, factors: Doubles,
    own: Longs, quick: Floats, best: Keys, floors: Keys, plainly: Any,
) -> None:  # fmt: skip
    """Quick cosines of rows start to stop into quick (queries, rows), -inf where a row does not count.

    `allowed` is empty where all rows count; best (queries, kept), filled with WORST, gets the keys of the best rows.
    """
    high, low = np.empty(CHUNK, np.int32), np.empty(CHUNK, np.int32)
    counts, cuts = np.zeros(len(factors), np.int64), np.full(len(factors), -np.inf, np.float32)
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        if len(allowed) and not allowed[first:last].any():
            quick[:, first:last] = -np.inf
            continue
        for query in range(len(factors)):
            line, heap = quick[query, first:last], best[query]
            at, factor = query * 2 * width, factors[query]
            multiply(codes, width, scales, first, last, queries, at, factor, high, low, line, plainly)
            if len(allowed):
                for place in range(last - first):
                    line[place] = line[place] if allowed[first + place] else -np.inf
            if first <= own[query] < last:
                line[own[query] - first] = -np.inf
            for place in range(last - first):
                if line[place] >= cuts[query] and line[place] > -np.inf:
                    counts[query] = push(heap, counts[query], _key(line[place], first + place))
                    worst = min(floors[query], heap[0] if counts[query] == len(heap) else WORST)
                    cuts[query] = -np.inf if worst == WORST else _score(worst)
    for query in range(len(factors)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])


@njit(cache=True, nogil=True)
def find_likely(
    quick: Floats, errors: Floats, start: int, stop: int, share: float, rest: float, least: float, found: Ints
) -> int:
    """Rows start to stop whose cosine may be `least` or more; error of a row = errors[row] * share + rest."""
    count = 0
    for row in range(start, stop):
        value = np.float64(quick[row])
        if value + (np.float64(errors[row]) * share + rest) >= least and value > -np.inf:
            found[count] = row
            count += 1
    return count


@njit(cache=True, nogil=True)
def read_row(matrix: Any, row: int, out: Floats, halves: Any) -> None:
    """A row as float32; `halves` is None where it is float32 already, else the matrix holds the bits of float16.

    The bits of a float16 at the places of a float32 are its value times 2^-112: exact, subnormal numbers too.
    """
    if halves is None:
        for at in range(len(out)):
            out[at] = matrix[row, at]
    else:
        for at in range(len(out)):
            bits = np.uint32(matrix[row, at])
            moved = ((bits & np.uint32(0x7FFF)) << np.uint32(13)) | ((bits & np.uint32(0x8000)) << np.uint32(16))
            out[at] = np.uint32(moved).view(np.float32) * np.float32(2.0**112)


@njit(cache=True, nogil=True)
def score(
    matrix: Any, norms: Doubles, rows: Ints, start: int, stop: int, query: Floats, norm: float, out: Floats, halves: Any
) -> None:
    """out[i] = the exact cosine of row rows[i] with the query, i from start to stop."""
    line = np.empty(matrix.shape[1], np.float32)
    for at in range(start, stop):
        read_row(matrix, rows[at], line, halves)
        out[at] = exact_score(query, line, norm * norms[rows[at]], COSINE)
