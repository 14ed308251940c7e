"""The compiled loops that choose among quick scores: sift them, find a rank, find who may be near it.

    quick scores 0.1 0.9 0.4 0.7, cut 0.3   ->   kept 0.9 0.4 0.7, at the positions 1 2 3
    the second best of them                 ->   0.7: when room is needed, 0.4 goes and the cut becomes 0.7

A quick score, out of a matrix product, is wrong by at most half of the margin of its query. So what is within the
margin of a border is kept, to be scored exactly: see `settle.py`. Every loop works on a range of queries of its own,
so that threads share nothing. Does not see vectors, and knows no rows: only positions in the pool.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from citeweave.similarity.topk.kernels import Doubles, Flags, Floats, Ints, Longs

CHUNK = 16
"""Scores looked at together: most chunks hold none over the cut and cost a few instructions."""


@njit(cache=True, nogil=True)
def kth_largest(values: Floats, count: int, k: int) -> np.float32:
    """The k-th largest (k from 1) of the first `count` values, which are shuffled so that the k largest come first.

    Hoare's FIND (1961) around the median of three; it parts equal values evenly, so ties do not make it slow.
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
    found: np.float32 = values[target]
    return found


@njit(cache=True, nogil=True)
def _shrink(
    scores: Floats, positions: Ints, count: int, k: int, margin: float, scratch: Floats
) -> tuple[int, np.float32]:
    """Keep the k best and all within the margin of the k-th; returns how many, and the cut they are over."""
    scratch[:count] = scores[:count]
    cut = np.float32(kth_largest(scratch, count, k) - margin)
    kept = 0
    for at in range(count):
        if scores[at] > cut:
            scores[kept], positions[kept] = scores[at], positions[at]
            kept += 1
    return kept, cut


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _highest(line: Floats, chunk: int) -> np.float32:
    # four at a time: one maximum after the other would wait for the one before
    a, b, c, d = line[chunk, 0], line[chunk, 1], line[chunk, 2], line[chunk, 3]
    for at in range(4, CHUNK, 4):
        a, b = max(a, line[chunk, at]), max(b, line[chunk, at + 1])
        c, d = max(c, line[chunk, at + 2]), max(d, line[chunk, at + 3])
    highest: np.float32 = max(max(a, b), max(c, d))
    return highest


@njit(cache=True, nogil=True)
def sift(
    tile: Floats,
    start: int,
    width: int,
    k: int,
    room: int,
    itself: Ints,
    margins: Doubles,
    cuts: Floats,
    counts: Longs,
    scores: Floats,
    positions: Ints,
    low: int,
    high: int,
) -> None:
    """Add what is over the cut of its query to `scores` and `positions` (queries, capacity), for queries low to high.

    `tile` (queries, chunks, CHUNK) holds the scores of the positions from `start` on, of which `width` count. When
    `room` of the capacity is used up, the k best stay. A query with more positions than that within its margin gets
    the count -1: it is crowded.
    """
    scratch = np.empty(room, np.float32)
    for query in range(low, high):
        count, cut, line, own = counts[query], cuts[query], tile[query], itself[query] - start
        if count < 0:
            continue
        for chunk in range((width + CHUNK - 1) // CHUNK):
            if _highest(line, chunk) <= cut:
                continue
            if count + CHUNK > room:
                count, cut = _shrink(scores[query], positions[query], count, k, margins[query], scratch)
                if count + CHUNK > room:
                    count = -1
                    break
            left = chunk * CHUNK
            for at in range(CHUNK):
                if line[chunk, at] > cut and left + at < width and left + at != own:
                    scores[query, count], positions[query, count] = line[chunk, at], start + left + at
                    count += 1
        counts[query], cuts[query] = count, cut


@njit(cache=True, nogil=True)
def raise_cuts(k: int, margins: Doubles, cuts: Floats, counts: Longs, scores: Floats, low: int, high: int) -> None:
    """Set each cut to the k-th best score kept, less the margin, and forget what was kept."""
    for query in range(low, high):
        cut = -np.inf
        if counts[query] >= k:
            cut = kth_largest(scores[query], counts[query], k) - margins[query]
        cuts[query], counts[query] = cut, 0


@njit(cache=True, nogil=True)
def find_windows(
    scores: Floats,
    counts: Longs,
    cuts: Floats,
    margins: Doubles,
    needs: Longs,
    ranks: Longs,
    bands: Longs,
    edges: Doubles,
    above: Longs,
    sizes: Longs,
    sure: Flags,
    low: int,
    high: int,
) -> None:
    """Between which quick scores the members of each band must be, how many are there, how many are surely better.

    Let q be the quick scores, t the true ones and e the largest error. The r-th largest of q and of t differ by at
    most e, so a member of the band of ranks a to b has t between q_b - e and q_a + e and q between q_b - 2e and
    q_a + 2e; who has a higher q has a better rank than a. With m = 2e the margin:

        edges (queries, bands, 2) = q_b - m, q_a + m      above, sizes (queries, bands)

    `ranks` are all the ranks that bands begin and end at, the largest first; `bands` (bands, 2) says where in them.
    `needs` is how many ranks a query has. A query is sure if nothing that its windows need was cut away.
    """
    scratch = np.empty(scores.shape[1], np.float32)
    values = np.empty(len(ranks), np.float64)
    for query in range(low, high):
        count, need, margin = counts[query], needs[query], margins[query]
        sure[query] = count >= need
        if not sure[query]:
            continue
        scratch[:count] = scores[query, :count]
        left = count
        for at in range(len(ranks)):
            rank = min(ranks[at], need)
            values[at] = kth_largest(scratch, left, rank) if rank else np.inf
            left = rank
        sure[query] = cuts[query] < values[0] - margin
        for band in range(len(bands)):
            if not sure[query] or ranks[bands[band, 0]] > need:
                continue
            first, last = values[bands[band, 0]] + margin, values[bands[band, 1]] - margin
            better = inside = 0
            for at in range(count):
                better += scores[query, at] > first
                inside += scores[query, at] >= last
            edges[query, band, 0], edges[query, band, 1] = last, first
            above[query, band], sizes[query, band] = better, inside - better


@njit(cache=True, nogil=True)
def collect(
    scores: Floats, positions: Ints, counts: Longs, edges: Doubles, ends: Longs, out: Ints, low: int, high: int
) -> None:
    """Copy the positions inside the windows to `out`, window after window; `ends` is where each window ends in it."""
    bands = edges.shape[1]
    for query in range(low, high):
        for band in range(bands):
            at = ends[query * bands + band] - 1
            last, first = edges[query, band, 0], edges[query, band, 1]
            for entry in range(counts[query]):
                if last <= scores[query, entry] <= first:
                    out[at] = positions[query, entry]
                    at -= 1
