"""Reciprocal rank fusion: one ranking out of several, by places alone (Cormack, Clarke and Büttcher, SIGIR 2009).

    >>> [(fused.item, round(fused.score, 4), fused.ranks) for fused in fuse([["a", "b"], ["b", "c"]], 3)]
    [('b', 0.0325, (2, 1)), ('a', 0.0164, (1, None)), ('c', 0.0161, (None, 2))]

Scores of words and of vectors have nothing in common but their order, and need no more here. Does not search.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby, takewhile
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError

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
