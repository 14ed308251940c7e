"""The intent classifier's network: an encoder with LoRA updates, pooling around the citation, one head per task.

    network = build_network(load_base("minilm", 160, "cpu"), ClassifierOptions(), {"scicite": 3})
    network.logits(batch_of_marked_tokens, "scicite")          (texts, labels), differentiable
    network.delta()                                            changes of the encoder, and the heads
    network.apply_delta(delta); network.merge()                the same network elsewhere, as fast as the plain encoder

LoRA is in plain torch, and computes with W' as one matrix, so that the trained and the merged weights are equal:

    W' = W + scale * B A            A (rank, in), B (out, rank); B begins at 0 (Hu et al. 2022, LoRA, section 4.1)

Changes are saved in delta.safetensors, in float16 or in int8 with one scale per row. Small tensors (heads, biases, rows
of tokens) stay float16 in int8 files too:

    save_delta(path, network.delta(), "float16")
    load_delta(path)                              name -> float32 tensor of either precision

`predict_logits` reads citances in windows; in a window they are sorted by length and batched by tokens. A citance
without a token gets zeros: all labels are equally likely. It computes in float32, or in int8 after `convert_to_int8`.
Does not tokenize sentences (`citances.py`) and does not train (`fit.py`).
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
from citeweave.encoders.batches import NOT_SAVED, BatchResults, SavedBatches, run_batches
from citeweave.encoders.compact_delta import from_int8, to_int8
from citeweave.encoders.delta import base_revision, open_model
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.fastest_runtime import is_small
from citeweave.encoders.model_names import MINILM, MINILM_SHA256, locate
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import first_token, mean_tokens
from citeweave.encoders.runtimes import Runtime, network_in
from citeweave.intents.citances import Citance, CitanceTokenizer, MarkedTokens, make_citance_tokenizer
from citeweave.intents.options import ClassifierOptions


class LowRankLayer(nn.Module):
    """Low-rank update (LoRA) of one weight matrix of the intent network, as a torch parametrization."""

    def __init__(self, shape: tuple[int, int], rank: int, scale: float) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(rank, shape[1]))  # (rank, in)
        self.up = nn.Parameter(torch.zeros(shape[0], rank))  # (out, rank)
        self.scale = scale

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # half precision would lose small updates
            return weight + self.scale * (self.up @ self.down)  # (out, in)


class MarkRows(nn.Module):
    """Trainable changes to the intent network's embeddings of mark tokens, added after the table, which is not copied."""

    def __init__(self, ids: np.ndarray[Any, np.dtype[np.int64]], dimension: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(len(ids), dimension))  # (tokens that change, dimension)
        self.register_buffer("ids", torch.from_numpy(ids.copy()), persistent=False)

    def add_to(self, ids: Tensor, vectors: Tensor) -> Tensor:
        """Add the changes of the mark tokens among ids (texts, tokens) to vectors (texts, tokens, dimension)."""
        assert isinstance(self.ids, Tensor)
        which = (ids.unsqueeze(-1) == self.ids).to(vectors.dtype)  # (texts, tokens, tokens that change)
        return vectors + which @ self.change.to(vectors.dtype)


def _add_low_rank(model: nn.Module, names: list[str], rank: int, scale: float, seed: int) -> dict[str, LowRankLayer]:
    """Add a low-rank update (LoRA), initially zero, to each of these linear layers."""
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


def _merge_low_rank(model: nn.Module) -> None:
    """Merge the low-rank updates into the weights, so that the network is as fast as without them."""
    for module in list(model.modules()):
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            with torch.no_grad():
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def _linear_layers(model: nn.Module) -> list[str]:
    """Return the names of the linear layers to update; the unused head over the first token ("pooler") is left out."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("pooler")
    ]


# The file of changes

PRECISIONS = ("float16", "int8")
_SCALE = ".scale"


def save_delta(path: Path, delta: Mapping[str, Tensor], precision: str = "float16") -> None:
    """Write an intent network's changes; int8 rounds the low-rank matrices to 255 steps per row."""
    choose(precision, PRECISIONS, "--precision")
    stored: dict[str, Tensor] = {}
    for name, value in delta.items():
        if precision == "int8" and name.startswith("low."):
            stored[name], stored[name + _SCALE] = to_int8(value)  # (rows, columns), (rows,)
        else:
            stored[name] = value.half()
    safetensors.torch.save_file({name: value.contiguous() for name, value in stored.items()}, path)


def load_delta(path: Path) -> dict[str, Tensor]:
    """Read and check an intent network's changes as float32."""
    try:
        stored = safetensors.torch.load_file(path)
    except (OSError, SafetensorError):
        raise ArtifactError(f"{path} is missing or damaged; copy the classifier's complete folder again") from None
    delta = {}
    for name, value in stored.items():
        if not name.endswith(_SCALE):
            scale = stored.get(name + _SCALE)
            if scale is not None and (value.dim() != 2 or scale.shape != value.shape[:1]):
                raise ArtifactError(f"{path} has a scale of another shape than {name}; train the classifier again")
            delta[name] = value.float() if scale is None else from_int8(value, scale)
        if not torch.isfinite(value.float()).all():
            raise ArtifactError(f"{path} contains values that are not finite; train the classifier again")
    return delta


# The network

_BIASES = ("bias", "LayerNorm.weight")
"""Endings of the names of parameters that the option `biases` trains."""


@dataclass(frozen=True, slots=True)
class BaseEncoder:
    """Encoder that an intent network is built on, with the tokenizer of citances."""

    name: str
    """As `load_encoder` takes it; minilm wherever its folder is."""

    revision: str
    """Hash of its weights and tokenizer."""

    network: Network
    reader: CitanceTokenizer


@dataclass(frozen=True, slots=True)
class ClassifierShape:
    """Shape of an intent network: trained parts, pooling, rank, and labels per task."""

    parts: str
    pooling: str
    rank: int
    scale: float
    biases: bool
    tasks: Mapping[str, int]
    """Number of labels by task; the first is the main one."""


def load_base(name: str, max_tokens: int, device: str) -> BaseEncoder:
    """Load the encoder to build an intent network on; max_tokens is limited to what it can read."""
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
    reader = make_citance_tokenizer(encoder.reader, length)
    return BaseEncoder(MINILM if is_minilm else str(name), base_revision(model), encoder.network, reader)


class IntentNetwork(nn.Module):
    """Intent network: encoder with a trained change, pooling around the citation, and one linear head per task."""

    def __init__(self, base: BaseEncoder, shape: ClassifierShape, *, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.shape, self.base = shape, base
        self.encoder: nn.Module = base.network.model
        ids = np.unique(np.concatenate([base.reader.target, base.reader.other]))
        self.rows = MarkRows(ids, base.network.dimension)
        self.dropout = nn.Dropout(dropout)
        width = base.network.dimension * (2 if "+" in shape.pooling else 1)
        self.heads = nn.ModuleDict({task: _new_head(width, labels, seed, task) for task, labels in shape.tasks.items()})
        self._start = {name: value.detach().cpu().clone() for name, value in self._trained_encoder_parameters()}
        names = _linear_layers(self.encoder) if shape.parts == "lora" else []
        self._low_rank = _add_low_rank(self.encoder, names, shape.rank, shape.scale, seed)
        self._select_trained(dropout)
        self.encoder.embeddings.word_embeddings.register_forward_hook(self._add_rows)
        self.to(base.network.device)

    @property
    def device_kind(self) -> str:
        """Kind of device the network is on: cpu or cuda."""
        return self.base.network.device.partition(":")[0]

    def logits(self, batch: Sequence[MarkedTokens], task: str) -> Tensor:
        """Return logits of marked citances for a task, (texts, labels) float32; every text must have a token."""
        return self.head_logits(self.vectors(batch), task)

    def head_logits(self, vectors: Tensor, task: str) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):  # half precision would round the logits
            logits: Tensor = self.heads[task](self.dropout(vectors.float()))
        return logits

    def vectors(self, batch: Sequence[MarkedTokens]) -> Tensor:
        """Return the pooled vectors that the intent network's heads read, (texts, width)."""
        (states,), mask = self.base.network.padded([tokens.ids for tokens in batch])  # (texts, tokens, dimension)
        if self.shape.pooling == "cls":
            return first_token(states)
        if self.shape.pooling == "mean":
            return mean_tokens(states, mask)
        at_marks = mean_tokens(states, self._marks(batch, mask))
        return at_marks if self.shape.pooling == "mark" else torch.cat([mean_tokens(states, mask), at_marks], dim=1)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Return names and parameters that training changes."""
        return [(name, value) for name, value in self.named_parameters() if value.requires_grad]

    def delta(self) -> dict[str, Tensor]:
        """Return the intent network's changes by name, on the CPU: low.*.down and .up, add.* (differences), rows, head.*"""
        delta: dict[str, Tensor] = {"rows": self.rows.change}
        for name, change in self._low_rank.items():
            delta |= {f"low.{name}.down": change.down, f"low.{name}.up": change.up}
        for name, value in self._trained_encoder_parameters():
            delta[f"add.{name}"] = value.detach().cpu() - self._start[name]
        for task, head in self.heads.items():
            delta |= {f"head.{task}.weight": head.weight, f"head.{task}.bias": head.bias}  # type: ignore[dict-item]
        return {name: value.detach().float().cpu().contiguous() for name, value in delta.items()}

    def apply_delta(self, delta: Mapping[str, Tensor]) -> None:
        """Apply the changes that `delta` returned of an intent network of the same shape."""
        places: dict[str, Tensor] = {"rows": self.rows.change}
        for name, change in self._low_rank.items():
            places |= {f"low.{name}.down": change.down, f"low.{name}.up": change.up}
        places |= {f"add.{name}": value for name, value in self._trained_encoder_parameters()}
        for task, head in self.heads.items():
            places |= {f"head.{task}.weight": head.weight, f"head.{task}.bias": head.bias}  # type: ignore[dict-item]
        missing = [name for name, place in places.items() if name not in delta or delta[name].shape != place.shape]
        if missing or len(delta) != len(places):
            such = f", such as {missing[0]}" if missing else ""
            raise ArtifactError(
                f"the classifier's weights do not match the network in its config.json{such}; copy its folder again"
            )
        with torch.no_grad():
            for name, place in places.items():
                value = delta[name].to(place.device)
                place.copy_(value + self._start[name[4:]].to(place.device) if name.startswith("add.") else value)

    def merge(self) -> None:
        """Merge all changes into the intent network's weights; it can only predict afterwards."""
        table: Any = self.encoder.embeddings.word_embeddings  # type: ignore[union-attr]
        _merge_low_rank(self.encoder)
        self._low_rank = {}
        with torch.no_grad():
            table.weight[self.rows.ids] += self.rows.change
            self.rows.change.zero_()
        table._forward_hooks.clear()
        self.eval()
        self.requires_grad_(False)

    def _marks(self, batch: Sequence[MarkedTokens], mask: Tensor) -> Tensor:
        """Return 1 at the tokens of the target citation, or at all tokens where there is none, (texts, tokens)."""
        marks = np.zeros(tuple(mask.shape), np.int64)
        for row, tokens in enumerate(batch):
            marks[row, tokens.marks if len(tokens.marks) else slice(0, len(tokens.ids))] = 1
        return torch.from_numpy(marks).to(mask.device)

    def _add_rows(self, module: nn.Module, inputs: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        return self.rows.add_to(inputs[0], vectors)

    def _trained_encoder_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the encoder's own parameters that are trained: biases and norms, or all."""
        if self.shape.parts == "head" or (self.shape.parts == "lora" and not self.shape.biases):
            return []
        every = self.shape.parts == "all"
        return [
            (name, value)
            for name, value in self.encoder.named_parameters()
            if not name.startswith("pooler") and "parametrizations" not in name and (every or name.endswith(_BIASES))
        ]

    def _select_trained(self, dropout: float) -> None:
        """Freeze everything but the parameters that these options train, and set the encoder's dropout."""
        self.requires_grad_(False)
        trained: list[nn.Parameter] = [value for _, value in self._trained_encoder_parameters()] + list(
            self.heads.parameters()
        )
        for change in self._low_rank.values():
            trained += list(change.parameters())
        if self.shape.parts == "lora":
            trained.append(self.rows.change)
        for value in trained:
            value.requires_grad_(True)
        for module in self.encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout


def _new_head(width: int, labels: int, seed: int, task: str) -> nn.Linear:
    head = nn.Linear(width, labels)
    drawn = stream(seed, "head", task).normal(0.0, 0.02, (labels, width))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(drawn))
        head.bias.zero_()
    return head


def build_network(base: BaseEncoder, options: ClassifierOptions, tasks: Mapping[str, int]) -> IntentNetwork:
    """Build an untrained intent network, which computes what the encoder does and takes over the encoder of `base`."""
    scale = (options.alpha or 2.0 * options.rank) / options.rank
    shape = ClassifierShape(options.parts, options.pooling, options.rank, scale, options.biases, dict(tasks))
    return IntentNetwork(base, shape, dropout=options.dropout, seed=options.seed)


# Prediction in bounded memory

WINDOW = 8192
"""Citances tokenized and sorted by length at a time."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "int8": 16_384}
"""Default number of tokens per batch, padding included, by what computes."""


def predict_logits(
    network: IntentNetwork,
    citances: Sequence[Citance],
    task: str,
    *,
    batch_tokens: int = 0,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> NDArray[np.float32]:
    """Return an intent network's logits of citances for a task, (citances, labels)."""
    budget = (
        batch_tokens or BATCH_TOKENS["int8" if isinstance(network.encoder, torch.nn.Identity) else network.device_kind]
    )
    logits = np.zeros((len(citances), network.shape.tasks[task]), np.float32)  # (citances, labels)
    was_training = network.training
    network.eval()
    try:
        with reporter.task("intents", len(citances), "sentences") as advance:
            for start in range(0, len(citances), WINDOW):
                window = citances[start : start + WINDOW]
                _predict_window(network, window, task, logits[start : start + WINDOW], budget, reporter, saved)
                advance(len(window))
    finally:
        network.train(was_training)
    return logits


def _predict_window(
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

    lengths, results = np.array([len(row.ids) for row in tokens], np.int64), BatchResults([out], lambda rows: [rows])
    run_batches(lengths, budget, run, results=results, saved=saved, reporter=reporter)


def convert_to_int8(network: IntentNetwork, threads: int = 0) -> None:
    """Make a merged network compute in int8 (`encoders/runtimes.py`); 0 threads means one per core."""
    base = network.base
    fast = network_in(Runtime("int8", threads=threads), base.network, base.reader.reader, base.name)
    network.base = replace(base, network=fast)
    network.encoder = torch.nn.Identity()  # frees its memory


def try_int8(network: IntentNetwork, threads: int = 0) -> None:
    """Convert a merged network to int8 where processor and encoder allow it; otherwise leave it as it is."""
    if network.device_kind == "cpu" and not is_small(network.base.network):
        with suppress(UserError):  # an encoder of another kind or size, or no runtime for it
            convert_to_int8(network, threads)
