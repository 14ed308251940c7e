"""The classifier's network: an encoder with a small trained change, a pooling around the citation, a head for each task.

    network = make_network(load_base("minilm", 160, "cpu"), ClassifierOptions(), {"scicite": 3})
    network.logits(batch_of_marked_tokens, "scicite")          (texts, labels), differentiable
    network.delta()                                            what changed of the encoder, and the heads
    network.apply(delta); network.merge()                      the same network elsewhere, as fast as the plain encoder

Does not read sentences (`marking.py`), train (`fitting.py`) or save (`delta_file.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.locating import MINILM, MINILM_SHA256, locate
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import first_token, mean_tokens
from citeweave.encoders.saved.deltas import base_revision, open_model
from citeweave.errors import ArtefactError, UserError
from citeweave.files import hash_file
from citeweave.intents.low_rank import MarkRows, add_low_rank, linear_layers, merge_low_rank
from citeweave.intents.marking import MarkedTokens, MarkReader, make_mark_reader
from citeweave.intents.options import ClassifierOptions
from citeweave.randomness import stream

_SMALL = ("bias", "LayerNorm.weight")
"""How the names of the parameters end that `biases` trains."""


@dataclass(frozen=True, slots=True)
class Base:
    """An encoder to build on."""

    name: str
    """As `load_encoder` takes it; minilm wherever its folder lies."""

    revision: str
    """Hash of its weights and tokenizer."""

    network: Network
    reader: MarkReader


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the network is not in its weights."""

    parts: str
    pooling: str
    rank: int
    scale: float
    biases: bool
    tasks: Mapping[str, int]
    """Task -> number of its labels; the first is the main one."""


def load_base(name: str, max_tokens: int, device: str) -> Base:
    """Load an encoder, not yet changed; max_tokens is cut to what it can read."""
    located = locate(name)
    model = open_model(located.folder)
    encoder = load_encoder(name, pooling="mean", device=device)
    if not hasattr(getattr(encoder.network.model, "embeddings", None), "word_embeddings"):
        kind = encoder.network.model.config.model_type
        raise UserError(
            f"--base is {name}, a {kind} model; the classifier builds on BERT-like encoders, such as minilm"
        )
    weights = model.weights / "model.safetensors"
    is_minilm = not model.deltas and weights.is_file() and hash_file(weights) == MINILM_SHA256
    length = min(max_tokens, encoder.network.longest or max_tokens)
    reader = make_mark_reader(encoder.reader, length)
    return Base(MINILM if is_minilm else str(name), base_revision(model), encoder.network, reader)


def shape_of(options: ClassifierOptions, tasks: Mapping[str, int]) -> Shape:
    alpha = options.alpha or 2.0 * options.rank
    return Shape(options.parts, options.pooling, options.rank, alpha / options.rank, options.biases, dict(tasks))


class IntentNetwork(nn.Module):
    """See the module's docstring."""

    def __init__(self, base: Base, shape: Shape, *, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.shape, self.base = shape, base
        self.encoder: nn.Module = base.network.model
        ids = np.unique(np.concatenate([base.reader.asked, base.reader.other]))
        self.rows = MarkRows(ids, base.network.dimension)
        self.dropout = nn.Dropout(dropout)
        width = base.network.dimension * (2 if "+" in shape.pooling else 1)
        self.heads = nn.ModuleDict({task: _head(width, labels, seed, task) for task, labels in shape.tasks.items()})
        self._start = {name: value.detach().cpu().clone() for name, value in self._small()}
        names = linear_layers(self.encoder) if shape.parts == "lora" else []
        self._low_rank = add_low_rank(self.encoder, names, shape.rank, shape.scale, seed)
        self._choose(dropout)
        self.encoder.embeddings.word_embeddings.register_forward_hook(self._add_rows)
        self.to(base.network.device)

    @property
    def device_kind(self) -> str:
        """cpu or cuda."""
        return self.base.network.device.partition(":")[0]

    def logits(self, batch: Sequence[MarkedTokens], task: str) -> Tensor:
        """(texts, labels) float32; every text has a token."""
        return self.head_logits(self.vectors(batch), task)

    def head_logits(self, vectors: Tensor, task: str) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):  # half precision would round the logits
            found: Tensor = self.heads[task](self.dropout(vectors.float()))
        return found

    def vectors(self, batch: Sequence[MarkedTokens]) -> Tensor:
        """What the heads read, (texts, width)."""
        (states,), mask = self.base.network.padded([tokens.ids for tokens in batch])  # (texts, tokens, dimension)
        if self.shape.pooling == "cls":
            return first_token(states)
        if self.shape.pooling == "mean":
            return mean_tokens(states, mask)
        at_marks = mean_tokens(states, self._marks(batch, mask))
        return at_marks if self.shape.pooling == "mark" else torch.cat([mean_tokens(states, mask), at_marks], dim=1)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that training changes."""
        return [(name, value) for name, value in self.named_parameters() if value.requires_grad]

    def delta(self) -> dict[str, Tensor]:
        """Changes by name, on the processor: low.*.down and .up, add.* (differences), rows, head.*"""
        found: dict[str, Tensor] = {"rows": self.rows.change}
        for name, change in self._low_rank.items():
            found |= {f"low.{name}.down": change.down, f"low.{name}.up": change.up}
        for name, value in self._small():
            found[f"add.{name}"] = value.detach().cpu() - self._start[name]
        for task, head in self.heads.items():
            found |= {f"head.{task}.weight": head.weight, f"head.{task}.bias": head.bias}  # type: ignore[dict-item]
        return {name: value.detach().float().cpu().contiguous() for name, value in found.items()}

    def apply_delta(self, delta: Mapping[str, Tensor]) -> None:
        """Take over what `delta` gave of a network of the same shape."""
        places: dict[str, Tensor] = {"rows": self.rows.change}
        for name, change in self._low_rank.items():
            places |= {f"low.{name}.down": change.down, f"low.{name}.up": change.up}
        places |= {f"add.{name}": value for name, value in self._small()}
        for task, head in self.heads.items():
            places |= {f"head.{task}.weight": head.weight, f"head.{task}.bias": head.bias}  # type: ignore[dict-item]
        lacking = [name for name, place in places.items() if name not in delta or delta[name].shape != place.shape]
        if lacking or len(delta) != len(places):
            such = f", such as {lacking[0]}" if lacking else ""
            raise ArtefactError(f"the classifier's weights are of another network than its config.json says{such}")
        with torch.no_grad():
            for name, place in places.items():
                value = delta[name].to(place.device)
                place.copy_(value + self._start[name[4:]].to(place.device) if name.startswith("add.") else value)

    def merge(self) -> None:
        """Make all changes part of the encoder's weights; the network can only predict afterwards."""
        table: Any = self.encoder.embeddings.word_embeddings  # type: ignore[union-attr]
        merge_low_rank(self.encoder)
        self._low_rank = {}
        with torch.no_grad():
            table.weight[self.rows.ids] += self.rows.change
            self.rows.change.zero_()
        table._forward_hooks.clear()
        self.eval()
        self.requires_grad_(False)

    def _marks(self, batch: Sequence[MarkedTokens], mask: Tensor) -> Tensor:
        """1 at the tokens of the citation, or at all tokens where there is none, (texts, tokens)."""
        marks = np.zeros(tuple(mask.shape), np.int64)
        for row, tokens in enumerate(batch):
            marks[row, tokens.marks if len(tokens.marks) else slice(0, len(tokens.ids))] = 1
        return torch.from_numpy(marks).to(mask.device)

    def _add_rows(self, module: nn.Module, given: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        return self.rows.added(given[0], vectors)

    def _small(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters of the encoder itself that are trained: biases and norms, or all of it."""
        if self.shape.parts == "head" or (self.shape.parts == "lora" and not self.shape.biases):
            return []
        every = self.shape.parts == "all"
        return [
            (name, value)
            for name, value in self.encoder.named_parameters()
            if not name.startswith("pooler") and "parametrizations" not in name and (every or name.endswith(_SMALL))
        ]

    def _choose(self, dropout: float) -> None:
        self.requires_grad_(False)
        chosen: list[nn.Parameter] = [value for _, value in self._small()] + list(self.heads.parameters())
        for change in self._low_rank.values():
            chosen += list(change.parameters())
        if self.shape.parts == "lora":
            chosen.append(self.rows.change)
        for value in chosen:
            value.requires_grad_(True)
        for module in self.encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout


def _head(width: int, labels: int, seed: int, task: str) -> nn.Linear:
    head = nn.Linear(width, labels)
    drawn = stream(seed, "head", task).normal(0.0, 0.02, (labels, width))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(drawn))
        head.bias.zero_()
    return head


def make_network(base: Base, options: ClassifierOptions, tasks: Mapping[str, int]) -> IntentNetwork:
    """A network at its start: it computes what the encoder does. It changes the encoder of `base`, which is its own now."""
    return IntentNetwork(base, shape_of(options, tasks), dropout=options.dropout, seed=options.seed)
