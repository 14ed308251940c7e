"""Checkpoints of a training run, from which it resumes as if it had never stopped.

    checkpoints/step-00000200/
      weights.safetensors      every trained weight, float32
      moments.safetensors      the optimizer's two moments of each weight, and its number of steps
      state.json               step, length of the log, validation results so far; hashes of the other two

A checkpoint appears by one rename, and the previous one stays until then. No pickle. Random numbers are functions of
seed and step, so none are saved. Weights and moments are complete whatever the number of processes and whether they
train in shards, so another number of processes can resume.
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

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.errors import ArtifactError, CiteweaveError, UserError
from citeweave.core.files import hash_file, move, sync, write_json
from citeweave.training.distributed import gather_full, is_shard, place_like

MAX_CHECKPOINTS = 2
"""Number of checkpoints on disk, so that a damaged last one can be skipped."""

_STEP = "step-"
_TENSORS = ("weights.safetensors", "moments.safetensors")
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEPS = "step"
"""Optimizer steps of a weight; fewer than the run's for one not used in every step, such as an aspect's head."""


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

    Every process must call it, since shards are gathered from all; one of them writes.
    """
    if not writes and not any(map(is_shard, weights.values())):
        return
    trained, moments = gather_full(weights, keep=writes), gather_full(_moments(weights, optimizer), keep=writes)
    if writes:
        _write_checkpoint(folder, step, trained, moments, state)


def _write_checkpoint(
    folder: Path, step: int, weights: dict[str, Tensor], moments: dict[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Write a checkpoint's files into a partial folder and rename it; a full disk names the last checkpoint."""
    target = folder / f"{_STEP}{step:08d}"
    partial = target.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, tensors in zip(_TENSORS, (weights, moments), strict=True):
            _save_tensors(partial / name, tensors)
        hashes = {name: hash_file(partial / name) for name in _TENSORS}
        write_json(partial / "state.json", seal_payload({"step": step, **state, "sha256": hashes}))
        shutil.rmtree(target, ignore_errors=True)
        move(partial, target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        last = max((path.name for path in folder.glob(f"{_STEP}????????")), default="none yet")
        raise CiteweaveError(
            f"{target} cannot be written ({error.strerror or error}); the last checkpoint is {last}: "
            "free disk space and run the same command again to resume from it"
        ) from None
    for old in sorted(folder.glob(f"{_STEP}????????"))[:-MAX_CHECKPOINTS]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Any] | None:
    """Load the last complete checkpoint into weights and optimizer; return its state, or None if there is none."""
    for path in sorted(folder.glob(f"{_STEP}????????"), reverse=True):
        try:
            state = _read_state(path)
            saved, moments = (load_file(path / name) for name in _TENSORS)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
            continue  # damaged: use the previous one
        _check_shapes(path, saved, weights)
        _restore(weights, saved, moments, optimizer)
        return state
    return None


def _read_state(folder: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint; ValueError where it or a file beside it has changed."""
    state = unseal_payload(json.loads((folder / "state.json").read_bytes()))
    if state.get("step") != int(folder.name.removeprefix(_STEP)):
        raise ValueError("the state belongs to another step")
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
    """Copy a checkpoint's weights and moments into the run's weights and optimizer."""
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(place_like(weight, saved[name]))
            if f"{name}/{_MOMENTS[0]}" in moments:
                restored = {moment: place_like(weight, moments[f"{name}/{moment}"]) for moment in _MOMENTS}
                # the fused optimizer needs its step counter on the weight's device
                fused = bool(optimizer.defaults.get("fused"))
                steps = float(moments[f"{name}/{_STEPS}"])
                counter = torch.tensor(steps, device=weight.device if fused else "cpu")
                optimizer.state[weight] = {"step": counter, **restored}


def _check_shapes(folder: Path, saved: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    if set(saved) != set(weights):
        raise ArtifactError(f"{folder} holds other weights than this model has; remove it, or choose another -o")
    for name, weight in weights.items():
        if saved[name].shape != weight.shape:
            raise UserError(
                f"{folder}: {name} has shape {list(saved[name].shape)}, and this model's {list(weight.shape)}; the start "
                "model has another size: give the one that the run was started with, or another -o"
            )


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # raised for a full disk instead of an OSError
        raise OSError(str(error)) from None
    sync(path)
