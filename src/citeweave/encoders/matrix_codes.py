"""Codes of a matrix's change in a delta: two factors or some rows, with 1 to 32 bits per number.

    factors    change = left.T @ right         left (rank, out), right (rank, in), by singular values or by LoRA
    rows       change = rows                   all rows of the matrix, or the most important ones and 0 elsewhere

    W.left, W.left_scales, W.right, W.right_scales
    W.rows, W.row_scales[, W.places]           places (count,): which rows, where these are not all

    16, 32 bits    float16 and float32, without scales
    8 bits         int8 codes (rows, columns): code * scale; the largest number of a row has the code 127 or -127
    1 to 4 bits    uint8 codes (rows, bytes), several codes per byte: one of the odd numbers from 1 - 2^bits to 2^bits - 1,
                   times the scale. The steps lose least of normally distributed numbers (Max 1960, table II)

Does not choose among codings (`compress.py`) and writes no file (`delta.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import require

if TYPE_CHECKING:
    from torch import Tensor

BITS = (1, 2, 3, 4, 8, 16, 32)
KINDS = ("factors", "rows")

_FLOATS = {16: "F16", 32: "F32"}
_STEPS = {1: 1.596, 2: 0.9957, 3: 0.586, 4: 0.3352}
"""Bits -> distance between two levels, in standard deviations of the numbers."""

_SMALLEST = 1e-12


@dataclass(frozen=True, slots=True)
class Coding:
    """How a delta codes the change of one matrix."""

    kind: str
    count: int
    """Rank of the factors, or number of rows."""

    bits: int

    def limit(self, shape: tuple[int, ...]) -> int:
        """Return the largest possible count for a matrix of this shape."""
        return min(shape) if self.kind == "factors" else shape[0]


def code_matrix(name: str, matrix: Tensor, bits: int) -> dict[str, Tensor]:
    """Code a factor or rows (rows, columns) of a delta as the tensor `name`, and its scales where it has few bits.

    >>> import torch
    >>> coded = code_matrix("rows", torch.tensor([[-3.0, 1.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0]]), 2)
    >>> coded["rows"].shape, read_matrix("rows", coded, 4, 2).tolist()
    (torch.Size([2, 1]), [[-3.0, 1.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    """
    torch = require("torch", extra="minilm")
    if bits >= 16:
        return {name: matrix.half() if bits == 16 else matrix.float()}
    if bits == 8:
        scales = (matrix.abs().amax(dim=1) / 127.0).clamp_min(_SMALLEST).float()  # (rows,)
        return {name: (matrix / scales[:, None]).round().to(torch.int8), _scales(name): scales}
    step = _STEPS[bits] * matrix.square().mean(dim=1, keepdim=True).sqrt().clamp_min(_SMALLEST)  # (rows, 1)
    half = 2 ** (bits - 1)
    codes = ((matrix / step).floor() + half).clamp(0, 2 * half - 1).to(torch.uint8)  # (rows, columns)
    levels = _levels(codes, bits)
    scales = (matrix * levels).sum(dim=1) / levels.square().sum(dim=1)  # (rows,), by least squares
    return {name: torch.from_numpy(_pack(codes.numpy(), bits)), _scales(name): scales}


def read_matrix(name: str, tensors: Mapping[str, Tensor], columns: int, bits: int) -> Tensor:
    """Read a factor or rows (rows, columns) of a delta in float32."""
    torch = require("torch", extra="minilm")
    numbers: Tensor = tensors[name]
    if bits < 8:
        numbers = _levels(torch.from_numpy(_unpack(numbers.numpy(), columns, bits)), bits)  # (rows, columns)
    return numbers.float() if bits >= 16 else numbers.float() * tensors[_scales(name)][:, None]


def tensor_shapes(coding: Coding, shape: tuple[int, ...]) -> dict[str, tuple[tuple[str], tuple[int, ...]]]:
    """Return the dtype and shape of each stored part of a coded matrix (out, in) of a delta.

    >>> shapes = [tensor_shapes(coding, (6, 10)) for coding in (Coding("factors", 4, 8), Coding("rows", 2, 3))]
    >>> shapes[0]["left"], shapes[1]["rows"], shapes[1]["places"]
    ((('I8',), (4, 6)), (('U8',), (2, 4)), (('I32',), (2,)))
    """
    count, bits = coding.count, coding.bits
    columns = {"left": shape[0], "right": shape[1]} if coding.kind == "factors" else {"rows": shape[1]}
    shapes: dict[str, tuple[tuple[str], tuple[int, ...]]] = {}
    for name, width in columns.items():
        stored = -(-width * bits // 8) if bits < 8 else width  # bytes, or numbers
        shapes[name] = (_FLOATS.get(bits, "I8" if bits == 8 else "U8"),), (count, stored)
        if bits < 16:
            shapes[_scales(name)] = ("F32",), (count,)
    return shapes | ({"places": (("I32",), (count,))} if coding.kind == "rows" and count < shape[0] else {})


def read_change(coding: Coding, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Decode the change of a matrix (out, in) from the parts in a delta, in float32."""
    torch = require("torch", extra="minilm")
    if coding.kind == "factors":
        left = read_matrix("left", tensors, shape[0], coding.bits)  # (rank, out)
        return left.T @ read_matrix("right", tensors, shape[1], coding.bits)
    rows = read_matrix("rows", tensors, shape[1], coding.bits)  # (count, in)
    if "places" not in tensors:
        return rows
    change: Tensor = torch.zeros(shape)
    change[tensors["places"].long()] = rows
    return change


def _scales(name: str) -> str:
    return "row_scales" if name == "rows" else f"{name}_scales"


def _levels(codes: Tensor, bits: int) -> Tensor:
    levels: Tensor = codes.float() * 2 - (2**bits - 1)
    return levels


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes (rows, columns) of few bits into bytes (rows, bytes), the lowest bit of a code first."""
    single = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1  # (rows, columns, bits)
    return np.packbits(single.reshape(len(codes), -1), axis=1)


def _unpack(packed: NDArray[np.uint8], columns: int, bits: int) -> NDArray[np.uint8]:
    single = np.unpackbits(packed, axis=1, count=columns * bits).reshape(len(packed), columns, bits)
    codes: NDArray[np.uint8] = (single << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)
    return codes
