"""The dot product of int8, SDOT of ARM's version 8.2: sixteen products and twelve sums in one instruction.

    acc[i] += a[4 i] b[4 i] + a[4 i + 1] b[4 i + 1] + a[4 i + 2] b[4 i + 2] + a[4 i + 3] b[4 i + 3]      i = 0 .. 3

Writes vectors of numbers in LLVM's language, for `tiles.py` and `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
BYTES, INTS = ir.VectorType(I8, 16), ir.VectorType(I32, 4)
"""Two readings of a register of 128 bits."""


def pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any, element: Any) -> Any:
    """Where element number `at` of an array lies."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, element.as_pointer()), [at])


def load(builder: Any, start: Any, at: Any, vector: Any) -> Any:
    """The vector that begins `at` elements after `start`."""
    return builder.load(builder.bitcast(builder.gep(start, [at]), vector.as_pointer()), align=1)


def store(builder: Any, value: Any, start: Any, at: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(start, [at]), value.type.as_pointer()), align=1)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call one of LLVM's own functions, most of which are a single instruction."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    found = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(found, arguments)


def dot(builder: Any, sums: Any, one: Any, other: Any) -> Any:
    """The instruction: four sums of int32, each with four products more."""
    return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", INTS, sums, one, other)


def sum_in_loop(
    builder: Any, steps: Any, count: int, add: Callable[[Any, list[Any]], list[Any]], kind: Any = INTS
) -> list[Any]:
    """A loop of so many steps whose `count` vectors of sums, from 0 on, stay in registers; the sums after it.

    `add` gets the number of the step and the sums before it, and gives those after it.
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
