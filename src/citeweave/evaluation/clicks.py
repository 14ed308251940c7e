"""Where the clicked paper lands when the papers of a click log are ordered by score: one row a click.

    scores of the clicked paper 0.7, of the others 0.9, 0.7, 0.2      ->      above = 1 + 1/2, as a tie counts half
    ndcg 1 / log2(2 + 1.5) = 0.55, mrr 1 / (1 + 1.5) = 0.4, p@1 0 (only if nothing is above and nothing ties)

`adj-` metrics weigh every click by 1 / propensity of the place it was clicked at: a click far down counts for more.
The formulas are those of `measuring.clicks`; here is what only a log knows: papers shown twice, clicks deeper than the
propensities, clicks that could not be judged.

SciDocs' recommendation task from beginning to end: features, a ranker learned from clicks, its judgment.

    recommend(read_click_data(folder), vectors).metrics    ->    {"adj-NDCG": ..., "adj-P@1": ..., "ndcg": ..., ...}

SciDocs publishes adj-NDCG 53.9 and adj-P@1 20.0 for SPECTER's vectors.

`vectors(ids)` gives the vectors of papers (n, d) and whether each is there (n,).

`weighting`. SciDocs means to divide the loss of a triplet by the propensity of the clicked place. Its reader overwrites
that place with 0, which selects the last propensity for every triplet: nothing is weighed but the loss as a whole.
`peer` does the same, `propensity` does what was meant. Only training differs; the metrics are weighed in both.

`missing`. `peers`: a paper without vector has cosine 0, and the other features rank on. `wrong`: besides, a test click
counts as lost where the query or the clicked paper has no vector; what cannot be compared is no success of the vectors.

Judge the recommendation task: a small network learns from clicks, with the judged vectors' cosine among its features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation import metrics as measuring
from citeweave.evaluation.bootstrap import Outcome
from citeweave.evaluation.click_data import ClickData, ClickLog, propensity_of
from citeweave.evaluation.click_ranker import (
    ClickTriplets,
    Features,
    Lookup,
    Ranker,
    RankerRecipe,
    pair_features,
    train_ranker,
)
from citeweave.evaluation.systems import Judged, NoAnswerError
from citeweave.evaluation.tasks import ClickTask

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


METRICS = {
    "accuracy": "accuracy",
    "ndcg": "ndcg",
    "mrr": "mrr",
    "p@1": "P@1",
    "adj-accuracy": "adj-accuracy",
    "adj-NDCG": "adj-ndcg",
    "adj-MRR": "adj-mrr",
    "adj-P@1": "adj-P@1",
}
"""What reports call them -> their names in `measuring.clicks`. SciDocs reports adj-NDCG and adj-P@1."""


@dataclass(frozen=True)
class JudgedClicks:
    """A click a row; every mean is derived from these."""

    queries: Sequence[str]
    clicked: Sequence[str]
    places: Longs
    """(clicks,) where the clicked paper was shown, the first is 0."""

    above: Doubles
    """(clicks,) other papers that score higher, ties counting half."""

    others: Longs
    """(clicks,) papers of the list that the clicked one was compared with."""

    weights: Doubles
    """(clicks,) 1 / propensity of the place."""

    answered: NDArray[np.bool_]
    """(clicks,) False where the click was counted as lost because a vector is missing."""

    scores: Doubles
    """(shown,) of every shown paper, one list after the other as in the click log."""

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def standing(self) -> measuring.ClickRanks:
        """What the metrics are made of."""
        return measuring.ClickRanks(self.above, self.others - self.above, self.weights)

    def metrics(self) -> dict[str, float]:
        """SciDocs' eight numbers as fractions; accuracies are NaN where no list holds a second paper."""
        found = measuring.click_metrics(self.standing)
        return {name: found[metric] for name, metric in METRICS.items()}

    def names(self) -> list[str]:
        """One name a click: the query's id, with a number where it comes again, such as `q`, `q#2`."""
        seen, names = Counter[str](), []
        for query in self.queries:
            seen[query] += 1
            names.append(query if seen[query] == 1 else f"{query}#{seen[query]}")
        return names

    def rows(self) -> dict[str, dict[str, Any]]:
        """Name of the click -> its values, for reports."""
        clicks = self.standing
        columns = {
            "ndcg": measuring.click_ndcg(clicks),
            "mrr": measuring.click_reciprocal_rank(clicks),
            "p@1": measuring.click_hit(clicks),
            "above": self.above,
            "others": self.others,
            "weight": self.weights,
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            name: {"clicked": clicked, **dict(zip(columns, row, strict=True))}
            for name, clicked, row in zip(self.names(), self.clicked, values, strict=True)
        }


def judge_clicks(
    clicks: ClickLog,
    scores: NDArray[Any],
    propensities: Doubles,
    answered: NDArray[np.bool_] | None = None,
) -> JudgedClicks:
    """Judge the scores (shown,) of all shown papers, by propensities of mean 1.

    A click that is not answered counts as wrong: all other papers are above the clicked one. A further copy of the
    clicked paper in its list is not compared with it; copies of others count each.

    >>> clicks = ClickLog.of([("q", "b", ["a", "b", "c", "d"])])
    >>> judge_clicks(clicks, np.array([0.9, 0.7, 0.7, 0.2]), np.ones(4)).above.tolist()
    [1.5]
    """
    values = np.asarray(scores, np.float64)  # (shown,)
    if values.shape != (len(clicks.shown),) or np.isnan(values).any():
        raise UserError(
            f"{len(clicks.shown):,} shown papers need a score each that is not NaN; there are {values.size:,} scores, "
            f"{int(np.isnan(values).sum()):,} of them NaN"
        )
    owners, is_other = clicks.owners, clicks.is_other()
    true = values[clicks.at][owners]  # (shown,) the clicked paper's score, beside each paper of its list
    others = np.bincount(owners[is_other], minlength=len(clicks))
    halves = np.where(values > true, 1.0, np.where(values == true, 0.5, 0.0))
    above = np.bincount(owners[is_other], weights=halves[is_other], minlength=len(clicks))
    is_answered = np.ones(len(clicks), bool) if answered is None else answered
    return JudgedClicks(
        queries=clicks.queries,
        clicked=clicks.clicked,
        places=clicks.places,
        above=np.where(is_answered, above, others),
        others=others,
        weights=1 / propensity_of(clicks.places, propensities),
        answered=is_answered,
        scores=values,
    )


# SciDocs' recommendation task from beginning to end: features, a ranker learned from clicks, its judgment.

WEIGHTINGS = ("peer", "propensity")
MISSING = ("wrong", "peers")
PER_CLICK = 10
"""Triplets made of a click at most: with the first ten other papers of its list."""


@dataclass(frozen=True)
class ClickResult:
    """What the task gave; with several seeds, one judgment each over the same clicks."""

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


def triplet_rows(clicks: ClickLog, per_click: int = PER_CLICK) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(triplets,) rows in `shown` of the clicked paper and of the other one: the first others of each list, in order.

    >>> [rows.tolist() for rows in triplet_rows(ClickLog.of([("q", "b", ["a", "b", "c", "d"])]), per_click=2)]
    [[1, 1], [0, 2]]
    """
    others = np.flatnonzero(clicks.is_other())
    owners = clicks.owners[others]
    begins = np.searchsorted(owners, np.arange(len(clicks)))  # first other paper of each click
    others = others[np.arange(len(others)) - begins[owners] < per_click]
    return clicks.at[clicks.owners[others]], others


def _learn(
    clicks: ClickLog, data: ClickData, vectors: Lookup, weighting: str, reporter: Reporter
) -> tuple[ClickTriplets, Features]:
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
    return ClickTriplets(rows[0], rows[1], divisors.astype(np.float32)), features


def _count_clicks(data: ClickData, train: ClickTriplets) -> dict[str, int]:
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


# Judge the recommendation task: a small network learns from clicks, with the judged vectors' cosine among its features.

PEERS_SEED = 7


def run_clicks(task: ClickTask, judged: Judged, missing: str, *, seed: int = 0) -> Outcome:
    """SciDocs reports adj-NDCG and adj-P@1: means weighted by one over the clicked place's propensity."""
    vectors = judged.vectors(task.texts)
    if not vectors.present.any():
        raise NoAnswerError(
            f"{task.name}: no paper has a vector; check that the ids of the vectors are the suite's ids"
        )

    def look_up(papers: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        rows = task.texts.rows(papers)
        return vectors.matrix[np.maximum(rows, 0)], vectors.present[np.maximum(rows, 0)] & (rows >= 0)

    result = recommend(task.clicks, look_up, seeds=(PEERS_SEED + seed,), missing=missing)
    rows = {
        name: {"adj-NDCG": row["ndcg"], "adj-P@1": row["p@1"], "weight": row["weight"]}
        for name, row in result.judged[0].rows().items()
    }
    how = {"adj-NDCG": "weighted", "adj-P@1": "weighted"}
    notes = ("the network is trained anew: another --seed gives somewhat other values",)
    return Outcome(task.name, "clicks", how, rows, result.coverage, notes, {"seeds": list(result.seeds)})
