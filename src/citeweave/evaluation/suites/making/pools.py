"""Pools of a task, query by query: relevant papers, near misses where there are any, random papers for the rest.

    drawing = PoolDrawing(material, "cite", negatives=25)
    drawing.add(query, relevant=cited, banned=connected)
    drawing.finish()

No pool holds its query, a paper twice, or the copy of a relevant paper under another id. A query's pool depends on
nothing but the corpus, the seed, the task and the query. Does not know what makes a paper relevant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.suites.making.material import CannotAskError, Material, Rows

RELEVANT = 5
NEGATIVES = 25
"""SciDocs asks for five papers among thirty."""

_NONE = np.zeros(0, np.int64)


class Near(NamedTuple):
    """Candidates that are not relevant and not random."""

    kind: str
    rows: Rows
    """Best first."""

    most: int
    """At most so many are taken."""


@dataclass(frozen=True)
class RowPools:
    """Pools by rows of the corpus."""

    queries: Rows
    offsets: NDArray[np.int64]
    """(queries + 1,)"""

    candidates: Rows
    grades: NDArray[np.int64]
    groups: Sequence[str] | None
    counts: Mapping[str, int]

    def papers(self) -> Rows:
        """Every paper that occurs."""
        return np.union1d(self.queries, self.candidates)


@dataclass
class PoolDrawing:
    """Collects the pools of one task."""

    material: Material
    task: str
    negatives: int = NEGATIVES
    queries: list[int] = field(default_factory=list)
    candidates: list[Rows] = field(default_factory=list)
    grades: list[NDArray[np.int64]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_full(self) -> bool:
        return len(self.queries) >= self.material.options.queries

    def add(
        self,
        query: int,
        relevant: Rows,
        banned: Rows = _NONE,
        near: Sequence[Near] = (),
        *,
        field_rows: Rows = _NONE,
        group: str = "",
    ) -> None:
        """Draw a pool; `relevant` is all that is, best first, `banned` what else may be no negative.

        Random papers are those of `field_rows` first. A query without relevant papers or negatives is not asked.
        """
        keys = self.material.title_keys
        right = self.material.first_distinct(relevant, RELEVANT, keys[[query]])
        if not len(right):
            self.counts["queries left out: no relevant paper"] += 1
            return
        taken = keys[np.concatenate([[query], relevant, banned])]
        parts: list[Rows] = []
        for source in near:
            missing = min(source.most, self.negatives - sum(map(len, parts)))
            parts.append(self.material.first_distinct(source.rows, missing, taken))
            taken = np.concatenate([taken, keys[parts[-1]]])
        parts += self._random(query, taken, self.negatives - sum(map(len, parts)), field_rows)
        wrong = np.concatenate([_NONE, *parts])
        if not len(wrong):
            self.counts["queries left out: no other paper to tell the relevant ones from"] += 1
            return
        kinds = [f"{source.kind} papers" for source in near]
        self._count(len(right), len(wrong), dict(zip(kinds, map(len, parts), strict=False)))
        self.queries.append(query)
        self.candidates.append(np.concatenate([right, wrong]))
        self.grades.append(np.repeat([1, 0], [len(right), len(wrong)]).astype(np.int64))
        self.groups.append(group)

    def finish(self, *, grouped: bool = False, why_none: str = "no query has relevant papers") -> RowPools:
        """The pools of all queries that were added."""
        if not self.queries:
            raise CannotAskError(why_none)
        sizes = [len(rows) for rows in self.candidates]
        return RowPools(
            np.array(self.queries, np.int64),
            np.cumsum([0, *sizes]),
            np.concatenate(self.candidates),
            np.concatenate(self.grades),
            self.groups if grouped else None,
            {"queries": len(self.queries), **self.counts},
        )

    def _count(self, right: int, wrong: int, near: Mapping[str, int]) -> None:
        self.counts.update(near)
        self.counts["relevant papers"] += right
        self.counts["random papers"] += wrong - sum(near.values())
        self.counts["pools with fewer relevant papers than asked"] += right < RELEVANT
        self.counts["pools with fewer other papers than asked"] += wrong < self.negatives

    def _random(self, query: int, taken: NDArray[np.uint64], count: int, field_rows: Rows) -> list[Rows]:
        if count <= 0:
            return []
        rng, first = self.material.stream(self.task, query), _NONE
        if len(field_rows):
            first = self.material.first_distinct(rng.permutation(field_rows), count, taken)
            taken = np.concatenate([taken, self.material.title_keys[first]])
        mixed = rng.permutation(self.material.sample)
        for tried in (8 * count, len(mixed)):  # the first few nearly always do, and are the first of all
            found = self.material.first_distinct(mixed[:tried], count - len(first), taken)
            if len(first) + len(found) == count:
                break
        return [first, found]
