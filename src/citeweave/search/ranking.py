"""The best of some rows: by score, of equal scores by id, so that the order does not depend on how an index came to be.

    >>> best = rank_rows(np.array([7, 4, 9]), np.array([0.5, 2.0, 0.5]), 2, name={4: "b", 7: "z", 9: "a"}.__getitem__)
    >>> best.rows.tolist(), best.scores.tolist()
    ([4, 9], [2.0, 0.5])

Does not score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ranked(NamedTuple):
    """Rows of an index, the best first."""

    rows: NDArray[np.int64]
    """(found,)"""

    scores: NDArray[np.float64]
    """(found,): higher is better."""


def rank_rows(
    rows: NDArray[np.integer[Any]], scores: NDArray[np.floating[Any]], count: int, *, name: Callable[[int], str]
) -> Ranked:
    """The `count` best of these rows; `name` gives a row's id, and is asked only where scores are equal."""
    if count <= 0 or not len(rows):
        return Ranked(np.empty(0, np.int64), np.empty(0))
    if len(rows) > count:
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        high = np.flatnonzero(scores >= least)
        rows, scores = rows[high], scores[high]
    order = np.argsort(-scores, kind="stable")
    best = Ranked(rows[order].astype(np.int64), scores[order].astype(np.float64))
    # groups of equal scores, each sorted by id
    ends = np.concatenate([np.flatnonzero(np.diff(best.scores)) + 1, [len(order)]])
    start = 0
    for end in ends.tolist():
        if end - start > 1:
            best.rows[start:end] = sorted(best.rows[start:end].tolist(), key=name)
        start = end
    return Ranked(best.rows[:count], best.scores[:count])
