"""The instruction that all rests on, SDOT of ARM's version 8.2: sixteen products of int8 and twelve sums at once.

    acc[i] += a[4 i] b[4 i] + a[4 i + 1] b[4 i + 1] + a[4 i + 2] b[4 i + 2] + a[4 i + 3] b[4 i + 3]      i = 0 .. 3

Says whether this processor has it, and writes vectors of numbers in LLVM's language for `tiles.py` and `rows.py`.
Holds no arithmetic of a network.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba.core import cgutils

from citeweave.errors import UserError

I8, I32, I64, F16, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.HalfType(), ir.FloatType()
BYTES, INTS, HALVES, FLOATS = (
    ir.VectorType(I8, 16),
    ir.VectorType(I32, 4),
    ir.VectorType(F16, 8),
    ir.VectorType(F32, 4),
)
"""The readings of a register of 128 bits."""

FUSED = ("contract",)
"""The only liberty with float arithmetic: x * y + z in one step. More would undo the rounding in `exp2`."""


def has_instruction() -> bool:
    """Whether this processor has SDOT and float16 arithmetic, and the compiler knows that it does."""
    known = platform.machine() in ("aarch64", "arm64") and llvmlite.binding.get_host_cpu_name() != "generic"
    told = Path("/proc/cpuinfo")
    return known and told.is_file() and {"asimddp", "asimdhp"} <= set(told.read_text().split())


def check_instruction() -> None:
    """Refuse a processor without the instruction."""
    if not has_instruction():
        raise UserError(
            "--runtime int8 needs an ARM processor with the dot-product instruction (asimddp) and float16 (asimdhp) under Linux, "
            f"and this one is {platform.machine()}; take --runtime torch"
        )


def pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any, element: Any) -> Any:
    """Where element number `at` of an array lies."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, element.as_pointer()), [at])


def load(builder: Any, start: Any, at: Any, vector: Any) -> Any:
    """The vector that begins `at` elements after `start`."""
    return builder.load(builder.bitcast(builder.gep(start, [at]), vector.as_pointer()), align=1)


def store(builder: Any, value: Any, start: Any, at: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(start, [at]), value.type.as_pointer()), align=1)


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


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call one of LLVM's own functions, most of which are a single instruction."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    found = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(found, arguments)


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
