"""Triton kernels of attention inside every text of a packed batch, forward and backward.

    states = attend_tiles(wide, tiles)          wide (tokens, 3, heads, size) -> (tokens, heads, size); differentiable
    states = attend_tiles(wide, tiles, bias)    bias (heads, 2 far + 1) is added to the scores by distance, as in MPNet

The algorithm of FlashAttention-2 (Dao 2023), for texts as short as abstracts. A tile is `TILE` tokens of one text; `tiles`
lists them, so that no program starts for a row that does not exist, and a short text costs no more than its own tiles. The
gradient of queries and the one of keys and values are two kernels without atomic additions: the same numbers at every run. On
an H200 and abstracts it takes half the time of torch's variable-length attention, forward and backward. Has neither windows
nor dropout, and the bias no gradient. Imports triton, which comes with torch on Linux with CUDA: import this module inside functions.
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

TILE = 64
"""Tokens of a text that one program computes."""

SIZES: tuple[int, ...] = (16, 32, 64, 128)
"""Supported sizes of an attention head."""

FORWARD: dict[str, int] = {"step": 32, "num_warps": 4, "num_stages": 3}
QUERIES: dict[str, int] = {"step": 32, "num_warps": 4, "num_stages": 3}
KEYS: dict[str, int] = {"step": 32, "num_warps": 4, "num_stages": 3}
"""Tokens that a tile is compared with at a time, and Triton's launch settings; tuned on an H200."""

LOG2_E = 1.4426950408889634


@triton.jit
def _place(tiles, rows: tl.constexpr, heads: tl.constexpr, size: tl.constexpr):
    """Return this program's text bounds, rows, mask of rows inside the text, and columns of its head."""
    tile, head = tl.program_id(1), tl.program_id(0)
    begin, end, first = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    places = first + tl.arange(0, rows)
    return begin, end, places, places < end, head * size + tl.arange(0, size)


@triton.jit
def _bias(table, queries, keys, far: tl.constexpr):
    """Return what is added to the scores of these pairs, in powers of two."""
    distance = tl.minimum(tl.maximum(keys - queries, -far), far) + far
    return tl.load(table + tl.program_id(0) * (2 * far + 1) + distance) * 1.4426950408889634


@triton.jit
def _forward(
    wide, out, logs, tiles, bias, tokens,
    far: tl.constexpr, scale: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, rows: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    begin, end, places, inside, columns = _place(tiles, rows, heads, size)
    width: tl.constexpr = heads * size
    query = tl.load(wide + places[:, None] * (3 * width) + columns[None, :], mask=inside[:, None], other=0.0)
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    found = tl.zeros([rows, size], tl.float32)
    for start in range(begin, end, step):
        others = start + tl.arange(0, step)
        seen = others < end
        at = wide + others[:, None] * (3 * width) + width + columns[None, :]
        key = tl.load(at, mask=seen[:, None], other=0.0)
        value = tl.load(at + width, mask=seen[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        if far > 0:
            scores += _bias(bias, places[:, None], others[None, :], far)
        scores = tl.where(seen[None, :], scores, float("-inf"))  # in powers of two
        higher = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(top - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        found = tl.dot(weights.to(value.dtype), value, found * shrink[:, None])
        top = higher
    tl.store(out + places[:, None] * width + columns[None, :], found / total[:, None], mask=inside[:, None])
    tl.store(logs + tl.program_id(0) * tokens + places, top + tl.log2(total), mask=inside)


@triton.jit
def _backward_queries(
    wide, out, grad, logs, deltas, found, tiles, bias, tokens,
    far: tl.constexpr, scale: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, rows: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    begin, end, places, inside, columns = _place(tiles, rows, heads, size)
    width: tl.constexpr = heads * size
    query = tl.load(wide + places[:, None] * (3 * width) + columns[None, :], mask=inside[:, None], other=0.0)
    narrow = places[:, None] * width + columns[None, :]
    wanted = tl.load(grad + narrow, mask=inside[:, None], other=0.0)
    delta = tl.sum(tl.load(out + narrow, mask=inside[:, None], other=0.0).to(tl.float32) * wanted.to(tl.float32), 1)
    tl.store(deltas + tl.program_id(0) * tokens + places, delta, mask=inside)
    log = tl.load(logs + tl.program_id(0) * tokens + places, mask=inside, other=float("inf"))
    total = tl.zeros([rows, size], tl.float32)
    for start in range(begin, end, step):
        others = start + tl.arange(0, step)
        at = wide + others[:, None] * (3 * width) + width + columns[None, :]
        key = tl.load(at, mask=(others < end)[:, None], other=0.0)  # a key of zeros adds nothing
        value = tl.load(at + width, mask=(others < end)[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        if far > 0:
            scores += _bias(bias, places[:, None], others[None, :], far)
        weights = tl.exp2(scores - log[:, None])
        slopes = weights * (tl.dot(wanted, tl.trans(value)) - delta[:, None])
        total = tl.dot(slopes.to(key.dtype), key, total)
    total *= scale * 0.6931471805599453  # the scores were in powers of two
    tl.store(found + places[:, None] * (3 * width) + columns[None, :], total, mask=inside[:, None])


@triton.jit
def _backward_keys(
    wide, grad, logs, deltas, found, tiles, bias, tokens,
    far: tl.constexpr, scale: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, rows: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    begin, end, places, inside, columns = _place(tiles, rows, heads, size)
    width: tl.constexpr = heads * size
    own = places[:, None] * (3 * width) + width + columns[None, :]
    key = tl.load(wide + own, mask=inside[:, None], other=0.0)
    value = tl.load(wide + own + width, mask=inside[:, None], other=0.0)
    for_key = tl.zeros([rows, size], tl.float32)
    for_value = tl.zeros([rows, size], tl.float32)
    for start in range(begin, end, step):
        others = start + tl.arange(0, step)
        there = others < end
        query = tl.load(
            wide + others[:, None] * (3 * width) + columns[None, :], mask=there[:, None], other=0.0
        )  # (step, size)
        wanted = tl.load(grad + others[:, None] * width + columns[None, :], mask=there[:, None], other=0.0)
        log = tl.load(logs + tl.program_id(0) * tokens + others, mask=there, other=float("inf"))
        delta = tl.load(deltas + tl.program_id(0) * tokens + others, mask=there, other=0.0)
        scores = tl.dot(key, tl.trans(query)) * scale
        if far > 0:
            scores += _bias(bias, others[None, :], places[:, None], far)
        weights = tl.exp2(scores - log[None, :])  # (rows, step)
        for_value = tl.dot(weights.to(wanted.dtype), wanted, for_value)
        slopes = weights * (tl.dot(value, tl.trans(wanted)) - delta[None, :])
        for_key = tl.dot(slopes.to(query.dtype), query, for_key)
    for_key *= scale * 0.6931471805599453
    tl.store(found + own, for_key, mask=inside[:, None])
    tl.store(found + own + width, for_value, mask=inside[:, None])


@torch.library.custom_op("citeweave::attend_tiles", mutates_args={})
def _attend(wide: Tensor, tiles: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    out, logs = _shape_of_attend(wide, tiles, bias)
    table, same = _constants(wide, bias)
    _forward[(wide.shape[2], tiles.shape[0])](wide, out, logs, tiles, table, wide.shape[0], **same, **FORWARD)
    return out, logs


@torch.library.custom_op("citeweave::attend_tiles_backward", mutates_args={})
def _attend_backward(
    grad: Tensor, wide: Tensor, out: Tensor, logs: Tensor, tiles: Tensor, bias: Tensor | None
) -> Tensor:
    found, deltas = torch.empty_like(wide), torch.empty_like(logs)
    table, same = _constants(wide, bias)
    grid, tokens = (wide.shape[2], tiles.shape[0]), wide.shape[0]
    _backward_queries[grid](wide, out, grad, logs, deltas, found, tiles, table, tokens, **same, **QUERIES)
    _backward_keys[grid](wide, grad, logs, deltas, found, tiles, table, tokens, **same, **KEYS)
    return found


def _constants(wide: Tensor, bias: Tensor | None) -> tuple[Tensor, dict[str, Any]]:
    """Return the table of the bias, any tensor where there is none, and the kernels' constants."""
    heads, size = wide.shape[2:]
    far = 0 if bias is None else bias.shape[1] // 2
    same = {"far": far, "scale": LOG2_E * size**-0.5, "heads": heads, "size": size, "rows": TILE}
    return (wide if bias is None else bias), same


@_attend.register_fake
def _shape_of_attend(wide: Tensor, tiles: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    tokens, _, heads, size = wide.shape
    return wide.new_empty(tokens, heads, size), wide.new_empty(heads, tokens, dtype=torch.float32)


@_attend_backward.register_fake
def _shape_of_backward(
    grad: Tensor, wide: Tensor, out: Tensor, logs: Tensor, tiles: Tensor, bias: Tensor | None
) -> Tensor:
    return torch.empty_like(wide)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: tuple[Tensor, Tensor]) -> None:
    wide, tiles, bias = inputs
    ctx.save_for_backward(wide, *output, tiles, bias)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return _attend_backward(grad.contiguous(), *ctx.saved_tensors), None, None


_attend.register_autograd(_backward, setup_context=_keep)


def attend_tiles(wide: Tensor, tiles: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute attention (tokens, heads, size) by Triton from packed queries, keys and values (tokens, 3, heads, size).

    `wide` is contiguous, and heads have one of `SIZES`. `tiles` (tiles, 3) int32 holds begin and end of a text and a tile's first
    token; `bias` (heads, 2 far + 1) float32 is contiguous.
    """
    found: Tensor = _attend(wide, tiles, bias)[0]
    return found
