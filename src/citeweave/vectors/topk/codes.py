"""int8 codes of vectors, and the compiled scan that computes approximate cosines from them with a proved error bound.

Codes of a matrix: every row at length 1 as int8 with one scale, and the error of that.

    u = x / |x|      code = round(u / scale), scale = largest |u| / 127      error = |u - scale code|, rounded up

    folder/codes.npy     int8, row after row, each padded with zeros to a multiple of 16
    folder/scales.npy    float32, (rows,)
    folder/errors.npy    float32, (rows,)
    folder/norms.npy     float64, (rows,): |x|

    >>> codes = make_codes(np.array([[3, 4], [0, 0]], np.float32))
    >>> codes.matrix[0, :2].tolist(), codes.norms.tolist(), bool(codes.errors[1] < 1e-6)
    ([95, 127], [5.0, 0.0], True)

Codes of a query: 16-bit integers, which cost a scan little because it is bound by memory.

    p = q / |q|      e = round(p / unit), unit = largest |p| / 16,256      e = 128 high + low, both int8

An approximate cosine is unit e . scale code. By Cauchy and Schwarz, with rest = |p - unit e|,

    |p . u - approximate| <= |p . (u - scale code)| + |(p - unit e) . scale code| <= error + rest (1 + error)

SLACK is added for the rounding of both numbers to float32. A query of zeros has the cosine 0 with everything. Codes
belong to one matrix and one order of its rows; only a scan reads them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import NumberWriter, open_numbers
from citeweave.core.compiled import compiled
from citeweave.core.errors import ArtifactError, UserError
from citeweave.vectors.topk.kernels import (
    SCAN_CHUNK,
    Bytes,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    Words,
    measure,
    push_chunk,
    read_only,
)

HIGH = 128
"""What one step of the high half of a query's 16-bit integers is worth."""

BLOCK = 16_384
"""Rows in memory at a time while codes are made."""

STEP = 16
"""A row of codes is padded to a multiple of this."""

TINY = 1e-9
"""More than float64 can get wrong about vectors of length 1."""

SLACK = 2e-7
"""Rounding of an approximate cosine and of an exact one to float32: 2^-24 of a number below 1.1 each, and some more."""

_LARGEST = 127 * HIGH
_MAX_SUM = 2**31 - 1
"""Sums of products of codes are int32: the codes of queries for very long rows are smaller."""

_FILES: dict[str, Any] = {"codes": np.int8, "scales": np.float32, "errors": np.float32, "norms": np.float64}


@dataclass(frozen=True, slots=True)
class Codes:
    """The int8 codes of a matrix, for top-k scans, in memory or memory-mapped."""

    matrix: Bytes
    """(rows, width)"""

    scales: Floats
    errors: Floats
    norms: Doubles
    """(rows,) each."""

    @classmethod
    def open(cls, folder: str | Path) -> Codes:
        """The int8 codes in a folder; sizes that do not match are an error."""
        folder = Path(folder)
        flat, scales, errors, norms = (open_numbers(folder / f"{name}.npy", kind) for name, kind in _FILES.items())
        rows = len(norms)
        width = len(flat) // max(rows, 1)
        fits = len(scales) == len(errors) == rows and len(flat) == rows * width
        if not fits or width % STEP or (rows > 0) != (width > 0):
            raise ArtifactError(f"{folder} is damaged: its codes, scales, errors and norms do not fit; make it again")
        return cls(flat.reshape(rows, width), scales, errors, norms)

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def width(self) -> int:
        """Numbers in a row, with its padding."""
        return int(self.matrix.shape[1])

    def check(self, matrix: NDArray[Any]) -> None:
        """Refuse int8 codes that cannot be those of this matrix."""
        fits = matrix.ndim == 2 and len(matrix) == len(self)
        if not fits or (len(self) and self.width != padded(matrix.shape[1])):
            raise ArtifactError(
                f"codes of {len(self):,} rows of {self.width} numbers do not belong to vectors of the shape "
                f"{matrix.shape}; make the codes again"
            )


def padded(dimension: int) -> int:
    """Numbers in a row of codes.

    >>> padded(384), padded(3)
    (384, 16)
    """
    return -(-dimension // STEP) * STEP


def make_codes(matrix: NDArray[Any]) -> Codes:
    """The codes of a matrix in memory."""
    parts = [_encode(matrix, start) for start in range(0, len(matrix), BLOCK)]
    none = [np.empty((0, padded(matrix.shape[1])), np.int8), *(np.empty(0, _FILES[name]) for name in list(_FILES)[1:])]
    return Codes(*(np.concatenate([empty, *(part[at] for part in parts)]) for at, empty in enumerate(none)))


def write_codes(folder: str | Path, matrix: NDArray[Any]) -> None:
    """Write the int8 codes of a matrix, float16 or float32 and perhaps mapped, block by block; folder may exist."""
    writers = [NumberWriter(Path(folder) / f"{name}.npy", kind) for name, kind in _FILES.items()]
    try:
        for start in range(0, len(matrix), BLOCK):
            for writer, values in zip(writers, _encode(matrix, start), strict=True):
                writer.append(values.reshape(-1))
    finally:
        for writer in writers:
            writer.close()


def _encode(matrix: NDArray[Any], start: int) -> tuple[NDArray[Any], ...]:
    """Codes, scales, errors and norms of one block of rows."""
    with np.errstate(over="ignore"):
        vectors = np.array(matrix[start : start + BLOCK], np.float32, order="C")  # (rows, dimension)
    norms, bounds = np.empty(len(vectors)), np.empty(len(vectors))
    measure(vectors, norms)
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        raise UserError(
            f"row {start + int(bad[0])} of the vectors holds a number that is not finite ({len(bad):,} such rows in its "
            "block); leave those rows out, or make the vectors again"
        )
    codes = np.zeros((len(vectors), padded(vectors.shape[1])), np.int8)
    scales = np.zeros(len(vectors), np.float32)
    _quantize(vectors, norms, codes, scales, bounds)
    errors = np.nextafter(bounds.astype(np.float32), np.float32(np.inf))
    return codes, scales, errors, norms


@compiled()
def _quantize(vectors: Floats, norms: Doubles, codes: Bytes, scales: Floats, bounds: Doubles) -> None:
    """A row of zeros has codes and a scale of zero."""
    for row in range(len(vectors)):
        largest = 0.0
        for at in range(vectors.shape[1]):
            largest = max(largest, abs(np.float64(vectors[row, at])))
        if largest == 0:
            bounds[row] = TINY
            continue
        norm = norms[row]
        scale = np.float64(np.float32(largest / norm / 127))
        total = 0.0
        for at in range(vectors.shape[1]):
            value = np.float64(vectors[row, at]) / norm
            code = min(max(np.rint(value / scale), -127.0), 127.0)
            codes[row, at] = np.int8(code)
            total += (value - scale * code) ** 2
        scales[row], bounds[row] = scale, np.sqrt(total) + TINY


@dataclass(frozen=True, slots=True)
class QueryCodes:
    """Some queries as 16-bit integers."""

    words: Words
    """(queries, width) e."""

    halves: Bytes
    """(queries, 2, width): e = 128 halves[:, 0] + halves[:, 1]."""

    units: Doubles
    rests: Doubles
    """(queries,) each: |p - unit e|."""

    @classmethod
    def of(cls, vectors: Floats, norms: Doubles) -> QueryCodes:
        """The int8 codes of query vectors (queries, dimension) with these norms, which must be finite."""
        dimension = vectors.shape[1]
        width = padded(dimension)
        largest = min(_LARGEST, _MAX_SUM // (127 * width))
        unit = np.zeros((len(vectors), width))
        unit[:, :dimension] = vectors / np.where(norms > 0, norms, 1.0)[:, None]
        units = np.where(norms > 0, np.abs(unit).max(axis=1, initial=0.0) / largest, 1.0)  # (queries,)
        words = np.clip(np.rint(unit / units[:, None]), -largest, largest)
        rests = np.sqrt(((unit - units[:, None] * words) ** 2).sum(axis=1)) + TINY
        high = np.rint(words / HIGH)
        halves = np.stack([high, words - HIGH * high], axis=1).astype(np.int8)
        return cls(words.astype(np.int16), halves, units, rests)

    def error(self, query: int) -> tuple[float, float]:
        """Return (factor, constant): an approximate cosine is wrong by at most the row's error * factor + constant."""
        return 1 + float(self.rests[query]), float(self.rests[query]) + SLACK


# --- approximate cosines, compiled ----------------------------------------------------------------------


@compiled()
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


@compiled()
def _sums_by_words(codes: Bytes, start: int, stop: int, words: Words, sums: Ints) -> None:
    """Compute products of codes and query by one int16 product per number, summed in pairs: VPMADDWD on x86."""
    width = codes.shape[1]
    for row in range(start, stop):
        line = codes[row]
        total = np.int32(0)
        for at in range(width):
            total += np.int32(line[at]) * np.int32(words[at])
        sums[row - start] = total


@compiled()
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


@compiled()
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
            counts[query] = push_chunk(line, first, itself[query], best[query], counts[query], floors[query])
    for query in range(len(units)):
        if counts[query] == best.shape[1]:
            floors[query] = min(floors[query], best[query, 0])
