"""Places of papers in a plane: t-SNE of some of them, the landmarks, and every other paper beside those it is like.

    xy, note = lay_out(vectors, seed=0)                     (landmarks, 2)
    place_others(vectors, landmarks, xy, keys)              (papers, 2)

t-SNE as in `evaluation/paper_map.py`, begun from the first two principal components or from the places of an
earlier map. With few papers, the principal components themselves are the map.

Groups of papers by their vectors, named by the words of their titles.

    centers = find_centers(vectors, 12, seed=0)      (groups, dimension)
    assign(vectors, centers)                         (papers,): the group of each
    name_groups(titles, groups, 12)                  ["graph, neural, attention", ...]

Spherical k-means (Dhillon and Modha, 2001) from k-means++ (Arthur and Vassilvitskii, 2007). A name is made of the words
with the highest c-TF-IDF (Grootendorst, 2022). Does not decide how many groups there are: `count_groups` only guesses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys, mix, stream
from citeweave.evaluation.paper_map import (
    FEWEST,
    Floats,
    Plane,
    principal,
    t_sne,
    unit,
)
from citeweave.vectors.bm25 import words_of
from citeweave.vectors.topk import nearest

NEIGHBORS = 5
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
    found = nearest(landmarks, vectors, min(NEIGHBORS, len(landmarks)))
    known = found.rows >= 0  # a landmark of zeros is near nobody
    scores = np.where(known, found.scores, -np.inf).astype(np.float64)  # (papers, neighbors)
    # a paper of zeros is like none: it goes to the middle
    best = np.where(known[:, :1], scores[:, :1], 0)
    weights = np.exp(SHARPNESS * (scores - best))
    total = weights.sum(axis=1, keepdims=True)  # (papers, 1)
    middle = (weights[:, :, None] * xy[found.rows]).sum(axis=1)  # (papers, 2)
    placed = np.divide(middle, total, out=np.tile(xy.mean(axis=0), (len(vectors), 1)), where=total > 0)
    return np.asarray(placed + _spacing(xy) * _directions(keys))


def _spacing(xy: Plane) -> float:
    """How far apart neighboring landmarks lie, about: an even spread over the area they cover."""
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


# Groups of papers by their vectors, named by the words of their titles.

FEWEST_GROUPS, MOST_GROUPS = 4, 40
PAPERS_A_GROUP = 3
"""Where there are few papers, so many make a group."""

_ROUNDS = 30
_NAME_WORDS = 3
_PLAIN = frozenset(
    words_of(
        "using use used uses based via towards toward from through new novel study studies analysis approach approaches "
        "between during how what why when which who where its it's we our can do does than under over across between "
        "method methods model models improved improving effect effects role without within among more less one two "
        "first toward case beyond only both all does has have be been via s t et al non multi la le de des les et du "
        "der die das und von el en los"
    )
)
"""Words that say little in the title of a paper."""


def count_groups(papers: int) -> int:
    """How many groups so many papers make on a map.

    >>> [count_groups(papers) for papers in (0, 2, 9, 200, 2000, 100_000)]
    [0, 1, 3, 5, 15, 40]
    """
    wanted = min(max(round(math.sqrt(papers) / 3), FEWEST_GROUPS), MOST_GROUPS)
    return min(wanted, max(papers // PAPERS_A_GROUP, min(papers, 1)))


def find_centers(vectors: Floats, groups: int, *, seed: int) -> Floats:
    """Middles of so many groups of vectors of length 1, each of length 1; fewer where papers are alike."""
    centers = _spread_out(vectors, groups, stream(seed, "map", "groups"))
    known = None
    for _ in range(_ROUNDS):
        owners = assign(vectors, centers)
        if known is not None and np.array_equal(owners, known):
            break
        known = owners
        sums = np.zeros((len(centers), vectors.shape[1]), np.float64)
        np.add.at(sums, owners, vectors)
        full = np.bincount(owners, minlength=len(centers)) > 0
        centers = unit(sums[full & sums.any(axis=1)]) if sums.any() else centers
    return centers


def _spread_out(vectors: Floats, groups: int, random: np.random.Generator) -> Floats:
    """k-means++: papers far from those chosen before are likelier to be chosen."""
    chosen = [int(random.integers(len(vectors)))] if len(vectors) and groups else []
    far = np.full(len(vectors), np.inf)
    while chosen and len(chosen) < groups:
        far = np.minimum(far, np.maximum(0, 1 - vectors @ vectors[chosen[-1]]))  # (n,)
        far[far < 1e-6] = 0
        if not far.sum():
            break
        chosen.append(int(random.choice(len(vectors), p=far / far.sum())))
    return np.asarray(vectors[chosen], np.float32)


def assign(vectors: Floats, centers: Floats) -> NDArray[np.uint8]:
    """The group whose middle is nearest, (papers,)."""
    assert len(centers) < 256
    if not len(centers):
        return np.zeros(len(vectors), np.uint8)
    return np.asarray(np.argmax(vectors @ centers.T, axis=1), np.uint8)


def name_groups(titles: Sequence[str], owners: NDArray[Any], groups: int) -> list[str]:
    """Two or three words for each group; empty for one without titles."""
    counts: list[Counter[str]] = [Counter() for _ in range(groups)]
    for title, owner in zip(titles, owners.tolist(), strict=True):
        counts[owner].update(word for word in set(words_of(title)) if _tells(word))
    every: Counter[str] = sum(counts, Counter())
    average = every.total() / max(groups, 1)
    return [_name(count, every, average) for count in counts]


def _tells(word: str) -> bool:
    """Whether a word may stand in a name."""
    return len(word) > 2 and word not in _PLAIN and not word.isdigit()


def _name(count: Counter[str], every: Counter[str], average: float) -> str:
    """The words with the highest c-TF-IDF, none of them another form of one before."""
    weighed = sorted(count, key=lambda word: (-count[word] * math.log(1 + average / every[word]), word))
    words: list[str] = []
    for word in weighed:
        if not any(_same_stem(word, other) for other in words):
            words.append(word)
        if len(words) == _NAME_WORDS:
            break
    return ", ".join(words)


def _same_stem(left: str, right: str) -> bool:
    """Whether two words are likely forms of one.

    >>> _same_stem("networks", "network"), _same_stem("learning", "learned"), _same_stem("cell", "cellular")
    (True, True, True)
    >>> _same_stem("protein", "process")
    False
    """
    stem = max(4, min(len(left), len(right)) - 3)
    return left[:stem] == right[:stem]
