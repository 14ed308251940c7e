"""Compiled int8 kernels of a BERT layer over a packed stream: quantize, dense, attention, GELU, normalization.

    dense    quantize rows, multiply, add the bias
    attend   scores in int8, softmax in float32, the mean of the values in float16
    layer    attention, normalization, the two products around GELU, normalization; in three steps, each of which can be
             divided by rows or by heads, so that threads can share one text

Products are in int8, all else in float32. The passes over a row of floats (largest, quantize, exponential, GELU) handle four
numbers per instruction; lengths are multiples of 16. Work arrays may have stale rows after the tokens: what is computed there
is finite and is never read. A token's states depend on the tokens of its text alone, not on the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

from citeweave.encoders.int8_tiles import (
    COLUMNS,
    F16,
    F32,
    FLOATS,
    I8,
    I32,
    I64,
    INTS,
    ROWS,
    SHARE,
    add_tile,
    call,
    floats,
    larger,
    largest,
    load,
    mix_tile,
    multiply_add,
    pointer,
    rounded,
    score_tile,
    size,
    smaller,
    splat,
    store,
    store_tile,
)

# ruff: noqa: PLR0913
# mypy: disable-error-code="no-untyped-def"


_intrinsic: Any = extending.intrinsic
_FOUR_HALVES = ir.VectorType(F16, 4)

STRIDE = 16
"""Lengths of rows are multiples of this: four vectors per loop turn, so that none waits for another."""

_EXP2 = (0.0551718231, 0.242611508, 0.693260996, 0.999928051)
"""2 ** x for |x| <= 0.5, the highest power first; relative error below 8e-5."""

_MAGIC = 12582912.0
"""1.5 * 2 ** 23: adding a float leaves its nearest integer in the lowest bits."""

BLOCK = 64
"""Rows that go through the two products around GELU together, so that the states between stay in the cache."""

_MIN_SIZE = np.float32(1e-9)
_TOP = np.float32(127)
_ROOM = np.float32(4)  # weights of at highest 2 ** -3: their sums over 512 values of 1,000 fit into float16
_LOG2_E = np.float32(1.4426950408889634)

_END = 4.0
_GELU = (2.27808112e-08, -1.59857055e-06, 4.79548972e-05, -0.000814009541, 0.00877236007, -0.06457305, 0.397883307)
"""(Phi(x) - 0.5) / x in powers of x ** 2 for |x| <= 4, the highest first; GELU within 2e-4 of the exact one."""


def _loop(builder: Any, count: Any, start: Any, step: Callable[[Any, Any], Any]) -> list[Any]:
    """Emit a loop over a row: for at = 0, 4, ... below count: carry = step(at, carry), with four carries in turn."""
    before, body = builder.block, builder.append_basic_block("row.body")
    end = builder.append_basic_block("row.end")
    builder.branch(body)
    builder.position_at_end(body)
    at = builder.phi(I64)
    at.add_incoming(I64(0), before)
    carries = [builder.phi(FLOATS) for _ in range(4)]
    found = [step(builder.add(at, I64(4 * turn)), carry) for turn, carry in enumerate(carries)]
    for old, new in zip(carries, found, strict=True):
        old.add_incoming(start, before)
        old.add_incoming(new, body)
    following = builder.add(at, I64(STRIDE))
    at.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, count), body, end)
    builder.position_at_end(end)
    return found


def _fold(builder: Any, vectors: list[Any], two: Callable[[Any, Any, Any], Any]) -> Any:
    return two(builder, two(builder, vectors[0], vectors[1]), two(builder, vectors[2], vectors[3]))


@_intrinsic
def _row_size(typing, row, row_at, factors, factors_at, count):
    """Return the largest |row * factors|, by which a row is quantized."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        f = pointer(context, builder, signature.args[2], arguments[2], arguments[3], F32)

        def step(at: Any, highest: Any) -> Any:
            product = builder.fmul(load(builder, x, at, FLOATS), load(builder, f, at, FLOATS))
            return larger(builder, highest, size(builder, product))

        return largest(builder, _fold(builder, _loop(builder, arguments[4], floats(0), step), larger))

    return types.float32(row, types.int64, factors, types.int64, types.int64), code


@_intrinsic
def _pack_row(typing, row, row_at, factors, factors_at, count, scale, out, out_at, width):
    """Quantize round(row * factors * scale) to int8 in a panel: four numbers at out_at, the next four `width` fours on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        f = pointer(context, builder, signature.args[2], arguments[2], arguments[3], F32)
        target = pointer(context, builder, signature.args[6], arguments[6], I64(0), I32)
        scales = splat(builder, arguments[5])
        fours = ir.VectorType(I8, 4)

        def step(at: Any, carry: Any) -> Any:
            product = builder.fmul(load(builder, x, at, FLOATS), load(builder, f, at, FLOATS))
            four = builder.trunc(rounded(builder, builder.fmul(product, scales)), fours)
            place = builder.add(arguments[7], builder.mul(builder.lshr(at, I64(2)), arguments[8]))
            store(builder, builder.bitcast(four, I32), target, place)
            return carry

        _loop(builder, arguments[4], floats(0), step)
        return context.get_dummy_value()

    n = types.int64
    return types.void(row, n, factors, n, n, types.float32, out, n, n), code


@_intrinsic
def _row_largest(typing, row, row_at, count):
    """Return the largest number of a row, for softmax."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        found = _loop(
            builder,
            arguments[2],
            floats(-1e30),
            lambda at, highest: larger(builder, highest, load(builder, x, at, FLOATS)),
        )
        return largest(builder, _fold(builder, found, larger))

    return types.float32(row, types.int64, types.int64), code


@_intrinsic
def _exp2_row(typing, row, row_at, count, shift, out):
    """Compute out = 2 ** (row - floor(shift)) as float16 at the same place; return the sum, with terms of at least 2 ** -100."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        target = pointer(context, builder, signature.args[4], arguments[4], arguments[1], F16)
        whole = splat(builder, call(builder, "llvm.floor.f32", F32, arguments[3]))
        low, magic = builder.fsub(whole, floats(100.0)), builder.fsub(floats(_MAGIC), whole)

        def step(at: Any, total: Any) -> Any:
            found = _exp2(builder, larger(builder, load(builder, x, at, FLOATS), low), magic)
            store(builder, builder.fptrunc(found, _FOUR_HALVES), target, at)
            return builder.fadd(total, found)

        total = _fold(builder, _loop(builder, arguments[2], floats(0), step), lambda b, y, z: b.fadd(y, z))
        return call(builder, "llvm.vector.reduce.fadd.v4f32", F32, F32(-0.0), total)

    return types.float32(row, types.int64, types.int64, types.float32, out), code


@_intrinsic
def _halve_row(typing, row, row_at, count, out, out_at):
    """Convert a row to float16."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        target = pointer(context, builder, signature.args[3], arguments[3], arguments[4], F16)

        def step(at: Any, carry: Any) -> Any:
            store(builder, builder.fptrunc(load(builder, x, at, FLOATS), _FOUR_HALVES), target, at)
            return carry

        _loop(builder, arguments[2], floats(0), step)
        return context.get_dummy_value()

    return types.void(row, types.int64, types.int64, out, types.int64), code


def _exp2(builder: Any, x: Any, magic: Any) -> Any:
    """Emit 2 ** (x - _MAGIC + magic): a polynomial of the fraction; the nearest integer goes to the exponent."""
    shifted = builder.fadd(x, magic)
    rest = builder.fsub(x, builder.fsub(shifted, magic))
    found = floats(_EXP2[0])
    for factor in _EXP2[1:]:
        found = multiply_add(builder, found, rest, floats(factor))
    exponent = builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * 4))
    return builder.bitcast(builder.add(builder.bitcast(found, INTS), exponent), FLOATS)


@_intrinsic
def _gelu_row(typing, row, row_at, count):
    """Compute GELU, row * Phi(row), in place (Hendrycks and Gimpel 2016)."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)

        def step(at: Any, carry: Any) -> Any:
            x = load(builder, start, at, FLOATS)
            inner = larger(builder, smaller(builder, x, floats(_END)), floats(-_END))
            square = builder.fmul(inner, inner)
            found = floats(_GELU[0])
            for factor in _GELU[1:]:
                found = multiply_add(builder, found, square, floats(factor))
            store(builder, builder.fmul(x, multiply_add(builder, found, inner, floats(0.5))), start, at)
            return carry

        _loop(builder, arguments[2], floats(0), step)
        return context.get_dummy_value()

    return types.void(row, types.int64, types.int64), code


@numba.njit(cache=True, nogil=True)
def quantize(x: Any, first: int, rows: int, factors: Any, group: int, panels: Any, scales: Any) -> None:
    """Quantize rows of x, times the factors, by a kernel to int8 panels with one scale per group of columns."""
    width = x.shape[1]
    count = len(factors)
    flat, groups, step = x.reshape(-1), count // group, group // 4
    for row in range(rows):
        at = (first + row) * width
        target = (row // ROWS) * (count // 4) * ROWS + row % ROWS
        for number in range(groups):
            place = number * group
            highest = max(_row_size(flat, at + place, factors, place, group), _MIN_SIZE)
            scales[row * groups + number] = highest / _TOP
            _pack_row(
                flat, at + place, factors, place, group, _TOP / highest, panels, target + number * step * ROWS, ROWS
            )


@numba.njit(cache=True, nogil=True)
def dense(x: Any, first: int, rows: int, weights: Any, group: int, panels: Any, scales: Any, out: Any, to: int) -> None:
    """Compute an int8 linear layer by a kernel: out[to : to + rows] = x[first : first + rows] @ weights + bias."""
    factors, right, right_scales, bias = weights
    quantize(x, first, rows, factors, group, panels, scales)
    groups, steps, width, flat = len(factors) // group, group // 4, out.shape[1], out.reshape(-1)
    every = groups * steps
    for column in range(len(bias) // COLUMNS):
        for tile in range((rows + ROWS - 1) // ROWS):
            a, b, s = tile * every * 4 * ROWS, column * every * 4 * COLUMNS, tile * ROWS * groups
            at = (to + tile * ROWS) * width + column * COLUMNS
            store_tile(
                panels, a, right, b, steps, scales, s, groups, right_scales, column * groups * COLUMNS,
                bias, column * COLUMNS, flat, at, width,
            )  # fmt: skip
            for g in range(1, groups):
                a, b = a + steps * 4 * ROWS, b + steps * 4 * COLUMNS
                c = (column * groups + g) * COLUMNS
                add_tile(panels, a, right, b, steps, scales, s + g, groups, right_scales, c, flat, at, width)


@numba.njit(cache=True, nogil=True)
def _pack_head(
    qkv: Any, first: int, tokens: int, at: int, size: int, height: int, scale: Any, panels: Any, scales: Any, ones: Any
) -> None:
    """Quantize one head's queries or keys to int8 panels of `height` rows."""
    flat, width = qkv.reshape(-1), qkv.shape[1]
    for token in range(tokens):
        start = (first + token) * width + at
        highest = max(_row_size(flat, start, ones, 0, size), _MIN_SIZE)
        scales[token] = highest / _TOP * scale
        target = (token // height) * (size // 4) * height + token % height
        _pack_row(flat, start, ones, 0, size, _TOP / highest, panels, target, height)


@numba.njit(cache=True, nogil=True)
def attend(qkv: Any, first: int, tokens: int, head: int, size: int, out: Any, work: Any) -> None:
    """Compute int8 attention of one head of one text; the kernel writes up to seven rows more, overwritten next."""
    queries, keys, values, query_scales, key_scales, scores, weights, shares, ones = work
    hidden, out_width = qkv.shape[1] // 3, out.shape[1]
    scale = _LOG2_E / np.sqrt(np.float32(size))
    _pack_head(qkv, first, tokens, head * size, size, ROWS, scale, queries, query_scales, ones)
    _pack_head(qkv, first, tokens, hidden + head * size, size, COLUMNS, np.float32(1), keys, key_scales, ones)
    flat, start = qkv.reshape(-1), 2 * hidden + head * size
    for token in range(tokens):
        _halve_row(flat, (first + token) * qkv.shape[1] + start, size, values, token * size)
    padded = (tokens + STRIDE - 1) // STRIDE * STRIDE
    line = padded + COLUMNS  # tiles of twelve columns may end after it
    steps, out_flat = size // 4, out.reshape(-1)
    for tile in range((tokens + ROWS - 1) // ROWS):
        for column in range((tokens + COLUMNS - 1) // COLUMNS):
            score_tile(
                queries, tile * size * ROWS, keys, column * size * COLUMNS, steps, query_scales, tile * ROWS, 1,
                key_scales, column * COLUMNS, scores, column * COLUMNS, line,
            )  # fmt: skip
        for row in range(min(ROWS, tokens - tile * ROWS)):
            at = row * line
            for place in range(tokens, padded):
                scores[at + place] = np.float32(-1e30)
            highest = _row_largest(scores, at, padded) + _ROOM
            shares[row] = np.float32(1) / _exp2_row(scores, at, padded, highest, weights)
            for place in range(tokens, padded):
                weights[at + place] = 0  # nothing after the text may count
        for part in range(size // SHARE):
            to = (first + tile * ROWS) * out_width + head * size + part * SHARE
            mix_tile(weights, line, (tokens + 7) // 8, values, part * SHARE, size, shares, out_flat, to, out_width)


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def add_norm(x: Any, y: Any, first: int, rows: int, gain: Any, shift: Any, eps: Any) -> None:
    """Compute x = layer normalization of x + y[: rows] by an int8 network's kernel, in place (Ba and others 2016)."""
    count = len(gain)
    for row in range(rows):
        line, other = x[first + row], y[row]
        total = np.float32(0)
        for j in range(count):
            line[j] += other[j]
            total += line[j]
        mean, spread = total / np.float32(count), np.float32(0)
        for j in range(count):
            spread += (line[j] - mean) * (line[j] - mean)
        scale = np.float32(1) / np.sqrt(spread / np.float32(count) + eps)
        for j in range(count):
            line[j] = (line[j] - mean) * scale * gain[j] + shift[j]


@numba.njit(cache=True, nogil=True)
def make_heads(x: Any, low: int, high: int, group: int, weights: Any, qkv: Any, work: Any) -> None:
    """Compute the queries, keys and values of rows low to high in int8."""
    panels, scales = work[2], work[3]
    for first in range(low, high, BLOCK):
        dense(x, first, min(BLOCK, high - first), weights, group, panels, scales, qkv, first)


@numba.njit(cache=True, nogil=True)
def attend_all(qkv: Any, bounds: Any, heads: int, low: int, high: int, mixed: Any, work: Any) -> None:
    """Compute attention of the heads low to high of all texts."""
    size = mixed.shape[1] // heads
    for text in range(len(bounds) - 1):
        for head in range(low, high):
            attend(qkv, bounds[text], bounds[text + 1] - bounds[text], head, size, mixed, work[4])


@numba.njit(cache=True, nogil=True)
def finish_layer(
    x: Any, low: int, high: int, groups: Any, weights: Any, norms: Any, eps: Any, mixed: Any, work: Any
) -> None:
    """Compute an int8 layer's part after attention by kernels, rows low to high: norms and products around GELU."""
    (_, from_heads, up, down), (narrow, wide) = weights, groups
    gain, shift, last_gain, last_shift = norms
    y, middle, panels, scales, _ = work
    for first in range(low, high, BLOCK):
        rows = min(BLOCK, high - first)
        dense(mixed, first, rows, from_heads, narrow, panels, scales, y, 0)
        add_norm(x, y, first, rows, gain, shift, eps)
        dense(x, first, rows, up, narrow, panels, scales, middle, 0)
        _gelu_row(middle.reshape(-1), 0, (rows * middle.shape[1] + STRIDE - 1) // STRIDE * STRIDE)
        dense(middle, 0, rows, down, wide, panels, scales, y, 0)
        add_norm(x, y, first, rows, last_gain, last_shift, eps)


@numba.njit(cache=True, nogil=True)
def layer(
    x: Any, bounds: Any, heads: int, groups: Any, weights: Any, norms: Any, eps: Any, states: Any, work: Any
) -> None:
    """Compute a BERT layer by int8 kernels in place on x (tokens and more, hidden); bounds (texts + 1,) of texts."""
    qkv, mixed = states
    make_heads(x, 0, bounds[-1], groups[0], weights[0], qkv, work)
    attend_all(qkv, bounds, heads, 0, heads, mixed, work)
    finish_layer(x, 0, bounds[-1], groups, weights, norms, eps, mixed, work)
