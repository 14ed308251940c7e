"""What one run does: an object of `runs.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.errors import UserError

BASE = {"cite:p": 1.0, "cosent:p": 0.5, "cite:e": 0.5, "title:acl": 1.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """The defaults are the run `base` of docs/weave.md."""

    name: str
    mix: Mapping[str, float] = field(default_factory=lambda: dict(BASE))
    """Signal -> its share of the pairs."""

    batch: int = 512
    steps: int = 200
    temperature: float = 0.05
    rate: float = 5e-5
    warmup: float = 0.1
    cut: int = 256
    """Tokens of a text in training."""

    masked: bool = True
    """Relatives are no negatives."""

    same_side: bool = False
    """The other left papers are negatives of a left paper too."""

    grouped: bool = False
    """All pairs of a batch are of one corpus."""

    topical: int = 0
    """So many times the pairs are drawn, and the batch is a stretch of them along a random direction."""

    hard: int = 0
    """Further negatives of every left paper: near ones by the start model."""

    hard_band: tuple[int, int] = (20, 100)
    distill: float = 0.0
    """Weight of imitating the start model's cosines."""

    graph: float = 0.0
    """Weight of imitating neighbours by reference lists."""

    parts: str = "all"
    micro_tokens: int = 250_000
    """Tokens that the network reads at a time."""

    shares: tuple[float, ...] = (0.0, 0.4)
    """Shares of the start's weights that are judged."""

    probes: tuple[float, ...] = ()
    """Those shares that the slow tasks judge too: field, year, citations."""

    seeds: tuple[int, ...] = (0,)


def plan_of(given: Mapping[str, Any]) -> Plan:
    """
    >>> plan_of({"name": "t03", "temperature": 0.03}).temperature
    0.03
    """
    known = [each.name for each in dataclasses.fields(Plan)]
    unknown = sorted(set(given) - set(known))
    if unknown or "name" not in given:
        problem = f"a run has the key {unknown[0]!r}" if unknown else "a run has no name"
        raise UserError(f"{problem}; keys of a run are {', '.join(known)}, and `name` must be there")
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}
    return Plan(**values)


def read_plans(path: Path) -> Sequence[Plan]:
    """The runs of a file: a JSON list of objects."""
    return [plan_of(each) for each in json.loads(path.read_text())]
