"""Memory as compiled loops see it: numbers half as wide, and vectors fetched before they are needed.

bfloat16 is the upper half of a float32: its range, and 8 bits of precision. numpy has no such type, so arrays of it are
uint16. Called from compiled code alone, where `block` is float32 or such an array of uint16:

    widen(block[i, j])             the number as a float32
    store(block, i, j, number)     the float32 rounded to what the block holds
    fetch_row(block, i)            a hint that the row is needed soon; changes no result
    bits_of(number)                the 32 bits of a float32

Subtle: numba's cache of the loops that call these does not see that this file changed; after an edit, remove
`__pycache__`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic, overload
from numba.np import arrayobj
from numpy.typing import NDArray

LINE = 64
"""Bytes of a line of the processor's cache."""

_HALF, _ONE, _BELOW_HALF = np.uint32(16), np.uint32(1), np.uint32(0x7FFF)
_make_array: Any = arrayobj.make_array
_unpack: Any = cgutils.unpack_tuple


def _bits_of(typing: Any, value: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), build


def _from_bits(typing: Any, bits: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), build


def _fetch(typing: Any, block: Any, row: Any, byte: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = _make_array(signature.args[0])(context, builder, arguments[0])
        stride = _unpack(builder, array.strides)[0]
        at = builder.add(builder.mul(stride, arguments[1]), arguments[2])
        bytes_, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.gep(builder.bitcast(array.data, bytes_), [at])
        kind = ir.FunctionType(ir.VoidType(), [bytes_, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (bytes_,), kind)
        builder.call(prefetch, [address, number(0), number(3), number(1)])  # to read, to keep, data
        return context.get_dummy_value()

    return types.void(block, types.int64, types.int64), build


bits_of: Any = intrinsic(_bits_of)
from_bits: Any = intrinsic(_from_bits)
fetch: Any = intrinsic(_fetch)


@numba.njit(cache=True, nogil=True)
def fetch_row(block: NDArray[Any], row: int) -> None:
    for byte in range(0, block.shape[1] * block.itemsize, LINE):
        fetch(block, np.int64(row), byte)


def widen(value: Any) -> Any:
    """Compiled by `_widen`."""


def store(block: Any, row: Any, column: Any, value: Any) -> Any:
    """Compiled by `_store`."""


@overload(widen, inline="always", strict=False)
def _widen(value: Any) -> Any:
    if value == types.uint16:
        return lambda value: from_bits(np.uint32(value) << _HALF)
    return lambda value: value


@overload(store, inline="always", strict=False)
def _store(block: Any, row: Any, column: Any, value: Any) -> Any:
    def whole(block: Any, row: Any, column: Any, value: Any) -> None:
        block[row, column] = value

    def half(block: Any, row: Any, column: Any, value: Any) -> None:
        bits = bits_of(value)
        # to the nearest, a tie to the even one
        block[row, column] = np.uint16((bits + _BELOW_HALF + ((bits >> _HALF) & _ONE)) >> _HALF)

    return half if block.dtype == types.uint16 else whole
