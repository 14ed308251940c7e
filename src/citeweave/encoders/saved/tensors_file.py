"""Small safetensors files that are not trusted: what is in them is compared with what may be in them, then read.

    read_tensors(path, {"layer_weights": (7,)})["layer_weights"].shape == (7,)

Names, shapes and kinds of numbers are compared before a number is read, so that memory stays within what the caller
expects. The format holds no code. Does not read whole models: `network.py` does, by transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.errors import InputError, UserError
from citeweave.extras import require
from citeweave.files import open_input

if TYPE_CHECKING:
    from torch import Tensor

_MAX_HEADER = 8 << 20
"""Bytes of the table of contents; that of a model with 10,000 tensors has 1.5 million."""

_NUMBERS = ("F32", "F16", "BF16")


def read_tensors(path: Path, expected: Mapping[str, tuple[int, ...]], *, all_there: bool = True) -> dict[str, Tensor]:
    """The tensors of a file in float32, sorted by name; each must be one of those expected, and all or some be there."""
    any_float = {name: (_NUMBERS, shape) for name, shape in expected.items()}
    found = _read(path, any_float, set(expected) if all_there else set())
    return {name: tensor.float() for name, tensor in found.items()}


def read_stored(
    path: Path, expected: Mapping[str, tuple[str, tuple[int, ...]]], *, needed: set[str]
) -> dict[str, Tensor]:
    """The tensors of a file as they are stored, each of the kind of numbers (such as I8) and shape that are expected."""
    return _read(path, {name: ((numbers,), shape) for name, (numbers, shape) in expected.items()}, needed)


def _read(
    path: Path, expected: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]], needed: set[str]
) -> dict[str, Tensor]:
    _check_header(path)
    safetensors = require("safetensors", extra="minilm")
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            names = sorted(file.keys())
            _check_names(path, names, expected, needed)
            for name in names:
                _check_shape(path, name, file.get_slice(name), *expected[name])
            found = {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(f"{path} is no whole safetensors file ({reason}); copy it again") from None
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"{path}: {name} holds numbers that are not finite; the training failed, or it is damaged")
    return found


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Weights that are not finite make no vectors."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{name} holds numbers that are not finite in {tensor.dtype}; the model is not saved")


def _check_header(path: Path) -> None:
    try:
        size = path.stat().st_size
        with open_input(path) as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the whole folder") from None
    if size < 8 or header > min(size - 8, _MAX_HEADER):
        raise InputError(
            f"{path} is no whole safetensors file (a header of {header:,} bytes in {size:,}); copy it again"
        )


def _check_names(path: Path, names: list[str], expected: Mapping[str, object], needed: set[str]) -> None:
    if unknown := [name for name in names if name not in expected]:
        raise InputError(f"{path}: {unknown[0][:100]!r} is no tensor that belongs here ({len(unknown)} such)")
    if lacking := sorted(needed - set(names)):
        raise InputError(f"{path} lacks {len(lacking)} tensors, such as {lacking[0]}; copy it again")


def _check_shape(path: Path, name: str, part: Any, kinds: tuple[str, ...], expected: tuple[int, ...]) -> None:
    shape, numbers = tuple(part.get_shape()), str(part.get_dtype())
    if shape != expected or numbers not in kinds:
        raise InputError(
            f"{path}: {name} is {numbers} of shape {shape}; it must be {' or '.join(kinds)} of shape {expected}"
        )
