"""Kendall's tau-b of many resamples at once: how often every item was drawn stands in for the items written out.

    >>> resampled_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]), np.array([[1, 1, 1, 1], [0, 2, 0, 1]])).round(4)
    array([0.6667, 1.    ])

Items are sorted and ranked once. Each resample then walks over them by their true number and counts, in a tree of partial
sums over the predicted ranks (Fenwick, Software: Practice and Experience 1994), how much of what came before is
predicted lower. Thirty-two resamples walk together. Counts are whole numbers: the result is SciPy's to the last bit.

How a metric follows from rows, for the rows as they are and for any resample of them.

A resample is a row of whole weights: how often each item was drawn. All ways but correlations are sums over items, so
that a thousand resamples are one matrix product; rank correlations count pairs, see `measuring/resampled_tau.py`.

    >>> rows = {"q1": {"map": 0.2, "fold": 0}, "q2": {"map": 0.6, "fold": 0}, "q3": {"map": 1.0, "fold": 1}}
    >>> round(derive("mean", rows, "map"), 3), derive("folds", rows, "map")
    (0.6, 0.7)
    >>> columns = columns_of("mean", rows, "map")
    >>> resampled("mean", columns, np.array([[3, 0, 0], [1, 1, 1]])).round(3).tolist()
    [0.2, 0.6]

What judging a task gave: a row for every query, click or paper; every mean is derived from the rows.

    >>> outcome = Outcome("cite", "ranking", {"map": "mean"}, {"q1": {"map": 0.5}, "q2": {"map": 1.0}})
    >>> outcome.metrics
    {'map': 75.0}

Rows hold fractions; metrics are in percent, as the field prints them.

Bootstrap resamples of a task's rows, and intervals of a single report.

Rows of the same paper (CSFCube asks of one paper by several facets) are drawn together: they are not independent.

    >>> weights = draw(["a", "a", "b"], 2, seed=1, purpose="x")
    >>> bool((weights[:, 0] == weights[:, 1]).all()), weights.shape
    (True, (2, 3))

Efron and Tibshirani, An Introduction to the Bootstrap, 1993: percentile intervals.
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
from citeweave.evaluation.class_metrics import CLASSIFICATION_METRICS, ClassCounts
from citeweave.evaluation.metrics import REGRESSION_METRICS

TOGETHER = 32
"""Resamples that walk over the items together."""


def resampled_tau(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """(resamples,) tau-b by whole weights (resamples, items); 0 where all true or all predicted numbers are equal."""
    return np.asarray(resampled_taus(truth, predicted[None], weights)[0])


def resampled_taus(truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """(predictions, resamples) of several predictions of the same numbers, (predictions, items)."""
    if predicted.shape[1:] != truth.shape or truth.ndim != 1 or weights.shape[1:] != truth.shape:
        raise ValueError(f"numbers of shape {truth.shape} and {predicted.shape[1:]}, weights of shape {weights.shape}")
    if not (np.isfinite(truth).all() and np.isfinite(predicted).all()):
        raise ValueError("a number to be compared is not finite")
    order = np.argsort(truth, kind="stable")
    steps = np.flatnonzero(np.diff(truth[order], prepend=-np.inf, append=np.inf)).astype(np.int64)
    ranked = [np.unique(each[order], return_inverse=True)[1].astype(np.int64) for each in predicted]
    found = np.empty((len(predicted), len(weights)))
    for at in range(0, len(weights), TOGETHER):
        drawn = np.empty((len(order), len(weights[at : at + TOGETHER])), np.int32)
        _put_in_order(weights[at : at + TOGETHER], order, drawn)
        for row, ranks in enumerate(ranked):
            found[row, at : at + TOGETHER] = _taus(drawn, ranks, steps)
    return found


def _taus(drawn: NDArray[np.int32], ranks: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """tau-b of a few resamples, (items, resamples); the last steps are SciPy's, in its order."""
    in_order, same_truth, same_told = _count_pairs(drawn, ranks, steps, int(ranks.max(initial=-1)) + 1)
    size = drawn.sum(axis=0, dtype=np.int64)
    pairs = size * (size - 1) // 2
    parted = pairs - same_truth, pairs - same_told
    tell = (parted[0] > 0) & (parted[1] > 0)
    found = in_order / np.sqrt(np.where(tell, parted[0], 1)) / np.sqrt(np.where(tell, parted[1], 1))
    return np.where(tell, np.clip(found, -1.0, 1.0), 0.0)


@numba.njit(cache=True, nogil=True)
def _put_in_order(weights, order, drawn):  # type: ignore[no-untyped-def]
    for item in range(len(order)):
        for at in range(len(weights)):
            drawn[item, at] = np.int32(weights[at, order[item]])


@numba.njit(cache=True, nogil=True)
def _add(sums, counts):  # type: ignore[no-untyped-def]
    for at in range(len(sums)):
        sums[at] += counts[at]


@numba.njit(cache=True, nogil=True)
def _count_pairs(drawn, ranks, steps, names):  # type: ignore[no-untyped-def]
    """By resample: pairs in order less pairs out of order, pairs with the same truth, pairs with the same prediction."""
    width = drawn.shape[1]
    tree = np.zeros((names + 1, width), np.int32)
    each = np.zeros((names, width), np.int32)  # of each predicted rank
    before = np.zeros(width, np.int32)
    lower = np.zeros(width, np.int32)
    now = np.zeros(width, np.int32)
    in_order, same_truth, same_told = np.zeros(width, np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64)
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
            same_told[at] += np.int64(each[rank, at]) * (each[rank, at] - 1) // 2
    return in_order, same_truth, same_told


# How a metric follows from rows, for the rows as they are and for any resample of them.

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


# What judging a task gave: a row for every query, click or paper; every mean is derived from the rows.


@dataclass(frozen=True)
class Outcome:
    """One task, judged."""

    task: str
    kind: str
    """`ranking`, `search`, `classes`, `labels`, `numbers`, `few-shot` or `clicks`."""

    how: Mapping[str, str]
    """Metric -> how it is derived from the rows: a name of `deriving.WAYS`."""

    rows: Rows
    """Query, click or test paper -> its values; for probes `answer` and `told`; `fold` and `field` where they are known."""

    coverage: Mapping[str, int] = field(default_factory=dict)
    """Counts: queries, candidates, missing vectors, dropped queries, and so on."""

    notes: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What the protocol chose by itself, such as the probe's C."""

    ranked: Mapping[str, list[tuple[str, float]]] = field(default_factory=dict, repr=False)
    """Query -> candidates with their scores, best first; for TREC runs, not part of any JSON."""

    @property
    def metrics(self) -> dict[str, float]:
        return {name: 100 * derive(way, self.rows, name) for name, way in self.how.items()}

    def as_json(self) -> dict[str, Any]:
        fields = asdict(replace(self, ranked={}))
        fields.pop("ranked")
        return {**fields, "metrics": self.metrics}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Outcome:
        return cls(
            value["task"],
            value["kind"],
            value["how"],
            value["rows"],
            value["coverage"],
            tuple(value["notes"]),
            value["chosen"],
        )


# Bootstrap resamples of a task's rows, and intervals of a single report.

LEVEL = 95
"""Percent of an interval."""

_BLOCK = 2**22
"""Weights made at once."""


def draw(clusters: Sequence[str], resamples: int, *, seed: int, purpose: str) -> NDArray[np.int64]:
    """(resamples, rows): how often each row is drawn; rows of one cluster are drawn together."""
    names, place = np.unique(np.asarray(clusters), return_inverse=True)
    rng = stream(seed, "bootstrap", purpose)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)  # (resamples, clusters)
    return np.asarray(counts[:, place])


def blocks(rows: int, resamples: int) -> Iterator[int]:
    """Sizes of blocks of resamples that fit into memory together.

    >>> list(blocks(2**21, 5))
    [2, 2, 1]
    """
    size = max(1, _BLOCK // max(1, rows))
    while resamples > 0:
        yield min(size, resamples)
        resamples -= size


def clusters_of(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is drawn as one: the paper of a row where it is said, else the row."""
    return [str(row.get("paper", name)) for name, row in rows.items()]


def resample_metric(
    outcome: Outcome, metric: str, resamples: int, *, seed: int, keep: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """(resamples,) the metric, a fraction; the same seed draws the same rows of whatever was judged by the task.

    `keep` names the rows that take part, in their order: two reports are paired by giving both the same.
    """
    return np.asarray(resample_together([outcome], metric, resamples, seed=seed, keep=keep)[0])


def resample_together(
    outcomes: Sequence[Outcome], metric: str, resamples: int, *, seed: int, keep: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """(outcomes, resamples) the metric of several outcomes of one task on the same rows, which are drawn once for all."""
    names = list(outcomes[0].rows if keep is None else keep)
    each = [{name: outcome.rows[name] for name in names} for outcome in outcomes]
    ways = [outcome.how[metric] for outcome in outcomes]
    columns = [columns_of(way, rows, metric) for way, rows in zip(ways, each, strict=True)]
    clusters, task = clusters_of(each[0]), outcomes[0].task
    parts = []
    for number, size in enumerate(blocks(len(names), resamples)):
        weights = draw(clusters, size, seed=seed, purpose=f"{task} {number}").astype(np.float64)  # (block, rows)
        if len(set(ways)) == 1:
            parts.append(resampled_all(ways[0], columns, weights))
        else:
            parts.append(np.stack([resampled(way, own, weights) for way, own in zip(ways, columns, strict=True)]))
    return np.concatenate(parts, axis=1)


def interval(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float]:
    """Percentile interval; NaN where nothing is finite."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.percentile(finite, [(100 - level) / 2, (100 + level) / 2])
    return float(low), float(high)


def intervals_of(outcomes: Sequence[Outcome], *, resamples: int = 1000, seed: int = 0) -> dict[str, list[float]]:
    """Metric -> low and high end in percent: how far it would move with other queries of the same kind.

    A metric that no resample has, as NaN is no number in JSON, gets none.
    """
    found = {}
    for outcome in outcomes:
        for metric in outcome.how:
            low, high = interval(resample_metric(outcome, metric, resamples, seed=seed))
            if np.isfinite(low):
                found[f"{outcome.task}.{metric}"] = [100 * low, 100 * high]
    return found
