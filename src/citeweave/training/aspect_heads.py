"""Aspect heads while they are trained: one projection an aspect over the encoder's vector.

    heads = make_heads(("background", "method"), 384, EncoderOptions(heads="linear"), seed=0)
    heads.project(1, vectors)                (papers, dimension) -> (papers, size), in the space of methods
    as_arrays(heads)                         what `encoders/aspects.py` saves

    linear       W v + b (SciAspect thesis, TUM 2023, section 5.3)
    two_layers   W2 relu(W1 v + b1) + b2, which the thesis leaves to future work

Starts at random as any linear layer, or, one layer of the encoder's own size, at the identity: every space is then the
encoder's own at first.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from citeweave.encoders.aspects import AspectHeads
from citeweave.errors import UserError
from citeweave.randomness import stream
from citeweave.training.options import EncoderOptions

PREFIX = "aspects."
"""Before the names of the heads' weights among those that are trained."""


class TrainedHeads(nn.Module):
    """Heads by the number of their aspect."""

    def __init__(self, names: tuple[str, ...], sizes: list[int]) -> None:
        super().__init__()
        self.names = names
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(*pair) for pair in pairs) for _ in names)

    def project(self, aspect: int, vectors: Tensor) -> Tensor:
        """Vectors (papers, dimension) in the space of an aspect, (papers, size)."""
        found = vectors
        for number, layer in enumerate(self.layers[aspect].children()):
            found = layer(found.relu() if number else found)  # (papers, size)
        return found

    def weights(self) -> dict[str, nn.Parameter]:
        """Everything that is trained, by name."""
        found = {}
        for name, weight in self.layers.named_parameters():  # "1.0.weight": aspect, layer, part
            number, _, part = name.partition(".")
            found[f"{PREFIX}{self.names[int(number)]}.{part}"] = weight
        return found


def make_heads(
    names: tuple[str, ...], dimension: int, options: EncoderOptions, *, seed: int, start: AspectHeads | None = None
) -> TrainedHeads:
    """Heads for these aspects, drawn by the seed, or those of the start model where it has them."""
    size = options.head_size or dimension
    sizes = [dimension, size] if options.heads == "linear" else [dimension, size, size]
    if start is None and options.head_start == "identity" and sizes != [dimension, dimension]:
        raise UserError(
            f"encoder.head_start is 'identity' with heads={options.heads!r} and head_size={options.head_size}: only linear "
            f"heads of the encoder's own {dimension} numbers can begin as its own space; take head_start='random'"
        )
    heads = TrainedHeads(names, sizes)
    with torch.no_grad():
        for name, weight in heads.weights().items():
            weight.copy_(_start(name, tuple(weight.shape), options, seed))
        if start is not None:
            _copy(heads, start)
    return heads


def as_arrays(heads: TrainedHeads) -> AspectHeads:
    """The heads as plain arrays, to be saved."""
    found = {name: weight.detach().float().cpu().numpy() for name, weight in heads.weights().items()}
    depth = len(found) // (2 * len(heads.names))
    layers = {
        name: tuple((found[f"{PREFIX}{name}.{at}.weight"], found[f"{PREFIX}{name}.{at}.bias"]) for at in range(depth))
        for name in heads.names
    }
    return AspectHeads(heads.names, layers)


def _start(name: str, shape: tuple[int, ...], options: EncoderOptions, seed: int) -> Tensor:
    """A linear layer's usual start, uniform within 1 / sqrt(in), or the identity and a bias of zeros."""
    if options.head_start == "identity":
        return torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
    bound = 1.0 / np.sqrt(shape[-1])
    return torch.from_numpy(stream(seed, "aspect heads", name).uniform(-bound, bound, shape)).float()


def _copy(heads: TrainedHeads, start: AspectHeads) -> None:
    """Go on with the start model's heads."""
    own = as_arrays(heads)
    if start.names != own.names or any(
        [weight.shape for weight, _ in start.layers[name]] != [weight.shape for weight, _ in own.layers[name]]
        for name in own.names
    ):
        raise UserError(
            f"the start model has heads for {', '.join(start.names)}, and these samples and [encoder] ask for "
            f"{', '.join(own.names)} of other sizes or names; start from a model without heads, or with the same"
        )
    weights = heads.weights()
    for name in start.names:
        for at, layer in enumerate(start.layers[name]):
            for part, values in zip(("weight", "bias"), layer, strict=True):
                weights[f"{PREFIX}{name}.{at}.{part}"].copy_(torch.from_numpy(values))
