"""Low-rank changes of linear layers, and changes of single rows of the token table, in plain torch.

    W' = W + scale * B A            A (rank, in), B (out, rank); B begins at 0 (Hu et al. 2022, LoRA, section 4.1)

The layer computes with W' as one matrix, so that what is trained and what is merged are the same numbers.

The file of a classifier's changes: delta.safetensors, in float16 or in int8 with a scale a row.

    save_delta(path, network.delta(), "float16")
    load_delta(path)                              name -> float32 tensor, whichever it was

Numbers that are few (heads, biases, rows of tokens) stay float16 in int8 files too: they cost nothing there.

The classifier's network: an encoder with a small trained change, a pooling around the citation, a head for each task.

    network = make_network(load_base("minilm", 160, "cpu"), ClassifierOptions(), {"scicite": 3})
    network.logits(batch_of_marked_tokens, "scicite")          (texts, labels), differentiable
    network.delta()                                            what changed of the encoder, and the heads
    network.apply(delta); network.merge()                      the same network elsewhere, as fast as the plain encoder

Does not read sentences (`marking.py`), train (`fitting.py`) or save (`delta_file.py`).

What a network says of citances: numbers (logits) in the order of the citances, in bounded memory.

Citances are read in windows; in a window they are sorted by length and put into batches by tokens. A citance without a
token gets zeros: all labels alike. Computes in float32, or in int8 what `in_int8` has turned into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils import parametrize

from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.files import hash_file
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.encoders.batches import NOT_SAVED, Results, SavedBatches, run_batches
from citeweave.encoders.compact_delta import from_int8, to_int8
from citeweave.encoders.delta import base_revision, open_model
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.fastest_runtime import is_small
from citeweave.encoders.model_names import MINILM, MINILM_SHA256, locate
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import first_token, mean_tokens
from citeweave.encoders.runtimes import Runtime, network_in
from citeweave.intents.citances import Citance, MarkedTokens, MarkReader, make_mark_reader
from citeweave.intents.options import ClassifierOptions


class LowRankLayer(nn.Module):
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


def add_low_rank(model: nn.Module, names: list[str], rank: int, scale: float, seed: int) -> dict[str, LowRankLayer]:
    """Give these linear layers a change each; nothing changes yet."""
    changes = {}
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        if not 1 <= rank <= min(layer.weight.shape):
            raise UserError(f"--rank is {rank}; the layers of this encoder allow 1 to {min(layer.weight.shape)}")
        change = LowRankLayer((layer.out_features, layer.in_features), rank, scale)
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


# The file of a classifier's changes: delta.safetensors, in float16 or in int8 with a scale a row.

PRECISIONS = ("float16", "int8")
_SCALE = ".scale"


def save_delta(path: Path, delta: Mapping[str, Tensor], precision: str = "float16") -> None:
    """Write the changes; int8 rounds the low-rank matrices to 255 steps a row."""
    choose(precision, PRECISIONS, "--precision")
    stored: dict[str, Tensor] = {}
    for name, value in delta.items():
        if precision == "int8" and name.startswith("low."):
            stored[name], stored[name + _SCALE] = to_int8(value)  # (rows, columns), (rows,)
        else:
            stored[name] = value.half()
    safetensors.torch.save_file({name: value.contiguous() for name, value in stored.items()}, path)


def load_delta(path: Path) -> dict[str, Tensor]:
    """Read the changes as float32."""
    try:
        stored = safetensors.torch.load_file(path)
    except (OSError, SafetensorError):
        raise ArtifactError(f"{path} is missing or damaged; copy the classifier's whole folder again") from None
    found = {}
    for name, value in stored.items():
        if not name.endswith(_SCALE):
            scale = stored.get(name + _SCALE)
            if scale is not None and (value.dim() != 2 or scale.shape != value.shape[:1]):
                raise ArtifactError(f"{path} has a scale of another shape than {name}; train the classifier again")
            found[name] = value.float() if scale is None else from_int8(value, scale)
        if not torch.isfinite(value.float()).all():
            raise ArtifactError(f"{path} holds numbers that are not finite; train the classifier again")
    return found


# The classifier's network: an encoder with a small trained change, a pooling around the citation, a head for each task.

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
class ClassifierShape:
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


def shape_of(options: ClassifierOptions, tasks: Mapping[str, int]) -> ClassifierShape:
    alpha = options.alpha or 2.0 * options.rank
    return ClassifierShape(
        options.parts, options.pooling, options.rank, alpha / options.rank, options.biases, dict(tasks)
    )


class IntentNetwork(nn.Module):
    """See the module's docstring."""

    def __init__(self, base: Base, shape: ClassifierShape, *, dropout: float = 0.0, seed: int = 0) -> None:
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
            raise ArtifactError(f"the classifier's weights are of another network than its config.json says{such}")
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


# What a network says of citances: numbers (logits) in the order of the citances, in bounded memory.

WINDOW = 8192
"""Citances that are tokenized and sorted at a time."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "int8": 16_384}
"""What computes -> tokens of a batch, padding included, where the caller does not say."""


def predict_logits(
    network: IntentNetwork,
    citances: Sequence[Citance],
    task: str,
    *,
    batch_tokens: int = 0,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> NDArray[np.float32]:
    """(citances, labels of the task)."""
    budget = batch_tokens or BATCH_TOKENS[_computes(network)]
    found = np.zeros((len(citances), network.shape.tasks[task]), np.float32)  # (citances, labels)
    was_training = network.training
    network.eval()
    try:
        with reporter.task("intents", len(citances), "sentences") as advance:
            for start in range(0, len(citances), WINDOW):
                window = citances[start : start + WINDOW]
                _fill(network, window, task, found[start : start + WINDOW], budget, reporter, saved)
                advance(len(window))
    finally:
        network.train(was_training)
    return found


def _fill(
    network: IntentNetwork,
    citances: Sequence[Citance],
    task: str,
    out: NDArray[np.float32],
    budget: int,
    reporter: Reporter,
    saved: SavedBatches,
) -> None:
    tokens = network.base.reader.read(citances)

    def run(rows: NDArray[np.int64]) -> None:
        with torch.inference_mode():
            logits = network.logits([tokens[row] for row in rows.tolist()], task)
        out[rows] = logits.float().cpu().numpy()  # (texts of a batch, labels)

    lengths, results = np.array([len(found.ids) for found in tokens], np.int64), Results([out], lambda rows: [rows])
    run_batches(lengths, budget, run, results=results, saved=saved, reporter=reporter)


def in_int8(network: IntentNetwork, threads: int = 0) -> None:
    """Let a merged network compute in int8, see `encoders/runtimes.py`; 0 threads means one per core."""
    base = network.base
    fast = network_in(Runtime("int8", threads=threads), base.network, base.reader.reader, base.name)
    network.base = replace(base, network=fast)
    network.encoder = torch.nn.Identity()  # its memory is free again


def try_int8(network: IntentNetwork, threads: int = 0) -> None:
    """The same where processor and encoder can; else the network stays as it is."""
    if network.device_kind == "cpu" and not is_small(network.base.network):
        with suppress(UserError):  # an encoder of another kind or size, or no runtime for it
            in_int8(network, threads)


def _computes(network: IntentNetwork) -> str:
    return "int8" if isinstance(network.encoder, torch.nn.Identity) else network.device_kind
