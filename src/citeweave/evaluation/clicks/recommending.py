"""SciDocs' recommendation task from beginning to end: features, a ranker learned from clicks, its judgement.

    recommend(read_click_data(folder), vectors).metrics    ->    {"adj-NDCG": ..., "adj-P@1": ..., "ndcg": ..., ...}

SciDocs publishes adj-NDCG 53.9 and adj-P@1 20.0 for SPECTER's vectors.

`vectors(ids)` gives the vectors of papers (n, d) and whether each is there (n,).

`weighting`. SciDocs means to divide the loss of a triplet by the propensity of the clicked place. Its reader overwrites
that place with 0, which selects the last propensity for every triplet: nothing is weighed but the loss as a whole.
`peer` does the same, `propensity` does what was meant. Only training differs; the metrics are weighed in both.

`missing`. `peers`: a paper without vector has cosine 0, and the other features rank on. `wrong`: besides, a test click
counts as lost where the query or the clicked paper has no vector; what cannot be compared is no success of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import choose
from citeweave.evaluation.clicks.features import Features, Lookup, pair_features
from citeweave.evaluation.clicks.judging import JudgedClicks, judge_clicks
from citeweave.evaluation.clicks.ranker import Ranker, RankerRecipe, Triplets, train_ranker
from citeweave.evaluation.clicks.reading import ClickData, Clicks, propensity_of
from citeweave.progress import QUIET, Reporter

WEIGHTINGS = ("peer", "propensity")
MISSING = ("wrong", "peers")
PER_CLICK = 10
"""Triplets made of a click at most: with the first ten other papers of its list."""

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class ClickResult:
    """What the task gave; with several seeds, one judgement each over the same clicks."""

    judged: tuple[JudgedClicks, ...]
    rankers: tuple[Ranker, ...]
    seeds: tuple[int, ...]
    coverage: Mapping[str, int]
    """Clicks (of the test, where nothing else is said), triplets and papers, and what was missing of them."""

    @property
    def metrics(self) -> dict[str, float]:
        """The mean over the seeds of every metric, as fractions."""
        each = [judged.metrics() for judged in self.judged]
        return {name: float(np.mean([values[name] for values in each])) for name in each[0]}


def recommend(
    data: ClickData,
    vectors: Lookup,
    *,
    seeds: Sequence[int] = (7,),
    recipe: RankerRecipe | None = None,
    weighting: str = "peer",
    missing: str = "wrong",
    reporter: Reporter = QUIET,
) -> ClickResult:
    """Learn from the training clicks, choose an epoch by the validation clicks, judge the test clicks."""
    choose(weighting, WEIGHTINGS, "the weighting of clicks")
    choose(missing, MISSING, "what is done with missing vectors")
    assert len(seeds), "at least one seed"
    learned = [_learn(clicks, data, vectors, weighting, reporter) for clicks in (data.train, data.val) if clicks]
    test = data.test
    features = pair_features(
        [test.queries[click] for click in test.owners.tolist()], test.shown, data.metadata, vectors, reporter
    )
    answered = features.has_vectors[test.at]  # (clicks,)
    triplets = [made for made, _ in learned]
    rankers = tuple(
        train_ranker(triplets[0], triplets[1] if data.val else None, seed=seed, recipe=recipe, reporter=reporter)
        for seed in seeds
    )
    judged = tuple(
        judge_clicks(test, ranker.scores(features.matrix), data.propensities, answered if missing == "wrong" else None)
        for ranker in rankers
    )
    coverage = {
        **_count_clicks(data, triplets[0]),
        **_count_papers([features, *(seen for _, seen in learned)]),
        "clicks without vectors": int((~answered).sum()),
        "clicks on the only paper shown": int((judged[0].others == 0).sum()),
    }
    return ClickResult(judged, rankers, tuple(seeds), coverage)


def triplet_rows(clicks: Clicks, per_click: int = PER_CLICK) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(triplets,) rows in `shown` of the clicked paper and of the other one: the first others of each list, in order.

    >>> [rows.tolist() for rows in triplet_rows(Clicks.of([("q", "b", ["a", "b", "c", "d"])]), per_click=2)]
    [[1, 1], [0, 2]]
    """
    others = np.flatnonzero(clicks.is_other())
    owners = clicks.owners[others]
    begins = np.searchsorted(owners, np.arange(len(clicks)))  # first other paper of each click
    others = others[np.arange(len(others)) - begins[owners] < per_click]
    return clicks.at[clicks.owners[others]], others


def _learn(
    clicks: Clicks, data: ClickData, vectors: Lookup, weighting: str, reporter: Reporter
) -> tuple[Triplets, Features]:
    """The triplets of a log. Features are made once for each paper of a list that is in one."""
    clicked, others = triplet_rows(clicks)
    used = np.union1d(clicked, others)  # rows of `shown`
    owners = clicks.owners
    features = pair_features(
        [clicks.queries[owners[row]] for row in used],
        [clicks.shown[row] for row in used],
        data.metadata,
        vectors,
        reporter,
    )
    if weighting == "peer":
        divisors = np.full(len(clicked), data.propensities[-1])
    else:
        divisors = propensity_of(clicks.places[owners[clicked]], data.propensities)
    rows = [features.matrix[np.searchsorted(used, part)] for part in (clicked, others)]
    return Triplets(rows[0], rows[1], divisors.astype(np.float32)), features


def _count_clicks(data: ClickData, train: Triplets) -> dict[str, int]:
    logs = [log for log in (data.train, data.val, data.test) if log is not None]
    return {
        "clicks": len(data.test),
        "training clicks": len(data.train),
        "validation clicks": len(data.val) if data.val is not None else 0,
        "training triplets": len(train),
        "clicks deeper than the propensities": sum(int((log.places >= len(data.propensities)).sum()) for log in logs),
    }


def _count_papers(parts: Sequence[Features]) -> dict[str, int]:
    """Distinct papers over all logs."""
    return {
        "papers": len(frozenset().union(*(part.papers for part in parts))),
        "papers without vector": len(frozenset().union(*(part.without_vector for part in parts))),
        "papers with a vector of zeros": len(frozenset().union(*(part.zero_vectors for part in parts))),
        "papers without metadata": len(frozenset().union(*(part.without_metadata for part in parts))),
    }
