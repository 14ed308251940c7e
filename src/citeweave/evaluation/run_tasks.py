"""Run one task with a system: rank pools, search, fit probes; what is missing, metrics per query, what is counted.

    outcome = run_task(task, system, missing="wrong")

What a paper without a vector means, by `missing`:

    wrong   a candidate without a score is never found, and a query without any score gets 0 from every metric; a probe
            does not learn from the paper, and its prediction is wrong: no class, no label, the median number
    peers   as in the benchmark's original code: left out of the run and of the mean (SciDocs, SciRepEval), or a stop
            (MDCR); CSFCube's and ASPIRE's scripts take the ideal ranking from the submitted list; for probes SciDocs puts
            zeros in its place, in training and test, SciRepEval leaves it out of both

Where nothing can be evaluated, such as a ranking without any score or a probe whose papers with vectors are all of one
class, that is a `NoAnswerError`. Does not compute metrics (`ranking_metrics.py`, `metrics.py`) or fit probes (`probes.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.ragged import to_offsets
from citeweave.evaluation import probes
from citeweave.evaluation.metrics import Outcome, derive_metric
from citeweave.evaluation.options import DISTANCES, split_distance
from citeweave.evaluation.ranking_metrics import (
    RankedCandidates,
    RelevanceRule,
    rank_as_given,
    rank_as_trec,
    ranking_metrics,
)
from citeweave.evaluation.systems import (
    PLUS,
    FacetSystem,
    Hits,
    NoAnswerError,
    PaperVectors,
    Rows,
    Scores,
    System,
    choose_distance,
    no_hits,
)
from citeweave.evaluation.tasks import ClickTask, Pools, ProbeTask, RankingTask, Reviewers, SearchTask, Task, TaskTexts


def run_task(
    task: Task, system: System, distance: str = "", missing: str = "wrong", *, intercept: bool = True, seed: int = 0
) -> Outcome:
    """Run one task of any kind with a system; an empty `distance` is the protocol's."""
    if isinstance(task, ProbeTask):
        return run_probe(task, system, missing, intercept=intercept)
    if isinstance(task, ClickTask):
        from citeweave.evaluation.clicks import run_clicks  # only SciDocs needs it

        return run_clicks(task, system, missing, seed=seed)
    if isinstance(task, SearchTask):
        return run_search(task, system, distance, missing)
    return run_ranking(task, system, distance, missing)


# --- ranking and search ----------------------------------------------------------------------------------


def run_ranking(task: RankingTask, system: System, distance: str, missing: str) -> Outcome:
    """Evaluate a system on a ranking task: rank the pool of every query."""
    chosen = choose_distance(system, distance, task.rule.distance)
    parts = [_score_pools(task, system, part) for part in split_distance(chosen)]
    return _evaluate_ranking("ranking", task, system, chosen, _sum_standardized(parts, task.pools.offsets), missing)


def _score_pools(task: RankingTask, system: System, distance: str) -> Scores:
    """Score the pairs of a ranking task by one distance; NaN for pairs that are never ranked."""
    if task.reviewers is None:
        scores = system.scores(task.texts, task.pools, distance)
    else:
        scores = _score_reviewers(system, task.texts, task.pools, task.reviewers, distance)
    return scores if task.pools.scored is None else np.where(task.pools.scored, scores, np.nan)


def run_search(task: SearchTask, system: System, distance: str, missing: str) -> Outcome:
    """Evaluate a system on a search task, a ranking of all candidates: find the papers of every question."""
    chosen = choose_distance(system, distance, task.rule.distance)
    if PLUS in chosen:
        raise NoAnswerError(f"{chosen} orders pools of candidates and does not search among all papers")
    rows, scores = _search(task, system, chosen)
    if (rows < 0).all():
        raise NoAnswerError(
            f"{task.name}: no question has a hit; both papers and questions need vectors, and questions have ids such as "
            f"{task.texts.ids[int(task.queries[0])]!r}: evaluate a model, which encodes both, or add their vectors"
        )
    pools, flat = _pool_hits(task, rows, scores)
    hits = RankingTask(task.name, task.texts, pools, task.rule)
    return _evaluate_ranking("search", hits, system, chosen, flat, missing)


def _search(task: SearchTask, system: System, distance: str) -> Hits:
    """Find the best papers of every question; a facet system searches by the aspect that a question asks about."""
    if not isinstance(system, FacetSystem) or task.judgments.groups is None:
        return system.top(task.texts, task.queries, task.candidates, task.depth, distance)
    facet_of = dict(zip(task.judgments.queries.tolist(), task.judgments.groups, strict=True))
    facets = np.array([facet_of.get(row, "") for row in task.queries.tolist()])  # (queries,)
    rows, scores = no_hits(len(facets), task.depth)
    for facet in np.unique(facets).tolist():
        own = facets == facet
        rows[own], scores[own] = system.system_for(facet).top(
            task.texts, task.queries[own], task.candidates, task.depth, distance
        )
    return rows, scores


def _count_zeros(system: System, texts: TaskTexts) -> int:
    """Count vectors of zeros of a system that scores by one vector per paper."""
    if isinstance(system, FacetSystem):
        return system.count_zeros(texts)
    return system.vectors(texts).count_zeros() if set(system.distances) & set(DISTANCES) else 0


def _pool_hits(task: SearchTask, rows: Rows, scores: Scores) -> tuple[Pools, Scores]:
    """Join the hits and the relevance judgments of every query to one pool; a judged paper that is no hit has no score."""
    judgments = task.judgments
    own_papers = np.full(len(task.queries), -1) if task.own is None else task.own
    candidates, grades, flat = [], [], []
    number_of = {row: number for number, row in enumerate(judgments.queries.tolist())}
    for number, query in enumerate(task.queries.tolist()):
        is_hit = (rows[number] >= 0) & (rows[number] != query) & (rows[number] != own_papers[number])
        hits = rows[number][is_hit]
        own = number_of.get(query)
        span = slice(0, 0) if own is None else judgments.span(own)
        grade_of = dict(zip(judgments.candidates[span].tolist(), judgments.grades[span].tolist(), strict=True))
        not_found = np.array(sorted(grade_of.keys() - set(hits.tolist())), np.int64)
        candidates.append(np.concatenate([hits, not_found]))
        grades.append(np.array([grade_of.get(row, 0) for row in candidates[-1].tolist()], np.int64))
        flat.append(np.concatenate([scores[number][is_hit], np.full(len(not_found), np.nan)]))
    name_of = dict(zip(judgments.queries.tolist(), judgments.names, strict=True))
    names = [name_of.get(row, task.texts.ids[row]) for row in task.queries.tolist()]
    offsets = to_offsets([len(pool) for pool in candidates])
    pools = Pools(
        task.queries, offsets, np.concatenate(candidates), np.concatenate(grades), names, groups=judgments.groups
    )
    return pools, np.concatenate(flat)


def _evaluate_ranking(
    kind: str, task: RankingTask, system: System, distance: str, scores: Scores, missing: str
) -> Outcome:
    """Rank the pools by score, treat missing scores by the rule, and compute the metrics of every query."""
    pools, rule = task.pools, task.rule
    if rule.decimals is not None:
        scores = np.round(scores, rule.decimals)
    has_score = ~np.isnan(scores)  # (pairs,)
    gaps = ~has_score if pools.scored is None else pools.scored & ~has_score
    if missing == "peers" and rule.peers == "stop" and gaps.any():
        raise _missing_scores(task, gaps)
    if missing == "wrong":
        scores = np.where(np.isneginf(scores), np.nan, scores)  # an empty vector gives no score
        has_score = ~np.isnan(scores)
    ranked = _rank(scores, task)
    ideal = "submitted" if missing == "peers" else "judged"
    prefix = "csfcube:" if rule.family == "csfcube" else ""
    values = ranking_metrics(ranked, [prefix + name for name in rule.metrics], RelevanceRule(rule.relevant, ideal))
    lost = _count_per_query(pools, has_score) == 0  # (queries,)
    if lost.all():
        raise NoAnswerError(
            f"{task.name}: no query has a score; check that the ids of the vectors are the suite's ids, such as "
            f"{task.texts.ids[int(pools.queries[0])]!r}"
        )
    in_mean = np.ones(len(pools), bool) if missing == "wrong" else ~lost
    named = {task.called.get(metric, metric): np.where(lost, 0.0, values[prefix + metric]) for metric in rule.metrics}
    rows = _rows(task, in_mean, named)
    if not rows:
        raise NoAnswerError(f"{task.name}: no query of its folds has a score; check that the vectors are the suite's")
    return Outcome(
        task.name,
        kind,
        dict.fromkeys(named, "folds" if task.folds else "mean"),
        rows,
        {
            **_coverage(task, has_score),
            "vectors of zeros": _count_zeros(system, task.texts),
            "queries whose answers all tie": _count_ties(pools, scores),
            "queries left out of the mean": int((~in_mean).sum()),
        },
        chosen={"distance": distance, "protocol": rule.distance},
        ranked=_run(task, ranked, scores, in_mean & ~lost),
    )


def _rank(scores: Scores, task: RankingTask) -> RankedCandidates:
    """Rank the candidates of every query as the task's family of metrics does."""
    pools = task.pools
    if task.rule.family == "csfcube":
        return rank_as_given(scores, pools.grades, pools.offsets)
    return rank_as_trec(scores, pools.grades, pools.offsets, task.texts.tie_order[pools.candidates])


def _count_per_query(pools: Pools, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the flagged pairs of every query, (queries,)."""
    return np.bincount(pools.owners(), flags, minlength=len(pools)).astype(np.int64)


def _count_ties(pools: Pools, scores: Scores) -> int:
    """Count queries whose candidates all have the same score, so that their order says nothing."""
    each = (own[np.isfinite(own)] for own in np.split(scores, pools.offsets[1:-1]))
    return sum(len(own) > 1 and bool((own == own[0]).all()) for own in each)


def _coverage(task: RankingTask, has_score: NDArray[np.bool_]) -> dict[str, int]:
    """Count queries, pairs and papers of a ranking task, and those without scores, relevant papers or texts."""
    pools, texts = task.pools, task.texts
    is_ranked = np.ones(len(has_score), bool) if pools.scored is None else pools.scored
    relevant = pools.grades >= task.rule.relevant
    papers: Sequence[int] = range(len(texts))
    if task.reviewers is not None:  # other rows are people
        papers = np.union1d(pools.queries, task.reviewers.papers).tolist()
    return {
        "queries": len(pools),
        "queries without an answer": int((_count_per_query(pools, has_score) == 0).sum()),
        "queries without relevant papers": int((_count_per_query(pools, relevant) == 0).sum()),
        "pairs": int(is_ranked.sum()),
        "pairs without an answer": int((is_ranked & ~has_score).sum()),
        "papers": len(papers),
        "papers without text": texts.count_without_text(papers),
    }


def _missing_scores(task: RankingTask, gaps: NDArray[np.bool_]) -> UserError:
    """Return the error for pairs without a score where the original code stops at them."""
    pools = task.pools
    at = int(np.flatnonzero(gaps)[0])
    query = pools.names[int(np.searchsorted(pools.offsets, at, side="right")) - 1]
    return UserError(
        f"{task.name} has no score for {int(gaps.sum()):,} pairs, such as query {query!r} with "
        f"{task.texts.ids[pools.candidates[at]]!r}; the original script stops there: score every pair, or evaluate with "
        "--missing wrong"
    )


def _rows(task: RankingTask, in_mean: NDArray[np.bool_], values: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    """Return query -> its metrics, with fold, paper and field where the task has them."""
    pools, folds = task.pools, {name: number for number, fold in enumerate(task.folds) for name in fold}
    rows: dict[str, dict[str, Any]] = {}
    papers_repeat = len(np.unique(pools.queries)) < len(pools)  # one paper is a query by several facets
    for number in np.flatnonzero(in_mean).tolist():
        name = pools.names[number]
        if folds and name not in folds:
            continue
        rows[name] = {metric: float(column[number]) for metric, column in values.items()}
        if folds:
            rows[name]["fold"] = folds[name]
        if papers_repeat:
            rows[name]["paper"] = int(pools.queries[number])
        if pools.groups is not None:
            rows[name]["field"] = pools.groups[number]
    return rows


def _run(
    task: RankingTask, ranked: RankedCandidates, scores: Scores, chosen: NDArray[np.bool_]
) -> dict[str, list[tuple[str, float]]]:
    """Return the TREC run of the chosen queries: their candidates with finite scores, best first."""
    ids, numbers, candidates = task.texts.ids, scores.tolist(), task.pools.candidates.tolist()
    run = {}
    for number in np.flatnonzero(chosen).tolist():
        start = ranked.offsets[number]
        places = ranked.order[start : start + ranked.submitted[number]].tolist()
        run[task.pools.names[number]] = [
            (ids[candidates[at]], numbers[at]) for at in places if math.isfinite(numbers[at])
        ]
    return run


def _score_reviewers(system: System, texts: TaskTexts, pools: Pools, reviewers: Reviewers, distance: str) -> Scores:
    """Score (submission, reviewer) pairs, (pairs,): the mean of the best scores over the reviewer's papers.

    Allen AI's rule: the three best papers count, or all where there are fewer; NaN where no paper has a score.
    """
    ends = to_offsets(reviewers.lengths()[pools.candidates])  # (pairs + 1,)
    papers = reviewers.papers[reviewers.places(pools.candidates)]
    expanded = Pools(pools.queries, ends[pools.offsets], papers, np.zeros(len(papers), np.int64), pools.names)
    scores = system.scores(texts, expanded, distance)
    means = np.array([best_mean(scores[ends[at] : ends[at + 1]], reviewers.top) for at in range(len(pools.candidates))])
    if system.distances:
        return means
    own = system.scores(texts, pools, distance)  # (pairs,) a file of scores may have the people themselves
    return np.where(np.isnan(own), means, own)


def best_mean(scores: Scores, top: int) -> float:
    """Score a reviewer in a ranking task: the mean of the `top` best scores of the reviewer's papers.

    >>> best_mean(np.array([0.25, 1.0, np.nan, 0.5, 0.75]), 3)
    0.75
    """
    best = np.sort(scores[~np.isnan(scores)])[::-1][:top]
    return float(best.mean()) if len(best) else float("nan")


def _sum_standardized(parts: Sequence[Scores], offsets: NDArray[np.int64]) -> Scores:
    """Sum the scores of several distances, (pairs,) each, standardized per query; a single one stays as it is.

    z-scores add up well whatever the scale of a distance is (Montague and Aslam, SIGIR 2001, ZMUV). A distance that is
    named twice counts twice; a candidate without a score by one distance has none by the sum.

    >>> sentences, tokens = np.array([-0.5, -0.7, -0.9]), np.array([-3.0, -1.0, -2.0])
    >>> _sum_standardized([sentences, tokens], np.array([0, 3])).round(2).tolist()
    [0.0, 1.22, -1.22]
    """
    if len(parts) == 1:
        return parts[0]
    total: Scores = np.sum([standardize_scores(part, offsets) for part in parts], axis=0)
    return total


def standardize_scores(scores: Scores, offsets: NDArray[np.int64]) -> Scores:
    """Scale each query's scores (pairs,) in a ranking task, offsets[i] to offsets[i + 1], to mean 0 and deviation 1.

    NaN and -inf stay what they are and do not count; scores that are all equal become 0.

    >>> standardize_scores(np.array([1.0, 3.0, np.nan, 5.0, 5.0]), np.array([0, 3, 5])).tolist()
    [-1.0, 1.0, nan, 0.0, 0.0]
    """
    scaled = scores.copy()
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        finite = low + np.flatnonzero(np.isfinite(scores[low:high]))
        if len(finite):
            centered = scores[finite] - scores[finite].mean()
            scaled[finite] = centered / (centered.std() or 1)
    return scaled


# --- probes ----------------------------------------------------------------------------------------------


def run_probe(task: ProbeTask, system: System, missing: str, *, intercept: bool = True) -> Outcome:
    """Evaluate a system by a linear probe: fit it on the training vectors, predict the labels of the test papers."""
    task = task if intercept else replace(task, rule=probes.as_lightning(task.rule))
    vectors = system.vectors(task.texts)
    present = [int(vectors.present[rows].sum()) for rows in (task.train, task.test)]
    if not all(present):
        raise NoAnswerError(
            f"{task.name}: {present[0]:,} training and {present[1]:,} test papers have vectors; "
            f"check that the ids of the vectors are the suite's ids, such as {task.texts.ids[int(task.test[0])]!r}"
        )
    zeros = missing == "peers" and task.missing_as == "zeros"  # every paper takes part
    in_train, in_test = (vectors.present[rows] | zeros for rows in (task.train, task.test))
    labels = task.train_labels[in_train]
    data = vectors.matrix[task.train[in_train]], labels, vectors.matrix[task.test[in_test]]

    def rows_of(predictions: probes.Predictions) -> dict[str, dict[str, Any]]:
        return _prediction_rows(task, predictions.values, in_test, labels, missing)

    coverage, rule = _probe_coverage(task, vectors), task.rule
    try:
        if task.shots is not None:
            return _run_few_shot(task, data, rows_of, coverage, missing)
        fit = {"classes": probes.fit_classes, "labels": probes.fit_labels, "numbers": probes.fit_numbers}[task.kind]
        predictions = fit(*data, rule)
    except UserError as error:
        raise NoAnswerError(f"{task.name}: {error}") from None
    return Outcome(
        task.name,
        task.kind,
        dict(task.metrics),
        rows_of(predictions),
        {**coverage, "probes that did not converge": predictions.unconverged},
        chosen={"C": _c_as_json(predictions.best_c), "intercept": rule.intercept, "solver": rule.chosen_solver},
    )


def _c_as_json(best_c: float | Sequence[float]) -> Any:
    """Return one C, or one per label: None for a label that was not learned, since JSON has no NaN."""
    return best_c if isinstance(best_c, float) else [None if np.isnan(c) else c for c in best_c]


def _run_few_shot(
    task: ProbeTask,
    data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    rows_of: Callable[[probes.Predictions], dict[str, dict[str, Any]]],
    coverage: dict[str, int],
    missing: str,
) -> Outcome:
    """Evaluate few-shot probes, one row per fold; SciRepEval rounds each fold's score to two decimals of a percent."""
    assert task.shots is not None
    if task.kind == "numbers":
        raise UserError("few-shot probes predict classes or labels, not numbers; remove few_shot from the task")
    few_shot = probes.few_shot_labels if task.kind == "labels" else probes.few_shot_classes
    rows: dict[str, dict[str, Any]] = {}
    for number, predictions in enumerate(few_shot(*data, *task.shots, task.rule)):
        values = {name: derive_metric(metric, rows_of(predictions), name) for name, metric in task.metrics.items()}
        rows[f"fold {number}"] = {
            name: round(100 * value, 2) / 100 if missing == "peers" else value for name, value in values.items()
        }
    coverage = {**coverage, "folds": len(rows)}
    derivations = dict.fromkeys(task.metrics, "mean")
    return Outcome(task.name, "few-shot", derivations, rows, coverage, chosen={"size": task.shots[0]})


def _prediction_rows(
    task: ProbeTask, predicted: NDArray[Any], in_test: NDArray[np.bool_], train_labels: NDArray[Any], missing: str
) -> dict[str, dict[str, Any]]:
    """Return test paper -> its label and what was predicted; by `wrong`, also of papers without a vector."""
    predictions = iter(predicted.tolist())
    default = _default_prediction(task, train_labels)
    seen: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    for row, label, is_predicted in zip(task.test.tolist(), task.test_labels.tolist(), in_test.tolist(), strict=True):
        paper = task.texts.ids[row]
        seen[paper] += 1
        name = paper if seen[paper] == 1 else f"{paper}#{seen[paper]}"
        if is_predicted:
            rows[name] = {"label": label, "predicted": next(predictions)}
        elif missing == "wrong":
            rows[name] = {"label": label, "predicted": default}
    return rows


def _default_prediction(task: ProbeTask, train_labels: NDArray[Any]) -> Any:
    """Return the prediction for a test paper without a vector: no class, no label, the median number."""
    if task.kind == "labels":
        return [0] * task.test_labels.shape[1]
    return float(np.median(train_labels)) if task.kind == "numbers" else None


def _probe_coverage(task: ProbeTask, vectors: PaperVectors) -> dict[str, int]:
    """Count the training and test papers of a probe, and those without a vector or text."""
    return {
        "training papers": len(task.train),
        "training papers without vector": int((~vectors.present[task.train]).sum()),
        "test papers": len(task.test),
        "test papers without vector": int((~vectors.present[task.test]).sum()),
        "vectors of zeros": vectors.count_zeros(),
        "papers without text": task.texts.without_text,
    }
