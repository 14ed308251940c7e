"""Passes over a row of floats, four numbers an instruction: largest, quantize, exponential, GELU.

Lengths are multiples of 16. Does not know what the rows mean; see `kernels.py`.
"""

# ruff: noqa: PLR0913
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

from citeweave.encoders.int8.instruction import (
    F16,
    F32,
    FLOATS,
    floats,
    larger,
    largest,
    multiply_add,
    rounded,
    size,
    smaller,
    splat,
)
from citeweave.encoders.int8.registers import I8, I32, I64, INTS, call, load, pointer, store

_intrinsic: Any = extending.intrinsic
_FOUR_HALVES = ir.VectorType(F16, 4)

STRIDE = 16
"""Lengths of rows are multiples of it: four vectors a turn of a loop, so that none waits for another."""

_EXP2 = (0.0551718231, 0.242611508, 0.693260996, 0.999928051)
"""2 ** x for |x| <= 0.5, the highest power first; within 8e-5 of itself."""

_MAGIC = 12582912.0
"""1.5 * 2 ** 23: a float that is added to it leaves its nearest integer in the lowest bits."""

_END = 4.0
_GELU = (2.27808112e-08, -1.59857055e-06, 4.79548972e-05, -0.000814009541, 0.00877236007, -0.06457305, 0.397883307)
"""(Phi(x) - 0.5) / x in powers of x ** 2 for |x| <= 4, the highest first; GELU within 2e-4 of the exact one."""


def _loop(builder: Any, count: Any, start: Any, step: Callable[[Any, Any], Any]) -> list[Any]:
    """For at = 0, 4, ... below count: carry = step(at, carry), with four carries that take turns."""
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
def row_size(typing, row, row_at, factors, factors_at, count):
    """The largest |row * factors|."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        f = pointer(context, builder, signature.args[2], arguments[2], arguments[3], F32)

        def step(at: Any, most: Any) -> Any:
            product = builder.fmul(load(builder, x, at, FLOATS), load(builder, f, at, FLOATS))
            return larger(builder, most, size(builder, product))

        return largest(builder, _fold(builder, _loop(builder, arguments[4], floats(0), step), larger))

    return types.float32(row, types.int64, factors, types.int64, types.int64), code


@_intrinsic
def pack_row(typing, row, row_at, factors, factors_at, count, scale, out, out_at, width):
    """round(row * factors * scale) as int8 into a panel: four numbers at out_at, the next four `width` fours on."""

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
def row_largest(typing, row, row_at, count):
    """The largest number of a row."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = pointer(context, builder, signature.args[0], arguments[0], arguments[1], F32)
        found = _loop(
            builder, arguments[2], floats(-1e30), lambda at, most: larger(builder, most, load(builder, x, at, FLOATS))
        )
        return largest(builder, _fold(builder, found, larger))

    return types.float32(row, types.int64, types.int64), code


@_intrinsic
def exp2_row(typing, row, row_at, count, shift, out):
    """out = 2 ** (row - floor(shift)) as float16 at the same place; gives the sum, in which 2 ** -100 is the least."""

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
def halve_row(typing, row, row_at, count, out, out_at):
    """out = row as float16."""

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
    """2 ** (x - _MAGIC + magic): a polynomial of what is left beside the nearest integer, which goes to the exponent."""
    shifted = builder.fadd(x, magic)
    rest = builder.fsub(x, builder.fsub(shifted, magic))
    found = floats(_EXP2[0])
    for factor in _EXP2[1:]:
        found = multiply_add(builder, found, rest, floats(factor))
    exponent = builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * 4))
    return builder.bitcast(builder.add(builder.bitcast(found, INTS), exponent), FLOATS)


@_intrinsic
def gelu_row(typing, row, row_at, count):
    """row = row * Phi(row) in place (Hendrycks and Gimpel 2016, GELU)."""

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
