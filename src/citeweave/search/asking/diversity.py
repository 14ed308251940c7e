"""Answers that differ: maximal marginal relevance.

    scores   0.9  0.8  0.1      papers 0 and 1 are twins, 2 is about something else
    order    0    1    2        diversity 0
    order    0    2    1        diversity 0.6

    >>> twins = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    >>> diverse_order(np.array([0.9, 0.8, 0.1]), twins, 0.6).tolist()
    [0, 2, 1]

Does not choose the pool: the caller gives the best papers by score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TIMES, LEAST_POOL = 5, 50


def pool_size(count: int) -> int:
    """Papers among which `count` are chosen."""
    return max(TIMES * count, LEAST_POOL)


def diverse_order(
    scores: NDArray[np.floating[Any]], vectors: NDArray[np.floating[Any]], diversity: float, most: int | None = None
) -> NDArray[np.int64]:
    """Places of a pool (n,), the `most` best or all; vectors (n, dimension), rows of zeros where a paper has none.

    Carbonell and Goldstein, "The use of MMR, diversity-based reranking", SIGIR 1998: the next paper has the most of
    (1 - diversity) relevance - diversity x the greatest cosine to a paper before it. The relevance is the score, set to
    0 for the worst and 1 for the best of the pool, as scores of words and of vectors have other ranges. A paper without
    a vector is as near to those before it as the others are in the mean. Of equal papers the one with the higher place.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (n, 1)
    units = np.where(lengths > 0, vectors / np.maximum(lengths, 1e-12), 0.0)
    known = lengths[:, 0] > 0
    relevance, nearest = _scaled(np.asarray(scores, np.float64)), np.zeros(len(units))
    left, order = np.ones(len(units), bool), list[int]()
    for _ in range(len(units) if most is None else min(most, len(units))):
        penalty = nearest if not order else np.where(known, nearest, nearest[known].mean() if known.any() else 0.0)
        value = (1 - diversity) * relevance - diversity * penalty
        best = int(np.argmax(np.where(left, value, -np.inf)))
        cosines = units @ units[best]  # (n,)
        nearest = cosines if not order else np.maximum(nearest, cosines)
        left[best] = False
        order.append(best)
    return np.array(order, np.int64)


def _scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(scores):
        return scores
    low, high = float(scores.min()), float(scores.max())
    return (scores - low) / (high - low) if high > low else np.ones(len(scores))
