"""Kendall's tau-b of many resamples at once: how often every item was drawn stands in for the items written out.

    >>> resampled_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]), np.array([[1, 1, 1, 1], [0, 2, 0, 1]])).round(4)
    array([0.6667, 1.    ])

Items are sorted and ranked once. Each resample then walks over them by their true number and counts, in a tree of partial
sums over the predicted ranks (Fenwick, Software: Practice and Experience 1994), how much of what came before is
predicted lower. Thirty-two resamples walk together. Counts are whole numbers: the result is SciPy's to the last bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

TOGETHER = 32
"""Resamples that walk over the items together."""


def resampled_tau(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """(resamples,) tau-b by whole weights (resamples, items); 0 where all true or all predicted numbers are equal."""
    return np.asarray(resampled_taus(truth, predicted[None], weights)[0])


def resampled_taus(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """(predictions, resamples) of several predictions of the same numbers, (predictions, items)."""
    if predicted.shape[1:] != truth.shape or truth.ndim != 1 or weights.shape[1:] != truth.shape:
        raise ValueError(f"numbers of shape {truth.shape} and {predicted.shape[1:]}, weights of shape {weights.shape}")
    if not (np.isfinite(truth).all() and np.isfinite(predicted).all()):
        raise ValueError("a number to be compared is not finite")
    order = np.argsort(truth, kind="stable")
    steps = np.flatnonzero(np.diff(truth[order], prepend=-np.inf, append=np.inf)).astype(np.int64)
    ranked = [np.unique(each[order], return_inverse=True)[1].astype(np.int64) for each in predicted]
    found = np.empty((len(predicted), len(weights)))
    for at in range(0, len(weights), TOGETHER):
        drawn = np.empty((len(order), len(weights[at : at + TOGETHER])), np.int32)
        _put_in_order(weights[at : at + TOGETHER], order, drawn)
        for row, ranks in enumerate(ranked):
            found[row, at : at + TOGETHER] = _taus(drawn, ranks, steps)
    return found


def _taus(drawn: NDArray[np.int32], ranks: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """tau-b of a few resamples, (items, resamples); the last steps are SciPy's, in its order."""
    in_order, same_truth, same_told = _count_pairs(drawn, ranks, steps, int(ranks.max(initial=-1)) + 1)
    size = drawn.sum(axis=0, dtype=np.int64)
    pairs = size * (size - 1) // 2
    parted = pairs - same_truth, pairs - same_told
    tell = (parted[0] > 0) & (parted[1] > 0)
    found = in_order / np.sqrt(np.where(tell, parted[0], 1)) / np.sqrt(np.where(tell, parted[1], 1))
    return np.where(tell, np.clip(found, -1.0, 1.0), 0.0)


@numba.njit(cache=True, nogil=True)
def _put_in_order(weights, order, drawn):  # type: ignore[no-untyped-def]
    for item in range(len(order)):
        for at in range(len(weights)):
            drawn[item, at] = np.int32(weights[at, order[item]])


@numba.njit(cache=True, nogil=True)
def _add(sums, counts):  # type: ignore[no-untyped-def]
    for at in range(len(sums)):
        sums[at] += counts[at]


@numba.njit(cache=True, nogil=True)
def _count_pairs(drawn, ranks, steps, names):  # type: ignore[no-untyped-def]
    """By resample: pairs in order less pairs out of order, pairs with the same truth, pairs with the same prediction."""
    width = drawn.shape[1]
    tree = np.zeros((names + 1, width), np.int32)
    each = np.zeros((names, width), np.int32)  # of each predicted rank
    before = np.zeros(width, np.int32)
    lower = np.zeros(width, np.int32)
    now = np.zeros(width, np.int32)
    in_order, same_truth, same_told = np.zeros(width, np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64)
    for step in range(len(steps) - 1):
        for item in range(steps[step], steps[step + 1]):
            lower[:] = 0
            node = ranks[item]
            while node > 0:
                _add(lower, tree[node])
                node -= node & -node
            equal, own = each[ranks[item]], drawn[item]
            for at in range(width):
                in_order[at] += np.int64(own[at]) * (2 * np.int64(lower[at]) + equal[at] - before[at])
        now[:] = 0
        for item in range(steps[step], steps[step + 1]):
            own = drawn[item]
            node = ranks[item] + 1
            while node <= names:
                _add(tree[node], own)
                node += node & -node
            _add(each[ranks[item]], own)
            _add(now, own)
        for at in range(width):
            same_truth[at] += np.int64(now[at]) * (now[at] - 1) // 2
            before[at] += now[at]
    for rank in range(names):
        for at in range(width):
            same_told[at] += np.int64(each[rank, at]) * (each[rank, at] - 1) // 2
    return in_order, same_truth, same_told
