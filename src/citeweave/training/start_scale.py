"""Scale of the start model: its mean L2 distance between random texts, by which triplet losses may divide.

A margin of 1 or a temperature of 0.5 means something only beside the distances of the start model, and those differ: two
random papers are about 1 apart by vectors of length 1, and 10 or more by the states of a BERT. With
`training.scale_by = "start"` the L2 distances of `triplet`, `sentence_triplet` and `aligned_triplet` are divided by

    papers       the mean distance of two random papers of the training samples
    sentences    the mean distance of two random sentences of different papers, for losses on sentences

so that margins, temperatures and the entropy of transport are in units of it. Measured once, before the first step; the
saved model is not scaled.

>>> mean_distance(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0], [3.0, 6.0]]))  # (5 + 2 + 6.71 + 3.61 + 2 + 5) / 6
4.05
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.training.data import Numbers, TrainingData, paper_rows

PAPERS = 1000
"""Number of random papers of which all pairs are measured."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Mean distances under the start model by which a loss divides its own; 1 = not at all."""

    papers: float = 1.0
    sentences: float = 1.0


def measure_scales(data: TrainingData, encode: Callable[[Numbers], NDArray[np.float32]]) -> Scales:
    """Measure the start model's mean distance of random papers, and of random sentences where the data has them.

    `encode` returns the rows of papers, laid out by `paper_rows`. The papers do not depend on the seed of the training.
    """
    draw = stream(0, "training", "start scale")
    papers = np.sort(draw.permutation(np.unique(data.groups.papers()))[:PAPERS])
    rows, layout = encode(papers), paper_rows(data.sentences, papers)  # (rows, dimension)
    scales = {"papers": mean_distance(rows[layout.own])}
    if data.sentences is not None:
        own = np.flatnonzero(layout.counts)  # one sentence of every paper that has some
        chosen = layout.own[own] + 1 + draw.integers(layout.counts[own])
        scales["sentences"] = mean_distance(rows[chosen])
    for name, distance in scales.items():
        if not 0 < distance < np.inf:
            raise UserError(
                f"training.scale_by is 'start', and the mean distance of {name} under the start model is {distance:g}; "
                "leave it out, or choose another start model"
            )
    return Scales(**scales)


def mean_distance(vectors: NDArray[np.floating]) -> float:
    """Return the mean L2 distance of all pairs of vectors (n, dimension), 0 for a single one.

    Rounded to three digits: more would differ between processors.
    """
    points = np.asarray(vectors, np.float64)
    squares = (points**2).sum(axis=1)  # (n,)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0))  # (n, n)
    np.fill_diagonal(distances, 0)
    return float(f"{distances.sum() / max(1, len(points) * (len(points) - 1)):.3g}")
