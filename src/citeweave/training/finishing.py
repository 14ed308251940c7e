"""The folder of a trained encoder: weights, card, and what was trained alone where that is not everything.

With `training.start_share` the saved weights lie between those of the start model and the trained ones: what the start
model knew of other texts is not all forgotten (Wortsman et al. 2022, robust fine-tuning). Validation judged the trained
ones.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from citeweave.encoders.saved.deltas import save_delta
from citeweave.encoders.saved.model_card import ModelCard
from citeweave.encoders.saving import save_encoder
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.training.aspect_heads import PREFIX
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
    if options.parts != "heads" and (options.parts != "all" or options.frozen_layers):
        (folder / "delta").mkdir()
        own = [name for name in trained if not name.startswith(("language.", PREFIX))]
        save_delta(
            folder / "delta",
            model,
            start.settings,
            base=encoder.init,
            changed=own,
            kind=options.parts,
            card=card,
        )


def remember(weights: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Copies of the start model's weights, where some of them are wanted again; none where not."""
    own = {name: weight for name, weight in weights.items() if not name.startswith(PREFIX)}  # heads began at random
    return {name: weight.detach().clone() for name, weight in own.items()} if share else {}


def mix_with_start(weights: Mapping[str, Tensor], before: Mapping[str, Tensor], share: float) -> None:
    """Set every weight to share * start + (1 - share) * trained.

    >>> weights = {"w": torch.tensor([4.0])}
    >>> mix_with_start(weights, {"w": torch.tensor([2.0])}, 0.25)
    >>> weights["w"].item()
    3.5
    """
    with torch.no_grad():
        for name, start in before.items():
            weights[name].mul_(1 - share).add_(start, alpha=share)


def hardware(device: str) -> str:
    """What a run was computed on."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} threads"
