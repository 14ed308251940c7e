"""Rows of numbers in few bits: codes, and one scale a row.

    codes, scales = code_rows(matrix, 4)          matrix (rows, columns)
    read_rows(codes, scales, columns, 4)          nearly the matrix again

8 bits         int8 codes (rows, columns): code * scale; the largest number of a row has the code 127 or -127
1 to 4 bits    uint8 codes (rows, bytes), several codes a byte: one of the odd numbers from 1 - 2^bits to 2^bits - 1, times
               the scale. The steps are those that lose least of normally distributed numbers (Max 1960, table II)

Does not know what the numbers are, and writes no files.

The change of one weight matrix in few bytes: as two factors, or row by row.

    factors    change = left.T @ right                  left (rank, out), right (rank, in), by singular values
    rows       change = rows                            all rows of the matrix, or those that matter most and 0 elsewhere

    W.left, W.left_scales, W.right, W.right_scales      `few_bits.py` codes left, right and rows
    W.rows, W.row_scales[, W.places]                    places (count,): which rows, where these are not all

Does not choose between codings: `allocating.py` does.

Which coding every matrix gets, so that all together fit into so many bytes and lose least.

Every matrix has options, each with bytes and an error; to store nothing costs nothing and leaves everything. Only options on
the lower convex hull of error over bytes are ever worth it. Bytes are spent where the next step along a hull takes away most
error a byte, until no step fits (Shoham and Gersho 1988, bit allocation, without its search for the multiplier).

Compact deltas: all that training changed of a base, in few bytes; not exact, and as fast as the base once it is loaded.

    delta.json           {"format": "citeweave-compact-delta", "version": 1, "base": "minilm", "base_revision": "d58e...",
                          "settings": {"pooling": "mean", ...}, "sha256": "...",
                          "matrices": {"encoder.layer.0.output.dense.weight": {"kind": "factors", "count": 12, "bits": 4}, ...}}
    delta.safetensors    the parts of every matrix's change, see `matrix_changes.py`; changes of vectors in float16

    read_compact(folder)             what delta.json says
    apply_compact(folder, model)     add the changes to the weights of the base

Every matrix has a coding of its own, and each change is added to the weights at loading. A folder may come from a stranger:
names, shapes, kinds of numbers and the hash are compared before a number is used. Does not make such deltas:
`compressing.py` does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, require
from citeweave.core.files import hash_file, write_json, write_whole
from citeweave.encoders.model_folder import (
    SETTINGS_FILE,
    TENSORS_FILE,
    Settings,
    base_of,
    check_format,
    check_keys,
    read_json,
    sealed_settings,
    settings_of,
    unsealed_settings,
)
from citeweave.encoders.pooling import check_finite, read_stored

if TYPE_CHECKING:
    from torch import Tensor


Codes = NDArray[np.uint8]
BITS = (1, 2, 3, 4, 8)

_STEPS = {1: 1.596, 2: 0.9957, 3: 0.586, 4: 0.3352}
"""Bits -> distance of two levels, in standard deviations of the numbers."""

_SMALLEST = 1e-12


def row_bytes(columns: int, bits: int) -> int:
    """Bytes of a row's codes, without its scale.

    >>> row_bytes(384, 8), row_bytes(384, 2), row_bytes(3, 3)
    (384, 96, 2)
    """
    return -(-columns * bits // 8)


def code_rows(matrix: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes and scales (rows,) of a matrix (rows, columns).

    >>> import torch
    >>> codes, scales = code_rows(torch.tensor([[-3.0, 1.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0]]), 2)
    >>> codes.shape, read_rows(codes, scales, 4, 2).tolist()
    (torch.Size([2, 1]), [[-3.0, 1.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    """
    torch = require("torch", extra="minilm")
    if bits == 8:
        return to_int8(matrix)
    step = _STEPS[bits] * matrix.square().mean(dim=1, keepdim=True).sqrt().clamp_min(_SMALLEST)  # (rows, 1)
    half = 2 ** (bits - 1)
    codes = ((matrix / step).floor() + half).clamp(0, 2 * half - 1).to(torch.uint8)  # (rows, columns)
    levels = _levels(codes, bits)
    scales = (matrix * levels).sum(dim=1) / levels.square().sum(dim=1)  # (rows,), by least squares
    return torch.from_numpy(_pack(codes.numpy(), bits)), scales


def read_rows(codes: Tensor, scales: Tensor, columns: int, bits: int) -> Tensor:
    """The matrix (rows, columns) in float32."""
    torch = require("torch", extra="minilm")
    if bits == 8:
        return from_int8(codes, scales)
    found: Tensor = _levels(torch.from_numpy(_unpack(codes.numpy(), columns, bits)), bits) * scales[:, None]
    return found


def to_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (rows, columns) as int8 and a scale a row, (rows,)."""
    torch = require("torch", extra="minilm")
    scales = (matrix.abs().amax(dim=1) / 127.0).clamp_min(_SMALLEST).float()  # (rows,)
    return (matrix / scales[:, None]).round().to(torch.int8), scales


def from_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """The matrix (rows, columns) that int8 codes stand for."""
    return codes.float() * scales[:, None]


def _levels(codes: Tensor, bits: int) -> Tensor:
    found: Tensor = codes.float() * 2 - (2**bits - 1)
    return found


def _pack(codes: Codes, bits: int) -> Codes:
    """uint8 codes (rows, columns) -> (rows, bytes), the lowest bit of a code first."""
    single = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1  # (rows, columns, bits)
    return np.packbits(single.reshape(len(codes), -1), axis=1)


def _unpack(packed: Codes, columns: int, bits: int) -> Codes:
    single = np.unpackbits(packed, axis=1, count=columns * bits).reshape(len(packed), columns, bits)
    found = np.zeros((len(packed), columns), np.uint8)
    for bit in range(bits):
        found |= single[:, :, bit] << bit
    return found


# The change of one weight matrix in few bytes: as two factors, or row by row.

KINDS = ("factors", "rows")
RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192)
_FACTOR_BITS = (4, 8)
_ROW_BITS = (1, 2, 3, 4, 8)
_FEWEST_ROWS = 64
_HEADER = 120
"""Bytes that safetensors spends on the name, shape and place of a tensor, about."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How the change of a matrix is stored."""

    kind: str
    count: int
    """Rank of the factors, or number of rows."""

    bits: int


@dataclass(frozen=True, slots=True)
class Option:
    """A coding, its tensors, and what it costs and leaves."""

    coding: Coding
    tensors: Mapping[str, Tensor]
    bytes: int
    error: float
    """Sum of squares, rows weighted."""


def tensor_shapes(coding: Coding, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Part -> kind of numbers and shape, of a matrix (out, in).

    >>> tensor_shapes(Coding("factors", 4, 8), (6, 10))["left"], tensor_shapes(Coding("rows", 2, 1), (6, 10))["places"]
    (('I8', (4, 6)), ('I32', (2,)))
    """
    codes, count = "I8" if coding.bits == 8 else "U8", coding.count
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    if coding.kind == "factors":
        for side, length in (("left", shape[0]), ("right", shape[1])):
            found[side] = (codes, (count, row_bytes(length, coding.bits)))
            found[f"{side}_scales"] = ("F32", (count,))
        return found
    found = {"rows": (codes, (count, row_bytes(shape[1], coding.bits))), "row_scales": ("F32", (count,))}
    return found | ({"places": ("I32", (count,))} if count < shape[0] else {})


def read_change(coding: Coding, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """The change (out, in) in float32."""
    torch = require("torch", extra="minilm")
    if coding.kind == "factors":
        left = read_rows(tensors["left"], tensors["left_scales"], shape[0], coding.bits)  # (rank, out)
        right = read_rows(tensors["right"], tensors["right_scales"], shape[1], coding.bits)  # (rank, in)
        return left.T @ right
    rows = read_rows(tensors["rows"], tensors["row_scales"], shape[1], coding.bits)  # (count, in)
    if "places" not in tensors:
        return rows
    found: Tensor = torch.zeros(shape)
    found[tensors["places"].long()] = rows
    return found


def options_of(change: Tensor, weights: Tensor) -> Iterator[Option]:
    """Every coding of a change (out, in), with what it leaves; an error of row i counts weights[i] times."""
    yield from _factor_options(change, weights)
    yield from _row_options(change, weights)


def _factor_options(change: Tensor, weights: Tensor) -> Iterator[Option]:
    left, right = _singular(change, min(max(RANKS), *change.shape))  # (rank, out), (rank, in)
    shape = (change.shape[0], change.shape[1])
    for bits in _FACTOR_BITS:
        coded = (*code_rows(left, bits), *code_rows(right, bits))
        read = read_rows(coded[0], coded[1], shape[0], bits), read_rows(coded[2], coded[3], shape[1], bits)
        rest, done = change.clone(), 0
        for rank in (rank for rank in RANKS if rank <= len(left)):
            rest -= read[0][done:rank].T @ read[1][done:rank]
            done = rank
            names = ("left", "left_scales", "right", "right_scales")
            tensors = {name: tensor[:rank].clone() for name, tensor in zip(names, coded, strict=True)}
            error = float((rest.square().sum(dim=1) * weights).sum())
            yield Option(Coding("factors", rank, bits), tensors, _size(tensors), error)


def _row_options(change: Tensor, weights: Tensor) -> Iterator[Option]:
    whole = change.square().sum(dim=1) * weights  # (out,)
    for bits in _ROW_BITS:
        codes, scales = code_rows(change, bits)
        rest = (change - read_rows(codes, scales, change.shape[1], bits)).square().sum(dim=1) * weights  # (out,)
        order, count = (whole - rest).argsort(descending=True, stable=True), len(change)  # (out,)
        while count == len(change) or count >= _FEWEST_ROWS:
            places = order[:count].sort().values  # (count,)
            tensors = {"rows": codes[places], "row_scales": scales[places]}
            tensors |= {"places": places.int()} if count < len(change) else {}
            error = float(whole.sum() - (whole - rest)[places].sum())
            yield Option(Coding("rows", count, bits), tensors, _size(tensors), error)
            count = count * 3 // 4


def _singular(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (rank, out) and (rank, in) of the nearest matrix of that rank; by the smaller of its two squares."""
    torch = require("torch", extra="minilm")
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T  # (long, short)
    square = (tall.T @ tall).double()  # (short, short)
    values, vectors = torch.linalg.eigh(square)
    short = vectors.flip(1)[:, :rank].T.float()  # (rank, short)
    sizes = values.flip(0)[:rank].clamp_min(1e-24).sqrt().float()  # (rank,)
    long = (tall @ short.T / sizes).T  # (rank, long)
    long, short = long * sizes.sqrt()[:, None], short * sizes.sqrt()[:, None]
    return (long, short) if matrix.shape[0] >= matrix.shape[1] else (short, long)


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() + _HEADER for tensor in tensors.values())


# Which coding every matrix gets, so that all together fit into so many bytes and lose least.

Point = tuple[int, float]
"""Bytes, and the error that is left."""


def hull_of(points: Iterable[Point]) -> list[Point]:
    """The points of the lower convex hull, from few bytes to many; a point that is no better than a cheaper one is none.

    >>> hull_of([(0, 10.0), (1, 9.5), (2, 4.0), (3, 4.5), (4, 3.0), (5, 3.0)])
    [(0, 10.0), (2, 4.0), (4, 3.0)]
    """
    found: list[Point] = []
    for point in sorted(points):
        if found and point[1] >= found[-1][1]:
            continue
        while len(found) > 1 and _gain(found[-2], found[-1]) <= _gain(found[-1], point):
            found.pop()
        found.append(point)
    return found


def allocate(options: Mapping[str, Iterable[Point]], budget: int) -> dict[str, Point]:
    """The point of each matrix; those that begin with 0 bytes may get nothing.

    >>> allocate({"a": [(0, 9.0), (4, 1.0), (8, 0.0)], "b": [(0, 3.0), (4, 1.0)]}, 8)
    {'a': (4, 1.0), 'b': (4, 1.0)}
    """
    hulls = {name: hull_of(points) for name, points in options.items()}
    chosen = dict.fromkeys(hulls, 0)
    left = budget - sum(hull[0][0] for hull in hulls.values())
    steps = [_step(name, hull, 0) for name, hull in hulls.items() if len(hull) > 1]
    heapq.heapify(steps)
    while steps:
        _, name, number = heapq.heappop(steps)
        hull = hulls[name]
        cost = hull[number][0] - hull[number - 1][0]
        if cost > left:
            continue  # dearer steps of this matrix come after it, those of others may still fit
        left -= cost
        chosen[name] = number
        if number + 1 < len(hull):
            heapq.heappush(steps, _step(name, hull, number))
    return {name: hulls[name][number] for name, number in chosen.items()}


def _gain(before: Point, after: Point) -> float:
    """Error that goes away a byte."""
    return (before[1] - after[1]) / (after[0] - before[0])


def _step(name: str, hull: list[Point], number: int) -> tuple[float, str, int]:
    return -_gain(hull[number], hull[number + 1]), name, number + 1


# Compact deltas: all that training changed of a base, in few bytes; not exact, and as fast as the base once it is loaded.

FORMAT, VERSION = "citeweave-compact-delta", 1


@dataclass(frozen=True, slots=True)
class CompactDelta:
    """What delta.json says."""

    base: str
    base_revision: str
    settings: Settings
    sha256: str
    """Of delta.safetensors."""

    matrices: Mapping[str, Coding]


def is_compact(folder: Path) -> bool:
    """Whether a delta is a compact one."""
    return read_json(folder / SETTINGS_FILE).get("format") == FORMAT


def write_compact(
    folder: Path,
    base: tuple[str, str],
    settings: Settings,
    codings: Mapping[str, Coding],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write both files into an existing folder; `base` is its name and revision."""
    plain = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    check_finite(plain)
    content = require("safetensors.torch", extra="minilm").save(plain, metadata={"format": "pt"})
    write_whole(folder / TENSORS_FILE, content)
    delta = CompactDelta(*base, settings, hash_file(folder / TENSORS_FILE), dict(sorted(codings.items())))
    write_json(folder / SETTINGS_FILE, sealed_settings({"format": FORMAT, "version": VERSION, **asdict(delta)}))


def read_compact(folder: Path) -> CompactDelta:
    """Read and check delta.json, and that delta.safetensors is the file it names."""
    path = folder / SETTINGS_FILE
    data = read_json(path)
    check_format(path, data, FORMAT, VERSION)
    data = unsealed_settings(path, data)
    check_keys(path, data, {"format", "version", "base", "base_revision", "settings", "sha256", "matrices"})
    _check_hash(folder / TENSORS_FILE, str(data["sha256"]))
    codings = {str(name): _coding(path, name, told) for name, told in _table(path, data["matrices"]).items()}
    return CompactDelta(*base_of(path, data), settings_of(path, data["settings"]), str(data["sha256"]), codings)


def apply_compact(folder: Path, model: Any) -> None:
    """Add the changes to the weights of a loaded base."""
    torch = require("torch", extra="minilm")
    delta, path = read_compact(folder), folder / TENSORS_FILE
    weights = dict(model.named_parameters())
    if foreign := [name for name in delta.matrices if name not in weights or weights[name].dim() != 2]:
        raise InputError(f"{folder / SETTINGS_FILE}: {foreign[0][:100]!r} is no matrix of the base {delta.base!r}")
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, coding in delta.matrices.items():
        if coding.count > (limit := _limit(coding, shape := _shape(weights[name]))):
            raise InputError(f"{folder / SETTINGS_FILE}: {name} has a count of {coding.count}; at most {limit} can be")
        expected |= {f"{name}.{part}": told for part, told in tensor_shapes(coding, shape).items()}
    vectors = {name: ("F16", tuple(weight.shape)) for name, weight in weights.items() if weight.dim() == 1}
    found = read_stored(path, expected | vectors, needed=set(expected))
    with torch.no_grad():
        for name, weight in weights.items():
            if name in found:
                change = found[name].float()
            elif name in delta.matrices:
                parts = {part: found[f"{name}.{part}"] for part in tensor_shapes(delta.matrices[name], _shape(weight))}
                _check_places(path, name, parts, len(weight))
                change = read_change(delta.matrices[name], parts, _shape(weight))
            else:
                continue
            weight.copy_(weight.float() + change.to(weight.device))


def _limit(coding: Coding, shape: tuple[int, int]) -> int:
    return min(shape) if coding.kind == "factors" else shape[0]


def _shape(weight: Tensor) -> tuple[int, int]:
    return int(weight.shape[0]), int(weight.shape[1])


def _check_hash(path: Path, expected: str) -> None:
    try:
        found = hash_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the whole folder") from None
    if found != expected:
        raise InputError(
            f"{path} is damaged (sha256 {found[:12]}, and {SETTINGS_FILE} says {expected[:12]!r}); copy the whole folder "
            "again, or pip install --force-reinstall citeweave where it is part of the package"
        )


def _table(path: Path, data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{path}: matrices is no table of names and codings; copy the delta again")
    return data


def _coding(path: Path, name: str, data: object) -> Coding:
    told = check_keys(path, data, {"kind", "count", "bits"})
    kind, count, bits = told["kind"], told["count"], told["bits"]
    if kind not in KINDS or type(bits) is not int or bits not in BITS or type(count) is not int or count < 1:
        raise InputError(
            f"{path}: the coding of {name[:100]} is {str(told)[:100]}; kind must be {' or '.join(KINDS)}, bits one of "
            f"{', '.join(map(str, BITS))}, count a whole number from 1 up"
        )
    return Coding(kind, count, bits)


def _check_places(path: Path, name: str, parts: Mapping[str, Tensor], rows: int) -> None:
    places = parts.get("places")
    if places is not None and not (int(places.min()) >= 0 and int(places.max()) < rows):
        raise InputError(f"{path}: {name}.places names rows that a matrix of {rows} rows does not have; copy it again")
