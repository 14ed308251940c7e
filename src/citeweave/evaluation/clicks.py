"""Evaluate SciDocs' recommendation task: learn a ranker from clicks, rank shown papers, click metrics.

    recommend(read_click_data(folder), vectors).metrics    ->    {"adj-NDCG": ..., "adj-P@1": ..., "ndcg": ..., ...}

SciDocs publishes adj-NDCG 53.9 and adj-P@1 20.0 for SPECTER's vectors. `vectors(ids)` gives the vectors of papers (n, d)
and whether each exists (n,). A metric asks how high the clicked paper is ranked among those shown, a tie counting half:

    shown   p1    p2    p3        clicked p3 (place 2, from 0); p2 scores above it, p1 ties
    scores  0.5   0.9   0.5       above 1.5, below 0.5: NDCG 1 / log2(2 + 1.5), reciprocal rank 1 / 2.5, no hit

    >>> clicks = rank_clicks(np.array([0.5, 0.9, 0.5]), np.array([0, 3]), np.array([2]))
    >>> clicks.above.tolist(), clicks.below.tolist()
    ([1.5], [0.5])
    >>> click_metrics(clicks, ["P@1", "mrr", "accuracy"])
    {'P@1': 0.0, 'mrr': 0.4, 'accuracy': 0.25}

People click what is shown first, so `adj-` metrics weight every click by 1 / propensity of its place, with propensities of
mean 1: allenai/scidocs, recomm_click_eval.py (which sums in single precision: its values have six digits).

`weighting`: SciDocs means to divide the loss of a triplet by the propensity of the clicked place. Its reader overwrites
that place with 0, which selects the last propensity for every triplet: only the loss as a whole is scaled. `peer` does
the same, `propensity` does what was meant. Only training differs; the metrics are weighted in both cases.

`missing`: with `peers` a paper without a vector has cosine 0, and the other features rank it. With `wrong` a test click
also counts as lost where the query or the clicked paper has no vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.click_data import ClickData, ClickLog, Doubles, Longs, propensity_of
from citeweave.evaluation.click_ranker import (
    ClickTriplets,
    Features,
    Lookup,
    Ranker,
    RankerRecipe,
    click_triplet_rows,
    pair_features,
    train_ranker,
)
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.options import MISSING
from citeweave.evaluation.systems import NoAnswerError, System
from citeweave.evaluation.tasks import ClickTask

WEIGHTINGS = ("peer", "propensity")
PEERS_SEED = 7
"""Seed of SciDocs' own training."""

REPORTED_METRICS = {
    "accuracy": "accuracy",
    "ndcg": "ndcg",
    "mrr": "mrr",
    "p@1": "P@1",
    "adj-accuracy": "adj-accuracy",
    "adj-NDCG": "adj-ndcg",
    "adj-MRR": "adj-mrr",
    "adj-P@1": "adj-P@1",
}
"""Names of click metrics in reports -> names in CLICK_METRICS. SciDocs reports adj-NDCG and adj-P@1."""


def run_clicks(task: ClickTask, system: System, missing: str, *, seed: int = 0) -> Outcome:
    """Evaluate a system on a click task: train a ranker with its vectors, report SciDocs' adj-NDCG and adj-P@1."""
    vectors = system.vectors(task.texts)
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
        for name, row in result.runs[0].rows().items()
    }
    derivations = {"adj-NDCG": "weighted", "adj-P@1": "weighted"}
    notes = ("the network is trained anew: another --seed gives somewhat other values",)
    return Outcome(task.name, "clicks", derivations, rows, result.coverage, notes, {"seeds": list(result.seeds)})


@dataclass(frozen=True)
class ClickResult:
    """Result of evaluating clicks: the evaluated clicks and the ranker of each seed, over the same clicks."""

    runs: tuple[EvaluatedClicks, ...]
    rankers: tuple[Ranker, ...]
    seeds: tuple[int, ...]
    coverage: Mapping[str, int]
    """Counts of test clicks, training triplets and papers, and of what was missing."""

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over the seeds of every click metric, as fractions."""
        each = [run.metrics() for run in self.runs]
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
    """Evaluate clicks on recommendations: learn rankers from training clicks, choose epochs by validation clicks, test."""
    choose(weighting, WEIGHTINGS, "the weighting of clicks")
    choose(missing, MISSING, "the rule for missing vectors")
    assert len(seeds), "at least one seed"
    parts = [_triplets(clicks, data, vectors, weighting, reporter) for clicks in (data.train, data.val) if clicks]
    test = data.test
    features = pair_features(
        [test.queries[click] for click in test.owners.tolist()], test.shown, data.metadata, vectors, reporter
    )
    has_vectors = features.has_vectors[test.at]  # (clicks,)
    triplets = [each for each, _ in parts]
    rankers = tuple(
        train_ranker(triplets[0], triplets[1] if data.val else None, seed=seed, recipe=recipe, reporter=reporter)
        for seed in seeds
    )
    runs = tuple(
        evaluate_clicks(
            test, ranker.scores(features.matrix), data.propensities, has_vectors if missing == "wrong" else None
        )
        for ranker in rankers
    )
    coverage = {
        **_count_clicks(data, triplets[0]),
        **_count_papers([features, *(each for _, each in parts)]),
        "clicks without vectors": int((~has_vectors).sum()),
        "clicks on the only paper shown": int((runs[0].others == 0).sum()),
    }
    return ClickResult(runs, rankers, tuple(seeds), coverage)


def _triplets(
    clicks: ClickLog, data: ClickData, vectors: Lookup, weighting: str, reporter: Reporter
) -> tuple[ClickTriplets, Features]:
    """Make the training triplets of a click log, with features computed once per paper of a list."""
    clicked, others = click_triplet_rows(clicks)
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
    """Count the clicks of each split, the triplets, and clicks deeper than the propensities."""
    logs = [log for log in (data.train, data.val, data.test) if log is not None]
    return {
        "clicks": len(data.test),
        "training clicks": len(data.train),
        "validation clicks": len(data.val) if data.val is not None else 0,
        "training triplets": len(train),
        "clicks deeper than the propensities": sum(int((log.places >= len(data.propensities)).sum()) for log in logs),
    }


def _count_papers(parts: Sequence[Features]) -> dict[str, int]:
    """Count distinct papers over all click logs, and those without a vector or metadata."""
    return {
        "papers": len(frozenset().union(*(part.papers for part in parts))),
        "papers without vector": len(frozenset().union(*(part.without_vector for part in parts))),
        "papers with a vector of zeros": len(frozenset().union(*(part.zero_vectors for part in parts))),
        "papers without metadata": len(frozenset().union(*(part.without_metadata for part in parts))),
    }


@dataclass(frozen=True)
class EvaluatedClicks:
    """Evaluated clicks: where each clicked paper was ranked, one row per click; every click metric derives from these."""

    queries: Sequence[str]
    clicked: Sequence[str]
    places: Longs
    """(clicks,) place at which the clicked paper was shown, from 0."""

    above: Doubles
    """(clicks,) number of other papers that score higher, ties counting half."""

    others: Longs
    """(clicks,) number of papers in the list that the clicked one was compared with."""

    weights: Doubles
    """(clicks,) 1 / propensity of the place."""

    has_vectors: NDArray[np.bool_]
    """(clicks,) False where the click counts as lost because a vector is missing."""

    scores: Doubles
    """(shown,) score of every shown paper, in the order of the click log."""

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def ranks(self) -> ClickRanks:
        """Ranks and weights of the clicked papers, for the click metrics."""
        return ClickRanks(self.above, self.others - self.above, self.weights)

    def metrics(self) -> dict[str, float]:
        """Return SciDocs' eight click metrics as fractions; accuracies are NaN where no list has a second paper."""
        values = click_metrics(self.ranks)
        return {name: values[metric] for name, metric in REPORTED_METRICS.items()}

    def names(self) -> list[str]:
        """Return one name per evaluated click: the query's id, numbered where it repeats, such as `q`, `q#2`."""
        seen, names = Counter[str](), []
        for query in self.queries:
            seen[query] += 1
            names.append(query if seen[query] == 1 else f"{query}#{seen[query]}")
        return names

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return name of an evaluated click -> its values, for reports."""
        columns = {
            "ndcg": _click_ndcg(self.ranks),
            "mrr": _click_reciprocal_rank(self.ranks),
            "p@1": _click_hit(self.ranks),
            "above": self.above,
            "others": self.others,
            "weight": self.weights,
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            name: {"clicked": clicked, **dict(zip(columns, row, strict=True))}
            for name, clicked, row in zip(self.names(), self.clicked, values, strict=True)
        }


def evaluate_clicks(
    clicks: ClickLog,
    scores: NDArray[Any],
    propensities: Doubles,
    has_vectors: NDArray[np.bool_] | None = None,
) -> EvaluatedClicks:
    """Evaluate clicks: rank the clicked papers of a log by scores (shown,) of all shown; propensities have mean 1.

    A click without vectors counts as lost: all other papers are above the clicked one. A further copy of the clicked
    paper in its list is not compared with it; copies of others count each.

    >>> clicks = ClickLog.of([("q", "b", ["a", "b", "c", "d"])])
    >>> evaluate_clicks(clicks, np.array([0.9, 0.7, 0.7, 0.2]), np.ones(4)).above.tolist()
    [1.5]
    """
    values = np.asarray(scores, np.float64)  # (shown,)
    if values.shape != (len(clicks.shown),) or np.isnan(values).any():
        raise UserError(
            f"each of the {len(clicks.shown):,} shown papers needs a score that is not NaN; there are {values.size:,} scores, "
            f"{int(np.isnan(values).sum()):,} of them NaN"
        )
    owners, is_other = clicks.owners, clicks.is_other()
    clicked = values[clicks.at][owners]  # (shown,) score of the clicked paper, for each paper of its list
    others = np.bincount(owners[is_other], minlength=len(clicks))
    halves = np.where(values > clicked, 1.0, np.where(values == clicked, 0.5, 0.0))
    above = np.bincount(owners[is_other], weights=halves[is_other], minlength=len(clicks))
    if has_vectors is None:
        has_vectors = np.ones(len(clicks), bool)
    return EvaluatedClicks(
        queries=clicks.queries,
        clicked=clicks.clicked,
        places=clicks.places,
        above=np.where(has_vectors, above, others),
        others=others,
        weights=1 / propensity_of(clicks.places, propensities),
        has_vectors=has_vectors,
        scores=values,
    )


@dataclass(frozen=True, slots=True)
class ClickRanks:
    """Ranks of clicks to evaluate: of each clicked paper among the papers shown with it, arrays of shape (clicks,)."""

    above: Doubles
    """Number of papers that score higher than the clicked one, a tie counting half."""

    below: Doubles
    weights: Doubles
    """1 / propensity of the clicked place; all 1 without propensities."""


class ClickParts(NamedTuple):
    """A click metric per click: its value is sum(numerator) / sum(denominator), in a resample as well."""

    numerator: Doubles
    denominator: Doubles


def rank_clicks(
    scores: NDArray[Any],
    offsets: NDArray[np.integer[Any]],
    clicked: NDArray[np.integer[Any]],
    propensities: NDArray[Any] | None = None,
) -> ClickRanks:
    """Rank clicks: compare the score of each clicked paper with those of the papers shown with it.

    `scores` (pairs,) are flat over the shown lists, in shown order, list i from offsets[i] to offsets[i + 1];
    `clicked` (lists,) is the place of the clicked paper in its list, from 0; `propensities` (places,) say how often a
    place is clicked. A NaN score is below every number.
    """
    starts, clicked = np.asarray(offsets, np.int64)[:-1], np.asarray(clicked, np.int64)
    sizes = np.diff(offsets)
    if len(clicked) != len(sizes) or ((clicked < 0) | (clicked >= sizes)).any():
        raise ValueError("every list needs one clicked place inside it")
    scores = np.where(np.isnan(scores), -np.inf, np.asarray(scores, np.float64))
    which = np.repeat(np.arange(len(sizes)), sizes)  # (pairs,)
    own = scores[starts + clicked][which]  # (pairs,)
    higher, lower = (np.bincount(which, test, minlength=len(sizes)) for test in (scores > own, scores < own))
    ties = sizes - 1 - higher - lower  # the clicked paper does not tie with itself
    return ClickRanks(higher + ties / 2, lower + ties / 2, _weights(clicked, propensities))


def _click_ndcg(clicks: ClickRanks) -> Doubles:
    """Compute the NDCG of each click: 1 / log2(2 + papers above).

    >>> _click_ndcg(ClickRanks(np.array([0.0, 2]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.5]
    """
    values: Doubles = 1 / np.log2(2 + clicks.above)
    return values


def _click_reciprocal_rank(clicks: ClickRanks) -> Doubles:
    """Compute the reciprocal rank of each clicked paper: 1 / (1 + papers above).

    >>> _click_reciprocal_rank(ClickRanks(np.array([0.0, 1]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.5]
    """
    values: Doubles = 1 / (1 + clicks.above)
    return values


def _click_hit(clicks: ClickRanks) -> Doubles:
    """Compute P@1 of each click: 1 where no paper is above or ties with the clicked one.

    >>> _click_hit(ClickRanks(np.array([0.0, 0.5]), np.zeros(2), np.ones(2))).tolist()
    [1.0, 0.0]
    """
    return np.where(clicks.above == 0, 1.0, 0.0)


_MEANS: dict[str, Callable[[ClickRanks], Doubles]] = {
    "ndcg": _click_ndcg,
    "mrr": _click_reciprocal_rank,
    "P@1": _click_hit,
}
CLICK_METRICS = (*_MEANS, "accuracy", *(f"adj-{name}" for name in (*_MEANS, "accuracy")))
"""Names of click metrics; `accuracy` is the share of pairs in which the clicked paper scores higher."""


def click_parts(clicks: ClickRanks, name: str) -> ClickParts:
    """Return what each evaluated click adds to a click metric.

    >>> click_parts(ClickRanks(np.array([0.0, 1]), np.array([3.0, 1]), np.array([2.0, 4])), "adj-mrr")
    ClickParts(numerator=array([2., 2.]), denominator=array([2., 4.]))
    """
    plain = choose(name, CLICK_METRICS, "metric").removeprefix("adj-")
    weights = clicks.weights if plain != name else np.ones(len(clicks.above))
    if plain == "accuracy":
        return ClickParts(weights * clicks.below, weights * (clicks.above + clicks.below))
    return ClickParts(weights * _MEANS[plain](clicks), weights)


def click_metrics(clicks: ClickRanks, names: Iterable[str] = CLICK_METRICS) -> dict[str, float]:
    """Compute the named metrics of evaluated clicks; NaN where there is nothing to compare."""
    values = {}
    for name in names:
        numerator, denominator = (float(part.sum()) for part in click_parts(clicks, name))
        values[name] = numerator / denominator if denominator else float("nan")
    return values


def _weights(clicked: NDArray[np.integer[Any]], propensities: NDArray[Any] | None) -> Doubles:
    """Return the weight of each click: 1 / propensity of its place, propensities scaled to mean 1."""
    if propensities is None:
        return np.ones(len(clicked))
    chances = np.asarray(propensities, np.float64)  # (places,)
    if not len(chances) or not np.isfinite(chances).all() or (chances <= 0).any():
        raise UserError("propensities must be numbers above 0, one per shown place; check the file they come from")
    if clicked.max(initial=0) >= len(chances):
        raise UserError(
            f"a click on place {int(clicked.max()) + 1} has no propensity: only {len(chances)} places have one; "
            "give propensities for longer lists"
        )
    weights: Doubles = chances.mean() / chances[clicked]
    return weights
