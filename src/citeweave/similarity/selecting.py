"""The compiled loops of the nearest-neighbour search: sift scores, find a rank, score again, put in order.

    scores 0.1 0.9 0.4 0.7, cut 0.3   ->   kept 0.9 0.4 0.7 at positions 1 2 3
    the 2 best of them                ->   0.7 is the second; 0.4 goes when room is needed

A quick score (of a matrix product) may be wrong in its last digits, by at most half of `margin`; whoever is within
the margin of the border is kept, and the score that counts is that of `exact_score`. Does not read vectors from disk
and knows no rows, only positions in the pool. Every loop works on a range of queries, so that threads share nothing.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

COSINE, DOT, L2 = 0, 1, 2
"""The metrics as compiled code knows them."""

CHUNK = 32
"""Scores looked at together: most chunks hold none over the cut and cost a few instructions."""

_SIGN, _ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@njit(cache=True, nogil=True)
def kth_largest(values: Floats, count: int, k: int) -> float:
    """The k-th largest (k from 1) of the first `count` values, which are shuffled: the k largest come first.

    Hoare's FIND with the median of three; equal values are spread over both sides, so that ties cost nothing extra.
    """
    left, right, target = 0, count - 1, k - 1
    while left < right:
        a, b, c = values[left], values[(left + right) >> 1], values[right]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = left, right
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if target <= j:
            right = j
        elif target >= i:
            left = i
        else:
            break
    return values[target]


@njit(cache=True, nogil=True)
def shrink(scores: Floats, positions: Ints, count: int, k: int, margin: float, scratch: Floats) -> tuple[int, float]:
    """Keep the k best and all within the margin of the k-th; returns how many, and the cut that lets such ones in."""
    scratch[:count] = scores[:count]
    cut = np.float32(kth_largest(scratch, count, k) - margin)
    kept = 0
    for at in range(count):
        if scores[at] > cut:
            scores[kept], positions[kept] = scores[at], positions[at]
            kept += 1
    return kept, cut


@njit(cache=True, nogil=True)
def sift(
    tile: Floats,
    start: int,
    width: int,
    k: int,
    itself: Ints,
    margins: Doubles,
    cuts: Floats,
    counts: Longs,
    scores: Floats,
    positions: Ints,
    low: int,
    high: int,
) -> None:
    """Keep what is over the cut of its query, for the queries low to high.

    `tile` (queries, a multiple of CHUNK) holds the scores of the positions from `start` on, of which `width` count.
    `scores` and `positions` (queries, capacity) are what was kept so far; a query for which more rows are within the
    margin than they can hold gets the count -1.
    """
    capacity = scores.shape[1]
    scratch = np.empty(capacity, np.float32)
    for query in range(low, high):
        count, cut, line, own = counts[query], cuts[query], tile[query], itself[query] - start
        if count < 0:
            continue
        for left in range(0, width, CHUNK):
            hits = 0
            for at in range(left, left + CHUNK):
                hits += line[at] > cut
            if hits == 0:
                continue
            if count + hits > capacity:
                count, cut = shrink(scores[query], positions[query], count, k, margins[query], scratch)
                if count + hits > capacity:
                    count = -1
                    break
            for at in range(left, min(left + CHUNK, width)):
                if line[at] > cut and at != own:
                    scores[query, count] = line[at]
                    positions[query, count] = start + at
                    count += 1
        counts[query], cuts[query] = count, cut


@njit(cache=True, nogil=True)
def raise_cuts(
    k: int, margins: Doubles, cuts: Floats, counts: Longs, scores: Floats, positions: Ints, low: int, high: int
) -> None:
    """Set each cut to the k-th best score kept, less the margin, and forget what was kept; minus infinity if too few."""
    scratch = np.empty(scores.shape[1], np.float32)
    for query in range(low, high):
        cut = np.float32(-np.inf)
        if counts[query] >= k:
            cut = np.float32(shrink(scores[query], positions[query], counts[query], k, margins[query], scratch)[1])
        cuts[query], counts[query] = cut, 0
