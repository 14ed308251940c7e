"""LLVM code of int8 matrix-product tiles for ARM: the dot-product instruction SDOT, float16, and loops in registers.

    acc[i] += a[4 i] b[4 i] + a[4 i + 1] b[4 i + 1] + a[4 i + 2] b[4 i + 2] + a[4 i + 3] b[4 i + 3]      i = 0 .. 3

    score_tile, store_tile, add_tile   8 rows times 12 columns of int8, 24 registers of sums; scaled to float32 at the end
    mix_tile                           8 rows of float16 weights times 16 columns of float16 values, 16 registers of sums

SDOT, of ARM's version 8.2, computes sixteen products and twelve sums in one instruction; `has_instruction` says whether this
processor has it. Panels of int8 lie as the instruction reads them: of 8 (left) or 12 (right) rows the first four numbers of
each, then the next four of each. Does not pack panels and does not loop over tiles: see `int8_kernels.py`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from citeweave.core.errors import UserError
from citeweave.core.executor import instruction_sets

# ruff: noqa: PLR0913
# mypy: disable-error-code="no-untyped-def"

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
BYTES, INTS = ir.VectorType(I8, 16), ir.VectorType(I32, 4)
"""Vector types of a 128-bit register: integers."""


def pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any, element: Any) -> Any:
    """Emit the address of element `at` of an array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, element.as_pointer()), [at])


def load(builder: Any, start: Any, at: Any, vector: Any) -> Any:
    """Emit the load of a vector that begins `at` elements after `start`."""
    return builder.load(builder.bitcast(builder.gep(start, [at]), vector.as_pointer()), align=1)


def store(builder: Any, value: Any, start: Any, at: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(start, [at]), value.type.as_pointer()), align=1)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Emit a call of an LLVM intrinsic, usually a single instruction."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, arguments)


def dot(builder: Any, sums: Any, one: Any, other: Any) -> Any:
    """Emit SDOT: four int32 sums, each with four more int8 products."""
    return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", INTS, sums, one, other)


def _sum_in_loop(
    builder: Any, steps: Any, count: int, add: Callable[[Any, list[Any]], list[Any]], kind: Any = INTS
) -> list[Any]:
    """Emit a loop of `steps` whose `count` vectors of sums, starting at 0, stay in registers; return the final sums.

    `add` takes the number of the step and the sums before it, and returns those after it.
    """
    before, body = builder.block, builder.append_basic_block("sum.body")
    end = builder.append_basic_block("sum.end")
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(I64)
    step.add_incoming(I64(0), before)
    sums = [builder.phi(kind) for _ in range(count)]
    added = add(step, sums)
    for old, new in zip(sums, added, strict=True):
        old.add_incoming(ir.Constant(kind, None), before)
        old.add_incoming(new, body)
    following = builder.add(step, I64(1))
    step.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, steps), body, end)
    builder.position_at_end(end)
    return added


F16, F32 = ir.HalfType(), ir.FloatType()
HALVES, FLOATS = ir.VectorType(F16, 8), ir.VectorType(F32, 4)
"""Vector types of a 128-bit register: floats."""

FUSED = ("contract",)
"""The only fast-math flag: x * y + z in one step. More would undo the rounding in `exp2`."""


def has_instruction() -> bool:
    """Return whether this processor has SDOT and float16 arithmetic, and the compiler knows it."""
    known = platform.machine() in ("aarch64", "arm64") and llvmlite.binding.get_host_cpu_name() != "generic"
    return known and {"asimddp", "asimdhp"} <= instruction_sets()


def check_instruction() -> None:
    """Refuse a processor without the dot-product instruction that int8 tiles need."""
    if not has_instruction():
        raise UserError(
            "the int8 network needs an ARM processor with the dot-product instruction (asimddp) and float16 (asimdhp) "
            f"under Linux, and this one is {platform.machine()}; use --runtime auto"
        )


def splat(builder: Any, scalar: Any) -> Any:
    """Emit a vector with one float in all four lanes."""
    return _lane(builder, builder.insert_element(ir.Constant(FLOATS, ir.Undefined), scalar, I32(0)), 0)


def _lane(builder: Any, vector: Any, place: int) -> Any:
    """Emit a vector with the number of one lane in all lanes."""
    places = ir.Constant(ir.VectorType(I32, vector.type.count), [place] * vector.type.count)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def floats(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * 4)


def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return builder.fadd(builder.fmul(x, y, flags=FUSED), z, flags=FUSED)


def larger(builder: Any, x: Any, y: Any) -> Any:
    return call(builder, "llvm.maxnum.v4f32", FLOATS, x, y)


def smaller(builder: Any, x: Any, y: Any) -> Any:
    return call(builder, "llvm.minnum.v4f32", FLOATS, x, y)


def size(builder: Any, x: Any) -> Any:
    return call(builder, "llvm.fabs.v4f32", FLOATS, x)


def rounded(builder: Any, x: Any) -> Any:
    """Emit the rounding of four floats to the nearest int32."""
    return call(builder, "llvm.aarch64.neon.fcvtns.v4i32.v4f32", INTS, x)


def largest(builder: Any, x: Any) -> Any:
    """Emit the largest of the four floats."""
    return call(builder, "llvm.aarch64.neon.fmaxnmv.f32.v4f32", F32, x)


_intrinsic: Any = extending.intrinsic
_N = types.int64

ROWS, COLUMNS, SHARE = 8, 12, 16
"""Rows of a left panel, columns of a right panel, columns of a tile of `mix_tile`."""


def _sums(builder: Any, left: Any, right: Any, steps: Any) -> list[Any]:
    """Emit the loop over a group of inputs, four per step: 24 vectors of int32 sums, three per row."""

    def add(step: Any, sums: list[Any]) -> list[Any]:
        at = builder.mul(step, I64(4 * ROWS)), builder.mul(step, I64(4 * COLUMNS))
        a = [load(builder, left, builder.add(at[0], I64(16 * j)), INTS) for j in range(2)]
        b = [load(builder, right, builder.add(at[1], I64(16 * j)), BYTES) for j in range(3)]
        added = []
        for row in range(ROWS):
            four = builder.bitcast(_lane(builder, a[row // 4], row % 4), BYTES)
            added += [dot(builder, sums[row * 3 + j], b[j], four) for j in range(3)]
        return added

    return _sum_in_loop(builder, steps, 3 * ROWS, add)


def _tile(context: Any, builder: Any, signature: Any, arguments: Any, *, start: str) -> Any:
    """Emit a tile: out = start + sums * left scale * right scale; `start` is nothing, a bias, or `out` itself."""
    kinds = signature.args
    (left, left_at, right, right_at, steps, rows, rows_at, rows_step, scales, scales_at, *rest) = arguments
    out, out_at, width = rest[-3:]
    a = pointer(context, builder, kinds[0], left, left_at, I8)
    b = pointer(context, builder, kinds[2], right, right_at, I8)
    row_scales = pointer(context, builder, kinds[5], rows, rows_at, F32)
    column_scales = pointer(context, builder, kinds[8], scales, scales_at, F32)
    target = pointer(context, builder, kinds[-3], out, out_at, F32)
    sums = _sums(builder, a, b, steps)
    weights = [load(builder, column_scales, I64(4 * j), FLOATS) for j in range(3)]
    if start == "bias":
        bias = pointer(context, builder, kinds[10], rest[0], rest[1], F32)
        starts = [load(builder, bias, I64(4 * j), FLOATS) for j in range(3)]
    for row in range(ROWS):
        scale = splat(builder, builder.load(builder.gep(row_scales, [builder.mul(I64(row), rows_step)])))
        for j in range(3):
            at = builder.add(builder.mul(I64(row), width), I64(4 * j))
            scaled = builder.fmul(builder.sitofp(sums[row * 3 + j], FLOATS), scale)
            if start == "nothing":
                found = builder.fmul(scaled, weights[j])
            else:
                before = starts[j] if start == "bias" else load(builder, target, at, FLOATS)
                found = multiply_add(builder, scaled, weights[j], before)
            store(builder, found, target, at)
    return context.get_dummy_value()


@_intrinsic
def score_tile(
    typing, left, left_at, right, right_at, steps, rows, rows_at, rows_step, scales, scales_at, out, out_at, width
):
    """Compute the int8 tile out[8, 12] = (left @ right) scaled; `rows` scales rows, `scales` scales columns."""
    return types.void(left, _N, right, _N, _N, rows, _N, _N, scales, _N, out, _N, _N), lambda *code: _tile(
        *code, start="nothing"
    )


@_intrinsic
def store_tile(
    typing,
    left,
    left_at,
    right,
    right_at,
    steps,
    rows,
    rows_at,
    rows_step,
    scales,
    scales_at,
    bias,
    bias_at,
    out,
    out_at,
    width,
):
    """Compute the int8 tile out[8, 12] = bias[12] + (left @ right) scaled."""
    return types.void(left, _N, right, _N, _N, rows, _N, _N, scales, _N, bias, _N, out, _N, _N), lambda *code: _tile(
        *code, start="bias"
    )


@_intrinsic
def add_tile(
    typing, left, left_at, right, right_at, steps, rows, rows_at, rows_step, scales, scales_at, out, out_at, width
):
    """Compute the int8 tile out[8, 12] += (left @ right) scaled."""
    return types.void(left, _N, right, _N, _N, rows, _N, _N, scales, _N, out, _N, _N), lambda *code: _tile(
        *code, start="out"
    )


@_intrinsic
def mix_tile(typing, weights, stride, steps, values, values_at, width, scales, out, out_at, out_width):
    """Compute the tile out[8, 16] = scales[8] * (weights[8, 8 steps] @ values[8 steps, 16]); float16 in, float32 out."""
    return types.void(weights, _N, _N, values, _N, _N, scales, out, _N, _N), _mix


def _mix(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kinds = signature.args
    weights, stride, steps, values, values_at, width, scales, out, out_at, out_width = arguments
    w = pointer(context, builder, kinds[0], weights, I64(0), F16)
    v = pointer(context, builder, kinds[3], values, values_at, F16)
    s = pointer(context, builder, kinds[6], scales, I64(0), F32)
    target = pointer(context, builder, kinds[7], out, out_at, F32)
    sums = _mixed(builder, w, stride, steps, v, width)
    for row in range(ROWS):
        scale = splat(builder, builder.load(builder.gep(s, [I32(row)])))
        for quarter in range(4):
            half = ir.Constant(INTS, [quarter % 2 * 4 + j for j in range(4)])
            found = sums[row * 2 + quarter // 2]
            wide = builder.fpext(builder.shuffle_vector(found, ir.Constant(HALVES, ir.Undefined), half), FLOATS)
            at = builder.add(builder.mul(I64(row), out_width), I64(4 * quarter))
            store(builder, builder.fmul(wide, scale), target, at)
    return context.get_dummy_value()


def _mixed(builder: Any, w: Any, stride: Any, steps: Any, v: Any, width: Any) -> list[Any]:
    """Emit the loop over tokens, eight per step: 16 vectors of float16 sums, two per row."""

    def add(step: Any, sums: list[Any]) -> list[Any]:
        token = builder.mul(step, I64(8))
        w8 = [load(builder, w, builder.add(builder.mul(I64(row), stride), token), HALVES) for row in range(ROWS)]
        added = list(sums)
        for k in range(8):
            at = builder.mul(builder.add(token, I64(k)), width)
            v16 = [load(builder, v, builder.add(at, I64(8 * j)), HALVES) for j in range(2)]
            for row in range(ROWS):
                weight = _lane(builder, w8[row], k)
                for j in range(2):
                    added[row * 2 + j] = multiply_add(builder, weight, v16[j], added[row * 2 + j])
        return added

    return _sum_in_loop(builder, steps, 2 * ROWS, add, HALVES)
