"""Outcomes of tasks as one row per query, and the metrics that are derived from rows: means, classes, correlations.

    >>> outcome = Outcome("cite", "ranking", {"map": "mean"}, {"q1": {"map": 0.5}, "q2": {"map": 1.0}})
    >>> outcome.metrics
    {'map': 75.0}

Rows hold fractions; metrics are in percent, as the field prints them. A derivation computes a metric from rows, as they
are or resampled. A resample is a row of integer weights: how often each item was drawn. All derivations but correlations
are sums over items, so that a thousand resamples are one matrix product; rank correlations count pairs.

    >>> rows = {"q1": {"map": 0.2, "fold": 0}, "q2": {"map": 0.6, "fold": 0}, "q3": {"map": 1.0, "fold": 1}}
    >>> round(derive_metric("mean", rows, "map"), 3), derive_metric("folds", rows, "map")
    (0.6, 0.7)
    >>> columns = columns_of("mean", rows, "map")
    >>> derive_resamples("mean", columns, np.array([[3, 0, 0], [1, 1, 1]])).round(3).tolist()
    [0.2, 0.6]

Classification metrics are scikit-learn's (0 where it divides by 0), from counts of classes:

    label       a a b c        class   hits  predicted  actual   F1 = 2 hits / (predicted + actual)
    prediction  a b b b        a       1     1          2        2/3
                               b       1     3          1        1/2
                               c       0     0          1        0         macro F1 = their mean

    >>> papers = {str(at): {"label": label, "predicted": told} for at, (label, told) in enumerate(zip("aabc", "abbb"))}
    >>> round(derive_metric("f1_macro", papers, "f1"), 4)
    0.3889

Does not draw resamples (`compare.py`) and does not hold ranking metrics (`ranking_metrics.py`), click metrics
(`clicks.py`) or link prediction (`links.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, choose
from citeweave.evaluation.ranking_metrics import share

Columns = dict[str, NDArray[Any]]
"""Columns of rows, one entry per item in each."""

Weights = NDArray[np.float64]
"""(resamples, items)"""

Values = NDArray[np.float64]
"""(resamples,)"""

Rows = Mapping[str, Mapping[str, Any]]
"""Query, click or paper -> its values by name."""

DIGITS = 12
"""Decimals of means that are computed for many systems at once."""

TOGETHER = 32
"""Resamples that go over the items together."""


@dataclass(frozen=True)
class Outcome:
    """Rows of a task's outcome, one per query, click or test paper: bootstrap resamples draw them, metrics derive from them."""

    task: str
    kind: str
    """`ranking`, `search`, `classes`, `labels`, `numbers`, `few-shot` or `clicks`."""

    how: Mapping[str, str]
    """Metric -> how it is derived from the rows: a name of `DERIVATIONS`."""

    rows: Rows
    """Query, click or test paper -> its values; for probes `label` and `predicted`; `fold` and `field`."""

    coverage: Mapping[str, int] = field(default_factory=dict)
    """Counts: queries, candidates, missing vectors, dropped queries, and so on."""

    notes: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the protocol chose by itself, such as the C of a probe."""

    ranked: Mapping[str, list[tuple[str, float]]] = field(default_factory=dict, repr=False)
    """Query -> candidates with their scores, best first; for TREC runs, not part of the JSON."""

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric of the task in percent."""
        return {name: 100 * derive_metric(derivation, self.rows, name) for name, derivation in self.how.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON values, with metrics and without ranked candidates."""
        fields = asdict(replace(self, ranked={}))
        fields.pop("ranked")
        return {**fields, "metrics": self.metrics}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Outcome:
        """Read an outcome, whose rows a bootstrap resamples, from the JSON values of `as_json`."""
        names = ("task", "kind", "how", "rows", "coverage", "chosen")
        return cls(**{name: value[name] for name in names}, notes=tuple(value["notes"]))


def derive_metric(derivation: str, rows: Rows, metric: str) -> float:
    """Derive a metric from all rows of a task, as a fraction; NaN where there are no rows."""
    if not rows:
        return float("nan")
    columns = columns_of(derivation, rows, metric)
    return float(derive_resamples(derivation, columns, np.ones((1, len(rows))))[0])


def derive_resamples(derivation: str, columns: Columns, weights: NDArray[Any]) -> Values:
    """Derive a metric from every bootstrap resample of the rows, (resamples,)."""
    return DERIVATIONS[choose(derivation, DERIVATIONS, "derivation of a metric")](
        columns, np.asarray(weights, np.float64)
    )


def derive_resamples_of_systems(derivation: str, systems: Sequence[Columns], weights: Weights) -> NDArray[np.float64]:
    """Derive a metric of several systems from the same bootstrap resamples, (systems, resamples)."""
    if derivation == "mean":
        values = np.stack([columns["value"] for columns in systems])  # (systems, items)
        # a matrix product may sum two equal rows in different orders: equal systems must not differ in the last bit
        return np.asarray(np.round(values @ weights.T / weights.sum(axis=1), DIGITS))
    truths = [columns["label"] for columns in systems] if derivation == "kendalltau" else []
    if truths and all(np.array_equal(truths[0], truth) for truth in truths):
        return _resample_taus(truths[0], np.stack([columns["predicted"] for columns in systems]), weights)
    return np.stack([derive_resamples(derivation, columns, weights) for columns in systems])


def columns_of(derivation: str, rows: Rows, metric: str) -> Columns:
    """Collect the columns of rows that bootstrap resamples derive a metric from."""
    items = list(rows.values())
    if derivation in _OF_VALUES:
        columns = {"value": np.array([item[metric] for item in items], np.float64)}
        if derivation == "folds":
            columns["fold"] = np.array([item["fold"] for item in items], np.int64)
        if derivation == "weighted":
            columns["weight"] = np.array([item["weight"] for item in items], np.float64)
        return columns
    labels, predictions = [item["label"] for item in items], [item["predicted"] for item in items]
    if derivation in REGRESSION_METRICS or (labels and isinstance(labels[0], list)):
        return {"label": np.array(labels, np.float64), "predicted": np.array(predictions, np.float64)}
    return _class_flags(labels, predictions)


def _class_flags(labels: list[Any], predictions: list[Any]) -> Columns:
    """Return label and prediction of each paper as flags by class, (items, classes); none for a missing prediction."""
    classes = sorted(
        {*labels, *(each for each in predictions if each is not None)}, key=lambda label: (str(type(label)), label)
    )
    if classes == [0]:
        classes.append(1)  # no paper is positive, and F1 is 0, as in scikit-learn
    place = {label: at for at, label in enumerate(classes)}
    actual, predicted = (
        np.array([place.get(label, -1) for label in column])[:, None] == np.arange(len(classes))
        for column in (labels, predictions)
    )
    positive = classes.index(1) if 1 in classes else len(classes) - 1
    return {"label": actual, "predicted": predicted, "positive": np.array([positive if len(classes) <= 2 else -1])}


def _mean(columns: Columns, weights: Weights) -> Values:
    """Derive the mean of a metric's values in every resample."""
    return np.asarray(weights @ columns["value"] / weights.sum(axis=1))


def _weighted_mean(columns: Columns, weights: Weights) -> Values:
    """Derive the mean weighted by the items' own weights, such as one over a click's propensity."""
    return np.asarray(weights @ (columns["value"] * columns["weight"]) / (weights @ columns["weight"]))


def _mean_of_folds(columns: Columns, weights: Weights) -> Values:
    """Derive the mean of the folds' means, as CSFCube's script does; a fold without a drawn row is left out."""
    means = []
    for fold in np.unique(columns["fold"]):
        own = columns["fold"] == fold  # (items,)
        size = weights[:, own].sum(axis=1)
        total = weights[:, own] @ columns["value"][own]
        means.append(np.divide(total, size, out=np.full(len(weights), np.nan), where=size > 0))
    return np.asarray(np.nanmean(np.stack(means), axis=0))


# --- classes and labels ----------------------------------------------------------------------------------


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


def precision(counts: ClassCounts) -> Values:
    """Return the classification metric precision of every class: hits / predicted, (..., classes)."""
    return share(counts.hits, counts.predicted)


def recall(counts: ClassCounts) -> Values:
    """Return the classification metric recall of every class: hits / actual, (..., classes)."""
    return share(counts.hits, counts.actual)


def f1(counts: ClassCounts) -> Values:
    """Return the classification metric F1 of every class, (..., classes): van Rijsbergen, 1979."""
    return share(2 * counts.hits, counts.predicted + counts.actual)


def macro(values: Values, counts: ClassCounts) -> Values:
    """Average a classification metric over the classes, each with the same weight, (...)."""
    return share((values * counts.counted).sum(axis=-1), counts.counted.sum(axis=-1))


def weighted(values: Values, counts: ClassCounts) -> Values:
    """Average a classification metric over the classes, weighted by their numbers of papers, (...)."""
    return share((values * counts.actual).sum(axis=-1), counts.actual.sum(axis=-1))


def f1_macro(counts: ClassCounts) -> Values:
    """Return the macro F1: the mean of the classes' F1."""
    return macro(f1(counts), counts)


def f1_micro(counts: ClassCounts) -> Values:
    """Return the classification metric micro F1 over all decisions; with one label per paper it equals accuracy."""
    return share(2 * counts.hits.sum(axis=-1), (counts.predicted + counts.actual).sum(axis=-1))


def accuracy(counts: ClassCounts) -> Values:
    """Return the share of papers with all labels right."""
    return np.asarray(counts.exact, np.float64)


def _for_positive(formula: Callable[[ClassCounts], Values], counts: ClassCounts) -> Values:
    """Return a metric of the positive class of a binary classification, (...)."""
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


def _from_flags(metric: str) -> Callable[[Columns, Weights], Values]:
    """Return the derivation of a classification metric from flags of classes or labels, (items, classes)."""

    def derivation(columns: Columns, weights: Weights) -> Values:
        is_label, is_predicted = columns["label"].astype(bool), columns["predicted"].astype(bool)
        flagged = (flags.astype(np.float64) for flags in (is_label & is_predicted, is_predicted, is_label))
        hits, predicted, actual = (weights @ flags for flags in flagged)  # (resamples, classes)
        right = weights @ (is_label == is_predicted).all(axis=1) / weights.sum(axis=1)
        one_each = "positive" in columns
        counted = actual + predicted > 0 if one_each else np.ones(hits.shape, bool)
        positive = int(columns["positive"][0]) if one_each else -1
        counts = ClassCounts(hits, predicted, actual, right, counted, positive if positive >= 0 else None)
        return CLASSIFICATION_METRICS[metric](counts)

    return derivation


# --- numbers ---------------------------------------------------------------------------------------------


def pearson(labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    """Compute the regression metric Pearson's correlation of true and predicted numbers; 0 for a constant prediction.

    >>> pearson(np.array([1, 2, 3]), np.array([30, 20, 10])), round(pearson(np.array([1, 2, 3]), np.array([1, 2, 4])), 4)
    (-1.0, 0.982)
    """
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(labels, predictions)[0, 1], -1, 1))


def _pearsons(columns: Columns, weights: Weights) -> Values:
    """Derive Pearson's correlation of labels and predictions, resample by resample."""
    labels, predictions = columns["label"], columns["predicted"]
    _check_finite(labels, predictions)
    drawn = (np.repeat(np.arange(weights.shape[1]), row.astype(np.int64)) for row in weights)
    return np.array([pearson(labels[items], predictions[items]) for items in drawn])


def _check_finite(*numbers: NDArray[Any]) -> None:
    if not all(np.isfinite(each).all() for each in numbers):
        raise ValueError("a number to be compared is not finite")


def _rank_correlation(columns: Columns, weights: Weights) -> Values:
    """Derive Kendall's tau of labels and predictions in every resample.

    >>> columns = {"label": np.array([1.0, 2, 3, 4]), "predicted": np.array([1.0, 3, 2, 4])}
    >>> _rank_correlation(columns, np.array([[1, 1, 1, 1], [0, 2, 0, 1]])).round(4)
    array([0.6667, 1.    ])
    """
    return np.asarray(_resample_taus(columns["label"], columns["predicted"][None], weights)[0])


def _resample_taus(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """Compute Kendall's tau-b (1945) of predictions (predictions, items) in every resample, (predictions, resamples).

    It is 0 where all true or all predicted numbers are equal. Items are sorted and ranked once. Each resample then goes
    over them by their true number and counts, in a tree of partial sums over the predicted ranks (Fenwick, Software:
    Practice and Experience 1994), how many of the items before are predicted lower. Counts are integers, so the result
    is bit-equal to SciPy's.
    """
    _check_finite(truth, predicted)
    order = np.argsort(truth, kind="stable")
    steps = np.flatnonzero(np.diff(truth[order], prepend=-np.inf, append=np.inf)).astype(np.int64)
    ranked = [np.unique(each[order], return_inverse=True)[1].astype(np.int64) for each in predicted]
    taus = np.empty((len(predicted), len(weights)))
    for at in range(0, len(weights), TOGETHER):
        drawn = np.empty((len(order), len(weights[at : at + TOGETHER])), np.int32)
        _put_in_order(weights[at : at + TOGETHER], order, drawn)
        for row, ranks in enumerate(ranked):
            taus[row, at : at + TOGETHER] = _taus(drawn, ranks, steps)
    return taus


def _taus(drawn: NDArray[np.int32], ranks: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute Kendall's tau-b of some resamples (items, resamples); the last steps are SciPy's, in its order."""
    in_order, same_truth, same_prediction = _count_pairs(drawn, ranks, steps, int(ranks.max(initial=-1)) + 1)
    size = drawn.sum(axis=0, dtype=np.int64)
    pairs = size * (size - 1) // 2
    untied = pairs - same_truth, pairs - same_prediction
    varies = (untied[0] > 0) & (untied[1] > 0)
    taus = in_order / np.sqrt(np.where(varies, untied[0], 1)) / np.sqrt(np.where(varies, untied[1], 1))
    return np.where(varies, np.clip(taus, -1.0, 1.0), 0.0)


@compiled()
def _put_in_order(weights, order, drawn):  # type: ignore[no-untyped-def]
    """Write the weights of some resamples, items in order of their true numbers, into `drawn` (items, resamples)."""
    for item in range(len(order)):
        for at in range(len(weights)):
            drawn[item, at] = np.int32(weights[at, order[item]])


@compiled()
def _add(sums, counts):  # type: ignore[no-untyped-def]
    """Add the counts of all resamples to their sums."""
    for at in range(len(sums)):
        sums[at] += counts[at]


@compiled()
def _count_pairs(drawn, ranks, steps, names):  # type: ignore[no-untyped-def]
    """Count per resample: pairs in order minus pairs out of order, pairs of equal truth, pairs of equal prediction."""
    width = drawn.shape[1]
    tree = np.zeros((names + 1, width), np.int32)
    each = np.zeros((names, width), np.int32)  # items of each predicted rank
    before = np.zeros(width, np.int32)
    lower = np.zeros(width, np.int32)
    now = np.zeros(width, np.int32)
    in_order, same_truth, same_prediction = np.zeros((3, width), np.int64)
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
            same_prediction[at] += np.int64(each[rank, at]) * (each[rank, at] - 1) // 2
    return in_order, same_truth, same_prediction


_OF_VALUES = {"mean": _mean, "folds": _mean_of_folds, "weighted": _weighted_mean}
REGRESSION_METRICS = {"kendalltau": _rank_correlation, "pearsonr": _pearsons}
"""Regression metrics by their names in SciRepEval."""

DERIVATIONS: dict[str, Callable[[Columns, Weights], Values]] = {
    **_OF_VALUES,
    **{metric: _from_flags(metric) for metric in CLASSIFICATION_METRICS},
    **REGRESSION_METRICS,
}
"""Name of a derivation -> function of columns and weights (resamples, items)."""
