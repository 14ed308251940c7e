"""Reviewer matching: how well a person's papers fit a submission.

Allen AI's way: the mean of the three best scores over the person's papers, of all where there are fewer.

Judge a ranking or search task: scores, the rule for missing answers, metrics query by query.

What happens to a paper without vector, by `missing`:

    wrong   a candidate without answer is never found; a query without any gets 0 from every metric; where no query has
            an answer, nothing was judged: `NoAnswerError`
    peers   as in the peer's code: left out of the run and of the mean (SciDocs, SciRepEval), or a stop (MDCR);
            CSFCube's and ASPIRE's scripts take the ideal ranking from the submitted list
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.evaluation.bootstrap import Outcome
from citeweave.evaluation.metrics import Judging, ranking_metrics
from citeweave.evaluation.ranking_metrics import RankedCandidates, rank_as_given, rank_as_trec
from citeweave.evaluation.systems import ByFacet, Judged, NoAnswerError, choose_distance
from citeweave.evaluation.tasks import (
    DISTANCES,
    PLUS,
    Pools,
    RankingRule,
    RankingTask,
    Reviewers,
    SearchTask,
    TaskTexts,
    add_up,
    parts_of,
)


def score_reviewers(
    judged: Judged, texts: TaskTexts, pools: Pools, reviewers: Reviewers, distance: str
) -> NDArray[np.float64]:
    """(pairs,) scores of (submission, person); NaN where no paper of the person has an answer."""
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
    scores = judged.scores(texts, expanded, distance)
    means = np.array([best_mean(scores[ends[at] : ends[at + 1]], reviewers.top) for at in range(len(sizes))])
    if judged.distances:
        return means
    own = judged.scores(texts, pools, distance)  # (pairs,) a file of scores may know the people themselves
    return np.where(np.isnan(own), means, own)


def best_mean(scores: NDArray[np.float64], top: int) -> float:
    """Mean of the `top` best answers.

    >>> best_mean(np.array([0.25, 1.0, np.nan, 0.5, 0.75]), 3)
    0.75
    """
    best = np.sort(scores[~np.isnan(scores)])[::-1][:top]
    return float(best.mean()) if len(best) else float("nan")


# Judge a ranking or search task: scores, the rule for missing answers, metrics query by query.

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class _OpenTask:
    """A ranking or search task once its pools are known."""

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
    """Rows of the texts that are papers, where others are people."""

    zeros: int = 0
    """Vectors that are all zero."""


def run_ranking(task: RankingTask, judged: Judged, distance: str, missing: str) -> Outcome:
    """Rank every query's pool."""
    chosen = choose_distance(judged, distance, task.rule.distance)
    scores = add_up([_score(task, judged, part) for part in parts_of(chosen)], task.pools.offsets)
    folds = {name: number for number, fold in enumerate(task.folds) for name in fold}
    papers = None if task.reviewers is None else np.union1d(task.pools.queries, task.reviewers.papers)
    asked = _OpenTask(
        task.name,
        "ranking",
        task.texts,
        task.pools,
        task.rule,
        chosen,
        folds,
        task.called,
        papers,
        _count_zeros(judged, task.texts),
    )
    return _judge(asked, scores, missing)


def _score(task: RankingTask, judged: Judged, distance: str) -> Scores:
    """By one distance."""
    if task.reviewers is None:
        scores = judged.scores(task.texts, task.pools, distance)
    else:
        scores = score_reviewers(judged, task.texts, task.pools, task.reviewers, distance)
    return scores if task.pools.scored is None else np.where(task.pools.scored, scores, np.nan)


def run_search(task: SearchTask, judged: Judged, distance: str, missing: str) -> Outcome:
    """Find every question's papers among all."""
    chosen = choose_distance(judged, distance, task.rule.distance)
    if PLUS in chosen:
        raise NoAnswerError(f"{chosen} orders pools of candidates and does not search among all papers")
    rows, scores = _find(task, judged, chosen)
    if (rows < 0).all():
        raise NoAnswerError(
            f"{task.name}: no question found a paper; vectors are needed of the papers and of the questions, which have "
            f"ids such as {task.texts.ids[int(task.queries[0])]!r}: judge a model, which reads both, or add their vectors"
        )
    pools, flat = _pool_found(task, rows, scores)
    zeros = _count_zeros(judged, task.texts)
    return _judge(_OpenTask(task.name, "search", task.texts, pools, task.rule, chosen, zeros=zeros), flat, missing)


def _find(task: SearchTask, judged: Judged, distance: str) -> tuple[NDArray[np.int64], Scores]:
    """The best papers of every question; where it matters, each by the aspect that it asks about."""
    if not isinstance(judged, ByFacet) or task.judged.groups is None:
        return judged.top(task.texts, task.queries, task.candidates, task.depth, distance)
    asked = dict(zip(task.judged.queries.tolist(), task.judged.groups, strict=True))
    facets = np.array([asked.get(row, "") for row in task.queries.tolist()])  # (queries,)
    rows, scores = np.full((len(facets), task.depth), -1, np.int64), np.full((len(facets), task.depth), np.nan)
    for facet in np.unique(facets).tolist():
        own = facets == facet
        found = judged.answering(facet).top(task.texts, task.queries[own], task.candidates, task.depth, distance)
        rows[own], scores[own] = found
    return rows, scores


def _count_zeros(judged: Judged, texts: TaskTexts) -> int:
    """Only of what scores by single vectors."""
    if isinstance(judged, ByFacet):
        return judged.count_zeros(texts)
    return judged.vectors(texts).count_zeros() if set(judged.distances) & set(DISTANCES) else 0


def _pool_found(task: SearchTask, rows: NDArray[np.int64], scores: Scores) -> tuple[Pools, Scores]:
    """What was found and what was judged of every query, as one pool; what was not found has no score."""
    judged, sizes = task.judged, []
    own_papers = np.full(len(task.queries), -1) if task.own is None else task.own
    candidates, grades, flat = [], [], []
    place = {row: number for number, row in enumerate(judged.queries.tolist())}
    for number, query in enumerate(task.queries.tolist()):
        kept = (rows[number] >= 0) & (rows[number] != query) & (rows[number] != own_papers[number])
        found = rows[number][kept]
        own = place.get(query)
        span = slice(judged.offsets[own], judged.offsets[own + 1]) if own is not None else slice(0, 0)
        known = dict(zip(judged.candidates[span].tolist(), judged.grades[span].tolist(), strict=True))
        lost = np.array(sorted(known.keys() - set(found.tolist())), np.int64)
        candidates.append(np.concatenate([found, lost]))
        grades.append(np.array([known.get(row, 0) for row in candidates[-1].tolist()], np.int64))
        flat.append(np.concatenate([scores[number][kept], np.full(len(lost), np.nan)]))
        sizes.append(len(candidates[-1]))
    named = dict(zip(judged.queries.tolist(), judged.names, strict=True))
    names = [named.get(row, task.texts.ids[row]) for row in task.queries.tolist()]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    pools = Pools(
        task.queries, offsets, np.concatenate(candidates), np.concatenate(grades), names, groups=judged.groups
    )
    return pools, np.concatenate(flat)


def _judge(asked: _OpenTask, scores: Scores, missing: str) -> Outcome:
    pools, rule = asked.pools, asked.rule
    if rule.decimals is not None:
        scores = np.round(scores, rule.decimals)
    answered = ~np.isnan(scores)  # (pairs,)
    put = np.ones(len(scores), bool) if pools.scored is None else pools.scored
    if missing == "peers" and rule.peers == "stop" and (put & ~answered).any():
        raise _stopped(asked, put & ~answered)
    if missing == "wrong":
        scores = np.where(np.isneginf(scores), np.nan, scores)  # an empty vector is no answer
        answered = ~np.isnan(scores)
    ranked = _rank(scores, asked)
    ideal = "submitted" if missing == "peers" else "judged"
    prefix = "csfcube:" if rule.family == "csfcube" else ""
    values = ranking_metrics(ranked, [prefix + name for name in rule.metrics], Judging(rule.relevant, ideal))
    lost = _count(pools, answered) == 0  # (queries,)
    if lost.all():
        raise NoAnswerError(
            f"{asked.name}: no query has an answer; check that the ids of the vectors are the suite's ids, such as "
            f"{asked.texts.ids[int(pools.queries[0])]!r}"
        )
    kept = np.ones(len(pools), bool) if missing == "wrong" else ~lost
    named = {asked.called.get(metric, metric): np.where(lost, 0.0, values[prefix + metric]) for metric in rule.metrics}
    rows = _rows(asked, kept, named)
    if not rows:
        raise NoAnswerError(
            f"{asked.name}: no query of its folds has an answer; check that the vectors are the suite's"
        )
    return Outcome(
        asked.name,
        asked.kind,
        dict.fromkeys(named, "folds" if asked.folds else "mean"),
        rows,
        {
            **_coverage(asked, answered),
            "queries whose answers all tie": _count_ties(pools, scores),
            "queries left out of the mean": int((~kept).sum()),
        },
        chosen={"distance": asked.distance},
        ranked=_run(asked, ranked, scores, kept & ~lost),
    )


def _rank(scores: Scores, asked: _OpenTask) -> RankedCandidates:
    pools = asked.pools
    if asked.rule.family == "csfcube":
        return rank_as_given(scores, pools.grades, pools.offsets)
    return rank_as_trec(scores, pools.grades, pools.offsets, asked.texts.tie_order[pools.candidates])


def _count(pools: Pools, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    query = np.repeat(np.arange(len(pools)), np.diff(pools.offsets))
    return np.bincount(query, flags, minlength=len(pools)).astype(np.int64)


def _count_ties(pools: Pools, scores: Scores) -> int:
    """Queries with several answers that are all equal: their order says nothing."""
    each = (own[np.isfinite(own)] for own in np.split(scores, pools.offsets[1:-1]))
    return sum(len(own) > 1 and bool((own == own[0]).all()) for own in each)


def _coverage(asked: _OpenTask, answered: NDArray[np.bool_]) -> dict[str, int]:
    pools, texts = asked.pools, asked.texts
    put = np.ones(len(answered), bool) if pools.scored is None else pools.scored
    relevant = pools.grades >= asked.rule.relevant
    papers = range(len(texts)) if asked.papers is None else asked.papers.tolist()
    return {
        "queries": len(pools),
        "queries without answer": int((_count(pools, answered) == 0).sum()),
        "queries without relevant papers": int((_count(pools, relevant) == 0).sum()),
        "pairs": int(put.sum()),
        "pairs without answer": int((put & ~answered).sum()),
        "papers": len(papers),
        "papers without text": texts.count_without_text(papers),
        "vectors of zeros": asked.zeros,
    }


def _stopped(asked: _OpenTask, gaps: NDArray[np.bool_]) -> UserError:
    pools = asked.pools
    at = int(np.flatnonzero(gaps)[0])
    query = pools.names[int(np.searchsorted(pools.offsets, at, side="right")) - 1]
    return UserError(
        f"{asked.name} has no score of {int(gaps.sum()):,} pairs, such as query {query!r} with "
        f"{asked.texts.ids[pools.candidates[at]]!r}; the peer's script stops there: score every pair, or judge with "
        "--missing wrong"
    )


def _rows(asked: _OpenTask, kept: NDArray[np.bool_], values: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    pools, folds = asked.pools, asked.folds
    rows: dict[str, dict[str, Any]] = {}
    several = len(np.unique(pools.queries)) < len(pools)  # of one paper by several facets
    for number in np.flatnonzero(kept).tolist():
        name = pools.names[number]
        if folds and name not in folds:
            continue
        rows[name] = {metric: float(column[number]) for metric, column in values.items()}
        if folds:
            rows[name]["fold"] = folds[name]
        if several:
            rows[name]["paper"] = int(pools.queries[number])
        if pools.groups is not None:
            rows[name]["field"] = pools.groups[number]
    return rows


def _run(
    asked: _OpenTask, ranked: RankedCandidates, scores: Scores, kept: NDArray[np.bool_]
) -> dict[str, list[tuple[str, float]]]:
    """Every kept query's candidates with a score, best first."""
    ids, numbers, candidates = asked.texts.ids, scores.tolist(), asked.pools.candidates.tolist()
    found = {}
    for number in np.flatnonzero(kept).tolist():
        start = ranked.offsets[number]
        places = ranked.order[start : start + ranked.submitted[number]].tolist()
        found[asked.pools.names[number]] = [
            (ids[candidates[at]], numbers[at]) for at in places if math.isfinite(numbers[at])
        ]
    return found
