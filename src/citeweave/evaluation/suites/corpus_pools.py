"""Pools of a task, query by query: relevant papers, near misses where there are any, random papers for the rest.

    drawing = PoolDrawing(material, "cite", negatives=25)
    drawing.add(query, relevant=cited, banned=connected)
    drawing.finish()

No pool holds its query, a paper twice, or the copy of a relevant paper under another id. A query's pool depends on
nothing but the corpus, the seed, the task and the query. Does not know what makes a paper relevant.

Which papers are relevant to a query by citations: cited, cited together with it, citing the same.

    cite        papers that a held-out paper cites, among random ones
    hard_cite   the same queries and relevant papers, among papers cited by those it cites (Cohan et al., 2020)
    cocite      papers cited together with the query by held-out papers and by no others (Small, 1973)
    couple      papers that share the most references with a held-out paper (Kessler, 1963)

Pools are as in SciDocs: up to five relevant papers among thirty. Does not read texts.

Pools by citation intent: what a held-out paper cites for one reason, among what it cites for others.

    plain, mixed = make_intent_pools(material, graph, "method")

    plain    up to 25 papers that the query cites for their method, and up to 25 that it cites, but not for that
    mixed    the same, and 25 random papers that are not connected with the query

A citation with several intents is relevant for each of them and an "other" for none of these; one without a known
intent is left out of the pool. Does not find intents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.paper import Intent
from citeweave.evaluation.suites.corpus_data import CannotAskError, Rows, SuiteData
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.signals import Related, Signal, related, stream_related

RELEVANT = 5
NEGATIVES = 25
"""SciDocs asks for five papers among thirty."""

_NONE = np.zeros(0, np.int64)


class HardCandidates(NamedTuple):
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

    material: SuiteData
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
        near: Sequence[HardCandidates] = (),
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


# Which papers are relevant to a query by citations: cited, cited together with it, citing the same.

LONGEST = 1000
"""Papers with longer lists in the middle do not count; see `graph.signals`."""

MEMORY = 64 << 20


def make_cite(material: SuiteData) -> RowPools:
    drawing = PoolDrawing(material, "cite")
    for query in material.citing_queries.tolist():
        drawing.add(query, cited_of(material, query), connected_of(material, query))
        if drawing.is_full:
            break
    return drawing.finish(why_none="no held-out paper cites a paper with a title")


def make_hard_cite(material: SuiteData) -> RowPools:
    """A query without any second hop would be the one of `cite`, and is left out."""
    drawing = PoolDrawing(material, "hard_cite")
    for query in material.citing_queries.tolist():
        hop = second_hop_of(material, query)
        if not len(hop):
            drawing.counts["queries left out: no second hop"] += 1
            continue
        near = [HardCandidates("second-hop", hop, drawing.negatives)]
        drawing.add(query, cited_of(material, query), connected_of(material, query), near)
        if drawing.is_full:
            break
    return drawing.finish(why_none="no paper that a held-out paper cites has other references in the corpus")


def make_cocite(material: SuiteData) -> RowPools:
    """Strengths are numbers of papers that cite both: where all of them are held out, training has not seen the pair."""
    material.require_citations()
    held, signal = material.held_graph, Signal("cocited", longest=LONGEST)
    asked = np.flatnonzero((np.diff(held.citing.offsets) > 0) & material.readable)
    asked = material.stream("cocite", "queries").permutation(asked)
    drawing = PoolDrawing(material, "cocite")
    for span, everywhere in stream_related(material.graph, signal, asked, memory=MEMORY, workers=1):
        unseen = related(held, signal, asked[span])
        for number, query in enumerate(asked[span].tolist()):
            rows, strengths = unseen.row(number)
            known, total = everywhere.row(number)
            is_unseen = total[np.searchsorted(known, rows)] == strengths
            relevant = strongest_first(material, "cocite", query, rows[is_unseen], strengths[is_unseen])
            drawing.add(query, relevant, np.concatenate([known, connected_of(material, query)]))
            if drawing.is_full:
                return drawing.finish()
    return drawing.finish(why_none="no two papers are cited together by held-out papers alone")


def make_couple(material: SuiteData) -> RowPools:
    """Held-out papers, those with references in the corpus first, as other tasks ask about them."""
    outside = material.corpus.references_outside("citing")
    inside = material.citing_queries if len(material.corpus.citing) or not len(outside) else np.zeros(0, np.int64)
    others = np.setdiff1d(outside[material.held[outside] & material.readable[outside]], inside)
    rows = np.concatenate([inside, material.stream("couple", "queries").permutation(others)])
    drawing, signal = PoolDrawing(material, "couple"), Signal("coupled", longest=LONGEST)
    graph = shared_references(material, rows)
    for span, coupled in stream_related(graph, signal, rows, memory=MEMORY, workers=1):
        for number, query in enumerate(rows[span].tolist()):
            relevant = strongest_first(material, "couple", query, *coupled.row(number))
            drawing.add(query, relevant, connected_of(material, query))
            if drawing.is_full:
                return drawing.finish()
    return drawing.finish(why_none="no held-out paper shares a reference with another paper")


def cited_of(material: SuiteData, query: int) -> Rows:
    """What the query cites, in an order that every task shares; pairs that training knows the other way round are not
    asked for."""
    rows = np.setdiff1d(material.graph.cited.row(query), _citing_in_training(material, query))
    return material.stream("relevant", query).permutation(rows.astype(np.int64))


def connected_of(material: SuiteData, query: int) -> Rows:
    """What the query cites and what cites it."""
    graph = material.graph
    return np.concatenate([graph.cited.row(query), graph.citing.row(query)]).astype(np.int64)


def second_hop_of(material: SuiteData, query: int) -> Rows:
    """What is cited by papers that the query cites, and not connected to it, in an order that every task shares.

    Reference lists of held-out papers are not looked into.
    """
    graph = material.graph
    cited = graph.cited.row(query)
    lists = [graph.cited.row(int(row)) for row in cited if not material.held[row]]
    found = np.unique(np.concatenate([cited[:0], *(rows for rows in lists if len(rows) <= LONGEST)]))
    found = np.setdiff1d(found, np.append(connected_of(material, query), query)).astype(np.int64)
    return material.stream("second hop", query).permutation(found[material.readable[found]])


def cocited_with(material: SuiteData, rows: Rows, strongest: int) -> Related:
    """The papers most often cited together with each of these."""
    return related(material.graph, Signal("cocited", longest=LONGEST, strongest=strongest), rows)


def shared_references(material: SuiteData, queries: Rows) -> CitationGraph:
    """Who cites what the queries cite; references outside the corpus are nodes after its papers."""
    corpus, papers = material.corpus, len(material.corpus)
    asked = np.zeros(papers, bool)
    asked[queries] = True
    wanted = np.zeros(papers, bool)
    wanted[corpus.cited[asked[corpus.citing]]] = True
    inside = np.flatnonzero(wanted[corpus.cited])
    citing, keys = corpus.references_outside("citing"), corpus.references_outside("key")
    names = np.unique(keys[asked[citing]])
    outside = np.flatnonzero(np.isin(keys, names)) if len(names) else np.zeros(0, np.int64)
    return graph_from_edges(
        np.concatenate([corpus.citing[inside], citing[outside]]),
        np.concatenate([corpus.cited[inside], papers + np.searchsorted(names, keys[outside])]),
        papers + len(names),
    )


def strongest_first(
    material: SuiteData, task: str, query: int, rows: NDArray[np.int32], strengths: NDArray[np.float32]
) -> Rows:
    """Rows by falling strength, equal ones in random order."""
    ties = material.stream(task, "ties", query).random(len(rows))
    return rows[np.lexsort((ties, -strengths))].astype(np.int64)


def _citing_in_training(material: SuiteData, query: int) -> NDArray[np.int32]:
    rows = material.graph.citing.row(query)
    return rows[~material.held[rows]]


# Pools by citation intent: what a held-out paper cites for one reason, among what it cites for others.

INTENTS = {"background": Intent.BACKGROUND, "method": Intent.METHOD, "result": Intent.RESULT}
KNOWN = Intent.BACKGROUND | Intent.METHOD | Intent.RESULT
"""Finer intents alone tell none of these three, so that such a citation is neither relevant nor another."""

INTENT_RELEVANT, OTHERS, RANDOM = 25, 25, 25
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


def make_intent_pools(material: SuiteData, graph: CitationGraph, intent: str) -> tuple[RowPools, RowPools]:
    """The pools of an intent, plain and mixed; `graph` has all citations of the corpus with their intents."""
    plain, mixed, keys = _Drawn(), _Drawn(), material.title_keys
    for query in material.citing_queries.tolist():
        if len(plain.queries) == material.options.queries:
            break
        cited = cited_of(material, query)
        masks = masks_of(graph, query, cited)  # (cited papers,)
        is_right = (masks & INTENTS[intent]) != 0
        right = material.first_distinct(cited[is_right], INTENT_RELEVANT, keys[[query]])
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


def _random(material: SuiteData, intent: str, query: int) -> Rows:
    """Papers that are not connected with the query."""
    banned = material.title_keys[np.append(connected_of(material, query), query)]
    mixed = material.stream("intents", intent, query).permutation(material.sample)
    return material.first_distinct(mixed, RANDOM, banned)
