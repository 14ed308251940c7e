"""Small safetensors files that are not trusted: what is in them is compared with what may be in them, then read.

    read_tensors(path, {"layer_weights": (7,)})["layer_weights"].shape == (7,)

Names, shapes and kinds of numbers are compared before a number is read, so that memory stays within what the caller
expects. The format holds no code. Does not read whole models: `network.py` does, by transformers.

A learned mix of a network's layers: one trained weight a layer, the token embeddings first.

    states = sum over layers of w[layer] * states[layer] / sum of w        then the mean over the tokens

The formula is that of sentence-transformers' WeightedLayerPooling, in the spirit of ELMo's (Peters et al. 2018), so
that a trained mix is saved as that module and read back unchanged. Begins with equal weights.

    1_WeightedLayerPooling/config.json         {"word_embedding_dimension": 384, "layer_start": 0, "num_hidden_layers": 6}
    1_WeightedLayerPooling/model.safetensors   layer_weights (num_hidden_layers + 1 - layer_start,)

The weights are a parameter of the model itself, `layer_mix`: whoever trains, copies or moves the model takes them along.
Does not pool over tokens: `pooling.py` does.

From the states of a text's tokens to its one vector.

    cls      the state of the first token
    mean     the mean over the tokens, special ones included, padding not (as in sentence-transformers)
    layers   the mean over tokens and over all layers, the token embeddings among them (Peters et al. 2018, ELMo,
             with equal weights; the ELMo baseline of Cohan et al. 2020, SPECTER, appendix A)
    mix      the same with a learned weight a layer, see `layer_mix.py`
    aspect_words   sentences weighed by the words for aspects, see `sentence_attention.py`

`text_vectors` goes from tokens to vectors, with gradients where they are asked for; all else are functions of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, UserError, require
from citeweave.core.files import open_input
from citeweave.encoders.model_folder import ASPECT_WORDS

if TYPE_CHECKING:
    from torch import Tensor


_MAX_HEADER = 8 << 20
"""Bytes of the table of contents; that of a model with 10,000 tensors has 1.5 million."""

_NUMBERS = ("F32", "F16", "BF16")


def read_tensors(path: Path, expected: Mapping[str, tuple[int, ...]], *, all_there: bool = True) -> dict[str, Tensor]:
    """The tensors of a file in float32, sorted by name; each must be one of those expected, and all or some be there."""
    any_float = {name: (_NUMBERS, shape) for name, shape in expected.items()}
    found = _read(path, any_float, set(expected) if all_there else set())
    return {name: tensor.float() for name, tensor in found.items()}


def read_stored(
    path: Path, expected: Mapping[str, tuple[str, tuple[int, ...]]], *, needed: set[str]
) -> dict[str, Tensor]:
    """The tensors of a file as they are stored, each of the kind of numbers (such as I8) and shape that are expected."""
    return _read(path, {name: ((numbers,), shape) for name, (numbers, shape) in expected.items()}, needed)


def _read(
    path: Path, expected: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]], needed: set[str]
) -> dict[str, Tensor]:
    _check_header(path)
    safetensors = require("safetensors", extra="minilm")
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            names = sorted(file.keys())
            _check_names(path, names, expected, needed)
            for name in names:
                _check_shape(path, name, file.get_slice(name), *expected[name])
            found = {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(f"{path} is no whole safetensors file ({reason}); copy it again") from None
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"{path}: {name} holds numbers that are not finite; the training failed, or it is damaged")
    return found


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Weights that are not finite make no vectors."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{name} holds numbers that are not finite in {tensor.dtype}; the model is not saved")


def _check_header(path: Path) -> None:
    try:
        size = path.stat().st_size
        with open_input(path) as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the whole folder") from None
    if size < 8 or header > min(size - 8, _MAX_HEADER):
        raise InputError(
            f"{path} is no whole safetensors file (a header of {header:,} bytes in {size:,}); copy it again"
        )


def _check_names(path: Path, names: list[str], expected: Mapping[str, object], needed: set[str]) -> None:
    if unknown := [name for name in names if name not in expected]:
        raise InputError(f"{path}: {unknown[0][:100]!r} is no tensor that belongs here ({len(unknown)} such)")
    if lacking := sorted(needed - set(names)):
        raise InputError(f"{path} lacks {len(lacking)} tensors, such as {lacking[0]}; copy it again")


def _check_shape(path: Path, name: str, part: Any, kinds: tuple[str, ...], expected: tuple[int, ...]) -> None:
    shape, numbers = tuple(part.get_shape()), str(part.get_dtype())
    if shape != expected or numbers not in kinds:
        raise InputError(
            f"{path}: {name} is {numbers} of shape {shape}; it must be {' or '.join(kinds)} of shape {expected}"
        )


# A learned mix of a network's layers: one trained weight a layer, the token embeddings first.

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


# From the states of a text's tokens to its one vector.

POOLINGS = ("cls", "mean", "layers", "mix", ASPECT_WORDS)


class States(Protocol):
    """Last states of the tokens of some texts, padded or packed."""

    def cls(self) -> Tensor:
        """States of the first tokens, (texts, dimension) float32."""

    def mean(self) -> Tensor:
        """Means over the tokens, (texts, dimension) float32."""


class TokenStates(States, Protocol):
    """States of every token, not only what is made of them."""

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        """Means over spans of tokens, each of one token or more, (spans, dimension) float32.

        Span i is from token starts[i] up to ends[i] of text texts[i]; spans come in order and do not overlap.
        """

    def tokens(self) -> Tensor:
        """States of all tokens, text after text without padding, (tokens, dimension)."""


@dataclass(frozen=True, slots=True)
class PaddedStates:
    """States (texts, tokens, dimension) and their mask (texts, tokens)."""

    states: Tensor
    mask: Tensor

    def cls(self) -> Tensor:
        return first_token(self.states)

    def mean(self) -> Tensor:
        return mean_tokens(self.states, self.mask)

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        before = texts * self.states.shape[1]  # (spans,)
        return mean_spans(self.states.flatten(0, 1), before + starts, before + ends)

    def tokens(self) -> Tensor:
        return self.states[self.mask.bool()]


def pool(layers: tuple[Tensor, ...], mask: Tensor, pooling: str, mix: Tensor | None = None) -> Tensor:
    """Vectors (texts, dimension) of the layers that a network gave; for cls and mean the last one counts."""
    if pooling == "mix":
        assert mix is not None
        return mean_tokens(mix_layers(layers, mix), mask)
    if pooling == "layers":
        return mean_tokens(mean_layers(layers), mask)
    return mean_tokens(layers[-1], mask) if pooling == "mean" else first_token(layers[-1])


def first_token(states: Tensor) -> Tensor:
    """States (texts, tokens, dimension) -> (texts, dimension); texts are padded at their end."""
    return states[:, 0].float()


def mean_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """States (texts, tokens, dimension), mask (texts, tokens) with 1 at a token -> (texts, dimension)."""
    weights = mask.unsqueeze(-1).float()  # (texts, tokens, 1)
    return (states.float() * weights).sum(dim=1) / weights.sum(dim=1)  # every text has a token


def mean_spans(stream: Tensor, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
    """States (tokens, dimension), spans in order and apart from each other -> (spans, dimension)."""
    torch = require("torch", extra="minilm")
    if not len(starts):
        return stream[:0].float()
    # every second segment is a span, the others are what lies between them
    bounds = np.concatenate([[0], np.stack([starts, ends], axis=1).ravel(), [len(stream)]])  # (2 spans + 2,)
    offsets = torch.from_numpy(bounds).to(stream.device, non_blocking=True)
    sums = torch.segment_reduce(stream.float(), "sum", offsets=offsets, axis=0)[1::2]  # (spans, dimension)
    means: Tensor = sums / offsets.diff()[1::2, None]
    return means


def mean_layers(layers: tuple[Tensor, ...]) -> Tensor:
    """The mean of layers of one shape, (texts, tokens, dimension), without a copy of all of them."""
    total = layers[0].float().clone()  # (texts, tokens, dimension)
    for layer in layers[1:]:
        total += layer
    return total / len(layers)
