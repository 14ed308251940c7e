"""The folder of a trained encoder: weights, card, and what was trained alone where that is not everything."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import torch

from citeweave.encoders.saved.deltas import save_delta
from citeweave.encoders.saved.model_card import ModelCard
from citeweave.encoders.saving import save_encoder
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.training.data import TrainingData
from citeweave.training.plan import Plan
from citeweave.training.trainer import Progress
from citeweave.version import __version__


def write_encoder(
    folder: Path, name: str, plan: Plan, start: TorchEncoder, data: TrainingData, progress: Progress, trained: list[str]
) -> None:
    """The whole encoder, and where only parts were trained also these alone; `trained` are names of weights."""
    encoder, options, about = plan.encoder, plan.training, plan.about
    card = ModelCard(
        name=name,
        base=encoder.init,
        base_revision=start.revision,
        recipe=about.recipe,
        tables=about.tables,
        data={**{name: value for name, value in data.facts.items() if name != "left out"}, **data.facts["left out"]},
        held_out=about.held_out,
        seeds=[options.seed],
        options=dataclasses.asdict(options),
        audit=about.audit,
        results={name: (100 * progress.before[name], 100 * value) for name, value in progress.last.items()},
        hardware=hardware(start.network.device),
        versions={"citeweave": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
    model, tokenizer = start.network.model, start.reader.tokenizer
    model.eval()
    save_encoder(folder, start.network, tokenizer, start.settings, card=card)
    if options.parts != "all" or options.frozen_layers:
        (folder / "delta").mkdir()
        own = [name for name in trained if not name.startswith("language.")]
        save_delta(
            folder / "delta",
            model,
            start.settings,
            base=encoder.init,
            changed=own,
            kind=options.parts,
            card=card,
        )


def hardware(device: str) -> str:
    """What a run was computed on."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} threads"
