"""The plan of a training run: what is trained, how, and what its card says beside that. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from citeweave.training.options import EncoderOptions, TrainingOptions


@dataclass(frozen=True, slots=True)
class About:
    """What the model's card says beside what training knows itself."""

    recipe: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    held_out: str = ""
    audit: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained, and how."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    about: About = field(default_factory=About)
