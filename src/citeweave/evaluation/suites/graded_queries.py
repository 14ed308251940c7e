"""Query papers with graded candidates, on their way from a benchmark's files to pools.

    >>> asked = clean_queries([GradedQuery("q", "q", ["b", "q", "a"], [2, 3, 0])], relevant=2)
    >>> asked.queries[0].candidates, asked.notes()
    (['a', 'b'], ('candidates left out, since they are the query itself: 1',))

Does not read files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import EmptyResultError
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts

REPEATED = "papers given twice, of which the last line counts"
UNKNOWN = "papers without text, which only the pools name"


@dataclass(frozen=True)
class GradedQuery:
    """A query paper with its candidates."""

    name: str
    """What reports call it."""

    paper: str
    candidates: Sequence[str]
    grades: Sequence[int]
    group: str = ""
    sentences: NDArray[np.int64] | None = None
    """Which sentences of the paper count, None = all."""


@dataclass
class Asked:
    """Queries made fit to be judged; `counts` says what was done to them, in words for the suite's notes."""

    queries: list[GradedQuery]
    counts: Counter[str]

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{what}: {number:,}" for what, number in self.counts.items() if number)


def clean_queries(queries: Iterable[GradedQuery], *, relevant: int) -> Asked:
    """Each query without itself among its candidates, and each candidate once, in the order of their ids.

    The order matters: ASPIRE's files list what is relevant first, and a model that gives all the same score would
    be right by the order alone.
    """
    counts: Counter[str] = Counter()
    kept = []
    for query in queries:
        grades = dict(zip(query.candidates, query.grades, strict=True))
        counts["candidates named twice, of which the last grade counts"] += len(query.candidates) - len(grades)
        if query.paper in grades:
            del grades[query.paper]
            counts["candidates left out, since they are the query itself"] += 1
        counts["queries left out, since they have no candidates"] += not grades
        if grades:
            counts["queries without relevant papers, which count as 0"] += max(grades.values()) < relevant
            names = sorted(grades)
            kept.append(replace(query, candidates=names, grades=[grades[name] for name in names]))
    return Asked(kept, counts)


def with_unknown(texts: Texts, queries: Sequence[GradedQuery]) -> tuple[Texts, int]:
    """The texts with an empty row for every paper that only the pools name, and how many those are."""
    named: set[str] = {query.paper for query in queries}
    for query in queries:
        named.update(query.candidates)
    unknown = sorted(named.difference(texts.ids))
    if not unknown:
        return texts, 0
    blank: list[list[str]] = [[] for _ in unknown]
    more = Texts(
        ids=[*texts.ids, *unknown],
        titles=[*texts.titles, *([""] * len(unknown))],
        abstracts=[*texts.abstracts, *([""] * len(unknown))],
        sentences=None if texts.sentences is None else [*texts.sentences, *blank],
        labels=None if texts.labels is None else [*texts.labels, *blank],
        lacking=texts.lacking,
    )
    return more, len(unknown)


def make_pools(texts: Texts, queries: Sequence[GradedQuery]) -> Pools:
    """Queries and candidates as rows of the texts, all of which must be there."""
    if not queries:
        raise EmptyResultError("no query is left to judge; check the split and the folder")
    candidates = np.concatenate([texts.rows(query.candidates) for query in queries])
    rows = texts.rows([query.paper for query in queries])
    assert (candidates >= 0).all() and (rows >= 0).all(), "with_unknown gives every paper a row"
    grouped, aspects = any(query.group for query in queries), any(query.sentences is not None for query in queries)
    return Pools(
        queries=rows,
        offsets=np.concatenate([[0], np.cumsum([len(query.candidates) for query in queries])]).astype(np.int64),
        candidates=candidates,
        grades=np.concatenate([np.array(query.grades, np.int64) for query in queries]),
        names=[query.name for query in queries],
        sentences=[query.sentences for query in queries] if aspects else None,
        groups=[query.group for query in queries] if grouped else None,
    )
