"""Compiled loops of the top-k search over single vectors: exact and approximate scores, sort keys and a heap.

    exact_score((1, 0), (1, 1), norms=1.414..., COSINE) = 0.70710677
    approximate_cosines(codes, scales, 0, 64, ...)        int8 codes times a query of 16-bit integers, 64 rows
    key(0.7, 12) < key(0.7, 13) < key(0.6, 0)             sorting keys sorts by score, then by row

Plain numba, no intrinsics: the loops run over row views of two-dimensional arrays, which LLVM vectorizes; indexes into a
flat array it does not (numba wraps negative ones around). Every loop works on its own range of rows, so that threads
share nothing. Decides nothing: see `scan.py` and `engine.py`.
"""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

import numpy as np
from numba import extending, njit, types
from numpy.typing import NDArray

COSINE, DOT, L2 = 0, 1, 2
"""The metrics' codes in compiled loops."""

WORST = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A key after all others."""

HIGH = 128
"""What one step of the high half of a query's 16-bit integers is worth."""

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


@njit(cache=True, nogil=True)
def widen(line: Any, out: Floats) -> None:
    """Copy a row of float16 bits or float32 as float32."""
    for at in range(len(out)):
        out[at] = single(line[at])


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _term(one: float, other: float, metric: int) -> np.float64:
    difference = np.float64(one) - np.float64(other)
    return difference * difference if metric == L2 else np.float64(one) * np.float64(other)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _square(number: Any) -> np.float64:
    value = np.float64(single(number))
    return value * value


@njit(cache=True, nogil=True)
def measure(vectors: Any, norms: Doubles) -> None:
    """Compute the lengths of vectors (float32, or float16 bits as int16) into `norms`."""
    for row in range(len(vectors)):
        norms[row] = norm_of(vectors[row])


@njit(cache=True, nogil=True)
def key(score: np.float32, row: int) -> np.uint64:
    """Return the sort key of a score and a row: smaller for a better score, and for equal scores for a smaller row."""
    bits = np.float32(score + np.float32(0)).view(np.uint32)  # -0 becomes 0
    descending = bits if bits & _SIGN else bits ^ _REST
    return (np.uint64(descending) << _HALF) | np.uint64(row)


@njit(cache=True, nogil=True)
def score_of(one: np.uint64) -> np.float32:
    """Return the score in a sort key."""
    descending = np.uint32(one >> _HALF)
    bits = descending if descending & _SIGN else descending ^ _REST
    return np.uint32(bits).view(np.float32)


@njit(cache=True, nogil=True)
def row_of(one: np.uint64) -> np.int32:
    """Return the row in a sort key."""
    return np.int32(one & _LOW)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def approximate_dot(line: Any, query: Floats) -> np.float32:
    total = np.float32(0)
    for at in range(len(query)):
        total += finite_single(line[at]) * query[at]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def approximate_dot_and_square(line: Any, query: Floats) -> tuple[np.float32, np.float32]:
    """Return line . query and line . line by a compiled kernel, in one pass."""
    total = square = np.float32(0)
    for at in range(len(query)):
        value = finite_single(line[at])
        total += value * query[at]
        square += value * value
    return total, square


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def approximate_squared_distance(line: Any, query: Floats) -> np.float32:
    total = np.float32(0)
    for at in range(len(query)):
        difference = finite_single(line[at]) - query[at]
        total += difference * difference
    return total


# --- int8 codes ----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _sums_by_halves(codes: Bytes, start: int, stop: int, high: Bytes, low: Bytes, sums: Ints) -> None:
    """Compute products of codes and query by two int8 products per number: SDOT on ARM."""
    width = codes.shape[1]
    for row in range(start, stop):
        line = codes[row]
        upper, lower = np.int32(0), np.int32(0)
        for at in range(width):
            code = np.int32(line[at])
            upper += code * np.int32(high[at])
            lower += code * np.int32(low[at])
        sums[row - start] = upper * HIGH + lower


@njit(cache=True, nogil=True)
def _sums_by_words(codes: Bytes, start: int, stop: int, words: Words, sums: Ints) -> None:
    """Compute products of codes and query by one int16 product per number, summed in pairs: VPMADDWD on x86."""
    width = codes.shape[1]
    for row in range(start, stop):
        line = codes[row]
        total = np.int32(0)
        for at in range(width):
            total += np.int32(line[at]) * np.int32(words[at])
        sums[row - start] = total


@njit(cache=True, nogil=True)
def approximate_cosines(
    codes: Bytes, scales: Floats, start: int, stop: int, words: Words, halves: Bytes, unit: float, by_halves: bool,
    sums: Ints, out: Floats,
) -> None:  # fmt: skip
    """Compute by a kernel approximate cosines of rows start to stop of int8 codes (rows, width), from out[0] on.

    The query is words (width,) or, the same integers, 128 halves[0] + halves[1], (2, width). Both give the same sums,
    and so the same cosines bit for bit; which one is faster depends on the processor. `sums` has room for as many rows.
    Sums stay int32 until the end: converting them inside the loop over rows makes LLVM's code slower.
    """
    if by_halves:
        _sums_by_halves(codes, start, stop, halves[0], halves[1], sums)
    else:
        _sums_by_words(codes, start, stop, words, sums)
    for at in range(stop - start):
        out[at] = np.float32(np.float64(sums[at]) * (unit * np.float64(scales[start + at])))


@cache
def halves_are_faster() -> bool:
    """Return whether this processor multiplies int8 codes faster by halves: measured once per process, in a millisecond."""
    draw = np.random.default_rng(0)
    codes = draw.integers(-127, 128, (512, 384)).astype(np.int8)
    halves, sums, out = codes[:2].copy(), np.empty(len(codes), np.int32), np.empty(len(codes), np.float32)
    words, scales = read_only(halves[0].astype(np.int16)), read_only(np.ones(len(codes), np.float32))
    codes, halves = read_only(codes), read_only(halves)

    def seconds(by_halves: bool) -> float:
        start = time.perf_counter()
        approximate_cosines(codes, scales, 0, len(codes), words, halves, 1.0, by_halves, sums, out)
        return time.perf_counter() - start

    seconds(True)  # compiled, or loaded from numba's cache
    return min(seconds(True) for _ in range(8)) < min(seconds(False) for _ in range(8))
