"""The weights of BERT layers as packed layers use them: in the dtype of the computation, queries, keys and values as one.

    layers = cast_layers(weights, torch.bfloat16)        differentiable: gradients reach the parameters in their own dtype

    with frozen_weights():                               nobody trains in here
        layers = frozen_layers(model, weights, dtype)    computed at the first call, the same tensors at the next ones

A cast of every weight by itself and the concatenations of queries, keys and values would be 200 small kernels for BERT-base,
forward and again backward, which is what limits a small training step. Here all of them are copied by one launch.

Weights are kept only inside `frozen_weights`, never by a version number: fused optimizers change parameters without
counting it (torch 2.11). Imports torch: import this module inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor


class LayerWeights(NamedTuple):
    """The weights of one BERT layer. Products are (outputs, inputs); `wide` has queries, keys and values."""

    wide: Tensor
    wide_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    last: Tensor
    last_bias: Tensor


PARTS = 16
"""Parameters of a layer: weight and bias of query, key, value, and of five more parts."""

Kept = dict[tuple[int, torch.dtype], tuple[LayerWeights, ...]]
_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextmanager
def frozen_weights() -> Iterator[None]:
    """Keep the cast weights of models inside this context, in which no weight changes."""
    if _kept.get() is not None:
        yield
        return
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def frozen_layers(model: Any, weights: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> tuple[LayerWeights, ...]:
    """Return the cast weights of a model's layers, inside `frozen_weights` the same ones at every call."""
    kept = _kept.get()
    if kept is None or torch.is_grad_enabled():
        return cast_layers(weights, dtype)
    key = id(model), dtype  # the caller's model outlives the context
    if key not in kept:
        kept[key] = cast_layers(weights, dtype)
    return kept[key]


def cast_layers(weights: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> tuple[LayerWeights, ...]:
    """Cast the weights of layers, each query, key, value (weight, bias) and five more parts, in one launch."""
    flat = [weight for layer in weights for weight in layer]
    found = _CastTogether.apply(dtype, *flat)  # type: ignore[no-untyped-call]
    size = len(LayerWeights._fields)
    return tuple(LayerWeights(*found[start : start + size]) for start in range(0, len(found), size))


class _CastTogether(torch.autograd.Function):
    """Casts the parameters of layers into their `LayerWeights`, and gradients back; the copies are one launch."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.shapes = [weight.shape for weight in weights]
        ctx.dtype = weights[0].dtype
        found, targets = [], []
        for start in range(0, len(weights), PARTS):
            layer = weights[start : start + PARTS]
            for three in (layer[0:6:2], layer[1:6:2]):  # weights and biases of query, key and value
                joined = three[0].new_empty(sum(map(len, three)), *three[0].shape[1:], dtype=dtype)
                found.append(joined)
                targets.append(joined.split_with_sizes([len(one) for one in three]))
            found += [torch.empty_like(weight, dtype=dtype) for weight in layer[6:]]
            targets.append(tuple(found[-PARTS + 6 :]))
        _copy([view for group in targets for view in group], _in_order(weights))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [shape.numel() for shape in ctx.shapes]
        flat = grads[0].new_empty(sum(sizes), dtype=ctx.dtype)  # the gradients of all layers
        pieces = [piece.view(shape) for piece, shape in zip(flat.split_with_sizes(sizes), ctx.shapes, strict=True)]
        sources: list[Tensor] = []
        fields = len(LayerWeights._fields)
        for layer, start in enumerate(range(0, len(grads), fields)):
            for at in (0, 1):
                lengths = [shape[0] for shape in ctx.shapes[layer * PARTS + at : layer * PARTS + 6 : 2]]
                sources += grads[start + at].split_with_sizes(lengths)
            sources += grads[start + 2 : start + fields]
        _copy(_in_order(pieces), sources)
        wanted = ctx.needs_input_grad[1:]
        return None, *(piece if need else None for piece, need in zip(pieces, wanted, strict=True))


def _in_order(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters of layers in the order of `LayerWeights`: three weights, three biases, then the others."""
    order = (0, 2, 4, 1, 3, 5, *range(6, PARTS))
    return [weights[start + at] for start in range(0, len(weights), PARTS) for at in order]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)
