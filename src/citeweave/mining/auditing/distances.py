"""How near each rule's picks are to their anchors: the scores that rules gave, and cosines of any vectors.

    distances = measure_distances(samples, material)
    distances["graph"].quantiles("hard")         {"5 %": 0.02, "25 %": 0.11, "50 %": 0.17, ...}

Large sets are measured on a part of each rule's picks, drawn by a key of their place, so the figures do not depend
on blocks or workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.mining.auditing.pick_blocks import PickBlock, walk
from citeweave.mining.drawing import Lists
from citeweave.mining.material import Material
from citeweave.mining.samples import Samples
from citeweave.mining.sources import Block
from citeweave.mining.vector_sources import similarities

SCORES = "score"
"""The name of what rules ranked by; all others are names of vectors."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Distances:
    """Measured values by rule, for one meaning of near; higher is nearer."""

    name: str
    values: dict[str, NDArray[np.float32]]
    """By rule, positives first; only rules with a value."""

    missing: dict[str, int]
    """By rule: measured picks without a value, as one of the papers has no vector or the rule did not rank."""

    def quantiles(self, rule: str) -> dict[str, float]:
        found = np.quantile(self.values[rule].astype(np.float64), QUANTILES).tolist()
        return {f"{100 * at:g} %": value for at, value in zip(QUANTILES, found, strict=True)}

    def histogram(self, rule: str, bins: int = 40) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Counts and edges. Cosines of all rules share their edges; scores mean something else from rule to rule."""
        values = [self.values[rule]] if self.name == SCORES else list(self.values.values())
        edges = np.histogram_bin_edges(np.concatenate(values).astype(np.float64), bins)
        return np.histogram(self.values[rule], edges)[0], edges

    def as_json(self) -> dict[str, Any]:
        rules = {}
        for rule, values in self.values.items():
            counts, edges = self.histogram(rule)
            rules[rule] = {
                "measured": len(values),
                "missing": self.missing.get(rule, 0),
                "mean": float(values.mean(dtype=np.float64)),
                "quantiles": self.quantiles(rule),
                "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
            }
        return rules


def measure_distances(samples: Samples, material: Material, *, most: int = 200_000) -> dict[str, Distances]:
    """Scores and, for every vectors given, cosines; of about `most` picks a rule."""
    found = {name: _Values() for name in (SCORES, *sorted(material.vectors))}
    for side in ("positives", "negatives"):
        rules = getattr(samples, side).rules
        counts = np.bincount(rules, minlength=len(samples.names.rules))
        for block in walk(samples, side):
            chosen = block.draw(np.minimum(1.0, most / np.maximum(counts, 1)))
            names = block.rules[chosen]
            found[SCORES].add(names, block.scores[chosen])
            for name in material.vectors:
                found[name].add(names, _cosines(block, chosen, name, material))
    made = {name: values.as_distances(name, samples.names.rules) for name, values in found.items()}
    return {name: distances for name, distances in made.items() if distances.values}


def _cosines(block: PickBlock, chosen: NDArray[np.int64], name: str, material: Material) -> NDArray[np.float32]:
    lists = Lists(np.arange(len(chosen) + 1), block.rows[chosen].astype(np.int32), np.zeros(len(chosen), np.float32))
    return similarities(lists, Block(block.anchors[chosen], material), material.tied(name))


class _Values:
    """Values as they are found, in pieces."""

    def __init__(self) -> None:
        self.rules: list[NDArray[np.uint8]] = []
        self.values: list[NDArray[np.float32]] = []

    def add(self, rules: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
        self.rules.append(rules)
        self.values.append(values)

    def as_distances(self, name: str, names: tuple[str, ...]) -> Distances:
        rules = np.concatenate([np.zeros(0, np.uint8), *self.rules])
        values = np.concatenate([np.zeros(0, np.float32), *self.values])
        known, missing = {}, {}
        for number in np.unique(rules).tolist():
            own = values[rules == number]
            good = own[np.isfinite(own)]
            missing[names[number]] = len(own) - len(good)
            if len(good):
                known[names[number]] = good
        return Distances(name, known, missing)
