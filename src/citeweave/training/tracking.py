"""The log of a run in TensorBoard or Weights & Biases, for those who have them installed.

    --set training.track=tensorboard        events in the work folder, training/tensorboard, while it runs
    --set training.track=wandb              a run of its own; project and key come from the environment

The log itself, log.jsonl, is always written; this is a second reader of it and changes nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from citeweave.errors import MissingExtraError

Write = Callable[[Mapping[str, Any]], None]


def open_tracker(name: str, folder: Path) -> Write:
    """A function that takes the lines of the log."""
    if name == "tensorboard":
        writer = _load("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

        def to_tensorboard(line: Mapping[str, Any]) -> None:
            for key, value in line.items():
                if key != "step":
                    writer.add_scalar(key, value, line["step"])
            writer.flush()

        return to_tensorboard
    if name == "wandb":
        run = _load("wandb", "wandb").init(dir=str(folder))
        return lambda line: run.log({key: value for key, value in line.items() if key != "step"}, step=line["step"])
    return lambda line: None


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"training.track is {package!r}, which is not installed; pip install {package}, or leave it out"
        ) from None
