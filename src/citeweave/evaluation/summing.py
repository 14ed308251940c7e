"""Sums of distances: `mean_best+token_best`.

Each part's scores are standardised within a query's candidates, to mean 0 and deviation 1, and then added: z-scores, which
sum well whatever scale a distance has (Montague and Aslam, SIGIR 2001, ZMUV). A distance that is named twice counts twice.

    >>> sentences, tokens = np.array([-0.5, -0.7, -0.9]), np.array([-3.0, -1.0, -2.0])
    >>> add_up([sentences, tokens], np.array([0, 3])).round(2).tolist()
    [0.0, 1.22, -1.22]

A candidate without an answer by one part has none by the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PLUS = "+"


def parts_of(distance: str) -> tuple[str, ...]:
    """
    >>> parts_of("mean_best+token_best"), parts_of("cosine"), parts_of("cosine+")
    (('mean_best', 'token_best'), ('cosine',), ('cosine', ''))
    """
    return tuple(distance.split(PLUS))


def add_up(parts: Sequence[NDArray[np.float64]], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of the standardised parts, (pairs,) each; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    total: NDArray[np.float64] = np.sum([standardised(part, offsets) for part in parts], axis=0)
    return total


def standardised(scores: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores (pairs,) of queries, each query's from offsets[i] to offsets[i + 1], with mean 0 and deviation 1.

    NaN and -inf stay what they are and do not count; where all answers are equal they become 0.

    >>> standardised(np.array([1.0, 3.0, np.nan, 5.0, 5.0]), np.array([0, 3, 5])).tolist()
    [-1.0, 1.0, nan, 0.0, 0.0]
    """
    found = scores.copy()
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        answered = low + np.flatnonzero(np.isfinite(scores[low:high]))
        if len(answered):
            apart = scores[answered] - scores[answered].mean()
            found[answered] = apart / (apart.std() or 1)
    return found
