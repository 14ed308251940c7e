"""Triton kernels around the matrix products of packed BERT layers: embeddings, sums and norms, means, rows in 8-bit floats.

    embed_norm(packed ids and positions, tables, ...)     layer_norm of the sum of embeddings, (tokens, dimension)
    add_norm(added, kept, gain, shift, eps, rate, seed)   layer_norm(dropout(added) + kept), (tokens, dimension); differentiable
    mean_rows(stream, bounds)                             the mean of each text's rows, (texts, dimension)
    add_norm_rows(added, kept, gain, shift, eps)          the same without dropout, and its rows in float8
    quantize_rows(states, gelu=True)                      rows of gelu(states) in float8

Layer normalization is that of Ba et al. (2016), GELU the tanh form of Hendrycks and Gimpel (2016), whose error of at most
4.8e-4 is far below the rounding of float8. A row in float8 (e4m3: Micikevicius et al. 2022) has one scale, its largest
absolute value over 448. Each kernel reads its inputs once and computes in float32. Only `add_norm` has gradients. Its dropout
(Srivastava et al. 2014) stores no mask: the numbers of Philox (Salmon et al. 2011) depend on the seed and the place alone, and
the gradient draws them again.
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

GRADIENT_ROWS = 2
"""Rows of a norm's gradient that one program computes at a time."""

PROGRAMS = 528
"""Programs at most that compute the gradients of a norm, each of many rows: 4 for each multiprocessor of an H200."""

REGISTERS = 128
"""Registers of a thread with which 4 of these programs run on a multiprocessor at once: 65,536 / 4 / 32 `WARPS`."""

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
    inverse = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / width + eps)
    states = centered * inverse[:, None]
    states *= tl.load(gain + columns, mask=known, other=0.0).to(tl.float32)[None, :]
    return states + tl.load(shift + columns, mask=known, other=0.0).to(tl.float32)[None, :], mean, inverse


@triton.jit
def _drop(states, seed, places, rate, block: tl.constexpr):
    """Return rows after dropout; one draw serves four numbers."""
    fours = places[:, None] * (block // 4) + tl.arange(0, block // 4)[None, :]
    first, second, third, fourth = tl.rand4x(seed, fours)  # (rows, block / 4) each, from 0 to 1
    drawn = tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), states.shape)
    return tl.where(drawn >= rate, states * (1.0 / (1.0 - rate)), 0.0)


@triton.jit(do_not_specialize=["seed"])
def _norm_kernel(
    added, kept, gain, shift, out, codes, scales, totals, means, inverses, tokens, eps, seed, rate,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, largest: tl.constexpr, keeps: tl.constexpr,
    drops: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    columns = tl.arange(0, block)
    known = columns < width
    inside = (places < tokens)[:, None] & known[None, :]
    at = places[:, None] * width + columns[None, :]
    states = tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    if drops:
        states = _drop(states, seed, places, rate, block)
    states += tl.load(kept + at, mask=inside, other=0.0).to(tl.float32)
    if keeps:
        tl.store(totals + at, states.to(totals.dtype.element_ty), mask=inside)
    states, mean, inverse = _normalize(states, gain, shift, inside, known, columns, eps, width)
    if keeps:
        tl.store(means + places, mean, mask=places < tokens)
        tl.store(inverses + places, inverse, mask=places < tokens)
    tl.store(out + at, states.to(out.dtype.element_ty), mask=inside)
    if largest > 0:
        _store_codes(states, codes, scales, at, places, inside, tokens, largest)


@triton.jit(do_not_specialize=["seed"])
def _gradient_kernel(
    grads, totals, means, inverses, gain, grad_added, grad_kept, grad_gains, grad_shifts, tokens, seed, rate,
    width: tl.constexpr, block: tl.constexpr, rows: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a norm's inputs (Ba et al. 2016), and each program's sums of those of gain and shift."""
    columns = tl.arange(0, block)
    known = columns < width
    gains = tl.load(gain + columns, mask=known, other=0.0).to(tl.float32)
    grad_gain, grad_shift = tl.zeros([block], tl.float32), tl.zeros([block], tl.float32)
    for start in range(tl.program_id(0) * rows, tokens, tl.num_programs(0) * rows):
        places = (start + tl.arange(0, rows)).to(tl.int64)
        there = places < tokens
        inside = there[:, None] & known[None, :]
        at = places[:, None] * width + columns[None, :]
        grad = tl.load(grads + at, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(totals + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(means + places, mask=there, other=0.0)
        inverse = tl.load(inverses + places, mask=there, other=0.0)
        normal = (total - mean[:, None]) * inverse[:, None]
        grad_gain += tl.sum(grad * normal, 0)
        grad_shift += tl.sum(grad, 0)
        grad *= gains[None, :]
        along = tl.sum(grad * normal, 1) / width  # (rows,)
        found = (grad - (tl.sum(grad, 1) / width)[:, None] - normal * along[:, None]) * inverse[:, None]
        tl.store(grad_kept + at, found.to(grad_kept.dtype.element_ty), mask=inside)
        if drops:
            found = _drop(found, seed, places, rate, block)
            tl.store(grad_added + at, found.to(grad_added.dtype.element_ty), mask=inside)
    at = tl.program_id(0) * width + columns
    tl.store(grad_gains + at, grad_gain, mask=known)
    tl.store(grad_shifts + at, grad_shift, mask=known)


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


def add_norm(
    added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float, rate: float = 0.0, seed: int = 0
) -> Tensor:
    """Return layer_norm(dropout(added) + kept), all contiguous, (tokens, dimension), in the dtype of `kept`.

    Of `added` this rate is dropped, chosen by the seed, which is below 2^31.
    """
    if not torch.is_grad_enabled():
        return _launch_norm(added, kept, gain, shift, eps, dropout=(rate, seed))[0]
    found: Tensor = _AddNorm.apply(added, kept, gain, shift, eps, (rate, seed))  # type: ignore[no-untyped-call]
    return found


def add_norm_rows(
    added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return layer_norm(added + kept), the same in float8 (tokens, dimension), and the scales of its rows (tokens, 1)."""
    out, codes, scales, *_ = _launch_norm(added, kept, gain, shift, eps, largest=LARGEST)
    return out, codes, scales


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float, dropout: tuple[float, int]
    ) -> Tensor:
        out, _, _, *stored = _launch_norm(added, kept, gain, shift, eps, keeps=True, dropout=dropout)
        ctx.save_for_backward(*stored, gain)
        ctx.dropout = dropout
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total, mean, inverse, gain = ctx.saved_tensors
        (rate, seed), (tokens, width) = ctx.dropout, total.shape
        programs = min(PROGRAMS, triton.cdiv(tokens, GRADIENT_ROWS))
        grad_kept = torch.empty_like(total)
        grad_added = torch.empty_like(total) if rate else grad_kept
        sums = total.new_empty((2, programs, width), dtype=torch.float32)
        _gradient_kernel[(programs,)](
            grads[0].contiguous(), total, mean, inverse, gain, grad_added, grad_kept, *sums, tokens, seed, rate,
            width=width, block=triton.next_power_of_2(width), rows=GRADIENT_ROWS, drops=rate > 0, num_warps=WARPS,
            maxnreg=REGISTERS,
        )  # fmt: skip
        grad_gain, grad_shift = sums.sum(1).to(gain.dtype)
        return grad_added, grad_kept, grad_gain, grad_shift, None, None


def _launch_norm(
    added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float, *,
    largest: float = 0.0, keeps: bool = False, dropout: tuple[float, int] = (0.0, 0),
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the norm of a sum, its codes and their scales, and what the gradient needs: sum, mean, 1 / deviation."""
    out, (tokens, width), (rate, seed) = torch.empty_like(kept), kept.shape, dropout
    codes, scales = _empty_rows(kept) if largest else (out, out)
    total = torch.empty_like(kept) if keeps else out
    mean, inverse = (out.new_empty((tokens, 1), dtype=torch.float32) if keeps else out for _ in range(2))
    _norm_kernel[(triton.cdiv(tokens, ROWS),)](
        added, kept, gain, shift, out, codes, scales, total, mean, inverse, tokens, eps, seed, rate,
        width=width, block=triton.next_power_of_2(width), rows=ROWS, largest=largest, keeps=keeps, drops=rate > 0,
        num_warps=WARPS,
    )  # fmt: skip
    return out, codes, scales, total, mean, inverse


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
