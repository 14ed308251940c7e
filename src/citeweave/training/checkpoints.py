"""Checkpoints: a training run between two steps, from which it goes on as if it had never stopped.

    checkpoints/step-00000200/
      weights.safetensors      every weight that is trained, float32
      moments.safetensors      the optimizer's two moments of each, and how many steps it has made
      state.json               step, length of the log, what validation found so far; hashes of the other two

A checkpoint appears by one rename; the one before it stays until then. No pickle. Random numbers are functions of seed
and step, so none are kept. Weights and moments are whole whatever the number of processes and whether they train in
shards, so that another number of them can go on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from citeweave.core.artifact import sealed, unsealed
from citeweave.core.errors import ArtifactError, CiteweaveError, UserError
from citeweave.core.files import hash_file, move, sync, write_json
from citeweave.training.distributed import is_shard, like, take_whole

KEPT = 2
"""Checkpoints that stay: a damaged last one is not the end."""

_STEP = "step-"
_TENSORS = ("weights.safetensors", "moments.safetensors")
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEPS = "step"
"""Of a weight that has no part in some steps, such as the head of an aspect, fewer than the run's."""


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    writes: bool = True,
) -> None:
    """Write the checkpoint of a step, and remove all but the last ones.

    Every process calls it, one writes: what lies in shards is gathered from all.
    """
    if not writes and not any(map(is_shard, weights.values())):
        return
    trained, moments = take_whole(weights, keep=writes), take_whole(_moments(weights, optimizer), keep=writes)
    if writes:
        _write(folder, step, trained, moments, state)


def _write(
    folder: Path, step: int, weights: dict[str, Tensor], moments: dict[str, Tensor], state: Mapping[str, Any]
) -> None:
    target = folder / f"{_STEP}{step:08d}"
    partial = target.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, tensors in zip(_TENSORS, (weights, moments), strict=True):
            _save(partial / name, tensors)
        hashes = {name: hash_file(partial / name) for name in _TENSORS}
        write_json(partial / "state.json", sealed({"step": step, **state, "sha256": hashes}))
        shutil.rmtree(target, ignore_errors=True)
        move(partial, target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        last = max((found.name for found in folder.glob(f"{_STEP}????????")), default="none yet")
        raise CiteweaveError(
            f"{target} cannot be written ({error.strerror or error}); the last checkpoint is {last}: "
            "make room and run the same command again to go on from it"
        ) from None
    for old in sorted(folder.glob(f"{_STEP}????????"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """Put the last whole checkpoint into the weights and the optimizer; its state, or None where there is none."""
    for found in sorted(folder.glob(f"{_STEP}????????"), reverse=True):
        try:
            state = _read_state(found)
            saved, moments = (load_file(found / name) for name in _TENSORS)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
            continue  # damaged: the one before it is whole
        _check_fits(found, saved, weights)
        _restore(weights, saved, moments, optimizer)
        return state
    return None


def _read_state(folder: Path) -> dict[str, Any]:
    """What state.json says; ValueError where it or a file beside it is not what was written."""
    state = unsealed(json.loads((folder / "state.json").read_bytes()))
    if state.get("step") != int(folder.name.removeprefix(_STEP)):
        raise ValueError("it is the state of another step")
    hashes = state.pop("sha256")
    if any(hash_file(folder / name) != hashes[name] for name in _TENSORS):
        raise ValueError("the weights or moments have changed")
    return state


def _moments(weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{moment}": optimizer.state[weight][moment]
        for name, weight in weights.items()
        if weight in optimizer.state
        for moment in (*_MOMENTS, _STEPS)
    }


def _restore(
    weights: Mapping[str, Tensor],
    saved: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(like(weight, saved[name]))
            if f"{name}/{_MOMENTS[0]}" in moments:
                kept = {moment: like(weight, moments[f"{name}/{moment}"]) for moment in _MOMENTS}
                # a step counter lies where the optimizer's fused form wants it, on the weight's device
                fused = bool(optimizer.defaults.get("fused"))
                made = float(moments[f"{name}/{_STEPS}"])
                counter = torch.tensor(made, device=weight.device if fused else "cpu")
                optimizer.state[weight] = {"step": counter, **kept}


def _check_fits(folder: Path, saved: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    if set(saved) != set(weights):
        raise ArtifactError(f"{folder} holds other weights than this model has; remove it, or train into another -o")
    for name, weight in weights.items():
        if saved[name].shape != weight.shape:
            raise UserError(
                f"{folder}: {name} has shape {list(saved[name].shape)}, and this model's {list(weight.shape)}; the start "
                "model has another size: give the one that the run was begun with, or another -o"
            )


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # it does not tell a full disk as an OSError
        raise OSError(str(error)) from None
    sync(path)
