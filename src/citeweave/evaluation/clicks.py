"""Evaluate SciDocs' recommendation task: learn a ranker from clicks, rank shown papers, click metrics.

    recommend(click_data, vectors).metrics    ->    {"adj-NDCG": ..., "adj-P@1": ..., "ndcg": ..., ...}

SciDocs publishes adj-NDCG 53.9 and adj-P@1 20.0 for SPECTER's vectors. `vectors(ids)` gives the vectors of papers (n, d)
and whether each exists (n,). A metric asks how high the clicked paper is ranked among those shown, a tie counting half:

    shown   p1    p2    p3        clicked p3 (place 2, from 0); p2 scores above it, p1 ties
    scores  0.5   0.9   0.5       above 1.5, below 0.5: NDCG 1 / log2(2 + 1.5), reciprocal rank 1 / 2.5, no hit

    >>> log = ClickLog.of([("q", "p3", ["p1", "p2", "p3"])])
    >>> clicks = evaluate_clicks(log, np.array([0.5, 0.9, 0.5]), np.ones(3))
    >>> clicks.above.tolist(), {name: clicks.metrics()[name] for name in ("p@1", "mrr", "accuracy")}
    ([1.5], {'p@1': 0.0, 'mrr': 0.4, 'accuracy': 0.25})

People click what is shown first, so `adj-` metrics weight every click by 1 / propensity of its place, with propensities of
mean 1: allenai/scidocs, recomm_click_eval.py (which sums in single precision: its values have six digits).

`weighting`: SciDocs means to divide the loss of a triplet by the propensity of the clicked place. Its reader overwrites
that place with 0, which selects the last propensity for every triplet: only the loss as a whole is scaled. `peer` does
the same, `propensity` does what was meant. Only training differs; the metrics are weighted in both cases.

`missing`: with `peers` a paper without a vector has cosine 0, and the other features rank it. With `wrong` a test click
also counts as lost where the query or the clicked paper has no vector.

The propensity of a place says how much more often it is clicked than the average place because of where it is. A click
deeper than the list of propensities gets the last one. Does not read files: `suites/scidocs.py` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import owners_of
from citeweave.evaluation import click_ranker
from citeweave.evaluation.click_ranker import Doubles, Longs, Metadata
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.options import MISSING
from citeweave.evaluation.systems import NoAnswerError, System
from citeweave.evaluation.tasks import ClickTask

WEIGHTINGS = ("peer", "propensity")
PEERS_SEED = 7
"""Seed of SciDocs' own training."""

_ADJUSTED = "adj-accuracy adj-NDCG adj-MRR adj-P@1"


@dataclass(frozen=True)
class ClickLog:
    """Click data of one log: the query paper of every click, the papers shown next to it, the place clicked."""

    queries: Sequence[str]
    shown: Sequence[str]
    """Ids of the papers shown, the lists of all clicks one after the other."""

    offsets: Longs
    """(clicks + 1,) where each list begins."""

    places: Longs
    """(clicks,) place of the clicked paper in its list, from 0."""

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str, Sequence[str]]]) -> ClickLog:
        """Make a log of click data from (query, clicked, shown); of equal shown papers the first is the clicked one.

        >>> ClickLog.of([("q", "b", ["a", "b"]), ("r", "c", ["c"])]).places.tolist()
        [1, 0]
        """
        queries, shown, ends, places = [], list[str](), [0], []
        for query, clicked, papers in rows:
            queries.append(query)
            places.append(papers.index(clicked))
            shown.extend(papers)
            ends.append(len(shown))
        return cls(queries, shown, np.array(ends, np.int64), np.array(places, np.int64))

    @property
    def at(self) -> Longs:
        """(clicks,) row of the clicked paper in `shown`."""
        return self.offsets[:-1] + self.places

    @property
    def clicked(self) -> list[str]:
        """Id of the clicked paper of every click."""
        return [self.shown[row] for row in self.at.tolist()]

    @property
    def owners(self) -> Longs:
        """(shown,) the click that each shown paper belongs to."""
        return owners_of(self.offsets)

    def is_other(self) -> NDArray[np.bool_]:
        """Tell which shown papers differ from the clicked one, (shown,); a second copy of it does not."""
        shown = np.array(self.shown, object)
        return np.asarray(shown != shown[self.at][self.owners], bool)

    def triplet_rows(self, per_click: int = click_ranker.PER_CLICK) -> tuple[Longs, Longs]:
        """Choose the triplets that a click ranker learns from: rows in `shown` of clicked and other papers.

        Both are of shape (triplets,). The others are the first of each list, in order.

        >>> log = ClickLog.of([("q", "b", ["a", "b", "c", "d"])])
        >>> [rows.tolist() for rows in log.triplet_rows(per_click=2)]
        [[1, 1], [0, 2]]
        """
        others = np.flatnonzero(self.is_other())
        owners = self.owners[others]
        begins = np.searchsorted(owners, np.arange(len(self)))  # first other paper of each click
        others = others[np.arange(len(others)) - begins[owners] < per_click]
        return self.at[self.owners[others]], others

    def papers(self) -> set[str]:
        """Return the ids of all papers of the click log."""
        return {*self.queries, *self.shown}


@dataclass(frozen=True)
class ClickData:
    """SciDocs' click data: the logs of three splits, propensities and metadata; vectors come from the system."""

    train: ClickLog
    val: ClickLog | None
    """Clicks to choose the best epoch by; without them the last epoch is taken."""

    test: ClickLog
    propensities: Doubles
    """(places,) propensities with mean 1."""

    metadata: Metadata


def normalize_propensities(scores: Doubles, source: str = "the propensities") -> Doubles:
    """Scale the propensities of click data, one per shown place, to mean 1.

    >>> normalize_propensities(np.array([3.0, 1.0, 2.0])).tolist()
    [1.5, 0.5, 1.0]
    """
    if not (np.isfinite(scores) & (scores > 0)).all():
        raise InputError(
            f"{source} must hold propensities above 0; the smallest is {scores.min():g}: get the file again"
        )
    return np.asarray(scores * (len(scores) / scores.sum()), np.float64)


def propensity_of(places: Longs, propensities: Doubles) -> Doubles:
    """Return the propensity of each clicked place, (clicks,); a place beyond the list gets the last one."""
    return propensities[np.minimum(places, len(propensities) - 1)]


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
    rankers: tuple[click_ranker.Ranker, ...]
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
    vectors: click_ranker.Lookup,
    *,
    seeds: Sequence[int] = (7,),
    recipe: click_ranker.RankerRecipe | None = None,
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
    features = click_ranker.pair_features(
        [test.queries[click] for click in test.owners.tolist()], test.shown, data.metadata, vectors, reporter
    )
    has_vectors = features.has_vectors[test.at]  # (clicks,)
    triplets = [each for each, _ in parts]
    rankers = tuple(
        click_ranker.train_ranker(
            triplets[0], triplets[1] if data.val else None, seed=seed, recipe=recipe, reporter=reporter
        )
        for seed in seeds
    )
    runs = tuple(
        evaluate_clicks(
            test, ranker.scores(features.matrix), data.propensities, has_vectors if missing == "wrong" else None
        )
        for ranker in rankers
    )
    coverage = {
        **_coverage(data, triplets[0], [features, *(each for _, each in parts)]),
        "clicks without vectors": int((~has_vectors).sum()),
        "clicks on the only paper shown": int((runs[0].others == 0).sum()),
    }
    return ClickResult(runs, rankers, tuple(seeds), coverage)


def _triplets(
    clicks: ClickLog, data: ClickData, vectors: click_ranker.Lookup, weighting: str, reporter: Reporter
) -> tuple[click_ranker.ClickTriplets, click_ranker.Features]:
    """Make the training triplets of a click log, with features computed once per paper of a list."""
    clicked, others = clicks.triplet_rows()
    used = np.union1d(clicked, others)  # rows of `shown`
    owners = clicks.owners
    features = click_ranker.pair_features(
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
    return click_ranker.ClickTriplets(rows[0], rows[1], divisors.astype(np.float32)), features


def _coverage(
    data: ClickData, train: click_ranker.ClickTriplets, parts: Sequence[click_ranker.Features]
) -> dict[str, int]:
    """Count clicks, triplets and distinct papers, and papers and clicks that lack something."""
    logs = [log for log in (data.train, data.val, data.test) if log is not None]

    def papers(which: str) -> int:
        return len(frozenset().union(*(getattr(part, which) for part in parts)))

    return {
        "clicks": len(data.test),
        "training clicks": len(data.train),
        "validation clicks": len(data.val) if data.val is not None else 0,
        "training triplets": len(train),
        "clicks deeper than the propensities": sum(int((log.places >= len(data.propensities)).sum()) for log in logs),
        "papers": papers("papers"),
        "papers without vector": papers("without_vector"),
        "papers with a vector of zeros": papers("zero_vectors"),
        "papers without metadata": papers("without_metadata"),
    }


@dataclass(frozen=True)
class EvaluatedClicks:
    """Evaluated clicks: where each clicked paper was ranked, one row per click; every click metric derives from these."""

    log: ClickLog
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

    def values(self) -> dict[str, Doubles]:
        """Return the click metrics that are means over clicks: metric -> (clicks,) its value for each click."""
        above = self.above
        return {"ndcg": 1 / np.log2(2 + above), "mrr": 1 / (1 + above), "p@1": np.where(above == 0, 1.0, 0.0)}

    def metrics(self) -> dict[str, float]:
        """Return SciDocs' eight click metrics as fractions; accuracies are NaN where no list has a second paper.

        Accuracy is the share of pairs in which the clicked paper scores higher.
        """
        metrics = {}
        for names, weights in (("accuracy ndcg mrr p@1", np.ones(len(self.log))), (_ADJUSTED, self.weights)):
            parts = [(weights * (self.others - self.above), weights * self.others)]
            parts += [(weights * value, weights) for value in self.values().values()]
            for name, (numerator, denominator) in zip(names.split(), parts, strict=True):
                total = float(denominator.sum())
                metrics[name] = float(numerator.sum()) / total if total else float("nan")
        return metrics

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the values of each evaluated click by its query's id, numbered where it repeats: `q`, `q#2`."""
        columns = {**self.values(), "above": self.above, "others": self.others, "weight": self.weights}
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        seen, rows = Counter[str](), {}
        for query, clicked, row in zip(self.log.queries, self.log.clicked, values, strict=True):
            seen[query] += 1
            name = query if seen[query] == 1 else f"{query}#{seen[query]}"
            rows[name] = {"clicked": clicked, **dict(zip(columns, row, strict=True))}
        return rows


def evaluate_clicks(
    clicks: ClickLog, scores: NDArray[Any], propensities: Doubles, has_vectors: NDArray[np.bool_] | None = None
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
    weights = 1 / propensity_of(clicks.places, propensities)
    return EvaluatedClicks(clicks, np.where(has_vectors, above, others), others, weights, has_vectors, values)
