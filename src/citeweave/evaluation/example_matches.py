"""A few queries of a report with the paper that was ranked first, and the sentences by which it matched.

    matches = example_matches(judged, suite, value, runs)      # the best and the worst query, and two between them

Of sentence-level models alone, and where the suite has texts. What was ranked first is read from the TREC run, so that
only the shown papers are encoded again. Does not draw: see `reporting.matches`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.judged import Judged
from citeweave.evaluation.reporting.matches import ExampleMatch, PairTexts
from citeweave.evaluation.reporting.queries import spreads_of
from citeweave.evaluation.tasks import RankingTask, Suite
from citeweave.evaluation.texts import Texts
from citeweave.files import open_input
from citeweave.similarity.explaining import Explanation

MOST = 4


@runtime_checkable
class Explains(Judged, Protocol):
    """What can say by which sentences two papers match."""

    def explain(
        self, texts: Texts, query: int, candidate: int, distance: str, sentences: NDArray[np.int64] | None = None
    ) -> Explanation | None:
        """Rows of the texts; None where a paper has no sentence."""


def example_matches(
    judged: Judged, suite: Suite, value: Mapping[str, Any], runs: Mapping[str, Path]
) -> list[ExampleMatch]:
    """Of the first task of the headline that ranks pools."""
    tasks = {task.name: task for task in suite.tasks if isinstance(task, RankingTask) and task.reviewers is None}
    shown = [each for each in spreads_of(value) if each.task in tasks and each.task in runs]
    if not isinstance(judged, Explains) or not shown or tasks[shown[0].task].texts.lacking:
        return []
    spread, task = shown[0], tasks[shown[0].task]
    order = sorted(spread.values, key=lambda query: (-spread.values[query], query))
    queries = [order[at] for at in np.unique(np.linspace(0, len(order) - 1, MOST).round().astype(int)).tolist()]
    first, distance = _first_papers(runs[spread.task], queries), value["tasks"][spread.task]["chosen"]["distance"]
    found = []
    for query in queries:
        pair = _rows(task, query, first.get(query, ""))
        if pair and (explained := _explain(judged, task, *pair, distance)):
            grade, texts = _grade(task, *pair), _texts(task.texts, int(task.pools.queries[pair[0]]), pair[1])
            found.append(ExampleMatch(task.name, query, spread.metric, spread.values[query], grade, explained, texts))
    return found


def _first_papers(run: Path, queries: Sequence[str]) -> dict[str, str]:
    """Query -> the id of rank 1, as a run writes them."""
    wanted = {"_".join(query.split()): query for query in queries}
    found: dict[str, str] = {}
    with io.TextIOWrapper(open_input(run), encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) == 6 and words[3] == "1" and words[0] in wanted:
                found[wanted[words[0]]] = words[2]
                if len(found) == len(wanted):
                    break
    return found


def _rows(task: RankingTask, query: str, paper: str) -> tuple[int, int] | None:
    """The number of the query in its pools, and the row of the paper."""
    row = int(task.texts.rows([paper])[0])
    return (list(task.pools.names).index(query), row) if row >= 0 and query in task.pools.names else None


def _explain(judged: Explains, task: RankingTask, number: int, row: int, distance: str) -> Explanation | None:
    texts, rows = task.texts, [int(task.pools.queries[number]), row]
    pair = Texts(
        [texts.ids[at] for at in rows],
        [texts.titles[at] for at in rows],
        [texts.abstracts[at] for at in rows],
        None if texts.sentences is None else [texts.sentences[at] for at in rows],
    )
    if task.pools.sentences is None:
        return judged.explain(pair, 0, 1, distance)
    # a query without a sentence of its facet takes part whole, yet is judged as the others of its task
    chosen = task.pools.sentences[number]
    every = np.arange(len(texts.sentences_of(rows[0])))
    return judged.explain(pair, 0, 1, distance, every if chosen is None else chosen)


def _grade(task: RankingTask, number: int, row: int) -> int:
    span = slice(int(task.pools.offsets[number]), int(task.pools.offsets[number + 1]))
    return int(task.pools.grades[span][task.pools.candidates[span] == row][0])


def _texts(texts: Texts, query: int, candidate: int) -> PairTexts:
    return PairTexts(
        texts.titles[query] or texts.ids[query],
        texts.titles[candidate] or texts.ids[candidate],
        texts.sentences_of(query),
        texts.sentences_of(candidate),
    )
