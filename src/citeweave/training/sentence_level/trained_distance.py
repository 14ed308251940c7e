"""The distance between papers that losses on sentences train: what a model trained with them should be judged by.

>>> trained_distance({"aligned_triplet": {"metric": "l2"}})
TrainedDistance(name='single', metric='l2', temperature=1.0, mode='exact')
>>> trained_distance({"in_batch": {}}) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainedDistance:
    """A name of `similarity.transport.DISTANCES` and its settings."""

    name: str
    metric: str
    temperature: float = 1.0
    mode: str = "exact"


def trained_distance(losses: Mapping[str, Mapping[str, Any]]) -> TrainedDistance | None:
    """The distance of a recipe's losses; None where none of them reads sentences."""
    if (settings := losses.get("sentence_triplet")) is not None:
        return TrainedDistance(settings["distance"], settings["metric"], settings["temperature"], settings["mode"])
    if (settings := losses.get("aligned_triplet")) is not None:  # without contexts the nearest pair of sentences counts
        return TrainedDistance("single", settings["metric"])
    if (settings := losses.get("sentence_in_batch")) is not None:
        return TrainedDistance(settings["match"], "cosine", settings["sharpness"])
    return None
