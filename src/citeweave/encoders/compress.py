"""A trained encoder in few bytes: a compact delta of the base that it was trained from.

    found = compress("trained/", "minilm", Path("small"), texts, budget=3_900_000)
    found.bytes, found.cosines.mean, found.matrices["encoder.layer.0.output.dense.weight"].residual

Matrices share the bytes as `allocating.py` finds best, by the squares of what is lost; biases and norms are kept in float16.
Rows of the table of tokens count alike, or by how often half of the texts have them: whichever brings the vectors of these
texts nearer to the trained encoder's. The other half of the texts tells how near they are. Only what a vector goes through is
kept. Writes delta.json and delta.safetensors, no card.

What an error does to the outputs of its layer, measured by the inputs of the layer, was tried as a weight of all matrices: the
vectors came out two to three times as far away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.compact_delta import Coding, Option, Point, allocate, options_of, read_change, write_compact
from citeweave.encoders.delta import base_revision, open_model
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_folder import TENSORS_FILE
from citeweave.encoders.model_names import locate, remembered

if TYPE_CHECKING:
    from torch import Tensor

POOLINGS = ("cls", "mean")
"""What needs no weights of its own beside the network's."""

FEWEST_TEXTS = 4
_HEADER = 4096
"""Bytes of a safetensors file before its tensors; those of every tensor are counted with it."""


@dataclass(frozen=True, slots=True)
class Cosines:
    """Between the vectors of two encoders, over texts."""

    mean: float
    least: float


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """What became of the change of one matrix."""

    coding: Coding | None
    """None where nothing of it is kept."""

    bytes: int
    residual: float
    """Length of what is lost over length of the change, each as one long vector."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """What a compact delta costs and keeps."""

    bytes: int
    """Of delta.safetensors."""

    matrices: Mapping[str, MatrixReport]
    vectors: int
    """Biases and norms that are kept, each whole."""

    cosines: Cosines
    """Between the trained encoder and base with delta."""

    base_cosines: Cosines
    """Between the trained encoder and its base alone."""

    texts: int
    """Of which the cosines are; no other choice saw them."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compress(
    trained: str | Path, base: str, folder: Path, texts: Sequence[str], *, budget: int, reporter: Reporter = QUIET
) -> Compressed:
    """Write the compact delta of a trained encoder into an existing folder; its tensors take at most `budget` bytes."""
    if len(texts) < FEWEST_TEXTS:
        raise UserError(f"{len(texts)} texts are given to compress by; give at least {FEWEST_TEXTS}, better hundreds")
    own = load_encoder(trained, device="cpu")
    settings = own.settings
    if settings.pooling not in POOLINGS:
        raise UserError(
            f"the pooling of {trained} is {settings.pooling}; a compact delta is of {' or '.join(POOLINGS)}"
        )
    start = load_encoder(
        base, device="cpu", pooling=settings.pooling, max_tokens=settings.max_tokens, normalize=settings.normalize
    )
    changes = changes_of(own, start)
    reporter.say(f"{len(changes)} weights of {trained} differ from {base}")
    vectors = {name: change.half() for name, change in changes.items() if change.dim() == 1}
    left = budget - _HEADER - sum(2 * change.numel() + 200 for change in vectors.values())
    if left < 0:
        raise UserError(f"the budget is {budget:,} bytes; biases and norms alone take {budget - left:,}: allow more")
    chosen = _nearest_choice(own, start, changes, left, list(texts[::2]), reporter)
    tensors = {
        f"{name}.{part}": tensor for name, option in chosen.items() if option for part, tensor in option.tensors.items()
    }
    codings = {name: option.coding for name, option in chosen.items() if option}
    named = remembered(base), base_revision(open_model(locate(base).folder))
    write_compact(folder, named, settings, codings, {**vectors, **tensors})
    size = (folder / TENSORS_FILE).stat().st_size
    assert size <= budget, f"{size} bytes, and the budget is {budget}"
    held = list(texts[1::2])
    wanted = own.encode(held)
    return Compressed(
        size,
        {name: _report(changes[name], option) for name, option in chosen.items()},
        len(vectors),
        cosines_of(wanted, load_encoder(folder, device="cpu").encode(held)),
        cosines_of(wanted, start.encode(held)),
        len(held),
    )


def changes_of(trained: TorchEncoder, base: TorchEncoder) -> dict[str, Tensor]:
    """What training changed, by the name of the weight; the pooler, which no vector goes through, is left out."""
    after, before = (dict(each.network.model.named_parameters()) for each in (trained, base))
    shapes = [{name: tuple(weight.shape) for name, weight in each.items()} for each in (after, before)]
    if other := sorted(
        name for name in shapes[0].keys() | shapes[1].keys() if shapes[0].get(name) != shapes[1].get(name)
    ):
        raise UserError(
            f"{trained.name} is no model of the kind of {base.name}: {other[0]} is {shapes[0].get(other[0], 'not there')} "
            f"and {shapes[1].get(other[0], 'not there')}; give the base it was trained from"
        )
    if trained.reader.tokenizer.get_vocab() != base.reader.tokenizer.get_vocab():
        raise UserError(f"{trained.name} and {base.name} have other tokens; give the base it was trained from")
    found = {name: weight.detach().float() - before[name].detach().float() for name, weight in after.items()}
    changed = {name: change for name, change in found.items() if not name.startswith("pooler.") and bool(change.any())}
    if not changed:
        raise UserError(f"{trained.name} has the very weights of {base.name}: there is nothing to compress")
    return changed


def _nearest_choice(
    own: TorchEncoder,
    start: TorchEncoder,
    changes: Mapping[str, Tensor],
    budget: int,
    texts: list[str],
    reporter: Reporter,
) -> dict[str, Option | None]:
    """The codings by which the vectors of these texts come nearest, of two ways to weigh the rows of tokens."""
    matrices = {name: change for name, change in changes.items() if change.dim() == 2}
    weights = {name: change.new_ones(len(change)) for name, change in matrices.items()}
    options = {name: _points(change, weights[name]) for name, change in matrices.items()}
    tried = [choose_codings(options, budget)]
    table, counted = token_weights(own, texts)
    if table in matrices:
        tried.append(choose_codings({**options, table: _points(matrices[table], counted)}, budget))
    wanted = own.encode(texts)
    found = [cosines_of(wanted, _encode_with(start, changes, chosen, texts)) for chosen in tried]
    for name, told in zip(("tokens alike", "tokens by frequency"), found, strict=False):
        reporter.say(f"{name}: mean cosine {told.mean}, least {told.least}")
    return tried[max(range(len(tried)), key=lambda number: found[number].mean)]


def _points(change: Tensor, weights: Tensor) -> dict[Point, Option | None]:
    """Bytes and error of every coding of a matrix, and of none."""
    nothing: dict[Point, Option | None] = {(0, float((change.square().sum(dim=1) * weights).sum())): None}
    return nothing | {(option.bytes, option.error): option for option in options_of(change, weights)}


def choose_codings(options: Mapping[str, Mapping[Point, Option | None]], budget: int) -> dict[str, Option | None]:
    """How each matrix is stored, so that all fit into the budget; None where nothing of it is."""
    return {name: options[name][point] for name, point in allocate(options, budget).items()}


def token_weights(encoder: TorchEncoder, texts: Sequence[str]) -> tuple[str, Tensor]:
    """Name of the table of tokens, and how often each token stands in texts, (tokens,): 1 = as often as a usual one.

    A usual token is one of as many as would, all equally frequent, have the texts' entropy.
    """
    torch = require("torch", extra="minilm")
    table = encoder.network.model.get_input_embeddings().weight  # (tokens, dimension)
    name = next(name for name, weight in encoder.network.model.named_parameters() if weight is table)
    counts = np.bincount(np.concatenate(encoder.reader.read(texts)), minlength=len(table))  # (tokens,)
    shares = counts / counts.sum()  # (tokens,)
    usual = np.exp(-np.sum(shares * np.log(np.where(shares > 0, shares, 1))))
    return name, torch.from_numpy(shares * usual).float()


def _encode_with(
    start: TorchEncoder, changes: Mapping[str, Tensor], chosen: Mapping[str, Option | None], texts: list[str]
) -> NDArray[np.float32]:
    """Vectors of the base with what would be kept; the base is as it was afterwards."""
    weights = dict(start.network.model.named_parameters())
    before = {name: weights[name].detach().clone() for name in changes}
    try:
        for name, change in changes.items():
            option = chosen.get(name)
            kept = change if name not in chosen else None if option is None else _read(option, change)
            if kept is not None:
                weights[name].data += kept
        return start.encode(texts)
    finally:
        for name, weight in before.items():
            weights[name].data.copy_(weight)


def _read(option: Option, change: Tensor) -> Tensor:
    return read_change(option.coding, option.tensors, (int(change.shape[0]), int(change.shape[1])))


def cosines_of(ones: NDArray[np.float32], others: NDArray[np.float32]) -> Cosines:
    """Row by row, (texts, dimension) each."""
    lengths = np.linalg.norm(ones, axis=1) * np.linalg.norm(others, axis=1)  # (texts,)
    found = np.einsum("td,td->t", ones, others) / np.maximum(lengths, 1e-12)  # (texts,)
    return Cosines(round(float(found.mean()), 6), round(float(found.min()), 6))


def _report(change: Tensor, option: Option | None) -> MatrixReport:
    if option is None:
        return MatrixReport(None, 0, 1.0)
    rest = change - _read(option, change)
    return MatrixReport(option.coding, option.bytes, round(float(rest.norm() / change.norm()), 4))
