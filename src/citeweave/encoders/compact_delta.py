"""Compact deltas: all weights that training changed of a base model, quantized to few bytes; lossy, merged at loading.

    delta.json           {"format": "citeweave-compact-delta", "version": 1, "base": "minilm", "base_revision": "d58e...",
                          "settings": {"pooling": "mean", ...}, "sha256": "...",
                          "matrices": {"encoder.layer.0.output.dense.weight": {"kind": "factors", "count": 12, "bits": 4}, ...}}
    delta.safetensors    the quantized parts of every matrix's change; changes of vectors in float16

    factors    change = left.T @ right         left (rank, out), right (rank, in), by singular values
    rows       change = rows                   all rows of the matrix, or the most important ones and 0 elsewhere

    W.left, W.left_scales, W.right, W.right_scales
    W.rows, W.row_scales[, W.places]           places (count,): which rows, where these are not all

    8 bits         int8 codes (rows, columns): code * scale; the largest number of a row has the code 127 or -127
    1 to 4 bits    uint8 codes (rows, bytes), several codes per byte: one of the odd numbers from 1 - 2^bits to 2^bits - 1,
                   times the scale. The steps lose least of normally distributed numbers (Max 1960, table II)

Every matrix has its own coding, and each change is added to the weights at loading. A folder may be untrusted: names, shapes,
dtypes and the hash are checked before a number is used. Does not choose codings: `compress.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, require
from citeweave.core.files import hash_file, write_atomically, write_json
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
from citeweave.encoders.untrusted_model import check_finite, read_stored

if TYPE_CHECKING:
    from torch import Tensor


FORMAT, VERSION = "citeweave-compact-delta", 1

Codes = NDArray[np.uint8]
BITS = (1, 2, 3, 4, 8)

_STEPS = {1: 1.596, 2: 0.9957, 3: 0.586, 4: 0.3352}
"""Bits -> distance between two levels, in standard deviations of the numbers."""

_SMALLEST = 1e-12

KINDS = ("factors", "rows")


def row_bytes(columns: int, bits: int) -> int:
    """Return the bytes of a quantized row of a compact delta, without its scale.

    >>> row_bytes(384, 8), row_bytes(384, 2), row_bytes(3, 3)
    (384, 96, 2)
    """
    return -(-columns * bits // 8)


def code_rows(matrix: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantize a matrix (rows, columns) of a compact delta to codes of few bits and scales (rows,).

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
    """Return the matrix (rows, columns) of a compact delta's quantized rows, in float32."""
    torch = require("torch", extra="minilm")
    if bits == 8:
        return from_int8(codes, scales)
    matrix: Tensor = _levels(torch.from_numpy(_unpack(codes.numpy(), columns, bits)), bits) * scales[:, None]
    return matrix


def to_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix (rows, columns) to int8 codes and one scale per row, (rows,)."""
    torch = require("torch", extra="minilm")
    scales = (matrix.abs().amax(dim=1) / 127.0).clamp_min(_SMALLEST).float()  # (rows,)
    return (matrix / scales[:, None]).round().to(torch.int8), scales


def from_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the matrix (rows, columns) of int8 codes and scales."""
    return codes.float() * scales[:, None]


def _levels(codes: Tensor, bits: int) -> Tensor:
    levels: Tensor = codes.float() * 2 - (2**bits - 1)
    return levels


def _pack(codes: Codes, bits: int) -> Codes:
    """Pack codes (rows, columns) of few bits into bytes (rows, bytes), the lowest bit of a code first."""
    single = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1  # (rows, columns, bits)
    return np.packbits(single.reshape(len(codes), -1), axis=1)


def _unpack(packed: Codes, columns: int, bits: int) -> Codes:
    single = np.unpackbits(packed, axis=1, count=columns * bits).reshape(len(packed), columns, bits)
    codes = np.zeros((len(packed), columns), np.uint8)
    for bit in range(bits):
        codes |= single[:, :, bit] << bit
    return codes


KINDS = ("factors", "rows")


@dataclass(frozen=True, slots=True)
class Coding:
    """How a compact delta quantizes and stores the change of one matrix."""

    kind: str
    count: int
    """Rank of the factors, or number of rows."""

    bits: int


def _tensor_shapes(coding: Coding, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype and shape of each stored part of a coded matrix (out, in).

    >>> _tensor_shapes(Coding("factors", 4, 8), (6, 10))["left"], _tensor_shapes(Coding("rows", 2, 1), (6, 10))["places"]
    (('I8', (4, 6)), ('I32', (2,)))
    """
    codes, count = "I8" if coding.bits == 8 else "U8", coding.count
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    if coding.kind == "factors":
        for side, length in (("left", shape[0]), ("right", shape[1])):
            shapes[side] = (codes, (count, row_bytes(length, coding.bits)))
            shapes[f"{side}_scales"] = ("F32", (count,))
        return shapes
    shapes = {"rows": (codes, (count, row_bytes(shape[1], coding.bits))), "row_scales": ("F32", (count,))}
    return shapes | ({"places": ("I32", (count,))} if count < shape[0] else {})


def read_change(coding: Coding, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """Decode the change of a matrix (out, in) from a compact delta, in float32."""
    torch = require("torch", extra="minilm")
    if coding.kind == "factors":
        left = read_rows(tensors["left"], tensors["left_scales"], shape[0], coding.bits)  # (rank, out)
        right = read_rows(tensors["right"], tensors["right_scales"], shape[1], coding.bits)  # (rank, in)
        return left.T @ right
    rows = read_rows(tensors["rows"], tensors["row_scales"], shape[1], coding.bits)  # (count, in)
    if "places" not in tensors:
        return rows
    change: Tensor = torch.zeros(shape)
    change[tensors["places"].long()] = rows
    return change


@dataclass(frozen=True, slots=True)
class CompactDelta:
    """The content of the delta.json of a compact delta."""

    base: str
    base_revision: str
    settings: Settings
    sha256: str
    """SHA-256 of delta.safetensors."""

    matrices: Mapping[str, Coding]


def is_compact(folder: Path) -> bool:
    """Return whether the folder of a delta holds a compact one."""
    return read_json(folder / SETTINGS_FILE).get("format") == FORMAT


def write_compact(
    folder: Path,
    base: tuple[str, str],
    settings: Settings,
    codings: Mapping[str, Coding],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write a compact delta into an existing folder; `base` is the base's name and revision."""
    plain = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    check_finite(plain)
    content = require("safetensors.torch", extra="minilm").save(plain, metadata={"format": "pt"})
    write_atomically(folder / TENSORS_FILE, content)
    delta = CompactDelta(*base, settings, hash_file(folder / TENSORS_FILE), dict(sorted(codings.items())))
    write_json(folder / SETTINGS_FILE, sealed_settings({"format": FORMAT, "version": VERSION, **asdict(delta)}))


def read_compact(folder: Path) -> CompactDelta:
    """Read and check the delta.json of a compact delta, and the hash of delta.safetensors."""
    path = folder / SETTINGS_FILE
    data = read_json(path)
    check_format(path, data, FORMAT, VERSION)
    data = unsealed_settings(path, data)
    check_keys(path, data, {"format", "version", "base", "base_revision", "settings", "sha256", "matrices"})
    _check_hash(folder / TENSORS_FILE, str(data["sha256"]))
    codings = {str(name): _coding(path, name, table) for name, table in _table(path, data["matrices"]).items()}
    return CompactDelta(*base_of(path, data), settings_of(path, data["settings"]), str(data["sha256"]), codings)


def apply_compact(folder: Path, model: Any) -> None:
    """Add the changes of a compact delta to the weights of a loaded base."""
    torch = require("torch", extra="minilm")
    delta, path = read_compact(folder), folder / TENSORS_FILE
    weights = dict(model.named_parameters())
    if foreign := [name for name in delta.matrices if name not in weights or weights[name].dim() != 2]:
        raise InputError(f"{folder / SETTINGS_FILE}: {foreign[0][:100]!r} is not a matrix of the base {delta.base!r}")
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, coding in delta.matrices.items():
        if coding.count > (limit := _limit(coding, shape := _shape(weights[name]))):
            raise InputError(
                f"{folder / SETTINGS_FILE}: {name} has a count of {coding.count}; at most {limit} is possible"
            )
        expected |= {f"{name}.{part}": kind for part, kind in _tensor_shapes(coding, shape).items()}
    vectors = {name: ("F16", tuple(weight.shape)) for name, weight in weights.items() if weight.dim() == 1}
    stored = read_stored(path, expected | vectors, needed=set(expected))
    with torch.no_grad():
        for name, weight in weights.items():
            if name in stored:
                change = stored[name].float()
            elif name in delta.matrices:
                parts = {
                    part: stored[f"{name}.{part}"] for part in _tensor_shapes(delta.matrices[name], _shape(weight))
                }
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
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the complete folder") from None
    if found != expected:
        raise InputError(
            f"{path} is damaged (sha256 {found[:12]}, and {SETTINGS_FILE} says {expected[:12]!r}); copy the complete folder "
            "again, or pip install --force-reinstall citeweave where it is part of the package"
        )


def _table(path: Path, data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{path}: matrices is not a table of names and codings; copy the delta again")
    return data


def _coding(path: Path, name: str, data: object) -> Coding:
    table = check_keys(path, data, {"kind", "count", "bits"})
    kind, count, bits = table["kind"], table["count"], table["bits"]
    if kind not in KINDS or type(bits) is not int or bits not in BITS or type(count) is not int or count < 1:
        raise InputError(
            f"{path}: the coding of {name[:100]} is {str(table)[:100]}; kind must be {' or '.join(KINDS)}, bits one of "
            f"{', '.join(map(str, BITS))}, count a whole number from 1 up"
        )
    return Coding(kind, count, bits)


def _check_places(path: Path, name: str, parts: Mapping[str, Tensor], rows: int) -> None:
    places = parts.get("places")
    if places is not None and not (int(places.min()) >= 0 and int(places.max()) < rows):
        raise InputError(f"{path}: {name}.places names rows that a matrix of {rows} rows does not have; copy it again")
