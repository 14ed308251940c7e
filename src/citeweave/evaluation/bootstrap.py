"""Outcomes of tasks as one row per query, the metrics derived from rows, and bootstrap resamples with intervals.

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

Rows of the same paper (CSFCube asks about one paper by several facets) are drawn together: they are not independent.

    >>> weights = draw_resamples(["a", "a", "b"], 2, seed=1, purpose="x")
    >>> bool((weights[:, 0] == weights[:, 1]).all()), weights.shape
    (True, (2, 3))

Intervals are percentile intervals: Efron and Tibshirani, An Introduction to the Bootstrap, 1993. Does not compare
systems: `compare.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import choose
from citeweave.core.randomness import stream
from citeweave.evaluation.metrics import CLASSIFICATION_METRICS, REGRESSION_METRICS, ClassCounts

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

LEVEL = 95
"""Percent of resamples inside an interval."""

_BLOCK = 2**22
"""Weights that are drawn at once."""

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
    """Query, click or test paper -> its values; for probes `answer` (label) and `told` (prediction); `fold` and `field`."""

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
        return cls(
            value["task"],
            value["kind"],
            value["how"],
            value["rows"],
            value["coverage"],
            tuple(value["notes"]),
            value["chosen"],
        )


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
    truths = [columns["answer"] for columns in systems] if derivation == "kendalltau" else []
    if truths and all(np.array_equal(truths[0], truth) for truth in truths):
        return _resample_taus(truths[0], np.stack([columns["told"] for columns in systems]), weights)
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
    labels, predictions = [item["answer"] for item in items], [item["told"] for item in items]
    if derivation in REGRESSION_METRICS or (labels and isinstance(labels[0], list)):
        return {"answer": np.array(labels, np.float64), "told": np.array(predictions, np.float64)}
    return _class_flags(labels, predictions)


def _class_flags(labels: list[Any], predictions: list[Any]) -> Columns:
    """Return label and prediction of each paper as flags by class, (items, classes); none for a missing prediction."""
    classes = sorted(
        {*labels, *(each for each in predictions if each is not None)}, key=lambda label: (str(type(label)), label)
    )
    place = {label: at for at, label in enumerate(classes)}
    actual, predicted = (
        np.array([place.get(label, -1) for label in column])[:, None] == np.arange(len(classes))
        for column in (labels, predictions)
    )
    positive = classes.index(1) if 1 in classes else len(classes) - 1
    return {"answer": actual, "told": predicted, "positive": np.array([positive if len(classes) <= 2 else -1])}


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


def _from_flags(metric: str) -> Callable[[Columns, Weights], Values]:
    """Return the derivation of a classification metric from flags of classes or labels, (items, classes)."""

    def derivation(columns: Columns, weights: Weights) -> Values:
        is_label, is_predicted = columns["answer"].astype(bool), columns["told"].astype(bool)
        flagged = (flags.astype(np.float64) for flags in (is_label & is_predicted, is_predicted, is_label))
        hits, predicted, actual = (weights @ flags for flags in flagged)  # (resamples, classes)
        right = weights @ (is_label == is_predicted).all(axis=1) / weights.sum(axis=1)
        one_each = "positive" in columns
        counted = actual + predicted > 0 if one_each else np.ones(hits.shape, bool)
        positive = int(columns["positive"][0]) if one_each else -1
        counts = ClassCounts(hits, predicted, actual, right, counted, positive if positive >= 0 else None)
        return CLASSIFICATION_METRICS[metric](counts)

    return derivation


def _from_numbers(metric: str) -> Callable[[Columns, Weights], Values]:
    """Return the derivation of a regression metric, resample by resample."""

    def derivation(columns: Columns, weights: Weights) -> Values:
        drawn = (np.repeat(np.arange(weights.shape[1]), row.astype(np.int64)) for row in weights)
        return np.array(
            [REGRESSION_METRICS[metric](columns["answer"][items], columns["told"][items]) for items in drawn]
        )

    return derivation


def _rank_correlation(columns: Columns, weights: Weights) -> Values:
    """Derive Kendall's tau of labels and predictions in every resample."""
    return _resample_tau(columns["answer"], columns["told"], weights)


_OF_VALUES = {"mean": _mean, "folds": _mean_of_folds, "weighted": _weighted_mean}

DERIVATIONS: dict[str, Callable[[Columns, Weights], Values]] = {
    **_OF_VALUES,
    **{metric: _from_flags(metric) for metric in CLASSIFICATION_METRICS},
    **{metric: _from_numbers(metric) for metric in REGRESSION_METRICS},
    "kendalltau": _rank_correlation,
}
"""Name of a derivation -> function of columns and weights (resamples, items)."""


def draw_resamples(clusters: Sequence[str], resamples: int, *, seed: int, purpose: str) -> NDArray[np.int64]:
    """Draw bootstrap resamples: how often each row is drawn, (resamples, rows); rows of a cluster go together."""
    names, place = np.unique(np.asarray(clusters), return_inverse=True)
    rng = stream(seed, "bootstrap", purpose)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)  # (resamples, clusters)
    return np.asarray(counts[:, place])


def resample_blocks(rows: int, resamples: int) -> Iterator[int]:
    """Yield the sizes of blocks of bootstrap resamples that fit into memory.

    >>> list(resample_blocks(2**21, 5))
    [2, 2, 1]
    """
    size = max(1, _BLOCK // max(1, rows))
    while resamples > 0:
        yield min(size, resamples)
        resamples -= size


def clusters_of(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the cluster of every row, drawn as one: the paper of a row where it has one, else the row itself."""
    return [str(row.get("paper", name)) for name, row in rows.items()]


def resample_metric(
    outcome: Outcome, metric: str, resamples: int, *, seed: int, rows: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """Bootstrap a metric of an outcome, (resamples,) fractions; the same seed draws the same rows of every system.

    `rows` names the rows that take part, in their order: two reports are paired by giving both the same.
    """
    return np.asarray(resample_together([outcome], metric, resamples, seed=seed, rows=rows)[0])


def resample_together(
    outcomes: Sequence[Outcome], metric: str, resamples: int, *, seed: int, rows: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """Bootstrap a metric of several outcomes of one task, (outcomes, resamples), with rows drawn once for all."""
    names = list(outcomes[0].rows if rows is None else rows)
    each = [{name: outcome.rows[name] for name in names} for outcome in outcomes]
    derivations = [outcome.how[metric] for outcome in outcomes]
    columns = [columns_of(derivation, own, metric) for derivation, own in zip(derivations, each, strict=True)]
    clusters, task = clusters_of(each[0]), outcomes[0].task
    parts = []
    for number, size in enumerate(resample_blocks(len(names), resamples)):
        weights = draw_resamples(clusters, size, seed=seed, purpose=f"{task} {number}").astype(
            np.float64
        )  # (block, rows)
        if len(set(derivations)) == 1:
            parts.append(derive_resamples_of_systems(derivations[0], columns, weights))
        else:
            each_alone = zip(derivations, columns, strict=True)
            parts.append(np.stack([derive_resamples(derivation, own, weights) for derivation, own in each_alone]))
    return np.concatenate(parts, axis=1)


def percentile_interval(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float]:
    """Compute the percentile interval of bootstrapped values; NaN where none is finite."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.percentile(finite, [(100 - level) / 2, (100 + level) / 2])
    return float(low), float(high)


def intervals_of(outcomes: Sequence[Outcome], *, resamples: int = 1000, seed: int = 0) -> dict[str, list[float]]:
    """Compute bootstrap intervals, metric -> low and high end in percent: how far other queries would move it.

    A metric without a finite resample has no interval, as JSON has no NaN.
    """
    intervals = {}
    for outcome in outcomes:
        for metric in outcome.how:
            low, high = percentile_interval(resample_metric(outcome, metric, resamples, seed=seed))
            if np.isfinite(low):
                intervals[f"{outcome.task}.{metric}"] = [100 * low, 100 * high]
    return intervals


def _resample_tau(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """Compute Kendall's tau-b of every resample by integer weights (resamples, items), (resamples,).

    It is 0 where all true or all predicted numbers are equal. Items are sorted and ranked once. Each resample then goes
    over them by their true number and counts, in a tree of partial sums over the predicted ranks (Fenwick, Software:
    Practice and Experience 1994), how many of the items before are predicted lower. Counts are integers, so the result
    is bit-equal to SciPy's.

    >>> _resample_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]), np.array([[1, 1, 1, 1], [0, 2, 0, 1]])).round(4)
    array([0.6667, 1.    ])
    """
    return np.asarray(_resample_taus(truth, predicted[None], weights)[0])


def _resample_taus(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """Compute Kendall's tau-b of several predictions (predictions, items) in every resample, (predictions, resamples)."""
    if predicted.shape[1:] != truth.shape or truth.ndim != 1 or weights.shape[1:] != truth.shape:
        raise ValueError(f"numbers of shape {truth.shape} and {predicted.shape[1:]}, weights of shape {weights.shape}")
    if not (np.isfinite(truth).all() and np.isfinite(predicted).all()):
        raise ValueError("a number to be compared is not finite")
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


@numba.njit(cache=True, nogil=True)
def _put_in_order(weights, order, drawn):  # type: ignore[no-untyped-def]
    """Write the weights of some resamples, items in order of their true numbers, into `drawn` (items, resamples)."""
    for item in range(len(order)):
        for at in range(len(weights)):
            drawn[item, at] = np.int32(weights[at, order[item]])


@numba.njit(cache=True, nogil=True)
def _add(sums, counts):  # type: ignore[no-untyped-def]
    """Add the counts of all resamples to their sums."""
    for at in range(len(sums)):
        sums[at] += counts[at]


@numba.njit(cache=True, nogil=True)
def _count_pairs(drawn, ranks, steps, names):  # type: ignore[no-untyped-def]
    """Count per resample: pairs in order minus pairs out of order, pairs of equal truth, pairs of equal prediction."""
    width = drawn.shape[1]
    tree = np.zeros((names + 1, width), np.int32)
    each = np.zeros((names, width), np.int32)  # items of each predicted rank
    before = np.zeros(width, np.int32)
    lower = np.zeros(width, np.int32)
    now = np.zeros(width, np.int32)
    in_order, same_truth, same_prediction = (
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
    )
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
