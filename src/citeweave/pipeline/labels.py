"""The answers of suites as a table of pairs, for the oracle: what a model could reach that was told them.

    rankings   query and candidate, with the candidate's grade
    classes    a paper with five others of its class (1) and five of other classes (0); as many papers as the rankings
               have queries on average, so that no task outweighs the others (Ostendorff et al., EMNLP 2022, appendix E)

Papers are found in the corpus by id in the suite of the corpus itself, by the leakage audit in others. A model trained
on them knows the answers: its report is an upper bound and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.evaluation.tasks import ProbeTask, RankingTask, Suite
from citeweave.mining.tables import Table, table_of
from citeweave.pipeline.auditing import find_leaks, suite_papers
from citeweave.pipeline.options import CORPUS
from citeweave.randomness import stream

LABELS = "labels"
"""The table's name in rules."""

EACH = 5
"""Partners of a paper in a class, and as many of other classes."""


class Pairs(NamedTuple):
    """Pairs of rows of the texts with a grade; each (pairs,)."""

    queries: NDArray[np.int64]
    others: NDArray[np.int64]
    grades: NDArray[np.float64]


def label_table(corpus: Corpus, suites: Mapping[str, Suite], *, seed: int = 0) -> Table:
    """One table of all suites; pairs with a paper that the corpus lacks are left out."""
    columns = [np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)]
    for name, suite in suites.items():
        rows = _rows(corpus, name, suite)
        for task, pairs in _pairs_of(suite, seed).items():
            at = np.array([rows.get(paper, -1) for paper in suite_task(suite, task).texts.ids], np.int64)
            found = [at[pairs.queries], at[pairs.others], pairs.grades]
            keep = (found[0] >= 0) & (found[1] >= 0) & (found[0] != found[1])
            columns = [np.concatenate([old, new[keep]]) for old, new in zip(columns, found, strict=True)]
    if not len(columns[0]):
        raise UserError(
            f"no label of {', '.join(suites) or 'a suite'} is about two papers of {corpus.folder}; import the suite's "
            "papers into the corpus, or give --table labels=FILE"
        )
    queries, others, grades = columns
    # of a pair that several tasks judge the best grade counts, as sums would mix their scales
    order = np.lexsort([grades, others, queries])
    last = np.ones(len(order), bool)
    last[:-1] = (np.diff(queries[order]) != 0) | (np.diff(others[order]) != 0)
    kept = order[last]
    return table_of(queries[kept], others[kept], grades[kept], papers=len(corpus))


def suite_task(suite: Suite, name: str) -> RankingTask | ProbeTask:
    return next(task for task in suite.tasks if task.name == name and isinstance(task, RankingTask | ProbeTask))


def _rows(corpus: Corpus, name: str, suite: Suite) -> dict[str, int]:
    """Row in the corpus of every id of the suite that it has."""
    papers = suite_papers(suite)
    if name == CORPUS:
        found = corpus.rows(list(papers.ids))
        return {paper: int(row) for paper, row in zip(papers.ids, found, strict=True) if row >= 0}
    leaks = find_leaks(corpus, {name: suite}).benchmarks.get(name)
    return {} if leaks is None else {papers.ids[match.benchmark_row]: match.corpus_row for match in leaks}


def _pairs_of(suite: Suite, seed: int) -> dict[str, Pairs]:
    rankings = {
        task.name: _ranked(task) for task in suite.tasks if isinstance(task, RankingTask) and not task.reviewers
    }
    queries = [len(np.unique(pairs.queries)) for pairs in rankings.values()]
    most = int(np.mean(queries)) if queries else 1000
    classes = [task for task in suite.tasks if isinstance(task, ProbeTask) and task.kind == "classes"]
    return rankings | {task.name: _classed(task, most, seed) for task in classes}


def _ranked(task: RankingTask) -> Pairs:
    pools = task.pools
    return Pairs(
        np.repeat(pools.queries, np.diff(pools.offsets)), pools.candidates, np.asarray(pools.grades, np.float64)
    )


def _classed(task: ProbeTask, most: int, seed: int) -> Pairs:
    draw = stream(seed, "labels", task.name)
    papers = np.concatenate([task.train, task.test])  # (papers,)
    answers = np.concatenate([task.train_answers, task.test_answers])  # (papers,)
    queries, others = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    grades = [np.zeros(0)]
    for place in draw.permutation(len(papers))[:most].tolist():
        same = answers == answers[place]
        for members, grade in ((np.flatnonzero(same), 1.0), (np.flatnonzero(~same), 0.0)):
            chosen = draw.choice(members, min(EACH, len(members)), replace=False)
            queries.append(np.full(len(chosen), papers[place], np.int64))
            others.append(papers[chosen])
            grades.append(np.full(len(chosen), grade))
    return Pairs(np.concatenate(queries), np.concatenate(others), np.concatenate(grades))
