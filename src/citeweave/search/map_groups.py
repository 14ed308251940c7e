"""Groups of similar papers on a map, as many as the library's variety supports.

    centers = find_centers(vectors, seed=0)                 (groups, dimension)
    assign_groups(vectors, centers)                         (papers,): the group of each

A tree of the papers by Ward's method (1963) is cut into 2, 3, 4, ... groups. Each cut is measured by its mean silhouette
(Rousseeuw, 1987) above that of the same tree of random vectors with the same mean and covariance, which have no groups: the
reference of the gap statistic (Tibshirani, Walther and Hastie, 2001). The fewest groups that come within a tenth, or within
one standard error, of the best are taken, so a narrow library gets few groups and a varied one many, whatever its size.
Their centers are then moved by spherical k-means (Dhillon and Modha, 2001). Does not name groups: see `map_labels.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.randomness import stream
from citeweave.evaluation.paper_map import Floats, unit

MAX_GROUPS = 40
MIN_GROUP_PAPERS = 3
"""Average papers per group where there are few papers."""

TREE_PAPERS = 2000
"""Papers from which the tree is made; those of a larger library are a random sample."""

TOLERANCE = 0.1
"""Share of the best gap that fewer groups may fall behind."""

_ROUNDS = 30


def find_centers(vectors: Floats, *, seed: int) -> Floats:
    """Find unit centers of the groups of a map's papers, (groups, dimension); their number follows from the vectors.

    >>> len(find_centers(np.repeat(np.eye(6, dtype=np.float32), 5, axis=0), seed=0))
    6
    """
    if not vectors.any():
        return np.zeros((min(len(vectors), 1), vectors.shape[1]), np.float32)
    sample = vectors
    if len(vectors) > TREE_PAPERS:
        sample = vectors[np.sort(stream(seed, "map", "tree").choice(len(vectors), TREE_PAPERS, replace=False))]
    cuts = _cut_tree(sample, _sizes(len(sample)))
    centers = _centers_of(sample, cuts[_best_cut(sample, cuts, seed)])
    return _move_centers(vectors, centers)


def assign_groups(vectors: Floats, centers: Floats) -> NDArray[np.uint8]:
    """Assign each paper to the group with the nearest center, (papers,)."""
    assert len(centers) < 256
    if not len(centers):
        return np.zeros(len(vectors), np.uint8)
    return np.asarray(np.argmax(vectors @ centers.T, axis=1), np.uint8)


def _sizes(papers: int) -> list[int]:
    """Return the numbers of groups to try, in steps of about a tenth.

    >>> _sizes(9), _sizes(1000)[-8:]
    ([1, 2, 3], [22, 24, 26, 28, 30, 33, 36, 39])
    """
    sizes = [1]
    while sizes[-1] < min(MAX_GROUPS, papers // MIN_GROUP_PAPERS):
        sizes.append(sizes[-1] + max(1, sizes[-1] // 10))
    return [size for size in sizes if size <= MAX_GROUPS]


def _cut_tree(vectors: Floats, sizes: list[int]) -> list[NDArray[np.int64]]:
    """Return the group of every paper, (papers,), for each number of groups, by Ward's method."""
    from scipy.cluster.hierarchy import cut_tree, ward
    from scipy.spatial.distance import squareform

    if len(vectors) < 2:
        return [np.zeros(len(vectors), np.int64) for _ in sizes]
    square = np.maximum(0, 2 - 2 * (vectors @ vectors.T)).astype(np.float64)  # (papers, papers)
    np.fill_diagonal(square, 0)
    owners = cut_tree(ward(squareform(np.sqrt(square), checks=False)), n_clusters=sizes)  # (papers, sizes)
    # papers that joined early may by now be nearer to another group
    return [_renumber(assign_groups(vectors, _centers_of(vectors, column))) for column in owners.T]


def _renumber(owners: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(np.unique(owners, return_inverse=True)[1], np.int64)


def _best_cut(vectors: Floats, cuts: list[NDArray[np.int64]], seed: int) -> int:
    """Return the position of the first cut whose gap in silhouette is about as large as the largest."""
    sizes = [int(owners.max()) + 1 for owners in cuts]
    random = _without_groups(vectors, stream(seed, "map", "random"))
    silhouettes = [_silhouettes(vectors, owners) for owners in cuts]
    expected = [_silhouettes(random, owners).mean() for owners in _cut_tree(random, sizes)]
    gaps = np.array([own.mean() for own in silhouettes]) - expected
    best = int(np.argmax(gaps))
    error = silhouettes[best].std() / math.sqrt(len(vectors))
    return int(np.argmax(gaps >= gaps[best] - max(error, TOLERANCE * gaps[best])))


def _without_groups(vectors: Floats, random: np.random.Generator) -> Floats:
    """Return normal random vectors with the mean and covariance of some papers' vectors, at length 1."""
    middle = vectors.mean(axis=0)
    mixture = random.standard_normal((len(vectors), len(vectors)), np.float32) / math.sqrt(len(vectors))
    return unit(middle + mixture @ (vectors - middle))


def _silhouettes(vectors: Floats, owners: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each paper's silhouette by cosine distance, (papers,): 0 for all in one group and for one alone in its group.

    >>> _silhouettes(np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32), np.array([0, 0, 1, 1])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    each, sizes = np.arange(len(vectors)), np.bincount(owners)
    if len(sizes) < 2:
        return np.zeros(len(vectors))
    distances = sizes - vectors.astype(np.float64) @ _sums(vectors, owners).T  # (papers, groups), summed
    own = distances[each, owners] / np.maximum(sizes[owners] - 1, 1)
    means = distances / sizes
    means[each, owners] = np.inf
    other = means.min(axis=1)
    widest = np.maximum(own, other)
    known = (sizes[owners] > 1) & (widest > 0)
    return np.asarray(np.divide(other - own, widest, out=np.zeros(len(vectors)), where=known))


def _sums(vectors: Floats, owners: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of the vectors of each group, (groups, dimension)."""
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], np.unique(owners))
    return np.asarray(np.add.reduceat(vectors[order].astype(np.float64), starts, axis=0))


def _centers_of(vectors: Floats, owners: NDArray[Any]) -> Floats:
    """Return the unit centers of the groups that have one; papers of zeros point nowhere."""
    sums = _sums(vectors, owners)
    return unit(sums[sums.any(axis=1)])


def _move_centers(vectors: Floats, centers: Floats) -> Floats:
    """Move the centers of groups to the middle of the papers nearest to them until none changes its group."""
    previous = None
    for _ in range(_ROUNDS):
        owners = assign_groups(vectors, centers)
        if previous is not None and np.array_equal(owners, previous):
            break
        previous, centers = owners, _centers_of(vectors, owners)
    return centers
