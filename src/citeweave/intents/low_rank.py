"""Low-rank changes of linear layers, and changes of single rows of the token table, in plain torch.

    W' = W + scale * B A            A (rank, in), B (out, rank); B begins at 0 (Hu et al. 2022, LoRA, section 4.1)

The layer computes with W' as one matrix, so that what is trained and what is merged are the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from citeweave.errors import UserError
from citeweave.randomness import stream


class LowRank(nn.Module):
    """The change of one weight matrix, as a parametrization of it."""

    def __init__(self, shape: tuple[int, int], rank: int, scale: float) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(rank, shape[1]))  # (rank, in)
        self.up = nn.Parameter(torch.zeros(shape[0], rank))  # (out, rank)
        self.scale = scale

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # small changes of a weight are lost in half precision
            return weight + self.scale * (self.up @ self.down)  # (out, in)


class MarkRows(nn.Module):
    """Changes of the vectors of a few tokens, added behind the token table: the table itself is not copied."""

    def __init__(self, ids: np.ndarray[Any, np.dtype[np.int64]], dimension: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(len(ids), dimension))  # (tokens that change, dimension)
        self.register_buffer("ids", torch.from_numpy(ids.copy()), persistent=False)

    def added(self, ids: Tensor, vectors: Tensor) -> Tensor:
        """ids (texts, tokens), vectors (texts, tokens, dimension) -> vectors with the changes."""
        assert isinstance(self.ids, Tensor)
        which = (ids.unsqueeze(-1) == self.ids).to(vectors.dtype)  # (texts, tokens, tokens that change)
        return vectors + which @ self.change.to(vectors.dtype)


def add_low_rank(model: nn.Module, names: list[str], rank: int, scale: float, seed: int) -> dict[str, LowRank]:
    """Give these linear layers a change each; nothing changes yet."""
    changes = {}
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        if not 1 <= rank <= min(layer.weight.shape):
            raise UserError(f"--rank is {rank}; the layers of this encoder allow 1 to {min(layer.weight.shape)}")
        change = LowRank((layer.out_features, layer.in_features), rank, scale)
        bound = 1.0 / np.sqrt(layer.in_features)
        drawn = stream(seed, "low rank", name).uniform(-bound, bound, tuple(change.down.shape))  # (rank, in)
        with torch.no_grad():
            change.down.copy_(torch.from_numpy(drawn))
        parametrize.register_parametrization(layer, "weight", change.to(layer.weight.device))
        changes[name] = change
    return changes


def merge_low_rank(model: nn.Module) -> None:
    """Make the changes part of the weights: the network is then as fast as it was without them."""
    for module in list(model.modules()):
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            with torch.no_grad():
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def linear_layers(model: nn.Module) -> list[str]:
    """Names of the linear layers of the transformer's layers; the head over the first token ("pooler") is not used."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("pooler")
    ]
