"""Regression: do predicted numbers rise with the true ones? Of six pairs below five are in order: tau is (5 - 1) / 6.

    >>> round(kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]), 4), round(pearson([1, 2, 3], [1, 2, 4]), 4)
    (0.6667, 0.982)

A prediction that is the same for every paper says nothing: it gets 0, where SciPy gives nan.
Does not measure how far off the numbers are.

Does a map of papers in two dimensions show their topics? Clusters of points against the true labels.

    homogeneity    1 where every cluster holds one topic alone
    completeness   1 where every topic lies in one cluster alone

    >>> xy = np.array([[0, 0], [0, 1], [1, 0], [9, 9], [9, 8], [8, 9]])
    >>> quality = map_quality(xy, ["a", "a", "a", "b", "b", "b"], reach=1.5, least=3)
    >>> quality.homogeneity, quality.completeness, quality.clusters, quality.noise
    (1.0, 1.0, 2, 0.0)

Does not make the map.

Clicks on shown lists: how high does a ranker put the paper that was clicked?

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

The metrics of the field by name: one name, one formula, in `evaluation/measuring/`.

trec_eval's names are plain, those of CSFCube and ASPIRE begin with `csfcube:` as their formulas differ:

    map  ndcg  Rprec  recip_rank  map_cut_10  ndcg_cut_10  P_5  P_cap_10  recall_5  success_1
    csfcube:ndcg  csfcube:ndcg@20  csfcube:ndcg%20  csfcube:av_precision  csfcube:reciprocal_rank
    csfcube:precision@20  csfcube:recall@20  csfcube:f1@20  csfcube:r_precision  csfcube:precision_at_last_relevant

    >>> scores, grades = np.array([3.0, 2, 1]), np.array([2, 0, 3])
    >>> ranked = rank_as_trec(scores, grades, np.array([0, 3]), ties=id_order(["a", "b", "c"]))
    >>> found = ranking_metrics(ranked, ["map", "ndcg", "csfcube:ndcg", "recall_1"])
    >>> {name: values.round(4).tolist() for name, values in found.items()}
    {'map': [0.8333], 'ndcg': [0.8212], 'csfcube:ndcg': [0.7786], 'recall_1': [0.5]}

Ranking metrics are one number a query, so that means, folds and resamples are the caller's; all are fractions. Other
answers have tables of their own: CLICK_METRICS, CLASSIFICATION_METRICS, REGRESSION_METRICS, LINK_METRICS (of
`evaluation/links.py`), and `map_quality` for pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.evaluation.class_metrics import (
    CLASSIFICATION_METRICS,
    ClassCounts,
    classification_metrics,
    confusion,
    count_classes,
    count_label_sets,
    f1_macro,
    from_confusion,
)
from citeweave.evaluation.links import LinkScores
from citeweave.evaluation.ranking_metrics import (
    IDEALS,
    RankedCandidates,
    Values,
    average_precision,
    capped_precision_at,
    csfcube_discount,
    f1_at,
    id_order,
    ndcg,
    percent_cut,
    precision_at,
    precision_at_last_relevant,
    r_precision,
    rank_as_given,
    rank_as_trec,
    recall_at,
    reciprocal_rank,
    success_at,
)

Numbers = Sequence[float] | NDArray[Any]


def kendall_tau(truth: Numbers, predicted: Numbers) -> float:
    """Kendall's tau-b, which allows for ties, -1 to 1: Kendall, Biometrika 1945, by SciPy.

    >>> kendall_tau([1, 2, 3], [5, 5, 5])
    0.0
    """
    from scipy.stats import kendalltau

    _check(truth, predicted)
    tau = float(kendalltau(truth, predicted).statistic) if len(truth) > 1 else 0.0
    return 0.0 if np.isnan(tau) else tau


def pearson(truth: Numbers, predicted: Numbers) -> float:
    """Pearson's correlation, -1 to 1.

    >>> pearson([1, 2, 3], [30, 20, 10])
    -1.0
    """
    first, second = _check(truth, predicted)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


REGRESSION_METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {"kendalltau": kendall_tau, "pearsonr": pearson}
"""By the names of SciRepEval."""


def _check(truth: Numbers, predicted: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = np.asarray(truth, np.float64), np.asarray(predicted, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"true numbers of shape {first.shape} and predicted ones of shape {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("a number to be compared is not finite")
    return first, second


# Does a map of papers in two dimensions show their topics? Clusters of points against the true labels.


@dataclass(frozen=True, slots=True)
class MapQuality:
    """How well the clusters of a map fit the labels of its points."""

    homogeneity: float
    completeness: float
    clusters: int
    """Clusters found; the points outside all of them are one more group for the two values above."""

    noise: float
    """Share of points that are in no cluster."""

    reach: float
    """Distance up to which points were neighbors, in units of the map."""


def map_quality(
    xy: NDArray[Any],
    labels: Sequence[Any] | NDArray[Any],
    *,
    reach: float | None = None,
    least: int = 5,
    sparse: float = 0.25,
) -> MapQuality:
    """Cluster the points (papers, 2) by DBSCAN, then compare with the labels.

    SPECTER (Cohan et al., ACL 2020, figure 2) judges its t-SNE map so: 0.41 / 0.72 against 0.19 / 0.63 of SciBERT. It
    does not tell the settings of DBSCAN (Ester et al., KDD 1996), so its numbers are no target. `least` is
    scikit-learn's `min_samples`, `reach` its `eps`; scikit-learn's own 0.5 leaves most points of a t-SNE map outside
    any cluster, and no fixed number suits maps of other sizes. Without `reach` it is found as Ester et al. propose,
    from the distance of each point to its `least`-th neighbor, itself counted: the sparsest share of the points,
    `sparse`, has it farther away. So the values do not change where the map is stretched.
    """
    from sklearn.cluster import DBSCAN
    from sklearn.metrics import homogeneity_completeness_v_measure

    points = np.asarray(xy, np.float64)  # (papers, 2)
    if points.ndim != 2 or len(points) != len(labels):
        raise ValueError(f"points of shape {points.shape} for {len(labels)} labels")
    if len(points) < least or not np.isfinite(points).all():
        raise UserError(f"a map of {len(points)} points cannot be judged: it needs {least} finite points or more")
    if reach is None:
        reach = _reach(points, least, sparse)
    found = DBSCAN(eps=reach, min_samples=least).fit_predict(points)  # (papers,)
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(np.asarray(labels), found)
    return MapQuality(
        homogeneity=float(homogeneity),
        completeness=float(completeness),
        clusters=int(found.max()) + 1,
        noise=float((found < 0).mean()),
        reach=reach,
    )


def _reach(points: NDArray[np.float64], least: int, sparse: float) -> float:
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=least).fit(points).kneighbors(points)  # (papers, least)
    # points that all lie on one spot still need a reach above 0
    return float(max(np.quantile(distances[:, -1], 1 - sparse), np.finfo(np.float64).tiny))


# Clicks on shown lists: how high does a ranker put the paper that was clicked?


@dataclass(frozen=True, slots=True)
class ClickRanks:
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
) -> ClickRanks:
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
    return ClickRanks(higher + ties / 2, lower + ties / 2, _weights(clicked, propensities))


def click_ndcg(clicks: ClickRanks) -> Values:
    """1 / log2(2 + papers above).

    >>> click_ndcg(ClickRanks(np.array([0.0, 2]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.5]
    """
    values: Values = 1 / np.log2(2 + clicks.above)
    return values


def click_reciprocal_rank(clicks: ClickRanks) -> Values:
    """1 / (1 + papers above).

    >>> click_reciprocal_rank(ClickRanks(np.array([0.0, 1]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.5]
    """
    values: Values = 1 / (1 + clicks.above)
    return values


def click_hit(clicks: ClickRanks) -> Values:
    """1 where no paper is above or beside the clicked one: a tie at the top is no hit.

    >>> click_hit(ClickRanks(np.array([0.0, 0.5]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.0]
    """
    return np.where(clicks.above == 0, 1.0, 0.0)


_MEANS: dict[str, Callable[[ClickRanks], Values]] = {
    "ndcg": click_ndcg,
    "mrr": click_reciprocal_rank,
    "P@1": click_hit,
}
CLICK_METRICS = (*_MEANS, "accuracy", *(f"adj-{name}" for name in (*_MEANS, "accuracy")))
"""Names of the metrics; `accuracy` is the share of pairs in which the clicked paper scores higher."""


def click_parts(clicks: ClickRanks, name: str) -> Parts:
    """What each click adds to a metric.

    >>> click_parts(ClickRanks(np.array([0.0, 1]), np.array([3.0, 1]), np.array([2.0, 4])), "adj-mrr")
    Parts(numerator=array([2., 2.]), denominator=array([2., 4.]))
    """
    plain = choose(name, CLICK_METRICS, "metric").removeprefix("adj-")
    weights = clicks.weights if plain != name else np.ones(len(clicks.above))
    if plain == "accuracy":
        return Parts(weights * clicks.below, weights * (clicks.above + clicks.below))
    return Parts(weights * _MEANS[plain](clicks), weights)


def click_metrics(clicks: ClickRanks, names: Iterable[str] = CLICK_METRICS) -> dict[str, float]:
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


# The metrics of the field by name: one name, one formula, in `evaluation/measuring/`.

__all__ = [
    "CLASSIFICATION_METRICS",
    "CLICK_METRICS",
    "IDEALS",
    "LINK_METRICS",
    "RANKING_METRICS",
    "REGRESSION_METRICS",
    "ClassCounts",
    "ClickRanks",
    "Judging",
    "MapQuality",
    "RankedCandidates",
    "Values",
    "check_names",
    "classification_metrics",
    "click_metrics",
    "click_parts",
    "confusion",
    "count_classes",
    "count_label_sets",
    "f1_macro",
    "from_confusion",
    "id_order",
    "kendall_tau",
    "map_quality",
    "pearson",
    "rank_as_given",
    "rank_as_trec",
    "ranking_metrics",
    "stand",
]

LINK_METRICS = tuple(field.name for field in fields(LinkScores) if field.name not in ("edges", "negatives"))
"""What `links.judge_links` measures."""


@dataclass(frozen=True, slots=True)
class Judging:
    """What the metrics of the `csfcube:` family may differ in; trec_eval's have no such choice."""

    threshold: int = 2
    """The least grade of a relevant paper: 2 for CSFCube and RELISH, 1 for TRECCOVID and SciDocs."""

    ideal: str = "judged"
    """`submitted`, the peers' way, takes the best ranking, the number of relevant papers and the length that a percent
    is of from the papers in the run: what is left out costs nothing."""

    def __post_init__(self) -> None:
        choose(self.ideal, IDEALS, "ideal")


RankingMetric = Callable[[RankedCandidates, int, Judging], Values]

RANKING_METRICS: dict[str, RankingMetric] = {
    "map": lambda ranked, k, how: average_precision(ranked),
    "map_cut_k": lambda ranked, k, how: average_precision(ranked, cut=k),
    "ndcg": lambda ranked, k, how: ndcg(ranked),
    "ndcg_cut_k": lambda ranked, k, how: ndcg(ranked, cut=k),
    "Rprec": lambda ranked, k, how: r_precision(ranked),
    "recip_rank": lambda ranked, k, how: reciprocal_rank(ranked),
    "P_k": lambda ranked, k, how: precision_at(ranked, k),
    "P_cap_k": lambda ranked, k, how: capped_precision_at(ranked, k),
    "recall_k": lambda ranked, k, how: recall_at(ranked, k),
    "success_k": lambda ranked, k, how: success_at(ranked, k),
    "csfcube:ndcg": lambda ranked, k, how: ndcg(ranked, discount=csfcube_discount, ideal=how.ideal),
    "csfcube:ndcg@k": lambda ranked, k, how: ndcg(ranked, cut=k, discount=csfcube_discount, ideal=how.ideal),
    "csfcube:ndcg%k": lambda ranked, k, how: ndcg(
        ranked, cut=percent_cut(ranked, k, ideal=how.ideal), discount=csfcube_discount, ideal=how.ideal
    ),
    "csfcube:av_precision": lambda ranked, k, how: average_precision(ranked, threshold=how.threshold, ideal=how.ideal),
    "csfcube:reciprocal_rank": lambda ranked, k, how: reciprocal_rank(ranked, threshold=how.threshold),
    "csfcube:precision@k": lambda ranked, k, how: precision_at(ranked, k, threshold=how.threshold),
    "csfcube:recall@k": lambda ranked, k, how: recall_at(ranked, k, threshold=how.threshold, ideal=how.ideal),
    "csfcube:f1@k": lambda ranked, k, how: f1_at(ranked, k, threshold=how.threshold, ideal=how.ideal),
    "csfcube:r_precision": lambda ranked, k, how: r_precision(ranked, threshold=how.threshold, ideal=how.ideal),
    "csfcube:precision_at_last_relevant": lambda ranked, k, how: precision_at_last_relevant(
        ranked, threshold=how.threshold
    ),
}
"""Every ranking metric; the k at the end of a name stands for a number from 1, at most 100 after a %."""


def ranking_metrics(
    ranked: RankedCandidates, names: Iterable[str], judging: Judging | None = None
) -> dict[str, Values]:
    """The named metrics of every query, arrays of shape (queries,)."""
    judging = Judging() if judging is None else judging
    found = {}
    for name in names:
        family, number = _parse(name)
        found[name] = RANKING_METRICS[family](ranked, number, judging)
    return found


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that is no ranking metric, before any work is done.

    >>> check_names(["map", "recal_5"])
    Traceback (most recent call last):
    citeweave.core.errors.UserError: metric is 'recal_5'; it must be one of P_5, ..., success_5. Did you mean 'recall_5'?
    """
    for name in names:
        _parse(name)


def _parse(name: str) -> tuple[str, int]:
    """recall_5 -> (recall_k, 5)"""
    if name in RANKING_METRICS and not re.search(r"[_@%]k$", name):
        return name, 0
    match = re.fullmatch(r"(.*[_@%])(\d{1,9})", name)
    number = match[2] if match else "10"
    family = f"{match[1]}k" if match else ""
    if f"csfcube:{family or name}" in RANKING_METRICS:
        raise UserError(f"metric is {name!r}, which is CSFCube's alone; write 'csfcube:{name}'")
    if family not in RANKING_METRICS:
        choose(name, [re.sub(r"(?<=[_@%])k$", number, known) for known in RANKING_METRICS], "metric")
        raise AssertionError(f"{name!r} is known and is not")
    top = 100 if "%" in family else np.iinfo(np.int32).max
    if not 1 <= int(number) <= top:
        raise UserError(f"metric is {name!r}; the number at its end must be from 1 to {top}")
    return family, int(number)
