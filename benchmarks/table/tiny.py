"""A bundle cut to a size that a processor runs through in minutes: shows that every system trains and is judged.

Its numbers mean nothing, and its data version is another one: the table refuses to rank them beside real ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.table.bundle import Bundle, packed
from citeweave.evaluation.tasks import Pools, ProbeTask, RankingTask, SearchTask, Task, TaskTexts

QUERIES, CANDIDATES, SAMPLES, TOKENS = 4, 6, 24, 32

Rows = NDArray[np.int64]


def cut(bundle: Bundle) -> Bundle:
    """A few queries of every task, a few samples of every system."""
    suites = {
        name: dataclasses.replace(suite, tasks=tuple(_cut_task(task) for task in suite.tasks))
        for name, suite in bundle.suites.items()
    }
    samples = {}
    for key, own in bundle.samples.items():
        few = packed(own, np.arange(len(own)) < SAMPLES)  # type: ignore[arg-type]  # it has what is packed
        samples[key] = dataclasses.replace(few, hash=key)
    systems = {
        name: {**table, "encoder": {**table["encoder"], "max_tokens": TOKENS}} for name, table in bundle.systems.items()
    }
    facts = {**bundle.facts, "max_tokens": TOKENS}
    return dataclasses.replace(bundle, suites=suites, samples=samples, systems=systems, facts=facts)


def _cut_task(task: Task) -> Task:
    if isinstance(task, ProbeTask):
        train, test = _some_of_each(task.train_labels), _some_of_each(task.test_labels)
        own = np.unique(np.concatenate([task.train[train], task.test[test]]))
        return dataclasses.replace(
            task,
            texts=_narrow(task.texts, own),
            train=np.searchsorted(own, task.train[train]),
            train_labels=task.train_labels[train],
            test=np.searchsorted(own, task.test[test]),
            test_labels=task.test_labels[test],
        )
    if isinstance(task, SearchTask):
        few = _cut_pools(task.judgments, np.arange(min(QUERIES, len(task.judgments))))
        candidates = np.union1d(task.candidates[: 5 * CANDIDATES], few.candidates)
        own = np.union1d(candidates, few.queries)
        which = [task.queries.tolist().index(query) for query in few.queries.tolist()]
        return dataclasses.replace(
            task,
            texts=_narrow(task.texts, own),
            queries=np.searchsorted(own, task.queries[which]),
            candidates=np.searchsorted(own, candidates),
            judgments=_renumbered(few, own),
            own=None if task.own is None else _places(own, task.own[which]),
            depth=20,
        )
    assert isinstance(task, RankingTask)
    kept = [name for fold in task.folds for name in list(fold)[: QUERIES // 2]] or list(task.pools.names)[:QUERIES]
    chosen = np.flatnonzero(np.isin(np.array(task.pools.names), kept))
    pools = _cut_pools(task.pools, chosen)
    own = np.unique(np.concatenate([pools.queries, pools.candidates]))
    folds = tuple(tuple(name for name in fold if name in kept) for fold in task.folds)
    return dataclasses.replace(task, texts=_narrow(task.texts, own), pools=_renumbered(pools, own), folds=folds)


def _some_of_each(answers: NDArray[Any]) -> Rows:
    """The first papers, and some of every class."""
    if answers.dtype.kind in "fiu":
        return np.arange(min(len(answers), 40))
    places: dict[Any, list[int]] = {}
    for place, answer in enumerate(answers.tolist()):
        places.setdefault(answer, []).append(place)
    return np.sort(np.concatenate([np.array(each[:4], np.int64) for each in places.values()]))


def _cut_pools(pools: Pools, chosen: Rows) -> Pools:
    """Some queries, the best of their candidates and some others."""
    spans = []
    for query in chosen.tolist():
        span = np.arange(pools.offsets[query], pools.offsets[query + 1])
        best = span[np.argsort(-pools.grades[span], kind="stable")]
        spans.append(np.sort(np.concatenate([best[: CANDIDATES // 2], best[::-1][: CANDIDATES // 2]])))
    spans = [np.unique(span) for span in spans]
    pairs = np.concatenate(spans)
    at = chosen.tolist()
    return dataclasses.replace(
        pools,
        queries=pools.queries[chosen],
        offsets=np.cumsum([0, *map(len, spans)]).astype(np.int64),
        candidates=pools.candidates[pairs],
        grades=pools.grades[pairs],
        names=[pools.names[query] for query in at],
        sentences=None if pools.sentences is None else [pools.sentences[query] for query in at],
        groups=None if pools.groups is None else [pools.groups[query] for query in at],
        scored=None if pools.scored is None else pools.scored[pairs],
    )


def _renumbered(pools: Pools, own: Rows) -> Pools:
    return dataclasses.replace(
        pools, queries=np.searchsorted(own, pools.queries), candidates=np.searchsorted(own, pools.candidates)
    )


def _places(own: Rows, rows: Rows) -> Rows:
    """Where these rows are among some, -1 where they are not."""
    at = np.minimum(np.searchsorted(own, rows), len(own) - 1)
    return np.where(own[at] == rows, at, -1)


def _narrow(texts: TaskTexts, rows: Rows) -> TaskTexts:
    at = rows.tolist()

    def some(column: Any) -> Any:
        return None if column is None else [column[row] for row in at]

    return TaskTexts(
        some(texts.ids), some(texts.titles), some(texts.abstracts), some(texts.sentences), some(texts.labels)
    )
