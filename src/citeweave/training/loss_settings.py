"""The losses that a recipe may name, with the settings that each of them takes; plain values, no torch.

    [training.losses.supcon]
    weight = 0.7
    temperature = 0.05

`losses/` has the formulas, `objective.py` says which vectors each of them gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "triplet": {"margin": 1.0, "distance": "l2"},
    "n_pairs": {"temperature": 0.05, "similarity": "cosine"},
    "supcon": {"temperature": 0.05, "scope": "own", "relatives": True, "negatives_by": ""},
    "info_nce": {"temperature": 0.1},
    "in_batch": {"temperature": 0.05, "relatives": True, "negatives_by": ""},
    "aspect_supcon": {"temperature": 0.05, "scope": "own", "relatives": True, "negatives_by": ""},
    "aspect_in_batch": {"temperature": 0.05, "relatives": True, "negatives_by": ""},
    "cosent": {"scale": 20.0},
    "angle": {"scale": 20.0},
    "angle_sum": {"scale": 20.0, "cosine": 1.0, "in_batch": 1.0, "angle": 1.0, "relatives": True},
    "gte": {"temperature": 0.01, "relatives": True},
    "student_teacher": {},
    "mlm": {"share": 0.15},
    "aligned_triplet": {"margin": 1.0, "metric": "l2", "negatives": "batch", "relatives": True},
    "sentence_triplet": {
        "margin": 1.0,
        "distance": "transport",
        "metric": "l2",
        "temperature": 0.5,
        "mode": "exact",
        "negatives": "batch",
        "relatives": True,
    },
    "sentence_in_batch": {
        "match": "mean_best",
        "sharpness": 0.05,
        "temperature": 0.05,
        "facets": 0.0,
        "whole": 0.0,
        "relatives": True,
    },
}
"""Every loss with the settings it takes and their defaults; each also takes `weight`, 1.0. See `objective.py`.

`negatives_by` names rules of `[mining.negatives]`, with a comma between them, whose picks alone count; empty = all."""

SENTENCE_LOSSES = ("aligned_triplet", "sentence_triplet", "sentence_in_batch")
"""Losses that read a vector of every sentence."""

ASPECT = "aspect_"
"""Losses of this prefix act in the space of each group's aspect: see `aspect_heads.py`."""

BATCH_LOSSES = ("in_batch", "aspect_in_batch", "gte", "sentence_in_batch", "student_teacher", "mlm")
"""Losses that find their negatives in the batch."""

NEGATIVES = ("own", "batch")
"""Where losses on triplets of sentences take their negatives from."""


def rules_of(settings: Mapping[str, Any]) -> list[str]:
    """Names of the rules whose negatives alone a loss takes; none = all.

    >>> rules_of({"negatives_by": "local, easy"}), rules_of({})
    (['local', 'easy'], [])
    """
    return [name.strip() for name in settings.get("negatives_by", "").split(",") if name.strip()]
