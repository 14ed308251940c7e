"""Memory as compiled loops see it: numbers half as wide, and vectors fetched before they are needed.

bfloat16 is the upper half of a float32: its range, and 8 bits of precision. numpy has no such type, so arrays of it are
uint16. float16 has 11 bits of precision and ends at 65,504; numpy has it, compiled code has not, so it gets such arrays
as int16. Called from compiled code alone, where `block` is float32 or one of the two:

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
_DOWN, _UP, _LARGEST = np.float32(2.0**-112), np.float32(2.0**112), np.float32(65504)
"""Between the exponents of float16 and of float32; small numbers become denormal in both, as they should."""
_LOW, _BELOW_LOW, _SIGN, _REST = np.uint32(13), np.uint32(0xFFF), np.uint32(0x8000), np.uint32(0x7FFF)
_make_array: Any = arrayobj.make_array
_unpack: Any = cgutils.unpack_tuple


def seen_by_kernels(block: NDArray[Any]) -> NDArray[Any]:
    """The block as compiled code takes it; the same memory."""
    return block.view(np.int16) if block.dtype == np.float16 else block


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
    if value == types.int16:

        def wide(value: Any) -> Any:
            bits = np.uint32(np.uint16(value))
            return from_bits(((bits & _REST) << _LOW) | ((bits & _SIGN) << _HALF)) * _UP

        return wide
    return lambda value: value


@overload(store, inline="always", strict=False)
def _store(block: Any, row: Any, column: Any, value: Any) -> Any:
    def whole(block: Any, row: Any, column: Any, value: Any) -> None:
        block[row, column] = value

    def half(block: Any, row: Any, column: Any, value: Any) -> None:
        bits = bits_of(value)
        # to the nearest, a tie to the even one
        block[row, column] = np.uint16((bits + _BELOW_HALF + ((bits >> _HALF) & _ONE)) >> _HALF)

    def float16(block: Any, row: Any, column: Any, value: Any) -> None:
        number = min(max(np.float32(value), -_LARGEST), _LARGEST) * _DOWN
        bits = bits_of(number)
        rest = bits & np.uint32(0x7FFFFFFF)
        rounded = (rest + _BELOW_LOW + ((rest >> _LOW) & _ONE)) >> _LOW
        block[row, column] = np.int16(np.uint16(rounded | ((bits >> _HALF) & _SIGN)))

    if block.dtype == types.int16:
        return float16
    return half if block.dtype == types.uint16 else whole
