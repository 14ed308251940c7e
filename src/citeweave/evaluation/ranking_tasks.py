"""Evaluate ranking and search tasks: scores of pools, missing vectors, metrics per query, reviewer matching.

What a paper without a vector means, by `missing`:

    wrong   a candidate without a score is never found, and a query without any score gets 0 from every metric; where no
            query has a score, nothing was evaluated: `NoAnswerError`
    peers   as in the benchmark's original code: left out of the run and of the mean (SciDocs, SciRepEval), or a stop
            (MDCR); CSFCube's and ASPIRE's scripts take the ideal ranking from the submitted list

Does not compute metrics: `metrics.py` and `ranking_metrics.py` do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.options import DISTANCES, split_distance
from citeweave.evaluation.ranking_metrics import (
    RankedCandidates,
    RelevanceRule,
    rank_as_given,
    rank_as_trec,
    ranking_metrics,
)
from citeweave.evaluation.systems import PLUS, FacetSystem, NoAnswerError, System, choose_distance
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Reviewers, SearchTask, TaskTexts

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class _PooledTask:
    """A ranking task, or a search task with its hits as pools."""

    name: str
    kind: str
    texts: TaskTexts
    pools: Pools
    rule: RankingRule
    distance: str
    folds: Mapping[str, int] = field(default_factory=dict)
    """Query -> its fold."""

    called: Mapping[str, str] = field(default_factory=dict)
    papers: NDArray[np.int64] | None = None
    """Rows of the texts that are papers, where other rows are people."""

    zeros: int = 0
    """Number of vectors that are all zero."""


def run_ranking(task: RankingTask, system: System, distance: str, missing: str) -> Outcome:
    """Evaluate a system on a ranking task: rank the pool of every query."""
    chosen = choose_distance(system, distance, task.rule.distance)
    scores = _sum_standardized(
        [_score_pools(task, system, part) for part in split_distance(chosen)], task.pools.offsets
    )
    folds = {name: number for number, fold in enumerate(task.folds) for name in fold}
    papers = None if task.reviewers is None else np.union1d(task.pools.queries, task.reviewers.papers)
    pooled = _PooledTask(
        task.name,
        "ranking",
        task.texts,
        task.pools,
        task.rule,
        chosen,
        folds,
        task.called,
        papers,
        _count_zeros(system, task.texts),
    )
    return _evaluate_ranking(pooled, scores, missing)


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
    pooled = _PooledTask(
        task.name, "search", task.texts, pools, task.rule, chosen, zeros=_count_zeros(system, task.texts)
    )
    return _evaluate_ranking(pooled, flat, missing)


def _search(task: SearchTask, system: System, distance: str) -> tuple[NDArray[np.int64], Scores]:
    """Find the best papers of every question; a facet system searches by the aspect that a question asks about."""
    if not isinstance(system, FacetSystem) or task.judgments.groups is None:
        return system.top(task.texts, task.queries, task.candidates, task.depth, distance)
    facet_of = dict(zip(task.judgments.queries.tolist(), task.judgments.groups, strict=True))
    facets = np.array([facet_of.get(row, "") for row in task.queries.tolist()])  # (queries,)
    rows, scores = np.full((len(facets), task.depth), -1, np.int64), np.full((len(facets), task.depth), np.nan)
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


def _pool_hits(task: SearchTask, rows: NDArray[np.int64], scores: Scores) -> tuple[Pools, Scores]:
    """Join the hits and the relevance judgments of every query to one pool; a judged paper that is no hit has no score."""
    judgments, sizes = task.judgments, []
    own_papers = np.full(len(task.queries), -1) if task.own is None else task.own
    candidates, grades, flat = [], [], []
    number_of = {row: number for number, row in enumerate(judgments.queries.tolist())}
    for number, query in enumerate(task.queries.tolist()):
        is_hit = (rows[number] >= 0) & (rows[number] != query) & (rows[number] != own_papers[number])
        hits = rows[number][is_hit]
        own = number_of.get(query)
        span = slice(judgments.offsets[own], judgments.offsets[own + 1]) if own is not None else slice(0, 0)
        grade_of = dict(zip(judgments.candidates[span].tolist(), judgments.grades[span].tolist(), strict=True))
        not_found = np.array(sorted(grade_of.keys() - set(hits.tolist())), np.int64)
        candidates.append(np.concatenate([hits, not_found]))
        grades.append(np.array([grade_of.get(row, 0) for row in candidates[-1].tolist()], np.int64))
        flat.append(np.concatenate([scores[number][is_hit], np.full(len(not_found), np.nan)]))
        sizes.append(len(candidates[-1]))
    name_of = dict(zip(judgments.queries.tolist(), judgments.names, strict=True))
    names = [name_of.get(row, task.texts.ids[row]) for row in task.queries.tolist()]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    pools = Pools(
        task.queries, offsets, np.concatenate(candidates), np.concatenate(grades), names, groups=judgments.groups
    )
    return pools, np.concatenate(flat)


def _evaluate_ranking(task: _PooledTask, scores: Scores, missing: str) -> Outcome:
    """Rank the pools by score, treat missing scores by the rule, and compute the metrics of every query."""
    pools, rule = task.pools, task.rule
    if rule.decimals is not None:
        scores = np.round(scores, rule.decimals)
    has_score = ~np.isnan(scores)  # (pairs,)
    is_ranked = np.ones(len(scores), bool) if pools.scored is None else pools.scored
    if missing == "peers" and rule.peers == "stop" and (is_ranked & ~has_score).any():
        raise _missing_scores(task, is_ranked & ~has_score)
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
        task.kind,
        dict.fromkeys(named, "folds" if task.folds else "mean"),
        rows,
        {
            **_coverage(task, has_score),
            "queries whose answers all tie": _count_ties(pools, scores),
            "queries left out of the mean": int((~in_mean).sum()),
        },
        chosen={"distance": task.distance},
        ranked=_run(task, ranked, scores, in_mean & ~lost),
    )


def _rank(scores: Scores, task: _PooledTask) -> RankedCandidates:
    """Rank the candidates of every query as the task's family of metrics does."""
    pools = task.pools
    if task.rule.family == "csfcube":
        return rank_as_given(scores, pools.grades, pools.offsets)
    return rank_as_trec(scores, pools.grades, pools.offsets, task.texts.tie_order[pools.candidates])


def _count_per_query(pools: Pools, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the flagged pairs of every query, (queries,)."""
    query = np.repeat(np.arange(len(pools)), np.diff(pools.offsets))
    return np.bincount(query, flags, minlength=len(pools)).astype(np.int64)


def _count_ties(pools: Pools, scores: Scores) -> int:
    """Count queries whose candidates all have the same score, so that their order says nothing."""
    each = (own[np.isfinite(own)] for own in np.split(scores, pools.offsets[1:-1]))
    return sum(len(own) > 1 and bool((own == own[0]).all()) for own in each)


def _coverage(task: _PooledTask, has_score: NDArray[np.bool_]) -> dict[str, int]:
    """Count queries, pairs and papers of a ranking task, and those without scores, relevant papers or texts."""
    pools, texts = task.pools, task.texts
    is_ranked = np.ones(len(has_score), bool) if pools.scored is None else pools.scored
    relevant = pools.grades >= task.rule.relevant
    papers = range(len(texts)) if task.papers is None else task.papers.tolist()
    return {
        "queries": len(pools),
        "queries without an answer": int((_count_per_query(pools, has_score) == 0).sum()),
        "queries without relevant papers": int((_count_per_query(pools, relevant) == 0).sum()),
        "pairs": int(is_ranked.sum()),
        "pairs without an answer": int((is_ranked & ~has_score).sum()),
        "papers": len(papers),
        "papers without text": texts.count_without_text(papers),
        "vectors of zeros": task.zeros,
    }


def _missing_scores(task: _PooledTask, gaps: NDArray[np.bool_]) -> UserError:
    """Return the error for pairs without a score where the original code stops at them."""
    pools = task.pools
    at = int(np.flatnonzero(gaps)[0])
    query = pools.names[int(np.searchsorted(pools.offsets, at, side="right")) - 1]
    return UserError(
        f"{task.name} has no score for {int(gaps.sum()):,} pairs, such as query {query!r} with "
        f"{task.texts.ids[pools.candidates[at]]!r}; the original script stops there: score every pair, or evaluate with "
        "--missing wrong"
    )


def _rows(task: _PooledTask, in_mean: NDArray[np.bool_], values: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    """Return query -> its metrics, with fold, paper and field where the task has them."""
    pools, folds = task.pools, task.folds
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
    task: _PooledTask, ranked: RankedCandidates, scores: Scores, chosen: NDArray[np.bool_]
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
    sizes = reviewers.offsets[pools.candidates + 1] - reviewers.offsets[pools.candidates]  # (pairs,)
    ends = np.concatenate([[0], np.cumsum(sizes)])  # (pairs + 1,)
    papers = np.concatenate(
        [
            reviewers.papers[reviewers.offsets[person] : reviewers.offsets[person + 1]]
            for person in pools.candidates.tolist()
        ]
        or [np.zeros(0, np.int64)]
    )
    expanded = Pools(pools.queries, ends[pools.offsets], papers, np.zeros(len(papers), np.int64), pools.names)
    scores = system.scores(texts, expanded, distance)
    means = np.array([best_mean(scores[ends[at] : ends[at + 1]], reviewers.top) for at in range(len(sizes))])
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
