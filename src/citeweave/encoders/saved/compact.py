"""Compact deltas: all that training changed of a base, in few bytes; not exact, and as fast as the base once it is loaded.

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

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.encoders.model_folder import Settings, read_json
from citeweave.encoders.saved.delta_settings import (
    SETTINGS_FILE,
    TENSORS_FILE,
    base_of,
    check_format,
    check_keys,
    sealed_settings,
    settings_of,
    unsealed_settings,
)
from citeweave.encoders.saved.few_bits import BITS
from citeweave.encoders.saved.matrix_changes import KINDS, Coding, read_change, tensor_shapes
from citeweave.encoders.saved.tensors_file import check_finite, read_stored
from citeweave.errors import InputError
from citeweave.extras import require
from citeweave.files import hash_file, write_json, write_whole

if TYPE_CHECKING:
    from torch import Tensor

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
