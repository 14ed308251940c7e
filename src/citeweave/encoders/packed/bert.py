"""BERT's layers over a packed stream of tokens: the numbers of transformers' BertModel, without its padding.

    stream   (tokens, dimension)   all texts of a batch end to end, see `packing.py`

Reads the weights out of the transformers model at every call: gradients reach them and nothing is stored twice.
Weights and states are cast to the dtype that is computed in, the residual stream too; norms and softmax are float32
inside. Queries, keys and values come of one product. With `first_only` the last layer computes the first token of
every text alone, which is all that cls pooling reads: it saves 7 % of BERT-base. The states' dropout is applied in
training; the attention's is not, since variable-length attention has none.

`compiled` runs all layers as one piece of code by torch.compile, made at the first call for any number of tokens and
texts. Imports torch: import this module inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout, embedding, layer_norm, linear

from citeweave.encoders.packed.attention import Spans, attend
from citeweave.encoders.packed.stream import Packed

try:
    from citeweave.encoders.packed.kernels import SIZES, attend_tiles
except ImportError:  # no triton, as on a machine without CUDA
    SIZES = ()

PLAIN_MODELS = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel")

_PLAIN_PARTS = (torch.nn.Linear, torch.nn.LayerNorm)


class Shape(NamedTuple):
    """What compiled code is made for, beside the shapes of the weights."""

    heads: int
    eps: float
    rates: tuple[float, ...]
    """Dropout of the embeddings and of every layer."""

    dtype: torch.dtype
    first_only: bool


def is_plain(model: Any) -> bool:
    """Whether `bert_stream` computes this model exactly: no adapters, no cross-attention, exact GELU."""
    if type(model).__name__ not in PLAIN_MODELS or model.config.is_decoder or model.config.hidden_act != "gelu":
        return False
    return all(type(part) in _PLAIN_PARTS for layer in model.encoder.layer for part in _parts(layer))


def bert_stream(
    model: Any, packed: Packed, dtype: torch.dtype, *, first_only: bool = False, compiled: bool = False
) -> Tensor:
    """Last states (tokens, dimension) of all tokens, or with `first_only` (texts + 1, dimension) of the texts' first."""
    layers = list(model.encoder.layer)
    rates = tuple(_rate(part) for part in (model.embeddings, *(layer.output for layer in layers)))
    config = model.config
    shape = Shape(int(config.num_attention_heads), float(config.layer_norm_eps), rates, dtype, first_only)
    run = _compiled() if compiled else _run
    with torch.autocast(packed.ids.device.type, enabled=False):
        return run(packed, _tables(model), tuple(map(_weights, layers)), shape)


def _run(packed: Packed, tables: tuple[Any, ...], layers: tuple[tuple[Tensor, ...], ...], shape: Shape) -> Tensor:
    stream = _embed(packed, tables, shape)
    for number, weights in enumerate(layers, start=1):
        first_only = shape.first_only and number == len(layers)
        stream = _run_layer(stream, weights, packed, shape, shape.rates[number], first_only)
    return stream


def _embed(packed: Packed, tables: tuple[Any, ...], shape: Shape) -> Tensor:
    """Word, position and type of every token, added and normed: (tokens, dimension)."""
    word, word_pad, position, position_pad, kind, weight, bias = tables
    first = 0 if position_pad is None else position_pad + 1  # RoBERTa counts its positions from here on
    states = embedding(packed.ids, word, word_pad) + kind[0]
    states = states + embedding(packed.positions + first, position, position_pad)
    return _drop(layer_norm(states, weight.shape, weight, bias, shape.eps), shape.rates[0]).to(shape.dtype)


def _run_layer(
    stream: Tensor, weights: tuple[Tensor, ...], packed: Packed, shape: Shape, rate: float, first_only: bool
) -> Tensor:
    """One layer of Vaswani et al. (2017) with norms after the sums, as in BERT (Devlin et al. 2019)."""
    cast = [weight.to(stream.dtype) for weight in weights]
    out, out_bias, norm, norm_bias, up, up_bias, down, down_bias, last, last_bias = cast[6:]
    if first_only:
        kept, seen = _see_first(stream, cast, packed, shape.heads)  # (texts + 1, dimension) each
    else:
        wide = linear(stream, torch.cat(cast[0:6:2]), torch.cat(cast[1:6:2]))  # (tokens, 3 dimension)
        kept, seen = stream, _attend_wide(wide.view(wide.shape[0], 3, shape.heads, -1), packed).flatten(1)
    middle = layer_norm(kept + _drop(linear(seen, out, out_bias), rate), norm.shape, norm, norm_bias, shape.eps)
    deep = linear(_gelu(linear(middle, up, up_bias)), down, down_bias)
    return layer_norm(middle + _drop(deep, rate), last.shape, last, last_bias, shape.eps)


def _attend_wide(wide: Tensor, packed: Packed) -> Tensor:
    """Attention (tokens, heads, size) of queries, keys and values in one tensor (tokens, 3, heads, size)."""
    if wide.is_cuda and wide.shape[-1] in SIZES and wide.numel() < 2**31:  # the kernels count in 32 bits
        return attend_tiles(wide, packed.tiles)
    query, key, value = wide.unbind(1)
    return attend(query, key, value, Spans(packed.bounds, packed.bounds, packed.longest, packed.longest))


def _see_first(stream: Tensor, cast: list[Tensor], packed: Packed, heads: int) -> tuple[Tensor, Tensor]:
    """States of the texts' first tokens, and what these see of their texts."""
    kept = stream[packed.bounds[:-1]]  # (texts + 1, dimension)
    query = linear(kept, cast[0], cast[1]).view(kept.shape[0], heads, -1)  # (texts + 1, heads, size)
    both = linear(stream, torch.cat(cast[2:6:2]), torch.cat(cast[3:6:2]))  # (tokens, 2 dimension)
    key, value = both.view(both.shape[0], 2, heads, -1).unbind(1)  # (tokens, heads, size) each
    one_each = torch.arange(len(packed.bounds), device=stream.device, dtype=torch.int32)
    return kept, attend(query, key, value, Spans(one_each, packed.bounds, 1, packed.longest)).flatten(1)


def _gelu(states: Tensor) -> Tensor:
    if states.dtype == torch.float32 or not torch.compiler.is_compiling():
        return torch.nn.functional.gelu(states)
    found: Tensor = _FastGelu.apply(states)  # type: ignore[no-untyped-call]
    return found


class _FastGelu(torch.autograd.Function):
    """GELU (Hendrycks and Gimpel 2016) with the normal distribution within 1e-7, where the exact one costs more than
    the memory it reads: Abramowitz and Stegun (1964), formula 7.1.26. Compiled code fuses it into one kernel."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        ctx.save_for_backward(states)
        wide = states.float()
        return (wide * _normal(wide)[0]).to(states.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        states: Tensor = ctx.saved_tensors[0]
        wide = states.float()
        below, bell = _normal(wide)
        return (grad.float() * (below + wide * bell * 0.3989422804014327)).to(states.dtype)


def _normal(wide: Tensor) -> tuple[Tensor, Tensor]:
    """The normal distribution's share below a number, and exp(-number^2 / 2)."""
    bell = torch.exp(wide * wide * -0.5)
    t = 1.0 / (1.0 + 0.23164189 * wide.abs())
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))) * bell
    return torch.where(wide >= 0.0, 1.0 - tail, tail), bell


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Tensor]:
    run = torch.compile(_run)

    def run_any_length(packed: Packed, *rest: Any) -> Tensor:
        for tensor in (packed.ids, packed.positions, packed.bounds, packed.tiles):
            torch._dynamo.mark_dynamic(tensor, 0)  # unmarked, the second batch would be compiled anew
        return run(packed, *rest)

    return run_any_length


def _tables(model: Any) -> tuple[Any, ...]:
    parts = model.embeddings
    word, position, norm = parts.word_embeddings, parts.position_embeddings, parts.LayerNorm
    kind = parts.token_type_embeddings.weight
    return word.weight, word.padding_idx, position.weight, position.padding_idx, kind, norm.weight, norm.bias


def _parts(layer: Any) -> tuple[Any, ...]:
    """What a layer computes with, in the order in which `_run_layer` uses it."""
    seeing, output = layer.attention.self, layer.attention.output
    around = (output.dense, output.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm)
    return seeing.query, seeing.key, seeing.value, *around


def _weights(layer: Any) -> tuple[Tensor, ...]:
    return tuple(weight for part in _parts(layer) for weight in (part.weight, part.bias))


def _rate(part: Any) -> float:
    return float(part.dropout.p) if part.training else 0.0


def _drop(states: Tensor, rate: float) -> Tensor:
    return dropout(states, rate) if rate else states
