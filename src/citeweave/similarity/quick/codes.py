"""Codes of a matrix of vectors: every row at length 1 as int8 with one scale, and how wrong that makes it.

    u = x / |x|      code = round(u / scale), scale = largest |u| / 127      error = |u - scale code|, rounded up

    folder/codes.npy     int8, row after row, each filled up with zeros to a multiple of 16
    folder/scales.npy    float32, (rows,)
    folder/errors.npy    float32, (rows,)
    folder/norms.npy     float64, (rows,): |x|

    >>> codes = make_codes(np.array([[3, 4], [0, 0]], np.float32))
    >>> codes.flat[:2].tolist(), codes.norms.tolist(), bool(codes.errors[1] < 1e-6)
    ([95, 127], [5.0, 0.0], True)

For a query p of length 1, |p . u - p . scale code| <= error (Cauchy and Schwarz): see `asking.py`. Codes belong to one
matrix and one order of its rows; they are no vectors, and nothing but a scan reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.columns import NumberWriter, open_numbers
from citeweave.errors import ArtefactError, UserError
from citeweave.similarity.quick.dots import STEP
from citeweave.similarity.searching.rescoring import measure
from citeweave.similarity.searching.selecting import Doubles, Floats

BLOCK = 16_384
"""Rows in memory at a time."""

TINY = 1e-9
"""More than what float64 can get wrong about vectors of length 1."""

_FILES: dict[str, Any] = {"codes": np.int8, "scales": np.float32, "errors": np.float32, "norms": np.float64}


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of a matrix, in memory or memory-mapped."""

    flat: NDArray[np.int8]
    """(rows * width,)"""

    scales: Floats
    errors: Floats
    norms: Doubles
    """(rows,) each."""

    @classmethod
    def open(cls, folder: str | Path) -> Codes:
        """The codes of a folder; sizes that do not fit together are an error."""
        folder = Path(folder)
        codes = cls(*(open_numbers(folder / f"{name}.npy", kind) for name, kind in _FILES.items()))
        rows = len(codes)
        fits = len(codes.scales) == len(codes.errors) == rows and len(codes.flat) == rows * codes.width
        if not fits or codes.width % STEP or (rows > 0) != (codes.width > 0):
            raise ArtefactError(f"{folder} is damaged: its codes, scales, errors and norms do not fit; make it again")
        return codes

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def width(self) -> int:
        """Codes of a row, its filling included."""
        return len(self.flat) // max(len(self), 1)

    def check(self, matrix: NDArray[Any]) -> None:
        """Refuse codes that cannot be of this matrix."""
        fits = matrix.ndim == 2 and len(matrix) == len(self)
        if not fits or (len(self) and self.width != padded(matrix.shape[1])):
            raise ArtefactError(
                f"codes of {len(self):,} rows of {self.width} numbers do not belong to vectors of the shape "
                f"{matrix.shape}; make the codes again"
            )


def padded(dimension: int) -> int:
    """Numbers of a row of codes.

    >>> padded(384), padded(3)
    (384, 16)
    """
    return -(-dimension // STEP) * STEP


def make_codes(matrix: NDArray[Any]) -> Codes:
    """The codes of a matrix in memory."""
    parts = [_encode(matrix, start) for start in range(0, len(matrix), BLOCK)]
    none = [np.empty(0, kind) for kind in _FILES.values()]
    return Codes(*(np.concatenate([empty, *(part[at] for part in parts)]) for at, empty in enumerate(none)))


def write_codes(folder: str | Path, matrix: NDArray[Any]) -> None:
    """Write the codes of a matrix, float16 or float32 and perhaps mapped, block by block; folder may be there."""
    writers = [NumberWriter(Path(folder) / f"{name}.npy", kind) for name, kind in _FILES.items()]
    try:
        for start in range(0, len(matrix), BLOCK):
            for writer, values in zip(writers, _encode(matrix, start), strict=True):
                writer.append(values)
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
    return codes.reshape(-1), scales, errors, norms


@njit(cache=True, nogil=True)
def _quantize(vectors: Floats, norms: Doubles, codes: NDArray[np.int8], scales: Floats, bounds: Doubles) -> None:
    """A row of zeros has codes and a scale of zero."""
    for row in range(len(vectors)):
        most = 0.0
        for at in range(vectors.shape[1]):
            most = max(most, abs(np.float64(vectors[row, at])))
        if most == 0:
            bounds[row] = TINY
            continue
        norm = norms[row]
        scale = np.float64(np.float32(most / norm / 127))
        total = 0.0
        for at in range(vectors.shape[1]):
            value = np.float64(vectors[row, at]) / norm
            code = min(max(np.rint(value / scale), -127.0), 127.0)
            codes[row, at] = np.int8(code)
            total += (value - scale * code) ** 2
        scales[row], bounds[row] = scale, np.sqrt(total) + TINY
