"""The file of a classifier's changes: delta.safetensors, in float16 or in int8 with a scale a row.

    save_delta(path, network.delta(), "float16")
    load_delta(path)                              name -> float32 tensor, whichever it was

Numbers that are few (heads, biases, rows of tokens) stay float16 in int8 files too: they cost nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from citeweave.encoders.saved.few_bits import from_int8, to_int8
from citeweave.errors import ArtefactError, choose

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
        raise ArtefactError(f"{path} is missing or damaged; copy the classifier's whole folder again") from None
    found = {}
    for name, value in stored.items():
        if not name.endswith(_SCALE):
            scale = stored.get(name + _SCALE)
            if scale is not None and (value.dim() != 2 or scale.shape != value.shape[:1]):
                raise ArtefactError(f"{path} has a scale of another shape than {name}; train the classifier again")
            found[name] = value.float() if scale is None else from_int8(value, scale)
        if not torch.isfinite(value.float()).all():
            raise ArtefactError(f"{path} holds numbers that are not finite; train the classifier again")
    return found
