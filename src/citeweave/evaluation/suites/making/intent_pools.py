"""Pools by citation intent: what a held-out paper cites for one reason, among what it cites for others.

    plain, mixed = make_intent_pools(material, graph, "method")

    plain    up to 25 papers that the query cites for their method, and up to 25 that it cites, but not for that
    mixed    the same, and 25 random papers that are not connected with the query

A citation with several intents is relevant for each of them and an "other" for none of these; one without a known
intent is left out of the pool. Does not find intents.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.paper import Intent
from citeweave.evaluation.suites.making.citation_pools import cited_of, connected_of
from citeweave.evaluation.suites.making.material import CannotAskError, Material, Rows
from citeweave.evaluation.suites.making.pools import RowPools
from citeweave.graph.citations import CitationGraph

INTENTS = {"background": Intent.BACKGROUND, "method": Intent.METHOD, "result": Intent.RESULT}
KNOWN = Intent.BACKGROUND | Intent.METHOD | Intent.RESULT
"""Finer intents alone tell none of these three, so that such a citation is neither relevant nor another."""

RELEVANT, OTHERS, RANDOM = 25, 25, 25
"""At most so many papers of a pool."""


@dataclass
class _Drawn:
    """Pools of one task as they grow."""

    queries: list[int] = field(default_factory=list)
    candidates: list[Rows] = field(default_factory=list)
    grades: list[NDArray[np.int64]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, query: int, relevant: Rows, *others: Rows) -> None:
        wrong = np.concatenate(others)
        self.queries.append(query)
        self.candidates.append(np.concatenate([relevant, wrong]))
        self.grades.append(np.repeat([1, 0], [len(relevant), len(wrong)]).astype(np.int64))
        self.counts["relevant papers"] += len(relevant)
        self.counts["other papers"] += len(wrong)

    def finish(self, intent: str) -> RowPools:
        return RowPools(
            np.array(self.queries, np.int64),
            np.cumsum([0, *map(len, self.candidates)]),
            np.concatenate(self.candidates),
            np.concatenate(self.grades),
            [intent] * len(self.queries),
            {"queries": len(self.queries), **self.counts},
        )


def make_intent_pools(material: Material, graph: CitationGraph, intent: str) -> tuple[RowPools, RowPools]:
    """The pools of an intent, plain and mixed; `graph` has all citations of the corpus with their intents."""
    plain, mixed, keys = _Drawn(), _Drawn(), material.title_keys
    for query in material.citing_queries.tolist():
        if len(plain.queries) == material.options.queries:
            break
        cited = cited_of(material, query)
        masks = masks_of(graph, query, cited)  # (cited papers,)
        is_right = (masks & INTENTS[intent]) != 0
        right = material.first_distinct(cited[is_right], RELEVANT, keys[[query]])
        taken = keys[np.append(cited[is_right], query)]
        others = material.first_distinct(cited[~is_right & ((masks & KNOWN) != 0)], OTHERS, taken)
        if not len(right) or not len(others):
            what = "other intent" if len(right) else "paper with this intent"
            plain.counts[f"queries left out: no {what}"] += 1
            continue
        plain.add(query, right, others)
        mixed.add(query, right, others, _random(material, intent, query))
    if not plain.queries:
        raise CannotAskError(f"no held-out paper cites some papers for {intent} and others for something else")
    return plain.finish(intent), mixed.finish(intent)


def masks_of(graph: CitationGraph, query: int, cited: Rows) -> NDArray[np.uint8]:
    """The intents with which a paper cites others, all of which it must cite; (cited,)."""
    start = int(graph.cited.offsets[query])
    places = start + np.searchsorted(graph.cited.row(query), cited)
    return np.asarray(graph.intents[places])


def _random(material: Material, intent: str, query: int) -> Rows:
    """Papers that are not connected with the query."""
    banned = material.title_keys[np.append(connected_of(material, query), query)]
    mixed = material.stream("intents", intent, query).permutation(material.sample)
    return material.first_distinct(mixed, RANDOM, banned)
