"""Compiled kernels of node vectors: sums of neighbors' vectors, bfloat16 and float16 storage, prefetching.

A block of vectors is float32, or half as wide. bfloat16 is the upper half of a float32: its range, and 8 bits of
precision; numpy has no such type, so arrays of it are uint16. float16 has 11 bits of precision and ends at 65,504;
compiled code has no such type, so it gets such arrays as int16. Inside compiled code:

    widen(block[i, j])             the number as a float32
    store(block, i, j, number)     the float32 rounded to what the block holds
    _fetch_row(block, i)            prefetches a row that is needed soon; changes no result
    bits_of(number)                the 32 bits of a float32

Sums are made in float32, column by column in the order of the entries, so a column comes out the same, bit for bit, in
a block of any width and on any number of threads. Knows nothing of random walks or embedding methods.

Subtle: numba's cache of the loops that call the intrinsics does not notice changes to this file; after an edit, remove
`__pycache__`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import before_compiling, compiled

LINE = 64
"""Bytes of a CPU cache line."""

_HALF, _ONE, _BELOW_HALF = np.uint32(16), np.uint32(1), np.uint32(0x7FFF)
_DOWN, _UP, _LARGEST = np.float32(2.0**-112), np.float32(2.0**112), np.float32(65504)
"""Scale between the exponents of float16 and float32; small numbers become denormal in both, as they should."""
_LOW, _BELOW_LOW, _SIGN, _REST = np.uint32(13), np.uint32(0xFFF), np.uint32(0x8000), np.uint32(0x7FFF)


def as_kernel_array(block: NDArray[Any]) -> NDArray[Any]:
    """Return a view of the block that compiled kernels accept: float16 as int16, other types as they are."""
    return block.view(np.int16) if block.dtype == np.float16 else block


bits_of: Any
from_bits: Any
fetch: Any


@before_compiling
def _define_intrinsics() -> None:
    """Define what compiled code does with bits and addresses, in LLVM's instructions."""
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core import cgutils, types
    from numba.extending import intrinsic
    from numba.np import arrayobj

    make_array: Any = arrayobj.make_array
    unpack: Any = cgutils.unpack_tuple

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
            array = make_array(signature.args[0])(context, builder, arguments[0])
            stride = unpack(builder, array.strides)[0]
            at = builder.add(builder.mul(stride, arguments[1]), arguments[2])
            bytes_, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            address = builder.gep(builder.bitcast(array.data, bytes_), [at])
            kind = ir.FunctionType(ir.VoidType(), [bytes_, number, number, number])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", (bytes_,), kind)
            builder.call(prefetch, [address, number(0), number(3), number(1)])  # to read, to keep, data
            return context.get_dummy_value()

        return types.void(block, types.int64, types.int64), build

    global bits_of, from_bits, fetch
    bits_of, from_bits, fetch = intrinsic(_bits_of), intrinsic(_from_bits), intrinsic(_fetch)


@compiled()
def _fetch_row(block: NDArray[Any], row: int) -> None:
    """Prefetch one row of a block into the CPU cache."""
    for byte in range(0, block.shape[1] * block.itemsize, LINE):
        fetch(block, np.int64(row), byte)


def widen(value: Any) -> Any:
    """Widen a stored number (bfloat16, float16 or float32) to float32; compiled by `_widen`."""


def store(block: Any, row: Any, column: Any, value: Any) -> Any:
    """Round a float32 to the block's type and store it; compiled by `_store`."""


@before_compiling
def _overload_storage() -> None:
    """Define how compiled code reads and writes numbers of each type of block."""
    from numba.core import types
    from numba.extending import overload

    @overload(widen, inline="always", strict=False)
    def _widen(value: Any) -> Any:
        if value == types.uint16:
            return lambda value: from_bits(np.uint32(value) << _HALF)
        if value == types.int16:

            def float16_to_float32(value: Any) -> Any:
                bits = np.uint32(np.uint16(value))
                return from_bits(((bits & _REST) << _LOW) | ((bits & _SIGN) << _HALF)) * _UP

            return float16_to_float32
        return lambda value: value

    @overload(store, inline="always", strict=False)
    def _store(block: Any, row: Any, column: Any, value: Any) -> Any:
        def float32(block: Any, row: Any, column: Any, value: Any) -> None:
            block[row, column] = value

        def bfloat16(block: Any, row: Any, column: Any, value: Any) -> None:
            bits = bits_of(value)
            # round to nearest, ties to even
            block[row, column] = np.uint16((bits + _BELOW_HALF + ((bits >> _HALF) & _ONE)) >> _HALF)

        def float16(block: Any, row: Any, column: Any, value: Any) -> None:
            number = min(max(np.float32(value), -_LARGEST), _LARGEST) * _DOWN
            bits = bits_of(number)
            rest = bits & np.uint32(0x7FFFFFFF)
            rounded = (rest + _BELOW_LOW + ((rest >> _LOW) & _ONE)) >> _LOW
            block[row, column] = np.int16(np.uint16(rounded | ((bits >> _HALF) & _SIGN)))

        if block.dtype == types.int16:
            return float16
        return bfloat16 if block.dtype == types.uint16 else float32


# Loops over sparse rows and blocks of vectors.

Offsets = NDArray[np.int64]
Targets = NDArray[np.int32]
Weights = NDArray[np.float32] | None
"""Weights of edges; None where every edge counts 1."""

Block = NDArray[Any]
"""Vectors in float32, or narrower."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

AHEAD = 8
"""How many entries ahead of the current one vectors are prefetched."""

_HIGH = np.uint64(32)
_ODD, _ODD_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


@compiled()
def add_rows(offsets: Offsets, targets: Targets, weights: Weights, block: Block, first: int, sums: Floats) -> None:
    """Add by a compiled kernel to sums[i] the vectors of the neighbors of node first + i, times their weights."""
    width = block.shape[1]
    stop = offsets[first + len(sums)]
    for i in range(len(sums)):
        at, end = offsets[first + i], offsets[first + i + 1]
        while at + 4 <= end:
            if at + AHEAD + 4 <= stop:
                for k in range(AHEAD, AHEAD + 4):
                    _fetch_row(block, targets[at + k])
            # unsigned, so that the compiler need not handle negative indices
            a, b = np.uintp(targets[at]), np.uintp(targets[at + 1])
            c, d = np.uintp(targets[at + 2]), np.uintp(targets[at + 3])
            if weights is None:
                for j in range(width):
                    sums[i, j] += (widen(block[a, j]) + widen(block[b, j])) + (widen(block[c, j]) + widen(block[d, j]))
            else:
                p, q, r, s = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
                for j in range(width):
                    sums[i, j] += (p * widen(block[a, j]) + q * widen(block[b, j])) + (
                        r * widen(block[c, j]) + s * widen(block[d, j])
                    )
            at += 4
        while at < end:
            if at + AHEAD < stop:
                _fetch_row(block, targets[at + AHEAD])
            a = np.uintp(targets[at])
            weight = np.float32(1) if weights is None else weights[at]
            for j in range(width):
                sums[i, j] += weight * widen(block[a, j])
            at += 1


@compiled()
def end_step(sums: Floats, now: Block, loop: float, scale: Floats, first: int, after: Block) -> None:
    """End a step by a kernel: sums[i] = after[first + i] = (sums[i] + loop * now[first + i]) * scale[first + i]."""
    for i in range(len(sums)):
        factor = scale[first + i]
        for j in range(sums.shape[1]):
            value = sums[i, j]
            if loop != 0:
                value += np.float32(loop) * widen(now[first + i, j])
            value *= factor
            sums[i, j] = value
            store(after, first + i, j, value)


@compiled()
def find_gains(sums: Floats, gain: float, columns: int, first: int, gains: Floats) -> None:
    """Set by a kernel gains[first + i] = gain / norm of the first columns of sums[i]; 0 where they are all 0."""
    for i in range(len(sums)):
        length = np.float32(0)
        for j in range(columns):
            length += sums[i, j] * sums[i, j]
        gains[first + i] = np.float32(gain) / np.sqrt(length) if length > 0 else np.float32(0)


@compiled()
def add_gained(sums: Floats, gains: Floats, first: int, column: int, out: Block) -> None:
    """Add a scaled walk power by a kernel: out[first + i, column + j] += gains[first + i] * sums[i, j]."""
    for i in range(len(sums)):
        factor, row = gains[first + i], first + i
        for j in range(sums.shape[1]):
            store(out, row, column + j, widen(out[row, column + j]) + factor * sums[i, j])


@compiled()
def widen_into(block: Block, column: int, out: Floats) -> None:
    """Copy a narrow block into float32 columns: out[i, column + j] = block[i, j]."""
    for i in range(len(block)):
        for j in range(block.shape[1]):
            out[i, column + j] = widen(block[i, j])


@compiled()
def narrow_into(block: Floats, column: int, out: Block) -> None:
    """Copy a float32 block into a narrower one: out[i, column + j] = block[i, j], rounded."""
    for i in range(len(block)):
        for j in range(block.shape[1]):
            store(out, i, column + j, block[i, j])


@compiled()
def fill_signs(key: int, column: int, scale: Floats, out: Block) -> None:
    """Fill with random signs by a kernel: out[i, j] = +-scale[i], by the key, node i and column + j alone."""
    width = out.shape[1]
    for i in range(len(out)):
        plus, minus = scale[i], -scale[i]
        for word in range(column // 64, (column + width + 63) // 64):
            bits = _spread((np.uint64(key) ^ (np.uint64(word) * _ODD_2)) + np.uint64(i) * _ODD)
            begin = max(column, word * 64)
            bits >>= np.uint64(begin - word * 64)
            for j in range(begin - column, min(width, word * 64 + 64 - column)):
                store(out, i, j, plus if bits & np.uint64(1) else minus)
                bits >>= np.uint64(1)


@compiled()
def _spread(state: np.uint64) -> np.uint64:
    """Scramble a 64-bit word: SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@compiled()
def add_weights(offsets: Offsets, targets: Targets, weights: Weights, out: Doubles) -> bool:
    """Add by a compiled kernel the edge weights of every row to out; return False if one is negative or not finite."""
    valid = True
    for i in range(len(out)):
        if weights is None:
            out[i] += offsets[i + 1] - offsets[i]
        else:
            for at in range(offsets[i], offsets[i + 1]):
                valid = valid and 0 <= weights[at] < np.inf
                out[i] += weights[at]
    return valid


@compiled()
def hash_entries(offsets: Offsets, targets: Targets, weights: Weights) -> tuple[np.uint64, np.uint64]:
    """Hash by a kernel all entries (row, column, weight) of a graph, and of its transpose, whatever their order."""
    forward, backward = np.uint64(0), np.uint64(0)
    for i in range(len(offsets) - 1):
        for at in range(offsets[i], offsets[i + 1]):
            row, column = np.uint64(i), np.uint64(targets[at])
            weight = np.uint64(0) if weights is None else np.uint64(bits_of(weights[at])) * _ODD_2
            forward += _spread(((row << _HIGH) | column) + weight)
            backward += _spread(((column << _HIGH) | row) + weight)
    return forward, backward


@compiled()
def transpose(
    offsets: Offsets, targets: Targets, weights: Weights, ends: Offsets, sources: Targets, transposed: Weights
) -> None:
    """Transpose a graph's sparse rows by a compiled counting sort; `ends` holds where every row begins, later ends."""
    for i in range(len(offsets) - 1):
        for at in range(offsets[i], offsets[i + 1]):
            column = targets[at]
            sources[ends[column]] = i
            if weights is not None and transposed is not None:
                transposed[ends[column]] = weights[at]
            ends[column] += 1


@compiled()
def add_columns(offsets: Offsets, targets: Targets, weights: Weights, factors: Doubles, out: Doubles) -> None:
    """Add by a compiled kernel to out[j] the edge weights of column j, each times the factor of its row."""
    for i in range(len(factors)):
        for at in range(offsets[i], offsets[i + 1]):
            out[targets[at]] += factors[i] * (1.0 if weights is None else weights[at])


@compiled()
def fill_log_weights(
    offsets: Offsets, targets: Targets, weights: Weights, rows: Doubles, columns: Doubles, out: Floats
) -> None:
    """Set edge weights by a kernel: w of entry (i, j) to log w + rows[i] + columns[j]; a weight of 0 stays 0."""
    for i in range(len(rows)):
        for at in range(offsets[i], offsets[i + 1]):
            weight = 1.0 if weights is None else weights[at]
            out[at] = np.log(weight) + rows[i] + columns[targets[at]] if weight > 0 else 0.0


@compiled()
def unit_rows(matrix: Floats) -> None:
    """Normalize node vectors to length 1 by a compiled kernel, in place; zero rows stay zero."""
    for i in range(len(matrix)):
        square = 0.0
        for j in range(matrix.shape[1]):
            square += np.float64(matrix[i, j]) * matrix[i, j]
        factor = 1 / np.sqrt(square) if square > 0 else 0.0
        for j in range(matrix.shape[1]):
            matrix[i, j] *= factor
