"""Compiled loops of the top-k search over single rows: exact scores, quick scores, sort keys and a heap.

    exact_score((1, 0), (1, 1), norms=1.414..., COSINE) = 0.70710677
    quick_cosines(codes, scales, 0, 64, ...)              int8 codes times a query of 16-bit integers, 64 rows
    key(0.7, 12) < key(0.7, 13) < key(0.6, 0)             sorting keys sorts by score, then by row

Plain numba, no intrinsics: the loops run over row views of two-dimensional arrays, which LLVM vectorizes, where indexes
into a flat array are not (numba wraps negative ones around). Every loop works on a range of rows of its own, so that
threads share nothing. This module decides nothing: see `scan.py` and `settle.py`.

The ranks that are asked for, and which of sorted candidates can hold them.

    bands (20, 25] and (3998, 4000], 256 beside each     ->   columns 0 to 280 and 3,742 to 4,255 of some 6,000
    ranks among what is left                                  21 to 25 and 538 to 539

Candidates that stand in the order of their quick scores are narrowed by leaving out the same columns for every query, so
that ranks move by the same number for all. Does not look at scores: whoever narrows has to check that all that a band may
hold is within its columns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import extending, njit, types
from numpy.typing import NDArray

COSINE, DOT, L2 = 0, 1, 2
"""The metrics as compiled code knows them."""

WORST = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A key behind all others."""

HIGH = 128
"""What one step of the high half of a query's 16-bit integers is worth."""

NOT_HALF = np.float32(65_536)
"""Every finite float16 is below."""

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
    """A number of a row as float32: the number itself, or a float16 given by its bits as int16. For compiled code."""
    raise NotImplementedError


def finite_single(number: Any) -> Any:
    """The same, faster, of numbers that are finite; an infinite float16 becomes 65,536, NaN more."""
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
    """A row as float32."""
    for at in range(len(out)):
        out[at] = single(line[at])


@njit(cache=True, nogil=True)
def _widen_rows(matrix: Words, out: Floats) -> None:
    for row in range(len(out)):
        widen(matrix[row], out[row])


def as_float32(matrix: NDArray[Any]) -> Floats:
    """A matrix as contiguous float32; itself if it is that. numpy alone converts float16 slowly on some processors."""
    if matrix.dtype == np.float16 and matrix.ndim == 2 and matrix.flags.c_contiguous:
        wide = np.empty(matrix.shape, np.float32)
        _widen_rows(numbers_of(matrix), wide)
        return wide
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(matrix, np.float32)


def numbers_of(matrix: NDArray[Any]) -> NDArray[Any]:
    """A matrix of float16 or float32 as compiled code reads it: float16 as its bits, and read-only, as mapped files are.

    Code is then compiled for two kinds of arrays and no more.
    """
    return read_only(matrix.view(np.int16) if matrix.dtype == np.float16 else matrix)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to."""
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
    """The score that decides: summed in float64 in one fixed order, then rounded to float32; higher is nearer.

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
    """The length of a vector, in float64; not finite if one of its numbers is not."""
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
    """norms[i] = the length of vectors[i]; float32, or the bits of float16 as int16."""
    for row in range(len(vectors)):
        norms[row] = norm_of(vectors[row])


@njit(cache=True, nogil=True)
def key(score: np.float32, row: int) -> np.uint64:
    """A number that is smaller the better the score is, and for equal scores the smaller the row."""
    bits = np.float32(score + np.float32(0)).view(np.uint32)  # -0 becomes 0
    descending = bits if bits & _SIGN else bits ^ _REST
    return (np.uint64(descending) << _HALF) | np.uint64(row)


@njit(cache=True, nogil=True)
def score_of(one: np.uint64) -> np.float32:
    """The score in a key."""
    descending = np.uint32(one >> _HALF)
    bits = descending if descending & _SIGN else descending ^ _REST
    return np.uint32(bits).view(np.float32)


@njit(cache=True, nogil=True)
def row_of(one: np.uint64) -> np.int32:
    """The row in a key."""
    return np.int32(one & _LOW)


@njit(cache=True, nogil=True)
def push(heap: Keys, count: int, one: np.uint64) -> int:
    """Put a key among the smallest len(heap) ones, the largest of which is heap[0]; returns how many there are now."""
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


# --- quick scores of rows -------------------------------------------------------------------------------


# "reassoc" lets the compiler sum in several registers at once; quick sums may be in any order


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def quick_dot(line: Any, query: Floats) -> np.float32:
    total = np.float32(0)
    for at in range(len(query)):
        total += finite_single(line[at]) * query[at]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def quick_dot_and_square(line: Any, query: Floats) -> tuple[np.float32, np.float32]:
    """line . query and line . line, in one pass."""
    total = square = np.float32(0)
    for at in range(len(query)):
        value = finite_single(line[at])
        total += value * query[at]
        square += value * value
    return total, square


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def quick_squared_distance(line: Any, query: Floats) -> np.float32:
    total = np.float32(0)
    for at in range(len(query)):
        difference = finite_single(line[at]) - query[at]
        total += difference * difference
    return total


# --- int8 codes ----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _sums_by_halves(codes: Bytes, start: int, stop: int, high: Bytes, low: Bytes, sums: Ints) -> None:
    """Two products of int8 for each number: SDOT on ARM."""
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
    """One product of int16, summed in pairs as int32: VPMADDWD on x86."""
    width = codes.shape[1]
    for row in range(start, stop):
        line = codes[row]
        total = np.int32(0)
        for at in range(width):
            total += np.int32(line[at]) * np.int32(words[at])
        sums[row - start] = total


@njit(cache=True, nogil=True)
def quick_cosines(
    codes: Bytes, scales: Floats, start: int, stop: int, words: Words, halves: Bytes, unit: float, by_halves: bool,
    sums: Ints, out: Floats,
) -> None:  # fmt: skip
    """Quick cosines of rows start to stop of codes (rows, width), from out[0] on; `sums` has room for as many.

    The query is words (width,) or, the same integers, 128 halves[0] + halves[1], (2, width). Both ways give the same
    sums, and so the same cosines bit for bit; which one is faster depends on the processor. Sums stay int32 until the
    end: where they become int64 inside the loop over rows, LLVM makes slower code.
    """
    if by_halves:
        _sums_by_halves(codes, start, stop, halves[0], halves[1], sums)
    else:
        _sums_by_words(codes, start, stop, words, sums)
    for at in range(stop - start):
        out[at] = np.float32(np.float64(sums[at]) * (unit * np.float64(scales[start + at])))


@cache
def halves_are_faster() -> bool:
    """Which way this processor multiplies codes faster: measured once per process, in about a millisecond."""
    draw = np.random.default_rng(0)
    codes = draw.integers(-127, 128, (512, 384)).astype(np.int8)
    halves, sums, out = codes[:2].copy(), np.empty(len(codes), np.int32), np.empty(len(codes), np.float32)
    words, scales = read_only(halves[0].astype(np.int16)), read_only(np.ones(len(codes), np.float32))
    codes, halves = read_only(codes), read_only(halves)

    def seconds(by_halves: bool) -> float:
        start = time.perf_counter()
        quick_cosines(codes, scales, 0, len(codes), words, halves, 1.0, by_halves, sums, out)
        return time.perf_counter() - start

    seconds(True)  # compiled, or loaded from numba's cache
    return min(seconds(True) for _ in range(8)) < min(seconds(False) for _ in range(8))


# The ranks that are asked for, and which of sorted candidates can hold them.


@dataclass(frozen=True, slots=True)
class Ranks:
    """The bands asked for, as arrays: band i has the ranks lows[i] < rank <= highs[i]."""

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
        """Where each band begins when they stand side by side, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.highs - self.lows)])

    def reach(self, needs: Longs) -> Longs:
        """How many members each band has for queries with so many ranks, (queries, bands)."""
        members: Longs = np.clip(needs[:, None] - self.lows, 0, self.highs - self.lows)
        return members

    def columns_around(self, beside: int) -> CandidateColumns:
        """The columns of sorted candidates that hold the bands and so many on both sides of each."""
        spans: list[Span] = []
        for low, high in sorted(zip(self.lows.tolist(), self.highs.tolist(), strict=True)):
            start, stop = max(0, low - beside), high + beside
            if spans and start <= spans[-1].stop:
                start, stop, bands = spans[-1].start, max(stop, spans[-1].stop), spans.pop().bands
            else:
                bands = ()
            spans.append(Span(start, stop, (*bands, (low, high))))
        return CandidateColumns(tuple(spans))


class Span(NamedTuple):
    """Columns start to stop - 1, and the bands that lie in them."""

    start: int
    stop: int
    bands: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CandidateColumns:
    """Some columns of sorted candidates.

    >>> columns = Ranks.of([(20, 25), (3998, 4000)]).columns_around(256)
    >>> [(span.start, span.stop) for span in columns.spans], columns.ranks_left(Ranks.of([(3998, 4000)]))
    ([(0, 281), (3742, 4256)], Ranks(lows=array([537]), highs=array([539])))
    """

    spans: tuple[Span, ...]
    """Ascending, with columns left out between any two."""

    def count(self, width: Any) -> Any:
        """How many of the first `width` columns these are; of a number, or of an array of numpy or torch."""
        return sum((width - span.start).clip(0, span.stop - span.start) for span in self.spans)

    def ranks_left(self, ranks: Ranks) -> Ranks:
        """The ranks of the same candidates when all other columns are gone."""
        return Ranks(self.count(ranks.lows), self.count(ranks.highs))
