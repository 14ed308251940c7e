"""Layout of a map of papers: t-SNE of landmark papers, and all others placed beside them.

    xy, note = lay_out(vectors, seed=0)                     (landmarks, 2)
    place_others(vectors, landmarks, xy, keys)              (papers, 2)
    densest_place(xy)                                       where the label of a group stands

t-SNE as in `evaluation/paper_map.py`, started from the first two principal components or from the places of an earlier
map; with few papers, the principal components themselves. Groups are found in `map_groups.py`, labeled in `map_labels.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.hash_keys import Keys, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.paper_map import MIN_T_SNE_PAPERS, Floats, Plane, principal, run_t_sne
from citeweave.vectors.topk import nearest

NEIGHBORS = 5
"""Landmarks beside which every other paper is placed."""

SHARPNESS = 20.0
"""How much more the nearest landmark counts: a cosine that is 0.05 lower weighs 1 / e."""


class Layout(NamedTuple):
    """The layout of a map's landmarks: their places in the plane."""

    xy: Plane
    """(landmarks, 2)"""

    note: str
    """How they were placed."""


def lay_out(vectors: Floats, *, seed: int, start: Plane | None = None, reporter: Reporter = QUIET) -> Layout:
    """Lay out papers of a map in a plane by t-SNE of their unit vectors, (n, dimension), from `start`, (n, 2), if given."""
    if len(vectors) < MIN_T_SNE_PAPERS:
        return Layout(
            principal(vectors),
            f"The first two principal components, as {MIN_T_SNE_PAPERS} papers are the minimum for t-SNE.",
        )
    return Layout(run_t_sne(vectors, seed, start=start, reporter=reporter), "t-SNE of the vectors by cosine.")


def place_others(vectors: Floats, landmarks: Floats, xy: Plane, keys: Keys) -> Plane:
    """Lay out papers of a map beside the landmarks they are most similar to, (papers, 2), scattered by their keys."""
    if not len(vectors) or not len(landmarks):
        return np.zeros((len(vectors), 2))
    near = nearest(landmarks, vectors, min(NEIGHBORS, len(landmarks)))
    known = near.rows >= 0  # a landmark of zeros is near no paper
    scores = np.where(known, near.scores, -np.inf).astype(np.float64)  # (papers, neighbors)
    # a paper of zeros is similar to none: it goes to the middle
    best = np.where(known[:, :1], scores[:, :1], 0)
    weights = np.exp(SHARPNESS * (scores - best))
    total = weights.sum(axis=1, keepdims=True)  # (papers, 1)
    middle = (weights[:, :, None] * xy[near.rows]).sum(axis=1)  # (papers, 2)
    placed = np.divide(middle, total, out=np.tile(xy.mean(axis=0), (len(vectors), 1)), where=total > 0)
    return np.asarray(placed + _spacing(xy) * _directions(keys))


def _spacing(xy: Plane) -> float:
    """Estimate the distance of neighboring landmarks: an even spread over the area they cover."""
    width, height = np.percentile(xy, 98, axis=0) - np.percentile(xy, 2, axis=0)
    return 0.5 * math.sqrt(max(float(width * height), 0.0) / len(xy))


def _directions(keys: Keys) -> Plane:
    """Return a normal random number per axis, the same for the same key; (papers, 2)."""
    first, second = (
        (mix_keys(keys, np.full(len(keys), number, np.uint64)) >> np.uint64(11)) / 2.0**53 for number in (1, 2)
    )
    radius = np.sqrt(-2 * np.log1p(-first))  # Box and Muller (1958)
    return np.stack([radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)], axis=1)


def densest_place(xy: NDArray[Any], cells: int = 48) -> tuple[float, float]:
    """Return where a map's layout puts the name of a group: where most points lie; their mean may lie among other groups.

    >>> densest_place(np.array([[0, 0], [65535, 100], [65535, 200], [65535, 300]]))
    (65535.0, 200.0)
    """
    if not len(xy):
        return 0.0, 0.0
    cell = np.minimum(xy.astype(np.int64) * cells // 65536, cells - 1) + 1  # (points, 2), an empty row on every side
    counts = np.zeros((cells + 2, cells + 2), np.int64)
    np.add.at(counts, (cell[:, 0], cell[:, 1]), 1)
    around = sum(np.roll(counts, (right, down), (0, 1)) for right in (-1, 0, 1) for down in (-1, 0, 1))
    best = np.unravel_index(int(np.argmax(around)), counts.shape)
    x, y = xy[(np.abs(cell - np.array(best)) <= 1).all(axis=1)].mean(axis=0)
    return float(x), float(y)
