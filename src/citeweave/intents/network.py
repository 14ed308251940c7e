"""The intent classifier's network: an encoder, pooling around the citation, and one linear head per task.

    network = IntentNetwork(load_base("minilm", 160, "cpu"), "mean+mark", {"scicite": 3})
    network.logits(batch_of_marked_tokens, "scicite")          (texts, labels), differentiable
    predict_logits(network, citances, "scicite")               (citances, labels), in bounded memory

On disk it is the delta of an encoder (`encoders/delta.py`) with the heads beside it, so that `load_encoder` reads the
encoder of a trained classifier:

    delta.json, delta.safetensors      LoRA as two factors per matrix, in float16 or in int8 with one scale per row; changes
                                       of biases, norms and the rows of the mark tokens in float16
    heads.safetensors                  scicite.weight, scicite.bias, ... in float16

`predict_logits` reads citances in windows; in a window they are sorted by length and batched by tokens. A citance
without a token gets zeros: all labels are equally likely. Does not tokenize sentences (`citances.py`) and does not train
(`fit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.encoders.batches import NOT_SAVED, BatchResults, SavedBatches, run_batches
from citeweave.encoders.delta import low_rank_factors, plain_name, write_delta
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.matrix_codes import Coding, code_matrix
from citeweave.encoders.pooling import first_token, mean_tokens
from citeweave.encoders.runtimes import Runtime, is_small, network_in
from citeweave.encoders.untrusted_model import check_finite, read_tensors
from citeweave.intents.citances import Citance, MarkedTokens, make_citance_tokenizer
from citeweave.intents.options import ClassifierOptions
from citeweave.training.partial import HEADS_PREFIX, choose_parts

HEADS = "heads.safetensors"
BITS = {"float16": 16, "int8": 8}
"""Bits per number of the saved LoRA factors, by precision."""

WINDOW = 8192
"""Citances tokenized and sorted by length at a time."""

INT8_TOKENS = 16_384
"""Tokens per batch in int8, padding included."""

_TABLE = "embeddings.word_embeddings"


def load_base(name: str | Path, max_tokens: int, device: str) -> TorchEncoder:
    """Load the encoder to train an intent network on; max_tokens is limited to what it can read."""
    encoder = load_encoder(name, pooling="mean", normalize=False, device=device)
    if not hasattr(getattr(encoder.network.model, "embeddings", None), "word_embeddings"):
        kind = encoder.network.model.config.model_type
        raise UserError(
            f"--base is {name}, a {kind} model; the classifier builds on BERT-like encoders, such as minilm"
        )
    length = min(max_tokens, encoder.network.longest or max_tokens)
    settings = replace(encoder.settings, max_tokens=length)
    return replace(encoder, settings=settings, reader=replace(encoder.reader, max_tokens=length))


class IntentNetwork(nn.Module):
    """Intent network: an encoder, pooling around the citation, and one linear head per task."""

    def __init__(self, encoder: TorchEncoder, pooling: str, tasks: Mapping[str, int], *, dropout: float = 0.0, seed: int = 0) -> None:  # fmt: skip
        super().__init__()
        self.encoder, self.pooling, self.tasks = encoder, pooling, dict(tasks)
        self.reader = make_citance_tokenizer(encoder.reader, encoder.reader.max_tokens)
        if encoder.network.is_torch:
            self.model: nn.Module = encoder.network.model
        self.dropout = nn.Dropout(dropout)
        width = encoder.dimension * (2 if "+" in pooling else 1)
        self.heads = nn.ModuleDict({task: _new_head(width, labels, seed, task) for task, labels in tasks.items()})
        self.heads.to(self.device)

    @property
    def device(self) -> str:
        return self.encoder.network.device if self.encoder.network.is_torch else "cpu"

    def logits(self, batch: Sequence[MarkedTokens], task: str) -> Tensor:
        """Return logits of marked citances for a task, (texts, labels) float32; every text must have a token."""
        vectors = self.vectors(batch)  # (texts, width)
        with torch.autocast(vectors.device.type, enabled=False):  # half precision would round the logits
            logits: Tensor = self.heads[task](self.dropout(vectors.float()))
        return logits

    def vectors(self, batch: Sequence[MarkedTokens]) -> Tensor:
        """Return the pooled vectors that the intent network's heads read, (texts, width)."""
        (states,), mask = self.encoder.network.padded([tokens.ids for tokens in batch])  # (texts, tokens, dimension)
        if self.pooling == "cls":
            return first_token(states)
        if self.pooling == "mean":
            return mean_tokens(states, mask)
        at_marks = mean_tokens(states, _marks(batch, mask))
        return at_marks if self.pooling == "mark" else torch.cat([mean_tokens(states, mask), at_marks], dim=1)


def _marks(batch: Sequence[MarkedTokens], mask: Tensor) -> Tensor:
    """Return 1 at the tokens of the target citation, or at all tokens where there is none, (texts, tokens)."""
    marks = np.zeros(tuple(mask.shape), np.int64)
    for row, tokens in enumerate(batch):
        marks[row, tokens.marks if len(tokens.marks) else slice(0, len(tokens.ids))] = 1
    return torch.from_numpy(marks).to(mask.device)


def _new_head(width: int, labels: int, seed: int, task: str) -> nn.Linear:
    head = nn.Linear(width, labels)
    drawn = stream(seed, "head", task).normal(0.0, 0.02, (labels, width))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(drawn))
        head.bias.zero_()
    return head


# Training a part of the network, and saving what changed


class MarkRows(nn.Module):
    """Trainable changes to the intent network's embeddings of mark tokens, added after the table, which is not copied."""

    def __init__(self, ids: NDArray[np.int64], dimension: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(len(ids), dimension))  # (tokens that change, dimension)
        self.register_buffer("ids", torch.from_numpy(ids.copy()), persistent=False)

    def add_to(self, module: nn.Module, inputs: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        """Add the changes of the mark tokens among ids (texts, tokens) to vectors (texts, tokens, dimension)."""
        assert isinstance(self.ids, Tensor)
        which = (inputs[0].unsqueeze(-1) == self.ids).to(vectors.dtype)  # (texts, tokens, tokens that change)
        return vectors + which @ self.change.to(vectors.dtype)


class TrainableIntentNetwork(IntentNetwork):
    """Intent network whose encoder is trained in part: by LoRA (peft), completely, or not at all."""

    def __init__(self, base: TorchEncoder, options: ClassifierOptions, tasks: Mapping[str, int]) -> None:
        super().__init__(base, options.pooling, tasks, dropout=options.dropout, seed=options.seed)
        self.rows: MarkRows | None = None
        self._parts = options.parts
        chosen = choose_parts(
            self.model,
            {"head": "heads"}.get(options.parts, options.parts),
            lora_rank=options.rank,
            lora_alpha=options.alpha or None,
            lora_everywhere=True,
            biases=options.biases,
            seed=options.seed,
        )
        self.weights: dict[str, nn.Parameter] = dict(chosen)
        """Trained weights by name."""

        self._before = {name: weight.detach().cpu().clone() for name, weight in chosen if ".lora_" not in name}
        if options.parts == "lora":
            ids = np.unique(np.concatenate([self.reader.target, self.reader.other]))
            self.rows = MarkRows(ids, base.dimension).to(self.device)
            self.model.get_submodule(_TABLE).register_forward_hook(self.rows.add_to)
            self.weights["rows"] = self.rows.change
        self.weights |= {f"{HEADS_PREFIX}{name}": weight for name, weight in self.heads.named_parameters()}
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = options.dropout

    def save(self, folder: Path, base: str, precision: str, tasks: Sequence[str]) -> int:
        """Save the change of the encoder and the heads of some tasks in an existing folder; return their bytes."""
        bits = BITS[precision]
        codings, tensors = low_rank_factors(self.model, bits)
        for name, before in self._before.items():
            tensors[plain_name(name)] = (self.weights[name].detach().cpu().float() - before.float()).half()
        if self.rows is not None:
            places, table = self.rows.ids, f"{_TABLE}.weight"
            assert isinstance(places, Tensor)
            coded = {**code_matrix("rows", self.rows.change.detach(), 16), "places": places.int()}
            codings[table] = Coding("rows", len(places), 16)
            tensors |= {f"{table}.{name}": tensor for name, tensor in coded.items()}
        write_delta(folder, self._parts, base, self.encoder.settings, codings, tensors)
        heads = {
            name: weight.detach().half().cpu().contiguous()
            for name, weight in self.heads.named_parameters()
            if name.partition(".")[0] in tasks
        }
        check_finite(heads)
        safetensors.torch.save_file(heads, folder / HEADS)
        return sum((folder / name).stat().st_size for name in ("delta.safetensors", HEADS))


def load_network(
    folder: Path, pooling: str, tasks: Mapping[str, int], *, device: str, runtime: str = "torch", threads: int = 0
) -> IntentNetwork:
    """Load a saved intent network for predictions; the folder may be untrusted. `auto` is int8 on CPUs that can, or torch."""
    encoder = load_encoder(folder, device=device)
    tries = runtime == "auto" and encoder.network.device == "cpu" and not is_small(encoder.network)
    if runtime == "int8" or tries:
        with (
            suppress(UserError) if tries else nullcontext()
        ):  # of another kind or size of encoder, or without a runtime
            fast = network_in(Runtime("int8", threads=threads), encoder.network, encoder.reader, encoder.name)
            encoder = replace(encoder, network=fast, batch_tokens=INT8_TOKENS)
    network = IntentNetwork(encoder, pooling, tasks)
    shapes = {name: tuple(weight.shape) for name, weight in network.heads.named_parameters()}
    network.heads.load_state_dict(read_tensors(folder / HEADS, shapes))
    return network.eval().requires_grad_(False)


# Prediction in bounded memory


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
    logits = np.zeros((len(citances), network.tasks[task]), np.float32)  # (citances, labels)
    was_training = network.training
    network.eval()
    try:
        with reporter.task("intents", len(citances), "sentences") as advance:
            for start in range(0, len(citances), WINDOW):
                window = citances[start : start + WINDOW]
                _predict_window(network, window, task, logits[start : start + WINDOW], batch_tokens, reporter, saved)
                advance(len(window))
    finally:
        network.train(was_training)
    return logits


def _predict_window(
    network: IntentNetwork,
    citances: Sequence[Citance],
    task: str,
    out: NDArray[np.float32],
    batch_tokens: int,
    reporter: Reporter,
    saved: SavedBatches,
) -> None:
    tokens = network.reader.read(citances)

    def run(rows: NDArray[np.int64]) -> None:
        with torch.inference_mode():
            logits = network.logits([tokens[row] for row in rows.tolist()], task)
        out[rows] = logits.float().cpu().numpy()  # (texts of a batch, labels)

    lengths, results = np.array([len(row.ids) for row in tokens], np.int64), BatchResults([out], lambda rows: [rows])
    budget = batch_tokens or network.encoder.batch_tokens
    run_batches(lengths, budget, run, results=results, saved=saved, reporter=reporter)
