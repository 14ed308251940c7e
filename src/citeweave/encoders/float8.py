"""BERT in 8-bit floats on GPUs: quantized weights, and packed texts whose states are quantized row by row.

    network = float8_network(network, "my/model")        the weights of its layers are quantized once
    network.states([tokens, ...]).mean()                  (texts, dimension)

    y = W x + b    ->    y = (codes of W) (codes of x) * scale of the output * scale of the token + b

Codes are e4m3 (Micikevicius et al. 2022, FP8 formats for deep learning): 4 bits of exponent and 3 of mantissa. Every output of a
weight and every token of a state has one scale, its largest absolute value over 448; those of states are measured as they are
computed. Only the products with weights are in float8. Embeddings, residual stream and attention stay in bfloat16, sums and
norms in float32; so does the last quarter of the layers. Needs a GPU of compute capability 8.9 or
later, such as L4, H100 and H200. On a CPU the same codes are multiplied in float32, slowly, for tests. No gradients and no
states of inner layers. Imports torch: import this module inside functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

from citeweave.core.errors import UserError
from citeweave.encoders import packed as packing
from citeweave.encoders.layer_weights import LayerWeights, cast_layers
from citeweave.encoders.network import Network
from citeweave.encoders.packed import FirstStates, PackedStates
from citeweave.encoders.packed_batch import Packed, attend_wide, pack
from citeweave.encoders.pooling import States
from citeweave.encoders.tokens import Tokens

try:
    from citeweave.encoders import triton_layers
except ImportError:  # no triton, as on a machine without CUDA
    HAS_TRITON = False
else:
    HAS_TRITON = True

CODES = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of e4m3."""

EXACT_SHARE = 0.25
"""Part of the layers, the last ones, that stay in bfloat16: what goes wrong there is not evened out by further layers. All of
MPNet in float8 has a mean cosine of 0.9978 to float32, without the last quarter 0.9991; the first layers matter little."""

FAST_SUMS = True
"""Whether sums of products are kept in the tensor cores, which is faster and less exact than float32."""


class Float8Rows(NamedTuple):
    """States in float8."""

    codes: Tensor
    """(tokens, inputs)"""

    scales: Tensor
    """(tokens, 1)"""


class Product(NamedTuple):
    """The weight and bias of a linear layer in float8."""

    codes: Tensor
    """(outputs, inputs)"""

    scales: Tensor
    """(1, outputs)"""

    bias: Tensor
    """(outputs,)"""


class Float8Layer(NamedTuple):
    """The weights of one BERT layer; its norms are those of `exact`."""

    wide: Product
    """Queries, keys and values."""

    out: Product
    up: Product
    down: Product
    exact: LayerWeights


@dataclass(frozen=True, slots=True)
class Float8Network(Network):
    """A BERT whose products are in float8; `model` has the embeddings, and all weights in bfloat16."""

    layers: tuple[Float8Layer, ...] = ()

    def states(self, batch: Sequence[Tokens], *, first_only: bool = False) -> States:
        """Return the network's last states of a batch, without gradients; `first_only` for `cls()` alone."""
        packed, first_only = packing.for_model(self.model, pack(batch, self.pad, self.device), first_only)
        with torch.no_grad(), torch.cuda.device_of(packed.ids):  # type: ignore[no-untyped-call]
            stream = _run(self.model, self.layers, packed, first_only)
        return FirstStates(stream) if first_only else PackedStates(stream, packed.bounds, packed.begins)

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> Any:
        raise UserError(
            "--precision is float8, which computes the last layer only, and this pooling needs more; use bfloat16"
        )


def float8_network(network: Network, name: str) -> Float8Network:
    """Return a network in float8; `name` is the model's, for errors. Gradients do not reach its weights."""
    model = network.model
    sizes = (model.config.hidden_size, getattr(model.config, "intermediate_size", 1))
    if not packing.is_plain(model) or any(size % 16 for size in sizes):
        raise UserError(
            f"--precision is float8, which only computes BERT-like models, and {name} is {model.config.model_type}; use "
            "bfloat16"
        )
    weights = list(map(packing._weights, model.encoder.layer))
    with torch.no_grad():
        layers = tuple(Float8Layer(*_quantize_layer(layer), layer) for layer in cast_layers(weights, model.dtype))
    return Float8Network(model, network.device, network.pad, packed=True, layers=layers)


def _quantize_layer(layer: LayerWeights) -> tuple[Product, Product, Product, Product]:
    wide, out = quantize_weight(layer.wide, layer.wide_bias), quantize_weight(layer.out, layer.out_bias)
    return wide, out, quantize_weight(layer.up, layer.up_bias), quantize_weight(layer.down, layer.down_bias)


def quantize_weight(weight: Tensor, bias: Tensor) -> Product:
    """Quantize the weight (outputs, inputs) of a linear layer, with one scale per output."""
    codes, scales = quantize(weight)
    return Product(codes, scales.T.contiguous(), bias)


def quantize(states: Tensor, *, activates: bool = False) -> Float8Rows:
    """Quantize rows, or with `activates` their GELU, with one scale per row."""
    if states.is_cuda and HAS_TRITON:
        return Float8Rows(*triton_layers.quantize_rows(states, gelu=activates))
    wide = gelu(states.float(), approximate="tanh") if activates else states.float()  # (tokens, inputs)
    scales = wide.abs().amax(1, keepdim=True).clamp(min=1e-12) / LARGEST  # (tokens, 1)
    return Float8Rows((wide / scales).to(CODES), scales)


def multiply(rows: Float8Rows, product: Product) -> Tensor:
    """Multiply rows by the weight of a linear layer and add its bias, (tokens, outputs) in the dtype of the bias."""
    if not rows.codes.is_cuda:
        weight = product.codes.float() * product.scales.T  # (outputs, inputs)
        return linear(rows.codes.float() * rows.scales, weight, product.bias.float()).to(product.bias.dtype)
    return torch._scaled_mm(
        rows.codes, product.codes.t(), scale_a=rows.scales, scale_b=product.scales, bias=product.bias,
        out_dtype=product.bias.dtype, use_fast_accum=FAST_SUMS,
    )  # fmt: skip


def _add_norm(added: Tensor, kept: Tensor, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Float8Rows]:
    """Return the norm of a sum, (tokens, dimension), and its rows in float8."""
    if kept.is_cuda and HAS_TRITON:
        stream, codes, scales = triton_layers.add_norm_rows(added, kept, gain, shift, eps)
        return stream, Float8Rows(codes, scales)
    wide = layer_norm(added.float() + kept.float(), gain.shape, gain.float(), shift.float(), eps)
    return wide.to(kept.dtype), quantize(wide)


def _run(model: Any, layers: tuple[Float8Layer, ...], packed: Packed, first_only: bool) -> Tensor:
    """Run BERT over a packed batch: last states (tokens, dimension), or with `first_only` of the texts' first tokens."""
    config, dtype = model.config, model.dtype
    rates = (0.0,) * (1 + len(layers))
    shape = packing.PackedShape(int(config.num_attention_heads), float(config.layer_norm_eps), rates, dtype, first_only)
    first_exact = len(layers) - math.ceil(EXACT_SHARE * len(layers))
    with torch.autocast(packed.ids.device.type, enabled=False):
        stream, rows = packing._embed(packed, packing._tables(model), shape), None
        for number, layer in enumerate(layers):
            is_last_of_first = first_only and number == len(layers) - 1
            if is_last_of_first or number >= first_exact:
                stream, rows = packing._run_layer(stream, layer.exact, packed, shape, 0.0, is_last_of_first), None
            else:
                stream, rows = _run_layer(stream, rows or quantize(stream), layer, packed, shape)
    return stream


def _run_layer(
    stream: Tensor, rows: Float8Rows, layer: Float8Layer, packed: Packed, shape: packing.PackedShape
) -> tuple[Tensor, Float8Rows]:
    """Run one transformer layer, as `packed.py` does, with products in float8; also return its states in float8."""
    exact = layer.exact
    wide = multiply(rows, layer.wide)  # (tokens, 3 dimension)
    seen = attend_wide(wide.view(wide.shape[0], 3, shape.heads, -1), packed).flatten(1)
    added = multiply(quantize(seen), layer.out)
    middle, rows = _add_norm(added, stream, exact.norm, exact.norm_bias, shape.eps)
    deep = multiply(quantize(multiply(rows, layer.up), activates=True), layer.down)
    return _add_norm(deep, middle, exact.last, exact.last_bias, shape.eps)
