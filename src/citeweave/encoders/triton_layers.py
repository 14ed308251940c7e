"""Triton kernels between the matrix products of a packed BERT layer: sums and norms, GELU, rows in 8-bit floats.

    add_norm(added, kept, gain, shift, eps)               layer_norm(added + kept), (tokens, dimension)
    add_norm_rows(added, kept, gain, shift, eps)          the same, and its rows in float8
    quantize_rows(states, gelu=True)                      rows of gelu(states) in float8

Layer normalization is that of Ba et al. (2016), GELU the tanh form of Hendrycks and Gimpel (2016), whose error of at most
4.8e-4 is far below the rounding of float8. A row in float8 (e4m3: Micikevicius et al. 2022) has one scale, its largest
absolute value over 448. Each kernel reads its inputs once and computes in float32. No gradients: training uses torch.
Imports triton, which comes with torch on Linux with CUDA: import this module inside functions.
"""

# A kernel takes many pointers and sizes, without Python types.
# ruff: noqa: PLR0913
# mypy: disable-error-code="untyped-decorator,no-untyped-def,import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
"""Rows of a norm that one program computes, one per warp."""

WARPS = 4

LARGEST = 448.0
"""The largest number of e4m3."""


@triton.jit
def _store_codes(states, codes, scales, at, places, inside, tokens, largest: tl.constexpr):
    """Store rows as 8-bit floats, each with its scale; `states` are 0 outside of the rows."""
    scale = tl.maximum(tl.max(tl.abs(states), 1), 1e-12) / largest  # (rows,)
    tl.store(scales + places, scale, mask=places < tokens)
    tl.store(codes + at, (states / scale[:, None]).to(codes.dtype.element_ty), mask=inside)


@triton.jit
def _norm_kernel(
    added, kept, gain, shift, out, codes, scales, tokens, eps,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, largest: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    columns = tl.arange(0, block)
    known = columns < width
    inside = (places < tokens)[:, None] & known[None, :]
    at = places[:, None] * width + columns[None, :]
    states = tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    states += tl.load(kept + at, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, states - (tl.sum(states, 1) / width)[:, None], 0.0)
    variance = tl.sum(centered * centered, 1) / width
    states = centered * (1.0 / tl.sqrt(variance + eps))[:, None]
    states *= tl.load(gain + columns, mask=known, other=0.0).to(tl.float32)[None, :]
    states += tl.load(shift + columns, mask=known, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, states.to(out.dtype.element_ty), mask=inside)
    if largest > 0:
        _store_codes(states, codes, scales, at, places, inside, tokens, largest)


@triton.jit
def _rows_kernel(
    states, codes, scales, tokens,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, largest: tl.constexpr, gelu: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    columns = tl.arange(0, block)
    inside = (places < tokens)[:, None] & (columns < width)[None, :]
    at = places[:, None] * width + columns[None, :]
    found = tl.load(states + at, mask=inside, other=0.0).to(tl.float32)
    if gelu:  # x (1 + tanh(0.79788456 (x + 0.044715 x^3))) / 2 = x / (1 + exp(-1.59576912 (x + 0.044715 x^3)))
        found = found / (1.0 + tl.exp2(found * (-2.302208198 - 0.1029432397 * found * found)))
    _store_codes(found, codes, scales, at, places, inside, tokens, largest)


def add_norm(added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Return layer_norm(added + kept), all contiguous, (tokens, dimension), in the dtype of `kept`."""
    out, (tokens, width) = torch.empty_like(kept), kept.shape
    _norm_kernel[(triton.cdiv(tokens, ROWS),)](
        added, kept, gain, shift, out, out, out, tokens, eps,
        width=width, block=triton.next_power_of_2(width), rows=ROWS, largest=0.0, num_warps=WARPS,
    )  # fmt: skip
    return out


def add_norm_rows(
    added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return layer_norm(added + kept), the same in float8 (tokens, dimension), and the scales of its rows (tokens, 1)."""
    out, (tokens, width) = torch.empty_like(kept), kept.shape
    codes, scales = _empty_rows(kept)
    _norm_kernel[(triton.cdiv(tokens, ROWS),)](
        added, kept, gain, shift, out, codes, scales, tokens, eps,
        width=width, block=triton.next_power_of_2(width), rows=ROWS, largest=LARGEST, num_warps=WARPS,
    )  # fmt: skip
    return out, codes, scales


def quantize_rows(states: Tensor, *, gelu: bool = False) -> tuple[Tensor, Tensor]:
    """Return contiguous states, or their GELU, in float8 (tokens, width), and the scales of the rows (tokens, 1)."""
    tokens, width = states.shape
    codes, scales = _empty_rows(states)
    block = triton.next_power_of_2(width)
    rows = ROWS if block <= 1024 else 1
    _rows_kernel[(triton.cdiv(tokens, rows),)](
        states, codes, scales, tokens,
        width=width, block=block, rows=rows, largest=LARGEST, gelu=gelu, num_warps=WARPS,
    )  # fmt: skip
    return codes, scales


def _empty_rows(states: Tensor) -> tuple[Tensor, Tensor]:
    codes = torch.empty_like(states, dtype=torch.float8_e4m3fn)
    return codes, torch.empty((len(states), 1), dtype=torch.float32, device=states.device)
