"""The layers of BERT-like models over packed batches (`packed_batch.py`), which have no padding.

    states = packed_states(model, pack(batch, pad, "cuda"))                         of all tokens, ready for pooling
    states = packed_states(model, pack(batch, pad, "cuda"), first_only=True)        of the texts' first tokens alone

BERT, RoBERTa and MPNet run by the layers here, with the numbers of transformers and on CUDA with the attention of
`triton_attention.py`; ModernBERT, DistilBERT, ELECTRA and BERT with adapters through the interface. MPNet's bias of relative
positions is a table by distance; models with another bias (DeBERTa, T5) cannot be packed. A packed model trains with the dropout
of its states alone, because variable-length attention has none.

The layers read the weights of the transformers model at every call, so that gradients reach them, and cast them together
(`layer_weights.py`); inside `frozen_weights` they are cast once. The residual stream has the dtype of the computation, too;
norms and softmax are float32 inside. Queries, keys and values come from one product. In half precision on CUDA dropout, a sum
and its norm are one kernel (`triton_layers.py`); without gradients embeddings and means are, too, and GELU is part of the product
before it, in its tanh form. With `first_only` the last layer computes only the first token of every text, which is all that
cls pooling needs: it saves 7 % of BERT-base. `compiled` runs all layers as one piece of code by torch.compile, compiled at
the first call for any number of tokens and texts. Imports torch: import this module inside functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import dropout, embedding, layer_norm, linear

from citeweave.encoders.layer_weights import LayerWeights, frozen_layers
from citeweave.encoders.packed_batch import HAS_VARLEN, Packed, Spans, attend, attend_wide, distance_bias, has_kernel
from citeweave.encoders.pooling import States, mean_spans

try:
    from citeweave.encoders import triton_layers
except ImportError:  # no triton, as on a machine without CUDA
    HAS_TRITON = False
else:
    HAS_TRITON = True
HAS_EPILOGUE = hasattr(torch, "_addmm_activation")

PLAIN_MODELS = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "MPNetModel")

_PLAIN_PARTS = (torch.nn.Linear, torch.nn.LayerNorm)


class PackedShape(NamedTuple):
    """The constants of compiled layers over a packed batch, besides the shapes of the weights."""

    heads: int
    eps: float
    rates: tuple[float, ...]
    """Dropout rates of the embeddings and of every layer."""

    dtype: torch.dtype
    first_only: bool


def is_plain(model: Any) -> bool:
    """Return whether `bert_stream` computes this model exactly: no adapters, no cross-attention, exact GELU."""
    config = model.config
    is_encoder = type(model).__name__ in PLAIN_MODELS and not getattr(config, "is_decoder", False)
    if not is_encoder or config.hidden_act != "gelu":
        return False
    return all(type(part) in _PLAIN_PARTS for layer in model.encoder.layer for part in _parts(layer))


def for_model(model: Any, packed: Packed, first_only: bool) -> tuple[Packed, bool]:
    """Return a batch with the model's own bias, and whether first tokens alone can be computed, which takes no bias."""
    bias = distance_bias(model, packed.ids.device)
    return replace(packed, bias=bias), first_only and bias is None


def bert_stream(
    model: Any, packed: Packed, dtype: torch.dtype, *, first_only: bool = False, compiled: bool = False
) -> Tensor:
    """Run BERT over a packed batch: last states (tokens, dimension), or with `first_only` of the texts' first tokens."""
    layers = list(model.encoder.layer)
    rates = tuple(_rate(part) for part in (model.embeddings, *(layer.output for layer in layers)))
    config = model.config
    shape = PackedShape(int(config.num_attention_heads), float(config.layer_norm_eps), rates, dtype, first_only)
    run = _compiled() if compiled else _run
    device = torch.cuda.device_of(packed.ids)  # type: ignore[no-untyped-call]
    with torch.autocast(packed.ids.device.type, enabled=False), device:  # triton launches on the current device
        return run(packed, _tables(model), frozen_layers(model, list(map(_weights, layers)), dtype), shape)


def _run(packed: Packed, tables: tuple[Any, ...], layers: tuple[LayerWeights, ...], shape: PackedShape) -> Tensor:
    stream = _embed(packed, tables, shape)
    for number, weights in enumerate(layers, start=1):
        first_only = shape.first_only and number == len(layers)
        stream = _run_layer(stream, weights, packed, shape, shape.rates[number], first_only)
    return stream


def _embed(packed: Packed, tables: tuple[Any, ...], shape: PackedShape) -> Tensor:
    """Embed the words, positions and types of packed tokens, summed and normalized, (tokens, dimension)."""
    word, word_pad, position, position_pad, kind, weight, bias = tables
    first = 0 if position_pad is None else position_pad + 1  # RoBERTa counts its positions from here on
    if _has_kernels(packed.ids, shape.dtype) and not (torch.is_grad_enabled() or shape.rates[0]):
        places = packed.ids, packed.positions, first
        return triton_layers.embed_norm(*places, (word, position, kind), (weight, bias), shape.eps, shape.dtype)
    states = embedding(packed.ids, word, word_pad) + embedding(packed.positions + first, position, position_pad)
    states = states if kind is None else states + kind[0]
    return _drop(layer_norm(states, weight.shape, weight, bias, shape.eps), shape.rates[0]).to(shape.dtype)


def _run_layer(
    stream: Tensor, weights: LayerWeights, packed: Packed, shape: PackedShape, rate: float, first_only: bool
) -> Tensor:
    """Run one transformer layer (Vaswani et al. 2017) with norms after the sums, as in BERT (Devlin et al. 2019)."""
    if first_only:
        kept, seen = _attend_first(stream, weights, packed, shape.heads)  # (texts + 1, dimension) each
    else:
        wide = linear(stream, weights.wide, weights.wide_bias)  # (tokens, 3 dimension)
        kept, seen = stream, attend_wide(wide.view(wide.shape[0], 3, shape.heads, -1), packed).flatten(1)
    added = linear(seen, weights.out, weights.out_bias)
    middle = _add_norm(added, kept, weights.norm, weights.norm_bias, shape.eps, rate)
    deep = linear(_linear_gelu(middle, weights.up, weights.up_bias), weights.down, weights.down_bias)
    return _add_norm(deep, middle, weights.last, weights.last_bias, shape.eps, rate)


def _attend_first(stream: Tensor, weights: LayerWeights, packed: Packed, heads: int) -> tuple[Tensor, Tensor]:
    """Return the states of the texts' first tokens, and their attention over their texts."""
    kept, width = stream[packed.bounds[:-1]], len(weights.wide) // 3  # (texts + 1, dimension)
    query = linear(kept, weights.wide[:width], weights.wide_bias[:width]).view(kept.shape[0], heads, -1)
    both = linear(stream, weights.wide[width:], weights.wide_bias[width:])  # (tokens, 2 dimension)
    key, value = both.view(both.shape[0], 2, heads, -1).unbind(1)  # (tokens, heads, size) each
    one_each = torch.arange(len(packed.bounds), device=stream.device, dtype=torch.int32)
    return kept, attend(query, key, value, Spans(one_each, packed.bounds, 1, packed.longest)).flatten(1)


def _is_fast(states: Tensor, dtype: torch.dtype) -> bool:
    """Return whether states are computed in half precision on CUDA, which has kernels of its own."""
    return states.is_cuda and dtype in (torch.bfloat16, torch.float16)


def _has_kernels(states: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the kernels of `triton_layers.py` are used; compiled code has its own."""
    return HAS_TRITON and _is_fast(states, dtype) and not torch.compiler.is_compiling()


def _add_norm(added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float, rate: float) -> Tensor:
    """Return the norm of a sum (tokens, dimension), what is added after dropout."""
    if _has_kernels(kept, kept.dtype):
        seed = int(torch.randint(2**31 - 1, ()).item()) if rate else 0  # on the CPU: nothing waits for the GPU
        return triton_layers.add_norm(added, kept, gain, shift, eps, rate, seed)
    return layer_norm(kept + _drop(added, rate), gain.shape, gain, shift, eps)


def _linear_gelu(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the GELU of a linear layer (tokens, outputs).

    The tanh form (Hendrycks and Gimpel 2016), which cuBLASLt computes inside of the product, is at most 4.8e-4 from the exact
    one, less than the rounding of the layer's outputs to bfloat16.
    """
    if HAS_EPILOGUE and _is_fast(states, states.dtype) and not torch.is_grad_enabled():
        return torch._addmm_activation(bias, states, weight.t(), use_gelu=True)
    return _gelu(linear(states, weight, bias))


def _gelu(states: Tensor) -> Tensor:
    if states.dtype == torch.float32 or not torch.compiler.is_compiling():
        return torch.nn.functional.gelu(states)
    activated: Tensor = _FastGelu.apply(states)  # type: ignore[no-untyped-call]
    return activated


class _FastGelu(torch.autograd.Function):
    """GELU (Hendrycks and Gimpel 2016) by Abramowitz and Stegun's formula 7.1.26 (1964), within 1e-7.

    The exact one takes longer than reading its memory; compiled code fuses this one into one kernel.
    """

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
    """Return the normal distribution function of numbers, and exp(-number^2 / 2), for GELU."""
    bell = torch.exp(wide * wide * -0.5)
    t = 1.0 / (1.0 + 0.23164189 * wide.abs())
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))) * bell
    return torch.where(wide >= 0.0, 1.0 - tail, tail), bell


COMPILER: dict[str, Any] = {}
"""Options of `torch.compile`, such as its mode; `benchmarks/gpu_speed.py` compares some."""


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Tensor]:
    run = torch.compile(_run, **COMPILER)

    def run_any_length(packed: Packed, *rest: Any) -> Tensor:
        for tensor in (packed.ids, packed.positions, packed.bounds, packed.tiles):
            torch._dynamo.mark_dynamic(tensor, 0)  # else the second batch would be compiled again
        return run(packed, *rest)

    return run_any_length


def _tables(model: Any) -> tuple[Any, ...]:
    parts = model.embeddings
    word, position, norm = parts.word_embeddings, parts.position_embeddings, parts.LayerNorm
    kind = parts.token_type_embeddings.weight if hasattr(parts, "token_type_embeddings") else None
    return word.weight, word.padding_idx, position.weight, position.padding_idx, kind, norm.weight, norm.bias


def _parts(layer: Any) -> tuple[Any, ...]:
    """Return the linear and norm modules of a layer, in the order of `layer_weights.py`."""
    deep = (layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm)
    if hasattr(layer.attention, "attn"):  # MPNet
        seeing = layer.attention.attn
        return seeing.q, seeing.k, seeing.v, seeing.o, layer.attention.LayerNorm, *deep
    seeing, output = layer.attention.self, layer.attention.output
    return seeing.query, seeing.key, seeing.value, output.dense, output.LayerNorm, *deep


def _weights(layer: Any) -> tuple[Tensor, ...]:
    return tuple(weight for part in _parts(layer) for weight in (part.weight, part.bias))


def _rate(part: Any) -> float:
    return float(part.dropout.p) if part.training else 0.0


def _drop(states: Tensor, rate: float) -> Tensor:
    return dropout(states, rate) if rate else states


INTERFACE = "citeweave_packed"
"""Name of packed attention among transformers' attention functions."""

PACKING_MODELS = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "electra", "modernbert")
"""Types of models whose attention has no mask but that of the padding, and MPNet."""


@dataclass(frozen=True, slots=True)
class PackedStates:
    """Last states of the tokens of a packed batch, ready for pooling."""

    stream: Tensor
    """(tokens, dimension)"""

    bounds: Tensor
    """(texts + 2,), the filler's at the end."""

    begins: NDArray[np.int64]
    """(texts + 2,), the same in the CPU's memory, so that nothing waits for the device."""

    def cls(self) -> Tensor:
        return self.stream[self.bounds[:-2].long()].float()  # (texts, dimension)

    def mean(self) -> Tensor:
        if _has_kernels(self.stream, self.stream.dtype) and not torch.is_grad_enabled():
            return triton_layers.mean_rows(self.stream, self.bounds[:-1])
        sums = torch.segment_reduce(self.stream.float(), "sum", offsets=self.bounds.long(), axis=0)  # (texts + 1, ...)
        return (sums / self.bounds.diff()[:, None])[:-1]  # (texts, dimension)

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        before = self.begins[texts]  # (spans,)
        return mean_spans(self.stream, before + starts, before + ends)

    def tokens(self) -> Tensor:
        return self.stream[: self.begins[-2]]


@dataclass(frozen=True, slots=True)
class FirstStates:
    """Last states of the first tokens of a packed batch alone, for cls pooling."""

    first: Tensor
    """(texts + 1, dimension), the filler's at the end."""

    def cls(self) -> Tensor:
        return self.first[:-1].float()  # (texts, dimension)

    def mean(self) -> Tensor:
        raise AssertionError("first tokens alone have no mean over all tokens")


def can_pack(model: Any, device: str, *, slowly: bool = False) -> bool:
    """Return whether a model can be packed and that is faster on this device; `slowly` allows a CPU too."""
    kind = model.config.model_type
    if kind not in PACKING_MODELS or getattr(model.config, "is_decoder", False):
        return False
    is_cuda = device.startswith("cuda")
    if kind == "mpnet" and not (is_plain(model) and (not is_cuda or has_kernel(model))):
        return False  # transformers' interface and torch's attention of packed texts take no bias
    if not is_cuda:
        return slowly
    if not HAS_VARLEN or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return computes_in(model, device) in (torch.bfloat16, torch.float16)


def can_compile(model: Any, device: str) -> bool:
    """Return whether torch can compile the packed layers of a model; for CUDA it needs triton."""
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and device.startswith("cuda") and HAS_VARLEN and is_plain(model)


def computes_in(model: Any, device: str) -> torch.dtype:
    """Return the dtype in which a packed model computes: that of `torch.autocast` around it, else of its weights."""
    kind = device.partition(":")[0]
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    dtype: torch.dtype = model.dtype
    return dtype


def packed_states(model: Any, packed: Packed, *, first_only: bool = False, compiled: bool = False) -> States:
    """Run a model of `PACKING_MODELS` over a packed batch; differentiable.

    With `first_only` the states serve `cls()` alone, which saves a plain model most of its last layer.
    """
    if not is_plain(model):
        return PackedStates(_interface_stream(model, packed), packed.bounds, packed.begins)
    dtype = computes_in(model, packed.ids.device.type)
    packed, first_only = for_model(model, packed, first_only)
    stream = bert_stream(model, packed, dtype, first_only=first_only, compiled=compiled)
    return FirstStates(stream) if first_only else PackedStates(stream, packed.bounds, packed.begins)


def _interface_stream(model: Any, packed: Packed) -> Tensor:
    """Run a packed batch through a model whose attention uses transformers' interface and takes positions."""
    positions = packed.positions.long()[None]  # (1, tokens)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if (unused := getattr(table, "padding_idx", None)) is not None:  # RoBERTa counts its positions from here on
        positions = positions + unused + 1
    spans = Spans(packed.bounds, packed.bounds, packed.longest, packed.longest)
    with _packed_attention(model):
        output = model(input_ids=packed.ids.long()[None], position_ids=positions, citeweave_spans=spans)
    stream: Tensor = output.last_hidden_state[0]  # (tokens, dimension)
    return stream


@contextmanager
def _packed_attention(model: Any) -> Iterator[None]:
    from transformers import AttentionInterface

    AttentionInterface.register(INTERFACE, _attend_for_transformers)
    before = model.config._attn_implementation
    model.config._attn_implementation = INTERFACE
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _attend_for_transformers(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **more: Any
) -> tuple[Tensor, None]:
    """Compute packed attention for transformers: (1, heads, tokens, size) in, (1, tokens, heads, size) out."""
    assert attention_mask is None and np.isclose(
        more.get("scaling") or query.shape[-1] ** -0.5, query.shape[-1] ** -0.5
    )
    window = more.get("sliding_window")
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # (tokens, heads, size) each
    inner = None if window is None else window - 1  # transformers counts the token itself
    return attend(query, key, value, more["citeweave_spans"], inner)[None], None
