"""Places of papers in a plane: t-SNE of some of them, the landmarks, and every other paper beside those it is like.

    xy, note = lay_out(vectors, seed=0)                     (landmarks, 2)
    place_others(vectors, landmarks, xy, keys)              (papers, 2)

t-SNE (van der Maaten and Hinton, JMLR 2008) by openTSNE on exact nearest neighbours by cosine, begun from the first two
principal components (Kobak and Berens, Nature Communications 2019) or from the places of an earlier map. Nearness means
something; axes, distances between far groups and the size of groups do not. Without openTSNE, or with few papers, the
principal components themselves are the map.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import MissingExtraError
from citeweave.extras import require
from citeweave.hashing import Keys, mix
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream
from citeweave.similarity.nearest import nearest

FEWEST = 20
"""Fewer papers have no neighbourhoods that t-SNE could keep."""

PERPLEXITY, NEIGHBOURS = 30, 5
"""Of t-SNE; and landmarks beside which another paper is placed."""

SHARPNESS = 20.0
"""How much more the nearest landmark counts: a cosine that is 0.05 less weighs 1 / e."""

_EARLY, _LATE, _AGAIN, _STEP = 250, 500, 250, 50
"""Iterations with exaggeration and without; those of a map that goes on from another; how often progress is told."""

_MANY = 1000
"""Papers from which on several cores are of use."""

Floats = NDArray[np.float32]
Plane = NDArray[np.float64]


class Layout(NamedTuple):
    """Landmarks in the plane."""

    xy: Plane
    """(landmarks, 2)"""

    note: str
    """How they were placed."""


def unit(vectors: NDArray[Any]) -> Floats:
    """Rows of length 1; zeros stay zeros."""
    wide = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)  # (n, 1)
    return np.asarray(np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0))


def lay_out(vectors: Floats, *, seed: int, start: Plane | None = None, reporter: Reporter = QUIET) -> Layout:
    """Places for papers by their vectors of length 1, (n, dimension); from the places `start`, (n, 2), where given."""
    if len(vectors) < FEWEST:
        return Layout(
            _principal(vectors), f"The first two principal components, as {FEWEST} papers are the least for t-SNE."
        )
    try:
        opentsne = require("openTSNE", extra="plots")
    except MissingExtraError as error:
        return Layout(_principal(vectors), f"The first two principal components, as {error}.")
    return Layout(_tsne(opentsne, vectors, seed, start, reporter), "t-SNE of the vectors by cosine.")


def _principal(vectors: Floats) -> Plane:
    """(n, 2): the first two principal components; each axis points so that its largest weight is positive."""
    if not len(vectors):
        return np.zeros((0, 2))
    wide = np.pad(vectors, ((0, 0), (0, max(0, 2 - vectors.shape[1])))).astype(np.float64)
    centred = wide - wide.mean(axis=0)
    axes = np.linalg.eigh(centred.T @ centred).eigenvectors[:, :-3:-1]  # (dimension, 2), the widest first
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1, 1)
    return np.asarray(centred @ axes)


def _tsne(opentsne: Any, vectors: Floats, seed: int, start: Plane | None, reporter: Reporter) -> Plane:
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    found = nearest(vectors, vectors, math.floor(3 * perplexity), itself=np.arange(len(vectors)))
    distances = np.sqrt(np.maximum(0, 2 - 2 * found.scores.astype(np.float64)))  # (n, neighbours)
    index = require("openTSNE.nearest_neighbors", extra="plots").PrecomputedNeighbors(found.rows, distances)
    workers = -1 if len(vectors) >= _MANY else 1  # the map is the same with any number
    affinities = opentsne.affinity.PerplexityBasedNN(knn_index=index, perplexity=perplexity, n_jobs=workers)
    shaken = stream(seed, "map", "start").normal(size=(len(vectors), 2))  # papers on one spot would never part
    if start is None:
        xy = _principal(vectors)
        begin, early, late = 1e-4 * (xy / (xy[:, 0].std() or 1.0) + 0.01 * shaken), _EARLY, _LATE
    else:
        begin, early, late = start + 1e-3 * shaken, 0, _AGAIN
    with reporter.task("mapping", total=early + late, unit="steps") as advance:
        tsne = opentsne.TSNE(
            perplexity=perplexity,
            initialization=begin,
            early_exaggeration_iter=early,
            n_iter=late,
            n_jobs=workers,
            random_state=seed,
            callbacks=lambda *_: advance(_STEP),
            callbacks_every_iters=_STEP,
        )
        with _silent("openTSNE.tsne"):
            return np.asarray(tsne.fit(affinities=affinities), np.float64)


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """It warns of a start with wide distances, which is what is wanted when a map goes on from another."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


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
