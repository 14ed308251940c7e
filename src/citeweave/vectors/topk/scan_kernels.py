"""Compiled loops of the top-k search over many scores: filter candidates, find ranks and windows, scan rows.

    scores 0.1 0.9 0.4 0.7, cut 0.3      ->   kept 0.9 0.4 0.7, at the positions 1 2 3
    the second best of them              ->   0.7: when room is needed, 0.4 is dropped and the cut becomes 0.7

    rows (rows, dimension) . query       ->   approximate score of every row, and the keys of the best of each part
    approximate score + its error bound >= a score that is reached   ->   rows that must be scored exactly

An approximate score from a matrix product is wrong by at most half of its query's margin. So what is within the margin of a
border is kept, to be scored exactly (`engine.py`). Every loop works on its own range of queries or rows. Threads share only
`floors`, keys behind which nothing can be among the best: it saves work and changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from citeweave.vectors.topk.kernels import (
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
    approximate_cosines,
    approximate_dot,
    approximate_dot_and_square,
    approximate_squared_distance,
    exact_score,
    key,
    norm_of,
    push,
    score_of,
    widen,
)

CHUNK = 16
"""Scores compared with the cut at a time: most chunks have none above it and cost a few instructions."""


@njit(cache=True, nogil=True)
def _kth_largest(values: Floats, count: int, k: int) -> np.float32:
    """Return the k-th largest (k from 1) of the first `count` scores, reordered so that the k largest come first.

    Hoare's FIND (1961) around the median of three; it splits equal values evenly, so ties do not make it slow.
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
    value: np.float32 = values[target]
    return value


@njit(cache=True, nogil=True)
def _shrink(
    scores: Floats, positions: Ints, count: int, k: int, margin: float, scratch: Floats
) -> tuple[int, np.float32]:
    """Keep the k best candidates and all within the margin of the k-th; return how many, and the new cut."""
    scratch[:count] = scores[:count]
    cut = np.float32(_kth_largest(scratch, count, k) - margin)
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
def filter_tile(
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
    """Filter a tile by a scan kernel: keep the scores above the cut of their query, (queries, capacity).

    `tile` (queries, chunks, CHUNK) holds the scores of the positions from `start` on, of which `width` are
    valid; queries `low` to `high` are filtered. When `room` of the capacity is used up, the k best stay. A query with
    more positions than that within its margin overflows: it gets the count -1.
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
    """Set each query's cut by a scan kernel: the k-th best score kept, less the margin; discard what was kept."""
    for query in range(low, high):
        cut = -np.inf
        if counts[query] >= k:
            cut = _kth_largest(scores[query], counts[query], k) - margins[query]
        cuts[query], counts[query] = cut, 0


@njit(cache=True, nogil=True)
def find_windows(
    scores: Floats,
    counts: Longs,
    cuts: Floats,
    margins: Doubles,
    depths: Longs,
    ranks: Longs,
    bands: Longs,
    edges: Doubles,
    above: Longs,
    sizes: Longs,
    proved: Flags,
    low: int,
    high: int,
) -> None:
    """Find by a scan kernel the window of scores that holds the members of each band; count who is in or above it.

    Let q be the approximate scores, t the true ones and e the largest error. The r-th largest of q and of t differ by at
    most e, so a member of the band of ranks a to b has t between q_b - e and q_a + e and q between q_b - 2e and
    q_a + 2e; a higher q has a better rank than a. With m = 2e the margin:

        edges (queries, bands, 2) = q_b - m, q_a + m      above, sizes (queries, bands)

    `ranks` are all the ranks that bands begin and end at, the largest first; `bands` (bands, 2) says where in them.
    `depths` is the deepest rank of each query. A query is proved if nothing that its windows need was cut away.
    """
    scratch = np.empty(scores.shape[1], np.float32)
    values = np.empty(len(ranks), np.float64)
    for query in range(low, high):
        count, depth, margin = counts[query], depths[query], margins[query]
        proved[query] = count >= depth
        if not proved[query]:
            continue
        scratch[:count] = scores[query, :count]
        left = count
        for at in range(len(ranks)):
            rank = min(ranks[at], depth)
            values[at] = _kth_largest(scratch, left, rank) if rank else np.inf
            left = rank
        proved[query] = cuts[query] < values[0] - margin
        for band in range(len(bands)):
            if not proved[query] or ranks[bands[band, 0]] > depth:
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
    """Copy by a scan kernel the candidates in the windows to `out`, window after window; `ends` is where each ends."""
    bands = edges.shape[1]
    for query in range(low, high):
        for band in range(bands):
            at = ends[query * bands + band] - 1
            last, first = edges[query, band, 0], edges[query, band, 1]
            for entry in range(counts[query]):
                if last <= scores[query, entry] <= first:
                    out[at] = positions[query, entry]
                    at -= 1


SCAN_CHUNK = 128
"""Rows that all queries are multiplied with while they are in the L1 cache."""

_SMALL, _LARGE = np.float32(1e-20), np.float32(1e30)
"""Squared lengths between which float32 neither underflows nor overflows."""

_LARGE_HALF = np.float32(0.99) * NOT_HALF**2
"""Below the squared length of any float16 row with a number that is not finite."""


@njit(cache=True, nogil=True)
def _push_chunk(line: Floats, first: int, itself: int, heap: Keys, count: int, floor: np.uint64) -> int:
    """Push the rows of a chunk, which begins at `first`, onto the heap of a query's best; return its size."""
    if first <= itself < first + len(line):
        line[itself - first] = -np.inf
    worst = min(floor, heap[0] if count == len(heap) else WORST)
    cut = np.float32(-np.inf) if worst == WORST else score_of(worst)
    reached = 0
    for at in range(len(line)):  # no branches: most chunks hold nothing and cost a few instructions
        reached += line[at] >= cut
    if not reached:
        return count
    for at in range(len(line)):
        if line[at] >= cut and line[at] > -np.inf:
            count = push(heap, count, key(line[at], first + at))
            worst = min(floor, heap[0] if count == len(heap) else WORST)
            cut = np.float32(-np.inf) if worst == WORST else score_of(worst)
    return count


@njit(cache=True, nogil=True)
def scan_codes(
    codes: Bytes, scales: Floats, allowed: Flags, start: int, stop: int, words: Words, halves: Bytes, units: Doubles,
    by_halves: bool, itself: Longs, approximate: Floats, best: Keys, floors: Keys,
) -> None:  # fmt: skip
    """Scan by a kernel the int8 codes of rows start to stop: cosines (queries, rows), best keys (queries, kept)."""
    sums, counts = np.empty(SCAN_CHUNK, np.int32), np.zeros(len(units), np.int64)
    for first in range(start, stop, SCAN_CHUNK):
        last = min(first + SCAN_CHUNK, stop)
        if len(allowed) and not allowed[first:last].any():
            approximate[:, first:last] = -np.inf
            continue
        for query in range(len(units)):
            line = approximate[query, first:last]
            approximate_cosines(
                codes, scales, first, last, words[query], halves[query], units[query], by_halves, sums, line
            )  # fmt: skip
            if len(allowed):
                for at in range(last - first):
                    line[at] = line[at] if allowed[first + at] else -np.inf
            counts[query] = _push_chunk(line, first, itself[query], best[query], counts[query], floors[query])
    for query in range(len(units)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])


@njit(cache=True, nogil=True)
def scan_rows(
    matrix: Any, allowed: Flags, start: int, stop: int, vectors: Floats, directions: Floats, norms: Doubles, metric: int,
    itself: Longs, approximate: Floats, best: Keys, floors: Keys, broken: Longs,
) -> float:  # fmt: skip
    """Scan by a kernel the rows start to stop: approximate scores, best keys (queries, kept); return the largest norm."""
    buffer, counts, longest = np.empty(matrix.shape[1], np.float32), np.zeros(len(norms), np.int64), 0.0
    sums, squares = np.empty((len(norms), SCAN_CHUNK), np.float32), np.empty(SCAN_CHUNK, np.float32)
    for first in range(start, stop, SCAN_CHUNK):
        last = min(first + SCAN_CHUNK, stop)
        if len(norms) == 1 and (metric != L2 or matrix.itemsize == 4):
            _sums_of_one(matrix, allowed, first, last, directions[0], metric, sums[0], squares)
        else:
            _sums_of_several(matrix, allowed, first, last, directions, metric, buffer, sums, squares)
        lines = approximate[:, first:last]
        if not len(allowed) and _are_usual(sums, squares, 0, last - first, metric, matrix.itemsize):
            longest = max(longest, _scores_of_sums(sums, squares, 0, last - first, norms, metric, lines))
        else:
            for row in range(first, last):
                at = row - first
                if len(allowed) and not allowed[row]:
                    lines[:, at] = -np.inf
                elif _are_usual(sums, squares, at, at + 1, metric, matrix.itemsize):
                    longest = max(longest, _scores_of_sums(sums, squares, at, at + 1, norms, metric, lines))
                else:  # float32 would under- or overflow
                    widen(matrix[row], buffer)
                    norm = norm_of(buffer)
                    longest = max(longest, norm)
                    for query in range(len(norms)):
                        lines[query, at] = exact_score(vectors[query], buffer, norms[query] * norm, metric)
                    if not math.isfinite(norm):
                        broken[0], broken[1] = max(broken[0], 0) + 1, row if broken[1] < 0 else broken[1]
        for query in range(len(norms)):
            counts[query] = _push_chunk(lines[query], first, itself[query], best[query], counts[query], floors[query])
    for query in range(len(norms)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])
    return longest


@njit(cache=True, nogil=True)
def _are_usual(sums: Floats, squares: Floats, start: int, stop: int, metric: int, itemsize: int) -> bool:
    """Return whether the float32 sums of rows start to stop of a chunk neither underflowed nor overflowed."""
    largest = _LARGE if itemsize == 4 or metric == L2 else _LARGE_HALF
    usual = 0
    if metric == L2:
        for query in range(len(sums)):
            line = sums[query]
            for at in range(start, stop):
                usual += (line[at] > _SMALL) & (line[at] < largest)
        return usual == len(sums) * (stop - start)
    for at in range(start, stop):
        usual += (squares[at] > _SMALL) & (squares[at] < largest)
    return usual == stop - start


@njit(cache=True, nogil=True, error_model="numpy")
def _scores_of_sums(
    sums: Floats, squares: Floats, start: int, stop: int, norms: Doubles, metric: int, out: Floats
) -> float:
    """Turn sums of rows start to stop into approximate scores (queries, rows of the chunk); return the largest norm."""
    longest = np.float32(0)
    if metric != L2:
        for at in range(start, stop):
            longest = max(longest, squares[at])
    for query in range(len(sums)):
        line, scores = sums[query], out[query]
        if metric == L2:
            for at in range(start, stop):
                scores[at] = -np.sqrt(line[at])
        elif metric == COSINE:
            for at in range(start, stop):
                scores[at] = line[at] / np.sqrt(squares[at])
        else:
            for at in range(start, stop):
                scores[at] = line[at] * norms[query]
    return math.sqrt(longest)


# these loops do nothing but sum: with branches around them LLVM's code is half as fast


@njit(cache=True, nogil=True)
def _sums_of_one(
    matrix: Any, allowed: Flags, first: int, last: int, query: Floats, metric: int, sums: Floats, squares: Floats
) -> None:
    """Sum rows first to last for one query: squared distances, or inner products and the rows' squared lengths."""
    for row in range(first, last):
        if len(allowed) and not allowed[row]:
            continue
        if metric == L2:
            sums[row - first] = approximate_squared_distance(matrix[row], query)
        else:
            sums[row - first], squares[row - first] = approximate_dot_and_square(matrix[row], query)


@njit(cache=True, nogil=True)
def _sums_of_several(
    matrix: Any, allowed: Flags, first: int, last: int, queries: Floats, metric: int, buffer: Floats, sums: Floats,
    squares: Floats,
) -> None:  # fmt: skip
    """Sum rows first to last for several queries, into sums (queries, CHUNK), as `_sums_of_one` does for one."""
    for row in range(first, last):
        if len(allowed) and not allowed[row]:
            continue
        widen(matrix[row], buffer)
        if metric == L2:
            for query in range(len(queries)):
                sums[query, row - first] = approximate_squared_distance(buffer, queries[query])
        else:
            sums[0, row - first], squares[row - first] = approximate_dot_and_square(buffer, queries[0])
            for query in range(1, len(queries)):
                sums[query, row - first] = approximate_dot(buffer, queries[query])


@njit(cache=True, nogil=True)
def find_likely(
    approximate: Floats, errors: Floats, start: int, stop: int, of_row: float, of_score: float, constant: float, threshold: float,
    likely: Ints,
) -> int:  # fmt: skip
    """Find by a scan kernel the rows start to stop that may reach `threshold`, by `ErrorBound`; return how many."""
    count = 0
    for first in range(start, stop, SCAN_CHUNK):
        last = min(first + SCAN_CHUNK, stop)
        line = approximate[first:last]
        reached = 0
        if len(errors):
            widths = errors[first:last]
            for at in range(last - first):
                value = np.float64(line[at])
                reached += int(
                    value + (of_score * abs(value) + constant + np.float64(widths[at]) * of_row) >= threshold
                )
        else:
            for at in range(last - first):
                value = np.float64(line[at])
                reached += int(value + (of_score * abs(value) + constant) >= threshold)
        if not reached:
            continue
        for row in range(first, last):
            value = np.float64(approximate[row])
            error = of_score * abs(value) + constant
            if len(errors):
                error += np.float64(errors[row]) * of_row
            if value > -np.inf and value + error >= threshold:
                likely[count] = row
                count += 1
    return count


@njit(cache=True, nogil=True)
def score_rows(matrix: Any, rows: Ints, query: Floats, norm: float, metric: int, keys: Keys) -> None:
    """Score rows exactly by a scan kernel: keys[i] = the sort key of row rows[i]."""
    line = np.empty(matrix.shape[1], np.float32)
    for at in range(len(rows)):
        widen(matrix[rows[at]], line)
        length = norm_of(line) if metric == COSINE else 0.0
        keys[at] = key(exact_score(query, line, norm * length, metric), rows[at])


@njit(cache=True, nogil=True)
def split_keys(keys: Keys, rows: Ints, scores: Floats) -> None:
    """Split sort keys into rows and scores."""
    for at in range(len(keys)):
        rows[at], scores[at] = np.int32(keys[at] & np.uint64(0xFFFFFFFF)), score_of(keys[at])
