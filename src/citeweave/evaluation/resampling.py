"""Bootstrap resamples of a task's rows, and intervals of a single report.

Rows of the same paper (CSFCube asks of one paper by several facets) are drawn together: they are not independent.

    >>> weights = draw(["a", "a", "b"], 2, seed=1, purpose="x")
    >>> bool((weights[:, 0] == weights[:, 1]).all()), weights.shape
    (True, (2, 3))

Efron and Tibshirani, An Introduction to the Bootstrap, 1993: percentile intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.deriving import columns_of, resampled, resampled_all
from citeweave.evaluation.outcomes import Outcome
from citeweave.randomness import stream

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
