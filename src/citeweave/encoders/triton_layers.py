"""Triton kernels around the matrix products of packed BERT layers: embeddings, sums and norms, means, rows in 8-bit floats.

    embed_norm(packed ids and positions, tables, ...)     layer_norm of the sum of embeddings, (tokens, dimension)
    add_norm(added, kept, gain, shift, eps)               layer_norm(added + kept), (tokens, dimension); differentiable
    mean_rows(stream, bounds)                             the mean of each text's rows, (texts, dimension)
    add_norm_rows(added, kept, gain, shift, eps)          the same, and its rows in float8
    quantize_rows(states, gelu=True)                      rows of gelu(states) in float8

Layer normalization is that of Ba et al. (2016), GELU the tanh form of Hendrycks and Gimpel (2016), whose error of at most
4.8e-4 is far below the rounding of float8. A row in float8 (e4m3: Micikevicius et al. 2022) has one scale, its largest
absolute value over 448. Each kernel reads its inputs once and computes in float32. Only `add_norm` has gradients, by torch's
kernel of layer normalization.
Imports triton, which comes with torch on Linux with CUDA: import this module inside functions.
"""

# A kernel takes many pointers and sizes, without Python types.
# ruff: noqa: PLR0913
# mypy: disable-error-code="untyped-decorator,no-untyped-def,import-not-found"

from __future__ import annotations

from typing import Any

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
def _normalize(states, gain, shift, inside, known, columns, eps, width: tl.constexpr):
    """Return normalized rows, their means and the inverses of their deviations; `states` are 0 outside of the rows."""
    mean = tl.sum(states, 1) / width  # (rows,)
    centered = tl.where(inside, states - mean[:, None], 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / width + eps)
    states = centered * rate[:, None]
    states *= tl.load(gain + columns, mask=known, other=0.0).to(tl.float32)[None, :]
    return states + tl.load(shift + columns, mask=known, other=0.0).to(tl.float32)[None, :], mean, rate


@triton.jit
def _norm_kernel(
    added, kept, gain, shift, out, codes, scales, totals, means, rates, tokens, eps,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, largest: tl.constexpr, keeps: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    columns = tl.arange(0, block)
    known = columns < width
    inside = (places < tokens)[:, None] & known[None, :]
    at = places[:, None] * width + columns[None, :]
    states = tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    states += tl.load(kept + at, mask=inside, other=0.0).to(tl.float32)
    if keeps:
        tl.store(totals + at, states.to(totals.dtype.element_ty), mask=inside)
    states, mean, rate = _normalize(states, gain, shift, inside, known, columns, eps, width)
    if keeps:
        tl.store(means + places, mean, mask=places < tokens)
        tl.store(rates + places, rate, mask=places < tokens)
    tl.store(out + at, states.to(out.dtype.element_ty), mask=inside)
    if largest > 0:
        _store_codes(states, codes, scales, at, places, inside, tokens, largest)


@triton.jit
def _embed_kernel(
    ids, positions, words, places_table, kinds, gain, shift, out, tokens, first, eps,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, has_kinds: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    columns = tl.arange(0, block)
    known, there = columns < width, places < tokens
    inside = there[:, None] & known[None, :]
    word = tl.load(ids + places, mask=there, other=0).to(tl.int64)  # (rows,)
    position = tl.load(positions + places, mask=there, other=0).to(tl.int64) + first
    states = tl.load(words + word[:, None] * width + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    at = places_table + position[:, None] * width + columns[None, :]
    states += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if has_kinds:
        kind = tl.load(kinds + columns, mask=known, other=0.0).to(
            tl.float32
        )  # of the first type, which all tokens have
        states += tl.where(inside, kind[None, :], 0.0)
    states, _, _ = _normalize(states, gain, shift, inside, known, columns, eps, width)
    at = places[:, None] * width + columns[None, :]
    tl.store(out + at, states.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _mean_kernel(stream, bounds, out, width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr):
    text, columns = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    begin, end = tl.load(bounds + text), tl.load(bounds + text + 1)
    total = tl.zeros([block], tl.float32)
    for start in range(begin, end, rows):
        places = (start + tl.arange(0, rows)).to(tl.int64)
        inside = (places < end)[:, None] & (columns < width)[None, :]
        at = stream + places[:, None] * width + columns[None, :]
        total += tl.sum(tl.load(at, mask=inside, other=0.0).to(tl.float32), 0)
    tl.store(out + text * width + columns, total / (end - begin).to(tl.float32), mask=columns < width)


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


def embed_norm(
    ids: Tensor, positions: Tensor, first: int, tables: tuple[Tensor, Tensor, Tensor | None], norm: tuple[Tensor, Tensor],
    eps: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Return layer_norm(words[ids] + places[positions + first] + kinds[0]), (tokens, dimension)."""
    words, places, kinds = tables
    tokens, width = len(ids), words.shape[1]
    out = torch.empty((tokens, width), dtype=dtype, device=ids.device)
    _embed_kernel[(triton.cdiv(tokens, ROWS),)](
        ids, positions, words, places, words if kinds is None else kinds, *norm, out, tokens, first, eps,
        width=width, block=triton.next_power_of_2(width), rows=ROWS, has_kinds=kinds is not None, num_warps=WARPS,
    )  # fmt: skip
    return out


def mean_rows(stream: Tensor, bounds: Tensor) -> Tensor:
    """Return the means of the rows of texts between bounds (texts + 1,), (texts, dimension) float32."""
    texts, width = len(bounds) - 1, stream.shape[1]
    out = torch.empty((texts, width), dtype=torch.float32, device=stream.device)
    _mean_kernel[(texts, triton.cdiv(width, 128))](
        stream, bounds, out, width=width, block=128, rows=64, num_warps=WARPS
    )
    return out


def add_norm(added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Return layer_norm(added + kept), all contiguous, (tokens, dimension), in the dtype of `kept`."""
    if not torch.is_grad_enabled():
        return _launch_norm(added, kept, gain, shift, eps, largest=0.0)[0]
    found: Tensor = _AddNorm.apply(added, kept, gain, shift, eps)  # type: ignore[no-untyped-call]
    return found


def add_norm_rows(
    added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return layer_norm(added + kept), the same in float8 (tokens, dimension), and the scales of its rows (tokens, 1)."""
    out, codes, scales, *_ = _launch_norm(added, kept, gain, shift, eps, largest=LARGEST)
    return out, codes, scales


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
        out, _, _, *stored = _launch_norm(added, kept, gain, shift, eps, largest=0.0, keeps=True)
        ctx.save_for_backward(*stored, gain, shift)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total, mean, rate, gain, shift = ctx.saved_tensors
        width = [total.shape[1]]
        found = torch.ops.aten.native_layer_norm_backward(
            grads[0].contiguous(), total, width, mean, rate, gain, shift, [True, True, True]
        )
        return found[0], found[0], found[1], found[2], None


def _launch_norm(
    added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float, *, largest: float, keeps: bool = False
) -> tuple[Tensor, ...]:
    """Return the norm of a sum, its codes and their scales, and what the gradient needs: sum, mean, 1 / deviation."""
    out, (tokens, width) = torch.empty_like(kept), kept.shape
    codes, scales = _empty_rows(kept) if largest else (out, out)
    total = torch.empty_like(kept) if keeps else out
    mean, rate = (out.new_empty((tokens, 1), dtype=torch.float32) if keeps else out for _ in range(2))
    _norm_kernel[(triton.cdiv(tokens, ROWS),)](
        added, kept, gain, shift, out, codes, scales, total, mean, rate, tokens, eps,
        width=width, block=triton.next_power_of_2(width), rows=ROWS, largest=largest, keeps=keeps, num_warps=WARPS,
    )  # fmt: skip
    return out, codes, scales, total, mean, rate


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
