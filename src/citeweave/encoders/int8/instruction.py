"""The instructions that all rests on: SDOT of ARM's version 8.2, whose code is in `registers.py`, and float16.

    acc[i] += a[4 i] b[4 i] + a[4 i + 1] b[4 i + 1] + a[4 i + 2] b[4 i + 2] + a[4 i + 3] b[4 i + 3]      i = 0 .. 3

Says whether this processor has them, and writes vectors of floats in LLVM's language for `tiles.py` and `rows.py`.
Holds no arithmetic of a network.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir

from citeweave.encoders.int8.registers import I32, INTS, call
from citeweave.errors import UserError
from citeweave.machine import instruction_sets

F16, F32 = ir.HalfType(), ir.FloatType()
HALVES, FLOATS = ir.VectorType(F16, 8), ir.VectorType(F32, 4)
"""Two more readings of a register of 128 bits."""

FUSED = ("contract",)
"""The only liberty with float arithmetic: x * y + z in one step. More would undo the rounding in `exp2`."""


def has_instruction() -> bool:
    """Whether this processor has SDOT and float16 arithmetic, and the compiler knows that it does."""
    known = platform.machine() in ("aarch64", "arm64") and llvmlite.binding.get_host_cpu_name() != "generic"
    return known and {"asimddp", "asimdhp"} <= instruction_sets()


def check_instruction() -> None:
    """Refuse a processor without the instruction."""
    if not has_instruction():
        raise UserError(
            "the int8 network needs an ARM processor with the dot-product instruction (asimddp) and float16 (asimdhp) "
            f"under Linux, and this one is {platform.machine()}; take --runtime auto"
        )


def splat(builder: Any, scalar: Any) -> Any:
    """One float in all four places."""
    return lane(builder, builder.insert_element(ir.Constant(FLOATS, ir.Undefined), scalar, I32(0)), 0)


def lane(builder: Any, vector: Any, place: int) -> Any:
    """The number at one place, in all places."""
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
    """The nearest integers, as int32."""
    return call(builder, "llvm.aarch64.neon.fcvtns.v4i32.v4f32", INTS, x)


def largest(builder: Any, x: Any) -> Any:
    """The largest of the four floats."""
    return call(builder, "llvm.aarch64.neon.fmaxnmv.f32.v4f32", F32, x)
