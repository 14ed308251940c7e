"""Rows of numbers in few bits: codes, and one scale a row.

    codes, scales = code_rows(matrix, 4)          matrix (rows, columns)
    read_rows(codes, scales, columns, 4)          nearly the matrix again

8 bits         int8 codes (rows, columns): code * scale; the largest number of a row has the code 127 or -127
1 to 4 bits    uint8 codes (rows, bytes), several codes a byte: one of the odd numbers from 1 - 2^bits to 2^bits - 1, times
               the scale. The steps are those that lose least of normally distributed numbers (Max 1960, table II)

Does not know what the numbers are, and writes no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citeweave.extras import require

if TYPE_CHECKING:
    from torch import Tensor

Codes = NDArray[np.uint8]
BITS = (1, 2, 3, 4, 8)

_STEPS = {1: 1.596, 2: 0.9957, 3: 0.586, 4: 0.3352}
"""Bits -> distance of two levels, in standard deviations of the numbers."""

_SMALLEST = 1e-12


def row_bytes(columns: int, bits: int) -> int:
    """Bytes of a row's codes, without its scale.

    >>> row_bytes(384, 8), row_bytes(384, 2), row_bytes(3, 3)
    (384, 96, 2)
    """
    return -(-columns * bits // 8)


def code_rows(matrix: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes and scales (rows,) of a matrix (rows, columns).

    >>> import torch
    >>> codes, scales = code_rows(torch.tensor([[-3.0, 1.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0]]), 2)
    >>> codes.shape, read_rows(codes, scales, 4, 2).tolist()
    (torch.Size([2, 1]), [[-3.0, 1.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    """
    torch = require("torch", extra="minilm")
    if bits == 8:
        return to_int8(matrix)
    step = _STEPS[bits] * matrix.square().mean(dim=1, keepdim=True).sqrt().clamp_min(_SMALLEST)  # (rows, 1)
    half = 2 ** (bits - 1)
    codes = ((matrix / step).floor() + half).clamp(0, 2 * half - 1).to(torch.uint8)  # (rows, columns)
    levels = _levels(codes, bits)
    scales = (matrix * levels).sum(dim=1) / levels.square().sum(dim=1)  # (rows,), by least squares
    return torch.from_numpy(_pack(codes.numpy(), bits)), scales


def read_rows(codes: Tensor, scales: Tensor, columns: int, bits: int) -> Tensor:
    """The matrix (rows, columns) in float32."""
    torch = require("torch", extra="minilm")
    if bits == 8:
        return from_int8(codes, scales)
    found: Tensor = _levels(torch.from_numpy(_unpack(codes.numpy(), columns, bits)), bits) * scales[:, None]
    return found


def to_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (rows, columns) as int8 and a scale a row, (rows,)."""
    torch = require("torch", extra="minilm")
    scales = (matrix.abs().amax(dim=1) / 127.0).clamp_min(_SMALLEST).float()  # (rows,)
    return (matrix / scales[:, None]).round().to(torch.int8), scales


def from_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """The matrix (rows, columns) that int8 codes stand for."""
    return codes.float() * scales[:, None]


def _levels(codes: Tensor, bits: int) -> Tensor:
    found: Tensor = codes.float() * 2 - (2**bits - 1)
    return found


def _pack(codes: Codes, bits: int) -> Codes:
    """uint8 codes (rows, columns) -> (rows, bytes), the lowest bit of a code first."""
    single = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1  # (rows, columns, bits)
    return np.packbits(single.reshape(len(codes), -1), axis=1)


def _unpack(packed: Codes, columns: int, bits: int) -> Codes:
    single = np.unpackbits(packed, axis=1, count=columns * bits).reshape(len(packed), columns, bits)
    found = np.zeros((len(packed), columns), np.uint8)
    for bit in range(bits):
        found |= single[:, :, bit] << bit
    return found
