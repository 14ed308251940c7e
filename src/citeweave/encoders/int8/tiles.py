"""Tiles of matrix products, each one loop whose sums never leave the registers.

    score_tile, store_tile, add_tile   8 rows times 12 columns of int8, 24 registers of sums; scaled to float32 at the end
    mix_tile                           8 rows of float16 weights times 16 columns of float16 values, 16 registers of sums

Panels of int8 lie as the instruction reads them: of 8 (left) or 12 (right) rows the first four numbers of each, then
the next four of each. Does not pack panels and does not loop over tiles; see `kernels.py`.
"""

# ruff: noqa: PLR0913
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

from citeweave.encoders.int8.instruction import F16, F32, FLOATS, HALVES, lane, multiply_add, splat
from citeweave.encoders.int8.registers import BYTES, I8, I32, I64, INTS, dot, load, pointer, store, sum_in_loop

_intrinsic: Any = extending.intrinsic
_N = types.int64

ROWS, COLUMNS, SHARE = 8, 12, 16
"""Rows of a left panel, columns of a right panel, columns of a tile of `mix_tile`."""


def _sums(builder: Any, left: Any, right: Any, steps: Any) -> list[Any]:
    """The loop over a group of inputs, four a step: 24 vectors of int32 sums, three a row."""

    def add(step: Any, sums: list[Any]) -> list[Any]:
        at = builder.mul(step, I64(4 * ROWS)), builder.mul(step, I64(4 * COLUMNS))
        a = [load(builder, left, builder.add(at[0], I64(16 * j)), INTS) for j in range(2)]
        b = [load(builder, right, builder.add(at[1], I64(16 * j)), BYTES) for j in range(3)]
        added = []
        for row in range(ROWS):
            four = builder.bitcast(lane(builder, a[row // 4], row % 4), BYTES)
            added += [dot(builder, sums[row * 3 + j], b[j], four) for j in range(3)]
        return added

    return sum_in_loop(builder, steps, 3 * ROWS, add)


def _tile(context: Any, builder: Any, signature: Any, arguments: Any, *, start: str) -> Any:
    """out = start + sums * left scale * right scale, where `start` is nothing, a bias, or `out` itself."""
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
    """out[8, 12] = (left @ right) scaled; `rows` scales rows, `scales` scales columns."""
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
    """out[8, 12] = bias[12] + (left @ right) scaled."""
    return types.void(left, _N, right, _N, _N, rows, _N, _N, scales, _N, bias, _N, out, _N, _N), lambda *code: _tile(
        *code, start="bias"
    )


@_intrinsic
def add_tile(
    typing, left, left_at, right, right_at, steps, rows, rows_at, rows_step, scales, scales_at, out, out_at, width
):
    """out[8, 12] += (left @ right) scaled."""
    return types.void(left, _N, right, _N, _N, rows, _N, _N, scales, _N, out, _N, _N), lambda *code: _tile(
        *code, start="out"
    )


@_intrinsic
def mix_tile(typing, weights, stride, steps, values, values_at, width, scales, out, out_at, out_width):
    """out[8, 16] = scales[8] * (weights[8, 8 steps] @ values[8 steps, 16]); float16 in and float32 out."""
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
    """The loop over tokens, eight a step: 16 vectors of float16 sums, two a row."""

    def add(step: Any, sums: list[Any]) -> list[Any]:
        token = builder.mul(step, I64(8))
        w8 = [load(builder, w, builder.add(builder.mul(I64(row), stride), token), HALVES) for row in range(ROWS)]
        added = list(sums)
        for k in range(8):
            at = builder.mul(builder.add(token, I64(k)), width)
            v16 = [load(builder, v, builder.add(at, I64(8 * j)), HALVES) for j in range(2)]
            for row in range(ROWS):
                weight = lane(builder, w8[row], k)
                for j in range(2):
                    added[row * 2 + j] = multiply_add(builder, weight, v16[j], added[row * 2 + j])
        return added

    return sum_in_loop(builder, steps, 2 * ROWS, add, HALVES)
