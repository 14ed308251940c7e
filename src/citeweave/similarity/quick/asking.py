"""Queries as a scan of codes reads them, and how wrong a quick cosine of them can be.

    p = q / |q|      e = round(p / unit), unit = largest |p| / 16,256      e = 128 high + low, int8 both

Sixteen bits cost a scan little, because it waits for the codes. For a row with u, scale, code and error (`codes.py`):

    quick = unit e . scale code
    |p . u - quick| <= |p . (u - scale code)| + |(p - unit e) . scale code| <= error + rest (1 + error)

with rest = |p - unit e|. SLACK is added for the rounding of both numbers to float32. A query of zeros has the cosine 0
with everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.similarity.quick.codes import TINY, padded
from citeweave.similarity.quick.dots import HIGH, STEP
from citeweave.similarity.quick.scanning import SLACK
from citeweave.similarity.searching.scanning import norms_of
from citeweave.similarity.searching.selecting import Doubles, Floats

_MOST = 127 * HIGH


@dataclass(frozen=True, slots=True)
class Asked:
    """Some queries."""

    vectors: Floats
    """As they came, (queries, dimension)."""

    norms: Doubles
    halves: NDArray[np.int8]
    """Flat: of each query 16 high, 16 low, the next 16 high ..., 2 * width numbers."""

    units: Doubles
    rests: Doubles
    """(queries,) each: |p - unit e|."""

    def __len__(self) -> int:
        return len(self.norms)

    def part(self, start: int, stop: int) -> Asked:
        """Some of the queries."""
        wide = len(self.halves) // max(len(self), 1)
        own = slice(start, stop)
        halves = self.halves[start * wide : stop * wide]
        return Asked(self.vectors[own], self.norms[own], halves, self.units[own], self.rests[own])

    def error(self, query: int) -> tuple[float, float]:
        """(share, rest): a quick cosine of a row is wrong by at most its error * share + rest."""
        return 1 + float(self.rests[query]), float(self.rests[query]) + SLACK


def ask(queries: NDArray[Any], dimension: int) -> Asked:
    """Prepare queries, (queries, dimension); numbers that are not finite are an error."""
    if queries.ndim != 2 or queries.shape[1] != dimension or queries.dtype.kind != "f":
        raise UserError(
            f"queries of shape {queries.shape} and type {queries.dtype} for vectors of {dimension} numbers; give "
            f"floating-point numbers of shape (n, {dimension}), of the same model"
        )
    with np.errstate(over="ignore"):
        vectors = np.array(queries, np.float32, order="C")  # (queries, dimension)
    norms = norms_of(vectors, None, "queries")
    known = np.where(norms > 0, norms, 1.0)
    unit = np.zeros((len(vectors), padded(dimension)))
    unit[:, :dimension] = vectors / known[:, None]
    units = np.where(norms > 0, np.abs(unit).max(axis=1, initial=0.0) / _MOST, 1.0)  # (queries,)
    whole = np.clip(np.rint(unit / units[:, None]), -_MOST, _MOST)
    rests = np.sqrt(((unit - units[:, None] * whole) ** 2).sum(axis=1)) + TINY
    high = np.rint(whole / HIGH)
    both = np.stack([high, whole - HIGH * high], axis=1)  # (queries, 2, width)
    halves = (
        both.reshape(len(vectors), 2, unit.shape[1] // STEP, STEP).swapaxes(1, 2).astype(np.int8)
    )  # (queries, steps, 2, STEP)
    return Asked(vectors, norms, np.ascontiguousarray(halves).reshape(-1), units, rests)
