"""The best of some rows: by score, of equal scores by id, so that the order does not depend on how an index came to be.

    >>> best = rank_rows(np.array([7, 4, 9]), np.array([0.5, 2.0, 0.5]), 2, name={4: "b", 7: "z", 9: "a"}.__getitem__)
    >>> best.rows.tolist(), best.scores.tolist()
    ([4, 9], [2.0, 0.5])

Does not score.

Reciprocal rank fusion: one ranking out of several, by places alone (Cormack, Clarke and Büttcher, SIGIR 2009).

    >>> [(fused.item, round(fused.score, 4), fused.ranks) for fused in fuse([["a", "b"], ["b", "c"]], 3)]
    [('b', 0.0325, (2, 1)), ('a', 0.0164, (1, None)), ('c', 0.0161, (None, 2))]

Scores of words and of vectors have nothing in common but their order, and need no more here. Does not search.

Answers that differ: maximal marginal relevance.

    scores   0.9  0.8  0.1      papers 0 and 1 are twins, 2 is about something else
    order    0    1    2        diversity 0
    order    0    2    1        diversity 0.6

    >>> twins = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    >>> diverse_order(np.array([0.9, 0.8, 0.1]), twins, 0.6).tolist()
    [0, 2, 1]

Does not choose the pool: the caller gives the best papers by score.

Several liked and disliked papers as one vector to search with.

    >>> liked, disliked = np.array([[2.0, 0.0], [0.0, 1.0]], np.float32), np.array([[0.0, 3.0]], np.float32)
    >>> rocchio(liked, disliked).tolist()
    [0.5, 0.0]

Papers count alike, however long their vectors are. Does not look papers up and does not leave them out of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby, takewhile
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError


class RankedRows(NamedTuple):
    """Rows of an index, the best first."""

    rows: NDArray[np.int64]
    """(found,)"""

    scores: NDArray[np.float64]
    """(found,): higher is better."""


def rank_rows(
    rows: NDArray[np.integer[Any]], scores: NDArray[np.floating[Any]], count: int, *, name: Callable[[int], str]
) -> RankedRows:
    """The `count` best of these rows; `name` gives a row's id, and is asked only where scores are equal."""
    if count <= 0 or not len(rows):
        return RankedRows(np.empty(0, np.int64), np.empty(0))
    if len(rows) > count:
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        high = np.flatnonzero(scores >= least)
        rows, scores = rows[high], scores[high]
    order = np.argsort(-scores, kind="stable")
    best = RankedRows(rows[order].astype(np.int64), scores[order].astype(np.float64))
    # groups of equal scores, each sorted by id
    ends = np.concatenate([np.flatnonzero(np.diff(best.scores)) + 1, [len(order)]])
    start = 0
    for end in ends.tolist():
        if end - start > 1:
            best.rows[start:end] = sorted(best.rows[start:end].tolist(), key=name)
        start = end
    return RankedRows(best.rows[:count], best.scores[:count])


# Reciprocal rank fusion: one ranking out of several, by places alone (Cormack, Clarke and Büttcher, SIGIR 2009).

K = 60
"""As the paper has it: how little the first places stand out."""

Item = TypeVar("Item", bound=Hashable)


class Fused(NamedTuple, Generic[Item]):
    """One of the results."""

    item: Item
    score: float
    """Sum of the reciprocal ranks; at most the sum of the weights divided by 61."""

    ranks: tuple[int | None, ...]
    """The place in every ranking, from 1 on; None where it is not there."""


def fuse(
    rankings: Sequence[Iterable[Item] | NDArray[Any]],
    count: int,
    weights: Sequence[float] | None = None,
    *,
    name: Callable[[Item], str] = str,
) -> list[Fused[Item]]:
    """The `count` best of several rankings, each the best first; `name` gives the id by which equal scores are ordered."""
    weights = [1.0] * len(rankings) if weights is None else list(weights)
    if len(weights) != len(rankings):
        raise UserError(f"{len(weights)} weights for {len(rankings)} rankings; give one each")
    if not all(np.isfinite(weight) and weight >= 0 for weight in weights):
        raise UserError(f"the weights of the rankings are {weights}; none may be negative")
    ranks: dict[Item, list[int | None]] = {}
    for number, ranking in enumerate(rankings):
        items: Iterable[Item] = ranking.tolist() if isinstance(ranking, np.ndarray) else ranking
        for place, item in enumerate(items, 1):
            places = ranks.setdefault(item, [None] * len(rankings))
            if places[number] is None:
                places[number] = place
    scores = {item: _score(places, weights) for item, places in ranks.items()}
    # rankings that weigh nothing find nothing
    found = sorted((item for item in scores if scores[item] > 0), key=lambda item: -scores[item])
    least = scores[found[count - 1]] if 0 < count <= len(found) else 0.0
    best: list[Item] = []
    # a name is asked for only where it decides
    for _, equal in groupby(takewhile(lambda item: scores[item] >= least, found), key=scores.__getitem__):
        some = list(equal)
        best += sorted(some, key=name) if len(some) > 1 else some
    return [Fused(item, scores[item], tuple(ranks[item])) for item in best[: max(count, 0)]]


def _score(places: Sequence[int | None], weights: Sequence[float]) -> float:
    return sum(weight / (K + place) for place, weight in zip(places, weights, strict=True) if place is not None)


# Answers that differ: maximal marginal relevance.

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


# Several liked and disliked papers as one vector to search with.

DISLIKED = 0.5
"""Weight of the disliked papers beside 1 of the liked ones. Text books take 0.15 beside 0.75 for papers of which nobody
said that they are bad; here somebody did."""


def rocchio(liked: NDArray[np.float32], disliked: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean of the liked papers' unit vectors (n, dimension) less DISLIKED times that of the disliked ones, (dimension,).

    Rocchio, "Relevance feedback in information retrieval", 1971, without an original query; see also Manning, Raghavan
    and Schütze, "Introduction to Information Retrieval", 2008, section 9.1.1.
    """
    found = _unit(liked).mean(axis=0)  # (dimension,)
    if len(disliked):
        found = found - np.float32(DISLIKED) * _unit(disliked).mean(axis=0)
    if float(np.linalg.norm(found)) < 1e-6:
        raise UserError(
            "the liked and disliked papers cancel each other out: nothing is left to search by; give others"
        )
    return np.asarray(found, np.float32)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (n, 1)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
