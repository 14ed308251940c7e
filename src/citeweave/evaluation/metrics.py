"""Metrics by name: ranking (trec_eval's and CSFCube's names), classification, regression, quality of maps.

trec_eval's names are plain; those of CSFCube and ASPIRE begin with `csfcube:`, as their formulas differ:

    map  ndcg  Rprec  recip_rank  map_cut_10  ndcg_cut_10  P_5  P_cap_10  recall_5  success_1
    csfcube:ndcg  csfcube:ndcg@20  csfcube:ndcg%20  csfcube:av_precision  csfcube:reciprocal_rank
    csfcube:precision@20  csfcube:recall@20  csfcube:f1@20  csfcube:r_precision  csfcube:precision_at_last_relevant

    >>> from citeweave.evaluation.ranking_metrics import id_order, rank_as_trec
    >>> scores, grades = np.array([3.0, 2, 1]), np.array([2, 0, 3])
    >>> ranked = rank_as_trec(scores, grades, np.array([0, 3]), ties=id_order(["a", "b", "c"]))
    >>> values = ranking_metrics(ranked, ["map", "ndcg", "csfcube:ndcg", "recall_1"])
    >>> {name: each.round(4).tolist() for name, each in values.items()}
    {'map': [0.8333], 'ndcg': [0.8212], 'csfcube:ndcg': [0.7786], 'recall_1': [0.5]}

Ranking metrics are one fraction per query, so means, folds and resamples are the caller's business. Classification
metrics are scikit-learn's (0 where it divides by 0), from counts of classes:

    truth      a a b c        class   hits  predicted  actual   F1 = 2 hits / (predicted + actual)
    predicted  a b b b        a       1     1          2        2/3
                              b       1     3          1        1/2
                              c       0     0          1        0         macro F1 = their mean

    >>> counts = count_classes(["a", "a", "b", "c"], ["a", "b", "b", "b"])
    >>> f1(counts).round(4).tolist(), round(float(f1_macro(counts)), 4)
    ([0.6667, 0.5, 0.0], 0.3889)

They are computed from counts over the last axis, so a whole bootstrap is one call: a resample of n papers is a multinomial
draw of n over the cells of the confusion matrix, `from_confusion(rng.multinomial(n, cells / n, size=10_000).reshape(-1, k, k))`.

Does not hold the formulas of ranking metrics (`ranking_metrics.py`), click metrics (`clicks.py`) or link prediction
(`links.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.evaluation.ranking_metrics import (
    IDEALS,
    RankedCandidates,
    Values,
    average_precision,
    capped_precision_at,
    csfcube_discount,
    f1_at,
    ndcg,
    percent_cut,
    precision_at,
    precision_at_last_relevant,
    r_precision,
    recall_at,
    reciprocal_rank,
    share,
    success_at,
)


@dataclass(frozen=True, slots=True)
class RelevanceRule:
    """Rule for `csfcube:` metrics: which papers are relevant, which ranking is ideal; trec_eval's have no such choice."""

    threshold: int = 2
    """Lowest grade of a relevant paper: 2 for CSFCube and RELISH, 1 for TRECCOVID and SciDocs."""

    ideal: str = "judged"
    """`submitted`, as in CSFCube's scripts, takes the ideal ranking, the number of relevant papers and the length that a
    percentage is of from the papers in the run: what is left out costs nothing."""

    def __post_init__(self) -> None:
        choose(self.ideal, IDEALS, "ideal")


RankingMetric = Callable[[RankedCandidates, int, RelevanceRule], Values]

RANKING_METRICS: dict[str, RankingMetric] = {
    "map": lambda ranked, k, rule: average_precision(ranked),
    "map_cut_k": lambda ranked, k, rule: average_precision(ranked, cut=k),
    "ndcg": lambda ranked, k, rule: ndcg(ranked),
    "ndcg_cut_k": lambda ranked, k, rule: ndcg(ranked, cut=k),
    "Rprec": lambda ranked, k, rule: r_precision(ranked),
    "recip_rank": lambda ranked, k, rule: reciprocal_rank(ranked),
    "P_k": lambda ranked, k, rule: precision_at(ranked, k),
    "P_cap_k": lambda ranked, k, rule: capped_precision_at(ranked, k),
    "recall_k": lambda ranked, k, rule: recall_at(ranked, k),
    "success_k": lambda ranked, k, rule: success_at(ranked, k),
    "csfcube:ndcg": lambda ranked, k, rule: ndcg(ranked, discount=csfcube_discount, ideal=rule.ideal),
    "csfcube:ndcg@k": lambda ranked, k, rule: ndcg(ranked, cut=k, discount=csfcube_discount, ideal=rule.ideal),
    "csfcube:ndcg%k": lambda ranked, k, rule: ndcg(
        ranked, cut=percent_cut(ranked, k, ideal=rule.ideal), discount=csfcube_discount, ideal=rule.ideal
    ),
    "csfcube:av_precision": lambda ranked, k, rule: average_precision(
        ranked, threshold=rule.threshold, ideal=rule.ideal
    ),
    "csfcube:reciprocal_rank": lambda ranked, k, rule: reciprocal_rank(ranked, threshold=rule.threshold),
    "csfcube:precision@k": lambda ranked, k, rule: precision_at(ranked, k, threshold=rule.threshold),
    "csfcube:recall@k": lambda ranked, k, rule: recall_at(ranked, k, threshold=rule.threshold, ideal=rule.ideal),
    "csfcube:f1@k": lambda ranked, k, rule: f1_at(ranked, k, threshold=rule.threshold, ideal=rule.ideal),
    "csfcube:r_precision": lambda ranked, k, rule: r_precision(ranked, threshold=rule.threshold, ideal=rule.ideal),
    "csfcube:precision_at_last_relevant": lambda ranked, k, rule: precision_at_last_relevant(
        ranked, threshold=rule.threshold
    ),
}
"""Every ranking metric; the k at the end of a name stands for a number from 1, at most 100 after a %."""


def ranking_metrics(
    ranked: RankedCandidates, names: Iterable[str], rule: RelevanceRule | None = None
) -> dict[str, Values]:
    """Compute metrics by their names, such as `map` and `ndcg`, for every query of a ranking, (queries,) each."""
    rule = RelevanceRule() if rule is None else rule
    values = {}
    for name in names:
        family, number = _parse_metric(name)
        values[name] = RANKING_METRICS[family](ranked, number, rule)
    return values


def check_metric_names(names: Iterable[str]) -> None:
    """Check metrics by their names: UserError for one that no ranking has, before any work is done.

    >>> check_metric_names(["map", "recal_5"])
    Traceback (most recent call last):
    citeweave.core.errors.UserError: metric is 'recal_5'; it must be one of P_5, ..., success_5. Did you mean 'recall_5'?
    """
    for name in names:
        _parse_metric(name)


def _parse_metric(name: str) -> tuple[str, int]:
    """Split the name of a ranking metric into its family and number: recall_5 -> (recall_k, 5)."""
    if name in RANKING_METRICS and not re.search(r"[_@%]k$", name):
        return name, 0
    match = re.fullmatch(r"(.*[_@%])(\d{1,9})", name)
    number = match[2] if match else "10"
    family = f"{match[1]}k" if match else ""
    if f"csfcube:{family or name}" in RANKING_METRICS:
        raise UserError(f"metric is {name!r}, which only CSFCube has; write 'csfcube:{name}'")
    if family not in RANKING_METRICS:
        choose(name, [re.sub(r"(?<=[_@%])k$", number, known) for known in RANKING_METRICS], "metric")
        raise AssertionError(f"{name!r} was accepted and is no metric")
    top = 100 if "%" in family else np.iinfo(np.int32).max
    if not 1 <= int(number) <= top:
        raise UserError(f"metric is {name!r}; the number at its end must be from 1 to {top}")
    return family, int(number)


Labels = Sequence[Any] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Counts behind classification metrics: hits, predictions and true papers per class, (..., classes)."""

    hits: NDArray[Any]
    predicted: NDArray[Any]
    actual: NDArray[Any]
    exact: NDArray[Any]
    """Share of papers whose label, or complete set of labels, is right, (...)."""

    counted: NDArray[np.bool_]
    """Which classes a macro mean covers: those seen in truth or prediction, or all where a paper has several."""

    positive: int | None
    """The positive class of a binary classification, for precision, recall and F1; None for more than two classes."""


def confusion(truth: Labels, predicted: Labels, classes: Labels | None = None) -> NDArray[np.int64]:
    """Count the confusion matrix behind metrics: papers by true class (row) and predicted class (column).

    >>> confusion([0, 0, 1], [0, 1, 1]).tolist()
    [[1, 1], [0, 1]]
    """
    names = np.unique(np.concatenate([np.asarray(truth), np.asarray(predicted)])) if classes is None else classes
    rows, columns = (np.searchsorted(names, np.asarray(labels)) for labels in (truth, predicted))
    if len(rows) != len(columns):
        raise ValueError(f"{len(rows)} true labels for {len(columns)} predicted ones")
    size = len(names)
    return np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)


def from_confusion(matrix: NDArray[Any], *, positive: int | None = None) -> ClassCounts:
    """Return the class counts of confusion matrices (..., classes, classes); `positive` is the row of that class."""
    hits = np.diagonal(matrix, axis1=-2, axis2=-1)  # (..., classes)
    actual, predicted = matrix.sum(axis=-1), matrix.sum(axis=-2)
    exact = share(hits.sum(axis=-1), actual.sum(axis=-1))
    return ClassCounts(hits, predicted, actual, exact, actual + predicted > 0, positive)


def count_classes(truth: Labels, predicted: Labels, *, positive: Any = 1) -> ClassCounts:
    """Count classes for metrics, one label per paper; `positive` is for `f1`, `precision`, `recall` of two classes."""
    names = np.unique(np.concatenate([np.asarray(truth), np.asarray(predicted)]))
    at = np.flatnonzero(names == positive)
    # the only class is not the positive one: no paper is positive, and F1 is 0
    if len(names) == 1 and not len(at):
        names, at = np.append(names, names), np.array([1])
    matrix = confusion(truth, predicted, names)
    return from_confusion(matrix, positive=int(at[0]) if len(names) <= 2 and len(at) else None)


def count_label_sets(truth: NDArray[Any], predicted: NDArray[Any]) -> ClassCounts:
    """Count labels for metrics of papers with several labels each, 0 or 1 in arrays of shape (papers, labels).

    >>> counts = count_label_sets(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]))
    >>> f1(counts).round(4).tolist(), float(accuracy(counts))
    ([0.6667, 1.0], 0.5)
    """
    true, guess = np.asarray(truth, bool), np.asarray(predicted, bool)
    if true.shape != guess.shape or true.ndim != 2:
        raise ValueError(f"labels of shape {true.shape} and {guess.shape}: both must be (papers, labels)")
    exact = (true == guess).all(axis=1).mean() if len(true) else np.float64(0)
    hits, predictions, actual = (flags.sum(axis=0) for flags in (true & guess, guess, true))  # (labels,) each
    return ClassCounts(hits, predictions, actual, np.asarray(exact), np.ones(true.shape[1], bool), None)


def precision(counts: ClassCounts) -> Values:
    """Return the classification metric precision of every class: hits / predicted, (..., classes).

    >>> precision(count_classes([0, 0, 1], [0, 1, 1])).tolist()
    [1.0, 0.5]
    """
    return share(counts.hits, counts.predicted)


def recall(counts: ClassCounts) -> Values:
    """Return the classification metric recall of every class: hits / actual, (..., classes).

    >>> recall(count_classes([0, 0, 1], [0, 1, 1])).tolist()
    [0.5, 1.0]
    """
    return share(counts.hits, counts.actual)


def f1(counts: ClassCounts) -> Values:
    """Return the classification metric F1 of every class, (..., classes): van Rijsbergen, 1979.

    >>> f1(count_classes([0, 0, 1], [0, 1, 1])).round(4).tolist()
    [0.6667, 0.6667]
    """
    return share(2 * counts.hits, counts.predicted + counts.actual)


def macro(values: Values, counts: ClassCounts) -> Values:
    """Average a classification metric over the classes, each with the same weight, (...).

    >>> float(macro(np.array([1.0, 0.5]), count_classes([0, 0, 1], [0, 1, 1])))
    0.75
    """
    return share((values * counts.counted).sum(axis=-1), counts.counted.sum(axis=-1))


def weighted(values: Values, counts: ClassCounts) -> Values:
    """Average a classification metric over the classes, weighted by their numbers of papers, (...).

    >>> round(float(weighted(np.array([1.0, 0.5]), count_classes([0, 0, 1], [0, 1, 1]))), 4)
    0.8333
    """
    return share((values * counts.actual).sum(axis=-1), counts.actual.sum(axis=-1))


def f1_macro(counts: ClassCounts) -> Values:
    """Return the macro F1: the mean of the classes' F1."""
    return macro(f1(counts), counts)


def f1_micro(counts: ClassCounts) -> Values:
    """Return the classification metric micro F1 over all decisions; with one label per paper it equals accuracy.

    >>> round(float(f1_micro(count_classes([0, 0, 1], [0, 1, 1]))), 4)
    0.6667
    """
    return share(2 * counts.hits.sum(axis=-1), (counts.predicted + counts.actual).sum(axis=-1))


def accuracy(counts: ClassCounts) -> Values:
    """Return the share of papers with all labels right."""
    return np.asarray(counts.exact, np.float64)


def _for_positive(formula: Callable[[ClassCounts], Values], counts: ClassCounts) -> Values:
    """Return a metric of the positive class of a binary classification, (...).

    >>> round(float(_for_positive(recall, count_classes([0, 1, 1, 1], [0, 1, 1, 0]))), 4)
    0.6667
    """
    if counts.positive is None:
        raise UserError(
            "f1, precision and recall without an average need two classes, one of which is the positive one; "
            "use f1_macro, precision_macro or recall_macro, or name the positive label"
        )
    return np.asarray(formula(counts)[..., counts.positive])


CLASSIFICATION_METRICS: dict[str, Callable[[ClassCounts], Values]] = {
    "f1": lambda counts: _for_positive(f1, counts),
    "precision": lambda counts: _for_positive(precision, counts),
    "recall": lambda counts: _for_positive(recall, counts),
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "f1_weighted": lambda counts: weighted(f1(counts), counts),
    "precision_macro": lambda counts: macro(precision(counts), counts),
    "recall_macro": lambda counts: macro(recall(counts), counts),
    "accuracy": accuracy,
}
"""Classification metrics by their names in scikit-learn and SciRepEval; the first three need two classes."""


def classification_metrics(counts: ClassCounts, names: Iterable[str]) -> dict[str, Values]:
    """Compute the named classification metrics, arrays of shape (...): scalars where counts are of one set of papers.

    >>> values = classification_metrics(count_classes([0, 0, 1], [0, 1, 1]), ["f1_macro", "accuracy"])
    >>> {name: round(float(value), 4) for name, value in values.items()}
    {'f1_macro': 0.6667, 'accuracy': 0.6667}
    """
    return {name: CLASSIFICATION_METRICS[choose(name, CLASSIFICATION_METRICS, "metric")](counts) for name in names}


Numbers = Sequence[float] | NDArray[Any]


def kendall_tau(truth: Numbers, predicted: Numbers) -> float:
    """Compute the regression metric Kendall's tau-b of true and predicted numbers, with ties (1945), by SciPy.

    A prediction that is the same for every paper gets 0, where SciPy gives NaN. Below, five of six pairs are in order.

    >>> kendall_tau([1, 2, 3], [5, 5, 5]), round(kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]), 4)
    (0.0, 0.6667)
    """
    from scipy.stats import kendalltau

    _check_numbers(truth, predicted)
    tau = float(kendalltau(truth, predicted).statistic) if len(truth) > 1 else 0.0
    return 0.0 if np.isnan(tau) else tau


def pearson(truth: Numbers, predicted: Numbers) -> float:
    """Compute the regression metric Pearson's correlation of true and predicted numbers; 0 for a constant prediction.

    >>> pearson([1, 2, 3], [30, 20, 10]), round(pearson([1, 2, 3], [1, 2, 4]), 4)
    (-1.0, 0.982)
    """
    first, second = _check_numbers(truth, predicted)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


REGRESSION_METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {"kendalltau": kendall_tau, "pearsonr": pearson}
"""Regression metrics by their names in SciRepEval."""


def _check_numbers(truth: Numbers, predicted: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return true and predicted numbers as arrays of one shape; ValueError where one is not finite."""
    first, second = np.asarray(truth, np.float64), np.asarray(predicted, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"true numbers of shape {first.shape} and predicted ones of shape {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("a number to be compared is not finite")
    return first, second


@dataclass(frozen=True, slots=True)
class MapQuality:
    """Metrics of a 2D map's quality: how well its clusters agree with the labels of its points."""

    homogeneity: float
    """1 where every cluster holds points of a single label."""

    completeness: float
    """1 where all points of a label lie in a single cluster."""

    clusters: int
    """Number of clusters; the points outside all of them are one more group for the two values above."""

    noise: float
    """Share of points that are in no cluster."""

    eps: float
    """Distance up to which points are neighbors, in units of the map."""


def map_quality(
    xy: NDArray[Any],
    labels: Sequence[Any] | NDArray[Any],
    *,
    eps: float | None = None,
    min_points: int = 5,
    sparse: float = 0.25,
) -> MapQuality:
    """Compute metrics of a map: cluster its points (papers, 2) by DBSCAN and compare the clusters with the labels.

    SPECTER (Cohan et al., ACL 2020, figure 2) evaluates its t-SNE map so: 0.41 / 0.72 against 0.19 / 0.63 of SciBERT. It
    does not give the settings of DBSCAN (Ester et al., KDD 1996), so its numbers are no target. `min_points` is
    scikit-learn's `min_samples`. Its default `eps` of 0.5 leaves most points of a t-SNE map outside any cluster, and no
    fixed number suits maps of other sizes. By default `eps` is chosen as Ester et al. propose, from the distance of each
    point to its `min_points`-th neighbor, itself included: the sparsest share of the points, `sparse`, has it farther
    away. So the values do not change where the map is stretched.

    >>> xy = np.array([[0, 0], [0, 1], [1, 0], [9, 9], [9, 8], [8, 9]])
    >>> quality = map_quality(xy, ["a", "a", "a", "b", "b", "b"], eps=1.5, min_points=3)
    >>> quality.homogeneity, quality.completeness, quality.clusters, quality.noise
    (1.0, 1.0, 2, 0.0)
    """
    from sklearn.cluster import DBSCAN
    from sklearn.metrics import homogeneity_completeness_v_measure

    points = np.asarray(xy, np.float64)  # (papers, 2)
    if points.ndim != 2 or len(points) != len(labels):
        raise ValueError(f"points of shape {points.shape} for {len(labels)} labels")
    if len(points) < min_points or not np.isfinite(points).all():
        raise UserError(f"the map has {len(points)} points; its quality needs at least {min_points} finite points")
    if eps is None:
        eps = _choose_eps(points, min_points, sparse)
    clusters = DBSCAN(eps=eps, min_samples=min_points).fit_predict(points)  # (papers,)
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(np.asarray(labels), clusters)
    return MapQuality(
        homogeneity=float(homogeneity),
        completeness=float(completeness),
        clusters=int(clusters.max()) + 1,
        noise=float((clusters < 0).mean()),
        eps=eps,
    )


def _choose_eps(points: NDArray[np.float64], min_points: int, sparse: float) -> float:
    """Choose DBSCAN's eps: a share `sparse` of the points has its `min_points`-th neighbor farther away."""
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=min_points).fit(points).kneighbors(points)  # (papers, min_points)
    # points that all lie on one spot still need an eps above 0
    return float(max(np.quantile(distances[:, -1], 1 - sparse), np.finfo(np.float64).tiny))
