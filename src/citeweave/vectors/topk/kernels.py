"""Compiled loops of the top-k search over rows: exact and approximate scores, sort keys, a heap, scans of all rows.

    exact_score((1, 0), (1, 1), norms=1.414..., COSINE) = 0.70710677
    key(0.7, 12) < key(0.7, 13) < key(0.6, 0)             sorting keys sorts by score, then by row
    rows (rows, dimension) . query      ->   approximate score of every row, and the keys of the best of each part
    approximate score + its error bound >= a score that is reached   ->   rows that must be scored exactly

Plain numba, no intrinsics: the loops run over row views of two-dimensional arrays, which LLVM vectorizes; indexes into a
flat array it does not (numba wraps negative ones around). Every loop works on its own range of rows. Threads share only
`floors`, keys behind which nothing can be among the best: it saves work and changes nothing. Loops over int8 codes are in
`codes.py`. Decides nothing: see `scan.py` and `engine.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import before_compiling, compiled

COSINE, DOT, L2 = 0, 1, 2
"""The metrics' codes in compiled loops."""

WORST = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A key after all others."""

NOT_HALF = np.float32(65_536)
"""Above every finite float16."""

_SIGN, _REST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FLOAT16_BITS = np.int32(-0x70002000)  # sign, exponent and mantissa of a float16, moved to those of a float32
_FLOAT16_SCALE = np.float32(2.0**112)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Keys = NDArray[np.uint64]
Bytes = NDArray[np.int8]
Words = NDArray[np.int16]
Flags = NDArray[np.bool_]


# --- rows of float16 and float32 -----------------------------------------------------------------------


def single(number: Any) -> Any:
    """Return a number of a row as float32: itself, or a float16 given by its bits as int16. For compiled code."""
    raise NotImplementedError


def finite_single(number: Any) -> Any:
    """Return a finite number as float32, faster than `single`; an infinite float16 becomes 65,536, NaN more."""
    raise NotImplementedError


@before_compiling
def _overload_rows() -> None:
    from numba import extending, types

    @extending.overload(single)
    def _single(number: Any) -> Any:
        return _from_half if number == types.int16 else _unchanged

    @extending.overload(finite_single)
    def _finite_single(number: Any) -> Any:
        return _from_finite_half if number == types.int16 else _unchanged


def _unchanged(number: Any) -> Any:
    return number


def _from_finite_half(number: Any) -> Any:
    # the bits of a float16 at the places of a float32 are its value times 2^-112: exact, subnormal numbers too
    return np.int32((np.int32(number) << np.int32(13)) & _FLOAT16_BITS).view(np.float32) * _FLOAT16_SCALE


def _from_half(number: Any) -> Any:
    value = finite_single(number)
    return value if abs(value) < NOT_HALF else np.float32(np.inf)


@compiled()
def widen(line: Any, out: Floats) -> None:
    """Copy a row of float16 bits or float32 as float32."""
    for at in range(len(out)):
        out[at] = single(line[at])


@compiled()
def _widen_rows(matrix: Words, out: Floats) -> None:
    for row in range(len(out)):
        widen(matrix[row], out[row])


def as_float32(matrix: NDArray[Any]) -> Floats:
    """Return a matrix as contiguous float32, without a copy if it is; numpy converts float16 slowly on some processors."""
    if matrix.dtype == np.float16 and matrix.ndim == 2 and matrix.flags.c_contiguous:
        wide = np.empty(matrix.shape, np.float32)
        _widen_rows(numbers_of(matrix), wide)
        return wide
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(matrix, np.float32)


def numbers_of(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a float16 or float32 matrix as compiled code reads it: float16 as bits, and read-only like mapped files.

    Code is then compiled for two kinds of arrays and no more.
    """
    return read_only(matrix.view(np.int16) if matrix.dtype == np.float16 else matrix)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of an array, so that loops are compiled once for mapped and other arrays."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


# --- exact scores and their order ----------------------------------------------------------------------


@compiled()
def _term(one: float, other: float, metric: int) -> np.float64:
    difference = np.float64(one) - np.float64(other)
    return difference * difference if metric == L2 else np.float64(one) * np.float64(other)


@compiled()
def exact_score(query: Floats, vector: Floats, norms: float, metric: int) -> np.float32:
    """Compute one vector's exact top-k score by a kernel: summed in float64 in a fixed order; higher is nearer.

    cosine: q.v / (|q| |v|), 0 where `norms` = |q| |v| is 0; dot: q.v; l2: minus the distance.
    """
    a = b = c = d = 0.0
    size = len(query)
    for at in range(0, size - 3, 4):
        a, b = a + _term(query[at], vector[at], metric), b + _term(query[at + 1], vector[at + 1], metric)
        c, d = c + _term(query[at + 2], vector[at + 2], metric), d + _term(query[at + 3], vector[at + 3], metric)
    for at in range(size - size % 4, size):
        a += _term(query[at], vector[at], metric)
    total = (a + b) + (c + d)
    if metric == L2:
        total = -math.sqrt(total)
    elif metric == COSINE:
        total = total / norms if norms > 0 else 0.0
    return np.float32(total)


@compiled()
def norm_of(vector: Any) -> float:
    """Return the length of a vector in float64 by a compiled kernel; not finite if one of its numbers is not."""
    a = b = c = d = 0.0
    size = len(vector)
    for at in range(0, size - 3, 4):
        a, b = a + _square(vector[at]), b + _square(vector[at + 1])
        c, d = c + _square(vector[at + 2]), d + _square(vector[at + 3])
    for at in range(size - size % 4, size):
        a += _square(vector[at])
    return math.sqrt((a + b) + (c + d))


@compiled()
def _square(number: Any) -> np.float64:
    value = np.float64(single(number))
    return value * value


@compiled()
def measure(vectors: Any, norms: Doubles) -> None:
    """Compute the lengths of vectors (float32, or float16 bits as int16) into `norms`."""
    for row in range(len(vectors)):
        norms[row] = norm_of(vectors[row])


@compiled()
def key(score: np.float32, row: int) -> np.uint64:
    """Return the sort key of a score and a row: smaller for a better score, and for equal scores for a smaller row."""
    bits = np.float32(score + np.float32(0)).view(np.uint32)  # -0 becomes 0
    descending = bits if bits & _SIGN else bits ^ _REST
    return (np.uint64(descending) << _HALF) | np.uint64(row)


@compiled()
def score_of(one: np.uint64) -> np.float32:
    """Return the score in a sort key."""
    descending = np.uint32(one >> _HALF)
    bits = descending if descending & _SIGN else descending ^ _REST
    return np.uint32(bits).view(np.float32)


@compiled()
def row_of(one: np.uint64) -> np.int32:
    """Return the row in a sort key."""
    return np.int32(one & _LOW)


@compiled()
def push(heap: Keys, count: int, one: np.uint64) -> int:
    """Push a key onto a top-k kernel's heap of the smallest keys, the largest heap[0]; return how many it holds now."""
    size = len(heap)
    if count < size:
        at = count
        while at and heap[(at - 1) >> 1] < one:
            heap[at] = heap[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap[at] = one
        return count + 1
    if one >= heap[0]:
        return count
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= one:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = one
    return count


# --- approximate scores of rows ------------------------------------------------------------------------


# "reassoc" lets the compiler sum in several registers at once; approximate sums may be in any order


@compiled(fastmath={"reassoc", "contract", "nsz"})
def approximate_dot(line: Any, query: Floats) -> np.float32:
    total = np.float32(0)
    for at in range(len(query)):
        total += finite_single(line[at]) * query[at]
    return total


@compiled(fastmath={"reassoc", "contract", "nsz"})
def approximate_dot_and_square(line: Any, query: Floats) -> tuple[np.float32, np.float32]:
    """Return line . query and line . line by a compiled kernel, in one pass."""
    total = square = np.float32(0)
    for at in range(len(query)):
        value = finite_single(line[at])
        total += value * query[at]
        square += value * value
    return total, square


@compiled(fastmath={"reassoc", "contract", "nsz"})
def approximate_squared_distance(line: Any, query: Floats) -> np.float32:
    total = np.float32(0)
    for at in range(len(query)):
        difference = finite_single(line[at]) - query[at]
        total += difference * difference
    return total


# --- scans of rows ---------------------------------------------------------------------------------------


SCAN_CHUNK = 128
"""Rows that all queries are multiplied with while they are in the L1 cache."""

_SMALL, _LARGE = np.float32(1e-20), np.float32(1e30)
"""Squared lengths between which float32 neither underflows nor overflows."""

_LARGE_HALF = np.float32(0.99) * NOT_HALF**2
"""Below the squared length of any float16 row with a number that is not finite."""


@compiled()
def push_chunk(line: Floats, first: int, itself: int, heap: Keys, count: int, floor: np.uint64) -> int:
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


@compiled()
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
            counts[query] = push_chunk(lines[query], first, itself[query], best[query], counts[query], floors[query])
    for query in range(len(norms)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])
    return longest


@compiled()
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


@compiled(error_model="numpy")
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


@compiled()
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


@compiled()
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


@compiled()
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


@compiled()
def score_rows(matrix: Any, rows: Ints, query: Floats, norm: float, metric: int, keys: Keys) -> None:
    """Score rows exactly by a scan kernel: keys[i] = the sort key of row rows[i]."""
    line = np.empty(matrix.shape[1], np.float32)
    for at in range(len(rows)):
        widen(matrix[rows[at]], line)
        length = norm_of(line) if metric == COSINE else 0.0
        keys[at] = key(exact_score(query, line, norm * length, metric), rows[at])


@compiled()
def split_keys(keys: Keys, rows: Ints, scores: Floats) -> None:
    """Split sort keys into rows and scores."""
    for at in range(len(keys)):
        rows[at], scores[at] = np.int32(keys[at] & np.uint64(0xFFFFFFFF)), score_of(keys[at])
