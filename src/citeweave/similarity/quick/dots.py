"""Dot products of four rows of int8 codes with one query, compiled: with the instruction, or plainly where it is missing.

    query of 16-bit integers e = 128 high + low, both int8; laid out as 16 high, 16 low, the next 16 high ...
    high[at : at + 4] = codes . high of the four rows, low[at : at + 4] = codes . low

Integers, so that both ways give the same numbers. Rows are a multiple of STEP long. Does not scale; see `scanning.py`.
"""

# ruff: noqa: PLR0913
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit, types
from numba.core import cgutils
from numpy.typing import NDArray

from citeweave.similarity.quick.instruction import (
    BYTES,
    I8,
    I32,
    I64,
    INTS,
    call,
    dot,
    load,
    pointer,
    store,
    sum_in_loop,
)

STEP = 16
"""Numbers of a register."""

ROWS = 4
"""Rows that are multiplied together."""

AHEAD = 12_288
"""Bytes before the loads at which memory is asked for: a scan waits for memory more than for sums."""

HIGH = 128
"""What one step of the high half is worth."""

_intrinsic: Any = extending.intrinsic
_N = types.int64


@_intrinsic
def dot_quickly(typing, codes, one, two, three, four, steps, query, query_at, high, low, at):
    """Rows of `codes`, a flat array, that begin at four places; only where the processor has the instruction."""
    return types.void(codes, _N, _N, _N, _N, _N, query, _N, high, low, _N), _dot_quickly


def _dot_quickly(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    codes, *places, steps, query, query_at, high, low, at = arguments
    kinds = signature.args
    rows = [pointer(context, builder, kinds[0], codes, place, I8) for place in places]
    found = _summed(builder, rows, pointer(context, builder, kinds[6], query, query_at, I8), steps)
    for target, kind, four in ((high, kinds[8], found[:ROWS]), (low, kinds[9], found[ROWS:])):
        sums = _pairs(builder, _pairs(builder, *four[:2]), _pairs(builder, *four[2:]))
        store(builder, sums, pointer(context, builder, kind, target, at, I32), I64(0))
    return context.get_dummy_value()


def _summed(builder: Any, rows: list[Any], query: Any, steps: Any) -> list[Any]:
    """The loop over a row, sixteen numbers a step: four vectors of sums for the high half, four for the low one."""

    def add(step: Any, sums: list[Any]) -> list[Any]:
        at = builder.mul(step, I64(STEP))
        codes = [load(builder, row, at, BYTES) for row in rows]
        _prefetch(builder, builder.gep(rows[0], [builder.add(builder.mul(at, I64(ROWS)), I64(AHEAD))]))
        places = [builder.add(builder.mul(at, I64(2)), I64(STEP * half)) for half in range(2)]
        halves = [load(builder, query, place, BYTES) for place in places]
        return [dot(builder, sums[place], codes[place % ROWS], halves[place // ROWS]) for place in range(2 * ROWS)]

    return sum_in_loop(builder, steps, 2 * ROWS, add)


def _prefetch(builder: Any, place: Any) -> None:
    """Ask for the 64 bytes at a place; one that is not there is no error."""
    kind = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    found = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
    builder.call(found, [place, I32(0), I32(3), I32(1)])  # to read, into the nearest cache, data


def _pairs(builder: Any, one: Any, other: Any) -> Any:
    """Sums of neighbours: (a0 + a1, a2 + a3, b0 + b1, b2 + b3)."""
    return call(builder, "llvm.aarch64.neon.addp.v4i32", INTS, one, other)


@njit(cache=True, nogil=True)
def dot_plainly(
    codes: NDArray[np.int8],
    one: int,
    two: int,
    three: int,
    four: int,
    steps: int,
    query: NDArray[np.int8],
    query_at: int,
    high: NDArray[np.int32],
    low: NDArray[np.int32],
    at: int,
) -> None:
    """The same on any processor."""
    for place, begin in enumerate((one, two, three, four)):
        upper = lower = np.int32(0)
        for step in range(steps):
            row, asked = begin + STEP * step, query_at + 2 * STEP * step
            for j in range(STEP):
                code = np.int32(codes[row + j])
                upper += code * np.int32(query[asked + j])
                lower += code * np.int32(query[asked + STEP + j])
        high[at + place], low[at + place] = upper, lower
