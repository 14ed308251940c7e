"""Clicks on shown lists: how high does a ranker put the paper that was clicked?

    shown   p1    p2    p3        clicked p3 (place 2, from 0); p2 scores above it, p1 alike: a tie counts half
    scores  0.5   0.9   0.5       above 1.5, below 0.5: NDCG 1 / log2(2 + 1.5), reciprocal rank 1 / 2.5, no hit

    >>> clicks = stand(np.array([0.5, 0.9, 0.5]), np.array([0, 3]), np.array([2]))
    >>> clicks.above.tolist(), clicks.below.tolist()
    ([1.5], [0.5])
    >>> click_metrics(clicks, ["P@1", "mrr", "accuracy"])
    {'P@1': 0.0, 'mrr': 0.4, 'accuracy': 0.25}

People click what is shown first. So `adj-` metrics weigh every click by 1 / propensity of its place, with propensities
scaled to mean 1. SciDocs reports adj-ndcg and adj-P@1: allenai/scidocs, recomm_click_eval.py (which sums in single
precision: its values carry six digits). Does not score papers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError, choose
from citeweave.evaluation.measuring.ranking import Values


@dataclass(frozen=True, slots=True)
class Clicks:
    """Where each clicked paper stands among the papers shown with it; arrays of shape (clicks,)."""

    above: Values
    """Papers that score higher than the clicked one, a tie counting half."""

    below: Values
    weights: Values
    """1 / propensity of the clicked place; all 1 where no propensities were given."""


class Parts(NamedTuple):
    """A metric click by click: its value is sum(numerator) / sum(denominator), in a resample as well."""

    numerator: Values
    denominator: Values


def stand(
    scores: NDArray[Any],
    offsets: NDArray[np.integer[Any]],
    clicked: NDArray[np.integer[Any]],
    propensities: NDArray[Any] | None = None,
) -> Clicks:
    """Compare the score of each clicked paper with those shown beside it.

    `scores` (pairs,) are flat over the shown lists, in shown order, list i from offsets[i] to offsets[i + 1];
    `clicked` (lists,) is the place of the clicked paper in its list, from 0; `propensities` (places,) say how often a
    place is clicked. A score of nan is below every number.
    """
    starts, clicked = np.asarray(offsets, np.int64)[:-1], np.asarray(clicked, np.int64)
    sizes = np.diff(offsets)
    if len(clicked) != len(sizes) or ((clicked < 0) | (clicked >= sizes)).any():
        raise ValueError("every list needs one clicked place inside it")
    scores = np.where(np.isnan(scores), -np.inf, np.asarray(scores, np.float64))
    which = np.repeat(np.arange(len(sizes)), sizes)  # (pairs,)
    own = scores[starts + clicked][which]  # (pairs,)
    higher, lower = (np.bincount(which, test, minlength=len(sizes)) for test in (scores > own, scores < own))
    ties = sizes - 1 - higher - lower  # the clicked paper is no rival of itself
    return Clicks(higher + ties / 2, lower + ties / 2, _weights(clicked, propensities))


def click_ndcg(clicks: Clicks) -> Values:
    """1 / log2(2 + papers above).

    >>> click_ndcg(Clicks(np.array([0.0, 2]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.5]
    """
    values: Values = 1 / np.log2(2 + clicks.above)
    return values


def click_reciprocal_rank(clicks: Clicks) -> Values:
    """1 / (1 + papers above).

    >>> click_reciprocal_rank(Clicks(np.array([0.0, 1]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.5]
    """
    values: Values = 1 / (1 + clicks.above)
    return values


def click_hit(clicks: Clicks) -> Values:
    """1 where no paper is above or beside the clicked one: a tie at the top is no hit.

    >>> click_hit(Clicks(np.array([0.0, 0.5]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.0]
    """
    return np.where(clicks.above == 0, 1.0, 0.0)


_MEANS: dict[str, Callable[[Clicks], Values]] = {
    "ndcg": click_ndcg,
    "mrr": click_reciprocal_rank,
    "P@1": click_hit,
}
CLICK_METRICS = (*_MEANS, "accuracy", *(f"adj-{name}" for name in (*_MEANS, "accuracy")))
"""Names of the metrics; `accuracy` is the share of pairs in which the clicked paper scores higher."""


def click_parts(clicks: Clicks, name: str) -> Parts:
    """What each click adds to a metric.

    >>> click_parts(Clicks(np.array([0.0, 1]), np.array([3.0, 1]), np.array([2.0, 4])), "adj-mrr")
    Parts(numerator=array([2., 2.]), denominator=array([2., 4.]))
    """
    plain = choose(name, CLICK_METRICS, "metric").removeprefix("adj-")
    weights = clicks.weights if plain != name else np.ones(len(clicks.above))
    if plain == "accuracy":
        return Parts(weights * clicks.below, weights * (clicks.above + clicks.below))
    return Parts(weights * _MEANS[plain](clicks), weights)


def click_metrics(clicks: Clicks, names: Iterable[str] = CLICK_METRICS) -> dict[str, float]:
    """The metrics over all clicks; nan where there is nothing to judge."""
    found = {}
    for name in names:
        numerator, denominator = (float(part.sum()) for part in click_parts(clicks, name))
        found[name] = numerator / denominator if denominator else float("nan")
    return found


def _weights(clicked: NDArray[np.integer[Any]], propensities: NDArray[Any] | None) -> Values:
    if propensities is None:
        return np.ones(len(clicked))
    chances = np.asarray(propensities, np.float64)  # (places,)
    if not len(chances) or not np.isfinite(chances).all() or (chances <= 0).any():
        raise UserError("propensities must be numbers above 0, one a shown place; check the file they come from")
    if clicked.max(initial=0) >= len(chances):
        raise UserError(
            f"a click on place {int(clicked.max()) + 1} has no propensity: only {len(chances)} places have one; "
            "give propensities for longer lists"
        )
    weights: Values = chances.mean() / chances[clicked]
    return weights
