"""Compress a trained encoder to a compact delta of its base: quantized changes that fit into a budget of bytes.

    report = compress("trained/", "minilm", Path("small"), texts, budget=3_900_000)
    report.bytes, report.cosines.mean, report.matrices["encoder.layer.0.output.dense.weight"].residual

Every matrix has several codings, each with bytes and an error; to store nothing costs nothing and keeps the whole error. Only
options on the lower convex hull of error over bytes are worth it. Bytes are spent where the next step along a hull reduces the
error per byte most, until no step fits (Shoham and Gersho 1988, bit allocation, without its search for the multiplier).
Errors are squares of what is lost; biases and norms are kept in float16. Rows of the token embeddings count alike, or by how
often half of the texts have them: whichever brings the vectors of a quarter of the texts nearer to the trained encoder's. The
last quarter measures how near they are. Weights that no vector goes through are left out. Writes delta.json and
delta.safetensors, no card.

Weighting the errors of all matrices by the inputs of their layers was tried: the vectors were two to three times as far away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.delta import keep_layers, write_delta
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.matrix_codes import Coding, code_matrix, read_change, read_matrix
from citeweave.encoders.model_folder import TENSORS_FILE
from citeweave.vectors.own_distance import write_reading
from citeweave.vectors.vectors import unit_rows

if TYPE_CHECKING:
    from torch import Tensor

POOLINGS = ("cls", "mean")
"""Poolings without weights of their own."""

MIN_TEXTS = 4
_FILE_HEADER = 4096
"""Bytes of a safetensors file before its tensors, without what each tensor adds."""

RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192)
_FACTOR_BITS = (4, 8)
_ROW_BITS = (1, 2, 3, 4, 8)
_MIN_ROWS = 64
_TENSOR_HEADER = 120
"""Bytes that safetensors needs for the name, shape and position of a tensor, about."""

Point = tuple[int, float]
"""Bytes of a coding, and the error that is left."""


@dataclass(frozen=True, slots=True)
class CodingOption:
    """One way to compress a matrix of an encoder, with its tensors, bytes and error, among which the budget chooses."""

    coding: Coding
    tensors: Mapping[str, Tensor]
    bytes: int
    error: float
    """Sum of squares, with weighted rows."""


@dataclass(frozen=True, slots=True)
class Cosines:
    """Cosines between the vectors of two encoders, over texts."""

    mean: float
    least: float


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """How the change of one matrix of a trained encoder was compressed."""

    coding: Coding | None
    """None where nothing of it is stored."""

    bytes: int
    residual: float
    """Norm of what is lost over the norm of the change."""


@dataclass(frozen=True, slots=True)
class CompressedEncoder:
    """Report of a compressed encoder: its bytes, and how near its vectors are to the trained encoder's."""

    bytes: int
    """Size of delta.safetensors."""

    matrices: Mapping[str, MatrixReport]
    vectors: int
    """Number of biases and norms, which are stored in float16."""

    cosines: Cosines
    """Cosines between the trained encoder and base with delta."""

    base_cosines: Cosines
    """Cosines between the trained encoder and its base alone."""

    texts: int
    """Number of texts of the cosines, which were not used for any choice."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compress(
    trained: str | Path,
    base: str,
    folder: Path,
    texts: Sequence[str],
    *,
    budget: int,
    layers: Sequence[int] = (),
    reporter: Reporter = QUIET,
) -> CompressedEncoder:
    """Compress a trained encoder to a compact delta in an existing folder, with at most `budget` bytes of tensors.

    `layers` are those of the base that the encoder was trained from, all where empty.
    """
    if len(texts) < MIN_TEXTS:
        raise UserError(f"{len(texts)} texts to compress by; give at least {MIN_TEXTS}, better hundreds")
    own = load_encoder(trained, device="cpu")
    settings = own.settings
    if settings.pooling not in POOLINGS:
        raise UserError(
            f"the pooling of {trained} is {settings.pooling}; a compact delta supports {' or '.join(POOLINGS)}"
        )
    start = load_encoder(
        base, device="cpu", pooling=settings.pooling, max_tokens=settings.max_tokens, normalize=settings.normalize
    )
    keep_layers(start.network.model, layers, "layers")
    changes = _changes_of(own, start)
    reporter.say(f"{len(changes)} weights of {trained} differ from {base}")
    vectors = {name: change.half() for name, change in changes.items() if change.dim() == 1}
    left = budget - _FILE_HEADER - sum(2 * change.numel() + 200 for change in vectors.values())
    if left < 0:
        raise UserError(f"the budget is {budget:,} bytes; biases and norms alone take {budget - left:,}: allow more")
    chosen = _nearest_choice(own, start, changes, left, list(texts), reporter)
    tensors = {
        f"{name}.{part}": tensor for name, option in chosen.items() if option for part, tensor in option.tensors.items()
    }
    codings = {name: option.coding for name, option in chosen.items() if option}
    write_delta(folder, "compact", base, settings, codings, {**vectors, **tensors}, layers)
    write_reading(folder, own.reading)
    size = (folder / TENSORS_FILE).stat().st_size
    assert size <= budget, f"{size} bytes, and the budget is {budget}"
    held = list(texts[3::4])
    wanted = own.encode(held)
    return CompressedEncoder(
        size,
        {name: _report(changes[name], option) for name, option in chosen.items()},
        len(vectors),
        _cosines_of(wanted, load_encoder(folder, device="cpu").encode(held)),
        _cosines_of(wanted, start.encode(held)),
        len(held),
    )


def _changes_of(trained: TorchEncoder, base: TorchEncoder) -> dict[str, Tensor]:
    """Return the changes of the weights by training, by name; the unused pooler is left out."""
    after, before = (dict(each.network.model.named_parameters()) for each in (trained, base))
    shapes = [{name: tuple(weight.shape) for name, weight in each.items()} for each in (after, before)]
    if other := sorted(
        name for name in shapes[0].keys() | shapes[1].keys() if shapes[0].get(name) != shapes[1].get(name)
    ):
        raise UserError(
            f"{trained.name} is not a model of the kind of {base.name}: {other[0]} is {shapes[0].get(other[0], 'not there')} "
            f"and {shapes[1].get(other[0], 'not there')}; give the base it was trained from"
        )
    if trained.reader.tokenizer.get_vocab() != base.reader.tokenizer.get_vocab():
        raise UserError(
            f"{trained.name} and {base.name} have different vocabularies; give the base it was trained from"
        )
    differences = {name: weight.detach().float() - before[name].detach().float() for name, weight in after.items()}
    used = {name: change for name, change in differences.items() if not name.startswith("pooler.")}
    changed = {name: change for name, change in used.items() if bool(change.any())}
    if not changed:
        raise UserError(f"{trained.name} has the same weights as {base.name}: there is nothing to compress")
    return changed


def _nearest_choice(
    own: TorchEncoder,
    start: TorchEncoder,
    changes: Mapping[str, Tensor],
    budget: int,
    texts: list[str],
    reporter: Reporter,
) -> dict[str, CodingOption | None]:
    """Choose the codings with the nearest vectors of some texts, of two ways to weight the token embeddings.

    Tokens are counted in other texts than those: by their own counts they would look nearer than they are.
    """
    matrices = {name: change for name, change in changes.items() if change.dim() == 2}
    weights = {name: change.new_ones(len(change)) for name, change in matrices.items()}
    options = {name: _points(change, weights[name]) for name, change in matrices.items()}
    tables = [options]
    table, counted = _token_weights(own, texts[::2])
    if table in matrices:
        tables.append({**options, table: _points(matrices[table], counted)})
    tried = [{name: points[name][point] for name, point in allocate(points, budget).items()} for points in tables]
    texts = texts[1::4]
    wanted = own.encode(texts)
    cosines = [_cosines_of(wanted, _encode_with(start, changes, chosen, texts)) for chosen in tried]
    for name, each in zip(("tokens alike", "tokens by frequency"), cosines, strict=False):
        reporter.say(f"{name}: mean cosine {each.mean}, lowest {each.least}")
    return tried[max(range(len(tried)), key=lambda number: cosines[number].mean)]


def _points(change: Tensor, weights: Tensor) -> dict[Point, CodingOption | None]:
    """Return the bytes and error of every coding of a matrix, and of storing nothing; row i's error counts weights[i] times."""
    nothing: dict[Point, CodingOption | None] = {(0, float((change.square().sum(dim=1) * weights).sum())): None}
    options = (*_factor_options(change, weights), *_row_options(change, weights))
    return nothing | {(option.bytes, option.error): option for option in options}


def _token_weights(encoder: TorchEncoder, texts: Sequence[str]) -> tuple[str, Tensor]:
    """Return the name of the token embeddings, and how often each token occurs in texts, (tokens,): 1 = as an average one.

    An average token is one of as many as would, all equally frequent, have the texts' entropy. Every token counts once more,
    so that one that these texts lack is not lost.
    """
    torch = require("torch", extra="minilm")
    table = encoder.network.model.get_input_embeddings().weight  # (tokens, dimension)
    name = next(name for name, weight in encoder.network.model.named_parameters() if weight is table)
    counts = np.bincount(np.concatenate(encoder.reader.read(texts)), minlength=len(table)) + 1  # (tokens,)
    shares = counts / counts.sum()  # (tokens,)
    usual = np.exp(-np.sum(shares * np.log(np.where(shares > 0, shares, 1))))
    return name, torch.from_numpy(shares * usual).float()


def _encode_with(
    start: TorchEncoder, changes: Mapping[str, Tensor], chosen: Mapping[str, CodingOption | None], texts: list[str]
) -> NDArray[np.float32]:
    """Encode texts by the base with the chosen codings of its changes; the base is restored afterwards."""
    weights = dict(start.network.model.named_parameters())
    before = {name: weights[name].detach().clone() for name in changes}
    try:
        for name, change in changes.items():
            if name not in chosen:
                weights[name].data += change
            elif (option := chosen[name]) is not None:
                weights[name].data += read_change(option.coding, option.tensors, tuple(change.shape))
        return start.encode(texts)
    finally:
        for name, weight in before.items():
            weights[name].data.copy_(weight)


def _cosines_of(ones: NDArray[np.float32], others: NDArray[np.float32]) -> Cosines:
    """Return the mean and lowest cosine of two encoders' vectors, text by text, (texts, dimension) each."""
    cosines = (unit_rows(ones) * unit_rows(others)).sum(axis=1)  # (texts,)
    return Cosines(round(float(cosines.mean()), 6), round(float(cosines.min()), 6))


def _report(change: Tensor, option: CodingOption | None) -> MatrixReport:
    if option is None:
        return MatrixReport(None, 0, 1.0)
    rest = change - read_change(option.coding, option.tensors, tuple(change.shape))
    return MatrixReport(option.coding, option.bytes, round(float(rest.norm() / change.norm()), 4))


# --- codings of one matrix, and the bytes each gets ------------------------------------------------------


def _factor_options(change: Tensor, weights: Tensor) -> Iterator[CodingOption]:
    left, right = _singular(change, min(max(RANKS), *change.shape))  # (rank, out), (rank, in)
    for bits in _FACTOR_BITS:
        coded = code_matrix("left", left, bits) | code_matrix("right", right, bits)
        read = [
            read_matrix(name, coded, width, bits) for name, width in zip(("left", "right"), change.shape, strict=True)
        ]
        rest, done = change.clone(), 0
        for rank in (rank for rank in RANKS if rank <= len(left)):
            rest -= read[0][done:rank].T @ read[1][done:rank]
            done = rank
            tensors = {name: tensor[:rank].clone() for name, tensor in coded.items()}
            error = float((rest.square().sum(dim=1) * weights).sum())
            yield CodingOption(Coding("factors", rank, bits), tensors, _size(tensors), error)


def _row_options(change: Tensor, weights: Tensor) -> Iterator[CodingOption]:
    energy = change.square().sum(dim=1) * weights  # (out,)
    for bits in _ROW_BITS:
        coded = code_matrix("rows", change, bits)
        rest = (change - read_matrix("rows", coded, change.shape[1], bits)).square().sum(dim=1) * weights  # (out,)
        order, count = (energy - rest).argsort(descending=True, stable=True), len(change)  # (out,)
        while count == len(change) or count >= _MIN_ROWS:
            places = order[:count].sort().values  # (count,)
            tensors = {name: tensor[places] for name, tensor in coded.items()}
            tensors |= {"places": places.int()} if count < len(change) else {}
            error = float(energy.sum() - (energy - rest)[places].sum())
            yield CodingOption(Coding("rows", count, bits), tensors, _size(tensors), error)
            count = count * 3 // 4


def _singular(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return factors (rank, out) and (rank, in) of the nearest matrix of that rank, each with the roots of its singular values."""
    left, sizes, right = require("torch", extra="minilm").linalg.svd(matrix, full_matrices=False)
    roots = sizes[:rank].sqrt()  # (rank,)
    return (left[:, :rank] * roots).T, right[:rank] * roots[:, None]


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() + _TENSOR_HEADER for tensor in tensors.values())


def _hull_of(points: Iterable[Point]) -> list[Point]:
    """Return the points on the lower convex hull of error over bytes, from few bytes to many.

    >>> _hull_of([(0, 10.0), (1, 9.5), (2, 4.0), (3, 4.5), (4, 3.0), (5, 3.0)])
    [(0, 10.0), (2, 4.0), (4, 3.0)]
    """
    hull: list[Point] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def allocate(options: Mapping[str, Iterable[Point]], budget: int) -> dict[str, Point]:
    """Allocate a compressed encoder's budget of bytes: one point per matrix; those that begin with 0 bytes may get nothing.

    >>> allocate({"a": [(0, 9.0), (4, 1.0), (8, 0.0)], "b": [(0, 3.0), (4, 1.0)]}, 8)
    {'a': (4, 1.0), 'b': (4, 1.0)}
    """
    hulls = {name: _hull_of(points) for name, points in options.items()}
    chosen = dict.fromkeys(hulls, 0)
    left = budget - sum(hull[0][0] for hull in hulls.values())
    steps = [_step(name, hull, 0) for name, hull in hulls.items() if len(hull) > 1]
    heapq.heapify(steps)
    while steps:
        _, name, number = heapq.heappop(steps)
        hull = hulls[name]
        cost = hull[number][0] - hull[number - 1][0]
        if cost > left:
            continue  # later steps of this matrix cost more, those of others may still fit
        left -= cost
        chosen[name] = number
        if number + 1 < len(hull):
            heapq.heappush(steps, _step(name, hull, number))
    return {name: hulls[name][number] for name, number in chosen.items()}


def _gain(before: Point, after: Point) -> float:
    """Return the reduction of the error per byte between two points."""
    return (before[1] - after[1]) / (after[0] - before[0])


def _step(name: str, hull: list[Point], number: int) -> tuple[float, str, int]:
    return -_gain(hull[number], hull[number + 1]), name, number + 1
