"""How a metric follows from rows, for the rows as they are and for any resample of them.

A resample is a row of whole weights: how often each item was drawn. All ways but correlations are sums over items, so
that a thousand resamples are one matrix product; rank correlations count pairs, see `measuring/resampled_tau.py`.

    >>> rows = {"q1": {"map": 0.2, "fold": 0}, "q2": {"map": 0.6, "fold": 0}, "q3": {"map": 1.0, "fold": 1}}
    >>> round(derive("mean", rows, "map"), 3), derive("folds", rows, "map")
    (0.6, 0.7)
    >>> columns = columns_of("mean", rows, "map")
    >>> resampled("mean", columns, np.array([[3, 0, 0], [1, 1, 1]])).round(3).tolist()
    [0.2, 0.6]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import choose
from citeweave.evaluation.measuring.classes import CLASSIFICATION_METRICS, ClassCounts
from citeweave.evaluation.measuring.correlation import REGRESSION_METRICS
from citeweave.evaluation.measuring.resampled_tau import resampled_tau, resampled_taus

Columns = dict[str, NDArray[Any]]
"""One entry an item in every column."""

Weights = NDArray[np.float64]
"""(resamples, items)"""

Values = NDArray[np.float64]
"""(resamples,)"""

Rows = Mapping[str, Mapping[str, Any]]

DIGITS = 12
"""Of means that are taken for many systems at once."""


def derive(way: str, rows: Rows, metric: str) -> float:
    """The metric of all rows, a fraction; NaN where there are none."""
    if not rows:
        return float("nan")
    columns = columns_of(way, rows, metric)
    return float(resampled(way, columns, np.ones((1, len(rows))))[0])


def resampled(way: str, columns: Columns, weights: NDArray[Any]) -> Values:
    """The metric of every resample."""
    return WAYS[choose(way, WAYS, "way of deriving a metric")](columns, np.asarray(weights, np.float64))


def resampled_all(way: str, systems: Sequence[Columns], weights: Weights) -> NDArray[np.float64]:
    """(systems, resamples) the metric of several systems on the same items, each as `resampled` gives it."""
    if way == "mean":
        values = np.stack([columns["value"] for columns in systems])  # (systems, items)
        # one product may add up two rows in two ways: systems that answer alike must not differ in the last bit
        return np.asarray(np.round(values @ weights.T / weights.sum(axis=1), DIGITS))
    answers = [columns["answer"] for columns in systems] if way == "kendalltau" else []
    if answers and all(np.array_equal(answers[0], answer) for answer in answers):
        return resampled_taus(answers[0], np.stack([columns["told"] for columns in systems]), weights)
    return np.stack([resampled(way, columns, weights) for columns in systems])


def columns_of(way: str, rows: Rows, metric: str) -> Columns:
    """The columns of the rows that this way needs."""
    items = list(rows.values())
    if way in _OF_VALUES:
        columns = {"value": np.array([item[metric] for item in items], np.float64)}
        if way == "folds":
            columns["fold"] = np.array([item["fold"] for item in items], np.int64)
        if way == "weighted":
            columns["weight"] = np.array([item["weight"] for item in items], np.float64)
        return columns
    answers, told = [item["answer"] for item in items], [item["told"] for item in items]
    if way in REGRESSION_METRICS or (answers and isinstance(answers[0], list)):
        return {"answer": np.array(answers, np.float64), "told": np.array(told, np.float64)}
    return _classes(answers, told)


def _classes(answers: list[Any], told: list[Any]) -> Columns:
    """Flags by class, (items, classes): what a paper is and what was told of it; nothing where nothing was told."""
    known = sorted(
        {*answers, *(label for label in told if label is not None)}, key=lambda label: (str(type(label)), label)
    )
    place = {label: at for at, label in enumerate(known)}
    answer, guess = (
        np.array([place.get(label, -1) for label in labels])[:, None] == np.arange(len(known))
        for labels in (answers, told)
    )
    positive = known.index(1) if 1 in known else len(known) - 1
    return {"answer": answer, "told": guess, "positive": np.array([positive if len(known) <= 2 else -1])}


def _mean(columns: Columns, weights: Weights) -> Values:
    return np.asarray(weights @ columns["value"] / weights.sum(axis=1))


def _weighted_mean(columns: Columns, weights: Weights) -> Values:
    """Mean by the items' own weights, such as one over a click's propensity."""
    return np.asarray(weights @ (columns["value"] * columns["weight"]) / (weights @ columns["weight"]))


def _mean_of_folds(columns: Columns, weights: Weights) -> Values:
    """Mean of the folds' means, as CSFCube's script takes it; a fold that a resample missed is left out of it."""
    means = []
    for fold in np.unique(columns["fold"]):
        own = columns["fold"] == fold  # (items,)
        size = weights[:, own].sum(axis=1)
        total = weights[:, own] @ columns["value"][own]
        means.append(np.divide(total, size, out=np.full(len(weights), np.nan), where=size > 0))
    return np.asarray(np.nanmean(np.stack(means), axis=0))


def _from_flags(metric: str) -> Callable[[Columns, Weights], Values]:
    """Of classes or sets of labels: both are flags, (items, classes)."""

    def way(columns: Columns, weights: Weights) -> Values:
        answer, told = columns["answer"].astype(bool), columns["told"].astype(bool)
        flagged = (flags.astype(np.float64) for flags in (answer & told, told, answer))
        hits, predicted, actual = (weights @ flags for flags in flagged)  # (resamples, classes)
        right = weights @ (answer == told).all(axis=1) / weights.sum(axis=1)
        one_each = "positive" in columns
        counted = actual + predicted > 0 if one_each else np.ones(hits.shape, bool)
        positive = int(columns["positive"][0]) if one_each else -1
        counts = ClassCounts(hits, predicted, actual, right, counted, positive if positive >= 0 else None)
        return CLASSIFICATION_METRICS[metric](counts)

    return way


def _from_numbers(metric: str) -> Callable[[Columns, Weights], Values]:
    def way(columns: Columns, weights: Weights) -> Values:
        drawn = (np.repeat(np.arange(weights.shape[1]), row.astype(np.int64)) for row in weights)
        return np.array(
            [REGRESSION_METRICS[metric](columns["answer"][items], columns["told"][items]) for items in drawn]
        )

    return way


def _rank_correlation(columns: Columns, weights: Weights) -> Values:
    return resampled_tau(columns["answer"], columns["told"], weights)


_OF_VALUES = {"mean": _mean, "folds": _mean_of_folds, "weighted": _weighted_mean}

WAYS: dict[str, Callable[[Columns, Weights], Values]] = {
    **_OF_VALUES,
    **{metric: _from_flags(metric) for metric in CLASSIFICATION_METRICS},
    **{metric: _from_numbers(metric) for metric in REGRESSION_METRICS},
    "kendalltau": _rank_correlation,
}
