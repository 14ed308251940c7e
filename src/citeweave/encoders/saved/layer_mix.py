"""A learned mix of a network's layers: one trained weight a layer, the token embeddings first.

    states = sum over layers of w[layer] * states[layer] / sum of w        then the mean over the tokens

The formula is that of sentence-transformers' WeightedLayerPooling, in the spirit of ELMo's (Peters et al. 2018), so
that a trained mix is saved as that module and read back unchanged. Begins with equal weights.

    1_WeightedLayerPooling/config.json         {"word_embedding_dimension": 384, "layer_start": 0, "num_hidden_layers": 6}
    1_WeightedLayerPooling/model.safetensors   layer_weights (num_hidden_layers + 1 - layer_start,)

The weights are a parameter of the model itself, `layer_mix`: whoever trains, copies or moves the model takes them along.
Does not pool over tokens: `pooling.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.encoders.saved.tensors_file import read_tensors
from citeweave.errors import InputError
from citeweave.extras import require

if TYPE_CHECKING:
    from torch import Tensor

PARAMETER = "layer_mix"
"""Name of the weights among the model's parameters."""

TENSOR = "layer_weights"
"""Their name in sentence-transformers' module."""

_SMALLEST_SUM = 1e-6


def add_mix(model: Any, weights: Tensor | None = None) -> None:
    """Give a model a mix of its layers, with equal weights unless some are given, (layers + 1,)."""
    torch = require("torch", extra="minilm")
    if weights is None:
        weights = torch.ones(count_states(model))
    place = next(model.parameters()).device
    model.register_parameter(PARAMETER, torch.nn.Parameter(weights.detach().to(place, torch.float32).clone()))


def count_states(model: Any) -> int:
    """Layers of states that a model gives, the token embeddings among them."""
    return int(model.config.num_hidden_layers) + 1


def mix_layers(layers: tuple[Tensor, ...], weights: Tensor) -> Tensor:
    """Layers (texts, tokens, dimension) each, weights (layers,) -> (texts, tokens, dimension) in float32."""
    assert len(layers) == len(weights)
    total = layers[0].float() * weights[0]  # (texts, tokens, dimension)
    for layer, weight in zip(layers[1:], weights[1:], strict=True):
        total = total + layer.float() * weight
    return total / weights.sum()


def read_mix(folder: Path, config: dict[str, Any], model: Any) -> Tensor:
    """The weights of a WeightedLayerPooling folder, (layers + 1,); 0 where the module leaves a layer out."""
    torch = require("torch", extra="minilm")
    layers, start, dimension = count_states(model), config.get("layer_start"), int(model.config.hidden_size)
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    if (width, config.get("num_hidden_layers")) != (dimension, layers - 1):
        raise InputError(
            f"{folder}/config.json is for {config.get('num_hidden_layers')!r} layers of {width!r} numbers; the model "
            f"has {layers - 1} of {dimension}. Copy the whole folder of the model again"
        )
    if type(start) is not int or not 0 <= start < layers:
        raise InputError(f"{folder}/config.json: layer_start is {start!r}; it must be from 0 to {layers - 1}")
    path = folder / "model.safetensors"
    found = read_tensors(path, {TENSOR: (layers - start,)})[TENSOR]  # (layers - start,)
    check_sum(float(found.sum()), path)
    weights: Tensor = torch.cat([torch.zeros(start), found])  # (layers,)
    return weights


def check_sum(total: float, what: object) -> None:
    """A mix is divided by the sum of its weights."""
    if abs(total) < _SMALLEST_SUM:
        raise InputError(f"{what}: the weights of the layers add up to {total:.1g}; a mix needs another sum than 0")
