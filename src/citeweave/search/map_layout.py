"""Layout of a map of papers: t-SNE of landmark papers, all others placed beside them, and named groups.

    xy, note = lay_out(vectors, seed=0)                     (landmarks, 2)
    place_others(vectors, landmarks, xy, keys)              (papers, 2)
    centers = find_centers(vectors, 12, seed=0)             (groups, dimension)
    assign_groups(vectors, centers)                         (papers,): the group of each
    name_groups(titles, groups, 12)                         ["graph, neural, attention", ...]

t-SNE as in `evaluation/paper_map.py`, started from the first two principal components or from the places of an earlier
map; with few papers, the principal components themselves. Groups by spherical k-means (Dhillon and Modha, 2001) from
k-means++ (Arthur and Vassilvitskii, 2007), named by the title words with the highest c-TF-IDF (Grootendorst, 2022).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.hash_keys import Keys, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.evaluation.paper_map import MIN_T_SNE_PAPERS, Floats, Plane, principal, run_t_sne, unit
from citeweave.vectors.bm25 import words_of
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


# --- groups ----------------------------------------------------------------------------------------------

MIN_GROUPS, MAX_GROUPS = 4, 40
MIN_GROUP_PAPERS = 3
"""Average papers per group where there are few papers."""

_ROUNDS = 30
_NAME_WORDS = 3
_UNINFORMATIVE = frozenset(
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
    """Return how many groups the layout of a map of so many papers gets.

    >>> [count_groups(papers) for papers in (0, 2, 9, 200, 2000, 100_000)]
    [0, 1, 3, 5, 15, 40]
    """
    wanted = min(max(round(math.sqrt(papers) / 3), MIN_GROUPS), MAX_GROUPS)
    return min(wanted, max(papers // MIN_GROUP_PAPERS, min(papers, 1)))


def find_centers(vectors: Floats, groups: int, *, seed: int) -> Floats:
    """Find unit centers of the groups of a map's layout by spherical k-means; fewer where papers coincide."""
    centers = _initial_centers(vectors, groups, stream(seed, "map", "groups"))
    previous = None
    for _ in range(_ROUNDS):
        owners = assign_groups(vectors, centers)
        if previous is not None and np.array_equal(owners, previous):
            break
        previous = owners
        sums = np.zeros((len(centers), vectors.shape[1]), np.float64)
        np.add.at(sums, owners, vectors)
        full = np.bincount(owners, minlength=len(centers)) > 0
        centers = unit(sums[full & sums.any(axis=1)]) if sums.any() else centers
    return centers


def _initial_centers(vectors: Floats, groups: int, random: np.random.Generator) -> Floats:
    """Draw initial centers by k-means++: papers far from those drawn before are likelier."""
    chosen = [int(random.integers(len(vectors)))] if len(vectors) and groups else []
    far = np.full(len(vectors), np.inf)
    while chosen and len(chosen) < groups:
        far = np.minimum(far, np.maximum(0, 1 - vectors @ vectors[chosen[-1]]))  # (n,)
        far[far < 1e-6] = 0
        if not far.sum():
            break
        chosen.append(int(random.choice(len(vectors), p=far / far.sum())))
    return np.asarray(vectors[chosen], np.float32)


def assign_groups(vectors: Floats, centers: Floats) -> NDArray[np.uint8]:
    """Assign each paper to the group with the nearest center, (papers,)."""
    assert len(centers) < 256
    if not len(centers):
        return np.zeros(len(vectors), np.uint8)
    return np.asarray(np.argmax(vectors @ centers.T, axis=1), np.uint8)


def name_groups(titles: Sequence[str], owners: NDArray[Any], groups: int) -> list[str]:
    """Name each group of the map's layout by up to three words of its titles; empty for one without titles."""
    counts: list[Counter[str]] = [Counter() for _ in range(groups)]
    for title, owner in zip(titles, owners.tolist(), strict=True):
        counts[owner].update(word for word in set(words_of(title)) if _is_informative(word))
    totals: Counter[str] = sum(counts, Counter())
    average = totals.total() / max(groups, 1)
    return [_name_group(count, totals, average) for count in counts]


def _is_informative(word: str) -> bool:
    """Return whether a title word may name a group."""
    return len(word) > 2 and word not in _UNINFORMATIVE and not word.isdigit()


def _name_group(count: Counter[str], totals: Counter[str], average: float) -> str:
    """Return the title words of a group with the highest c-TF-IDF, without other forms of the same word."""
    ranked = sorted(count, key=lambda word: (-count[word] * math.log(1 + average / totals[word]), word))
    words: list[str] = []
    for word in ranked:
        if not any(_same_stem(word, other) for other in words):
            words.append(word)
        if len(words) == _NAME_WORDS:
            break
    return ", ".join(words)


def _same_stem(left: str, right: str) -> bool:
    """Return whether two title words are likely forms of one.

    >>> _same_stem("networks", "network"), _same_stem("learning", "learned"), _same_stem("cell", "cellular")
    (True, True, True)
    >>> _same_stem("protein", "process")
    False
    """
    stem = max(4, min(len(left), len(right)) - 3)
    return left[:stem] == right[:stem]
