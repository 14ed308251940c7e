"""Which parameters are trained: the complete encoder, some layers, biases, LoRA updates, or aspect heads.

    choose_parts(model, "all")                       everything that a vector depends on
    choose_parts(model, "layers")                    everything but the embeddings, which are half of a small model
    choose_parts(model, "bias")                      bias terms (Ben Zaken et al. 2022, BitFit)
    choose_parts(model, "lora", lora_rank=8)         low-rank updates of the attention (Hu et al. 2022), by peft
    choose_parts(model, "heads")                     nothing of the encoder
    choose_parts(model, "all", frozen_layers=4)      without the embeddings and the first four layers

BERT's head over the first token (its "pooler") is never trained, since no vector depends on it. The weights of a
pooling (a mix of layers, or words for aspects) always are. Does not save: `encoders/delta.py` writes what was chosen.

Aspect heads are one projection per aspect of the encoder's vector:

    heads = make_heads(("background", "method"), 384, EncoderOptions(heads="linear"), seed=0)
    heads.project(1, vectors)                (papers, dimension) -> (papers, size), in the space of methods
    heads_to_arrays(heads)                   what `encoders/aspects.py` saves

    linear       W v + b (SciAspect thesis, TUM 2023, section 5.3)
    two_layers   W2 relu(W1 v + b1) + b2, which the thesis leaves to future work

They start at random like any linear layer, or, for one layer of the encoder's own size, at the identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from citeweave.core.errors import UserError, choose, require
from citeweave.core.randomness import stream
from citeweave.encoders.aspects import AspectHeads
from citeweave.encoders.pooling import is_pooling_weight
from citeweave.training.options import PARTS, EncoderOptions

Named = list[tuple[str, nn.Parameter]]

_UNUSED = "pooler."
_EMBEDDINGS = "embed"
_GAIN = "LayerNorm.weight"
_BIASES = ("bias", _GAIN)


def choose_parts(
    model: Any,
    parts: str,
    *,
    frozen_layers: int = 0,
    lora_rank: int = 8,
    lora_alpha: float | None = None,
    lora_everywhere: bool = False,
    biases: bool = False,
    seed: int = 0,
) -> Named:
    """Choose the part of an encoder's parameters to train, freeze all others; return names and parameters in order.

    `lora` changes the model: its attention, or with `lora_everywhere` every linear layer, gets low-rank matrices, drawn by
    `seed`; `biases` trains bias terms and norms too. `lora_alpha` is twice the rank by default, and low-rank updates are
    scaled by alpha / rank.
    """
    choose(parts, PARTS, "training.parts")
    if parts == "heads":
        model.requires_grad_(False)
        return []
    frozen = _frozen_names(model, frozen_layers)
    if parts == "lora":
        layers = [name for name in _linear_layers(model, every=lora_everywhere) if f"{name}.weight" not in frozen]
        _add_low_rank(model, layers, lora_rank, 2.0 * lora_rank if lora_alpha is None else lora_alpha, seed)
    chosen = []
    for name, parameter in model.named_parameters():
        is_trained = is_pooling_weight(name) or (name not in frozen and _is_trained(name, parts, biases=biases))
        # a norm's gain gets a gradient that nobody reads: without it torch loses the shift's on CUDA beyond 65,536 rows
        # (https://github.com/pytorch/pytorch/pull/193016)
        has_trained_shift = parts == "bias" and name.endswith(_GAIN) and name not in frozen
        parameter.requires_grad_(is_trained or has_trained_shift)
        if is_trained:
            chosen.append((name, parameter))
    if all(is_pooling_weight(name) for name, _ in chosen):
        raise UserError(
            f"training.parts is {parts!r} with {frozen_layers} frozen layers, which leaves nothing of this "
            f"{model.config.model_type} model to train; choose other parts or fewer frozen layers"
        )
    return chosen


def encoder_layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Return name and list of an encoder's layers, of which partial training takes some."""
    count = int(model.config.num_hidden_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, module
    raise UserError(
        f"this {model.config.model_type} model has no list of {count} layers of its own, so they can neither be "
        "frozen nor get low-rank updates; use training.parts all or bias, and no frozen layers"
    )


def _frozen_names(model: Any, count: int) -> set[str]:
    """Return the names of the parameters of the embeddings and the first `count` layers; none for 0."""
    if count == 0:
        return set()
    prefix, layers = encoder_layers(model)
    if not 0 < count <= len(layers):
        raise UserError(
            f"training.frozen_layers is {count}; this model has {len(layers)} layers, so it must be from 0 to {len(layers)}"
        )
    starts = (_EMBEDDINGS, *(f"{prefix}.{number}." for number in range(count)))
    return {name for name, _ in model.named_parameters() if name.startswith(starts)}


def _is_trained(name: str, parts: str, *, biases: bool) -> bool:
    if name.startswith(_UNUSED):
        return False
    if parts == "lora":
        return ".lora_" in name or (biases and name.endswith(_BIASES))
    if parts == "layers":
        return not name.startswith(_EMBEDDINGS)
    return parts == "all" or name.rpartition(".")[2] == "bias"


def _add_low_rank(model: Any, layers: Sequence[str], rank: int, alpha: float, seed: int) -> None:
    """Add LoRA matrices A (rank, in) and B (out, rank) to linear layers; B is 0 at first."""
    if any(".lora_" in name for name, _ in model.named_parameters()):
        raise UserError("this model already has low-rank layers; load it again before choosing its parts")
    narrowest = min((min(model.get_submodule(name).weight.shape) for name in layers), default=0)
    if layers and not 1 <= rank <= narrowest:
        raise UserError(
            f"training.lora_rank is {rank}; for layers of {narrowest} numbers it must be from 1 to {narrowest}"
        )
    if not layers:
        return
    peft = require("peft", extra="lora")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(layers), lora_dropout=0.0, bias="none")
    with torch.random.fork_rng(devices=[]):
        peft.inject_adapter_in_model(config, model)
    for name in layers:
        _initialize(model.get_submodule(name).lora_A["default"].weight, seed, name)


def _linear_layers(model: Any, *, every: bool) -> Sequence[str]:
    """Return the linear layers to update by LoRA: peft's usual ones for this kind of model, else or with `every` all."""
    prefix, _ = encoder_layers(model)
    targets = require("peft.utils.constants", extra="lora").TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    ends = targets.get(model.config.model_type)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(f"{prefix}.")
    ]
    usual = [name for name in names if isinstance(ends, list) and name.rpartition(".")[2] in ends and not every]
    return usual or names


def _initialize(weight: nn.Parameter, seed: int, name: str) -> None:
    """Initialize a LoRA matrix as a linear layer, uniform within 1 / sqrt(in), the same on every device."""
    bound = 1.0 / np.sqrt(weight.shape[1])
    drawn = stream(seed, "lora", name).uniform(-bound, bound, tuple(weight.shape))  # (rank, in)
    with torch.no_grad():
        weight.copy_(torch.from_numpy(drawn))


# Aspect heads

HEADS_PREFIX = "aspects."
"""Prefix of the names of heads' weights among the trained weights; heads have a learning rate of their own."""


class TrainedHeads(nn.Module):
    """Aspect heads as the part that is trained, one projection per aspect."""

    def __init__(self, names: tuple[str, ...], sizes: list[int]) -> None:
        super().__init__()
        self.names = names
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(*pair) for pair in pairs) for _ in names)

    def project(self, aspect: int, vectors: Tensor) -> Tensor:
        """Project vectors (papers, dimension) into the space of an aspect, (papers, size)."""
        for number, layer in enumerate(self.layers[aspect].children()):
            vectors = layer(vectors.relu() if number else vectors)  # (papers, size)
        return vectors

    def weights(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters of all aspect heads by name."""
        weights = {}
        for name, weight in self.layers.named_parameters():  # "1.0.weight": aspect, layer, part
            number, _, part = name.partition(".")
            weights[f"{HEADS_PREFIX}{self.names[int(number)]}.{part}"] = weight
        return weights


def make_heads(
    names: tuple[str, ...], dimension: int, options: EncoderOptions, *, seed: int, start: AspectHeads | None = None
) -> TrainedHeads:
    """Make the aspect heads, a part to train, from the seed, or from the start model's heads where it has them."""
    size = options.head_size or dimension
    sizes = [dimension, size] if options.heads == "linear" else [dimension, size, size]
    if start is None and options.head_start == "identity" and sizes != [dimension, dimension]:
        raise UserError(
            f"encoder.head_start is 'identity' with heads={options.heads!r} and head_size={options.head_size}: only linear "
            f"heads of the encoder's own {dimension} numbers can start as its own space; use head_start='random'"
        )
    heads = TrainedHeads(names, sizes)
    with torch.no_grad():
        for name, weight in heads.weights().items():
            weight.copy_(_initial_head(name, tuple(weight.shape), options, seed))
        if start is not None:
            _copy_heads(heads, start)
    return heads


def heads_to_arrays(heads: TrainedHeads) -> AspectHeads:
    """Convert aspect heads, as a trained part, to plain arrays for saving."""
    arrays: Any = [[(layer.weight, layer.bias) for layer in own.children()] for own in heads.layers]
    layers = {
        name: tuple(
            (weight.detach().float().cpu().numpy(), bias.detach().float().cpu().numpy()) for weight, bias in own
        )
        for name, own in zip(heads.names, arrays, strict=True)
    }
    return AspectHeads(heads.names, layers)


def _initial_head(name: str, shape: tuple[int, ...], options: EncoderOptions, seed: int) -> Tensor:
    """Return initial weights of an aspect head: uniform within 1 / sqrt(in), or the identity with zero bias."""
    if options.head_start == "identity":
        return torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
    bound = 1.0 / np.sqrt(shape[-1])
    return torch.from_numpy(stream(seed, "aspect heads", name).uniform(-bound, bound, shape)).float()


def _copy_heads(heads: TrainedHeads, start: AspectHeads) -> None:
    """Copy the start model's aspect heads, or refuse heads of other names or sizes."""
    own = heads_to_arrays(heads)
    if start.names != own.names or any(
        [weight.shape for weight, _ in start.layers[name]] != [weight.shape for weight, _ in own.layers[name]]
        for name in own.names
    ):
        raise UserError(
            f"the start model has heads for {', '.join(start.names)}, and these samples and [encoder] need "
            f"{', '.join(own.names)} of other sizes or names; start from a model without heads, or with the same"
        )
    for name, own_layers in zip(start.names, heads.layers, strict=True):
        for layer, (weight, bias) in zip(own_layers.children(), start.layers[name], strict=True):
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
