"""Places of papers in a plane: t-SNE of some of them, the landmarks, and every other paper beside those it is like.

    xy, note = lay_out(vectors, seed=0)                     (landmarks, 2)
    place_others(vectors, landmarks, xy, keys)              (papers, 2)

t-SNE as in `evaluation/reporting/paper_map.py`, begun from the first two principal components or from the places of an
earlier map. With few papers, the principal components themselves are the map.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.reporting.paper_map import FEWEST, Floats, Plane, principal, t_sne, unit
from citeweave.hashing import Keys, mix
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.topk import nearest

NEIGHBOURS = 5
"""Landmarks beside which another paper is placed."""

__all__ = ["FEWEST", "Floats", "Layout", "Plane", "densest", "lay_out", "place_others", "unit"]

SHARPNESS = 20.0
"""How much more the nearest landmark counts: a cosine that is 0.05 less weighs 1 / e."""


class Layout(NamedTuple):
    """Landmarks in the plane."""

    xy: Plane
    """(landmarks, 2)"""

    note: str
    """How they were placed."""


def lay_out(vectors: Floats, *, seed: int, start: Plane | None = None, reporter: Reporter = QUIET) -> Layout:
    """Places for papers by their vectors of length 1, (n, dimension); from the places `start`, (n, 2), where given."""
    if len(vectors) < FEWEST:
        return Layout(
            principal(vectors), f"The first two principal components, as {FEWEST} papers are the least for t-SNE."
        )
    return Layout(t_sne(vectors, seed, start=start, reporter=reporter), "t-SNE of the vectors by cosine.")


def place_others(vectors: Floats, landmarks: Floats, xy: Plane, keys: Keys) -> Plane:
    """Places of papers beside the landmarks that they are most like, (papers, 2), a little apart by their keys."""
    if not len(vectors) or not len(landmarks):
        return np.zeros((len(vectors), 2))
    found = nearest(landmarks, vectors, min(NEIGHBOURS, len(landmarks)))
    known = found.rows >= 0  # a landmark of zeros is near nobody
    scores = np.where(known, found.scores, -np.inf).astype(np.float64)  # (papers, neighbours)
    # a paper of zeros is like none: it goes to the middle
    best = np.where(known[:, :1], scores[:, :1], 0)
    weights = np.exp(SHARPNESS * (scores - best))
    total = weights.sum(axis=1, keepdims=True)  # (papers, 1)
    middle = (weights[:, :, None] * xy[found.rows]).sum(axis=1)  # (papers, 2)
    placed = np.divide(middle, total, out=np.tile(xy.mean(axis=0), (len(vectors), 1)), where=total > 0)
    return np.asarray(placed + _spacing(xy) * _directions(keys))


def _spacing(xy: Plane) -> float:
    """How far apart neighbouring landmarks lie, about: an even spread over the area they cover."""
    width, height = np.percentile(xy, 98, axis=0) - np.percentile(xy, 2, axis=0)
    return 0.5 * math.sqrt(max(float(width * height), 0.0) / len(xy))


def _directions(keys: Keys) -> Plane:
    """A normal number for each axis, the same for the same key; (papers, 2)."""
    first, second = ((mix(keys, np.full(len(keys), number, np.uint64)) >> np.uint64(11)) / 2.0**53 for number in (1, 2))
    radius = np.sqrt(-2 * np.log1p(-first))  # Box and Muller (1958)
    return np.stack([radius * np.cos(2 * np.pi * second), radius * np.sin(2 * np.pi * second)], axis=1)


def densest(xy: NDArray[Any], cells: int = 48) -> tuple[float, float]:
    """The place where most of some points lie, for a name: the middle may lie among others' points.

    >>> densest(np.array([[0, 0], [65535, 100], [65535, 200], [65535, 300]]))
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
