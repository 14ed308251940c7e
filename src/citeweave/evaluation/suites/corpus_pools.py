"""Pools of a corpus suite by citations and citation intents: relevant papers among hard and random candidates.

    cite        papers that a held-out paper cites, among random ones
    hard_cite   the same queries and relevant papers, among papers cited by those it cites (Cohan et al., 2020)
    cocite      papers cited together with the query by held-out papers and by no others (Small, 1973)
    couple      papers that share the most references with a held-out paper (Kessler, 1963)

Pools are as in SciDocs: up to five relevant papers among thirty. No pool holds its query, a paper twice, or a copy of a
relevant paper under another id. A query's pool depends only on the corpus, the seed, the task and the query.

    builder = PoolBuilder(data, "cite", negatives=25)
    builder.add(query, relevant=cited, banned=connected)
    builder.finish()

Pools by citation intent ask what a held-out paper cites for one reason, among what it cites for others:

    plain, mixed = make_intent_pools(data, graph, "method")

    plain    up to 25 papers that the query cites for their method, and up to 25 that it cites, but not for that
    mixed    the same, and 25 random papers that are not connected with the query

A citation with several intents is relevant for each of them and a negative for none of these; one without a known intent is
left out of the pool. Does not read texts and does not predict intents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.paper import Intent
from citeweave.evaluation.suites.corpus_data import Rows, SuiteData, TaskUnavailableError
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.signals import Related, Signal, related, stream_related

RELEVANT = 5
NEGATIVES = 25
"""SciDocs has five relevant papers among thirty."""

MAX_LIST = 1000
"""Papers with longer lists in the middle do not count; see `graph/signals.py`."""

MEMORY = 64 << 20

INTENTS = {"background": Intent.BACKGROUND, "method": Intent.METHOD, "result": Intent.RESULT}
ANY_INTENT = Intent.BACKGROUND | Intent.METHOD | Intent.RESULT
"""A citation with only finer intents has none of these three, so it is neither relevant nor a negative."""

INTENT_RELEVANT, OTHERS, RANDOM = 25, 25, 25
"""At most so many papers of each kind in a pool by intent."""

_NONE = np.zeros(0, np.int64)


class HardCandidates(NamedTuple):
    """Candidates of a corpus suite's pool that are hard to tell from relevant papers."""

    kind: str
    rows: Rows
    """Best first."""

    max_taken: int
    """At most so many of them go into a pool."""


@dataclass(frozen=True)
class RowPools:
    """The pools of one task of a corpus suite, by rows of the corpus."""

    queries: Rows
    offsets: NDArray[np.int64]
    """(queries + 1,)"""

    candidates: Rows
    grades: NDArray[np.int64]
    groups: Sequence[str] | None
    counts: Mapping[str, int]

    def papers(self) -> Rows:
        """Return every paper of the pools."""
        return np.union1d(self.queries, self.candidates)


@dataclass
class PoolBuilder:
    """Draws the pools of one task of a corpus suite, query by query."""

    data: SuiteData
    task: str
    negatives: int = NEGATIVES
    queries: list[int] = field(default_factory=list)
    candidates: list[Rows] = field(default_factory=list)
    grades: list[NDArray[np.int64]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_full(self) -> bool:
        """Whether the task has as many queries as the options allow."""
        return len(self.queries) >= self.data.options.queries

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
        """Draw a query's pool from the corpus; `relevant` are relevant papers, best first, `banned` never negatives.

        Random papers come from `field_rows` first. A query without relevant papers or negatives is left out.
        """
        keys = self.data.title_keys
        right = self.data.first_distinct(relevant, RELEVANT, keys[[query]])
        if not len(right):
            self.counts["queries left out: no relevant paper"] += 1
            return
        taken = keys[np.concatenate([[query], relevant, banned])]
        parts: list[Rows] = []
        for source in near:
            missing = min(source.max_taken, self.negatives - sum(map(len, parts)))
            parts.append(self.data.first_distinct(source.rows, missing, taken))
            taken = np.concatenate([taken, keys[parts[-1]]])
        parts += self._draw_random(query, taken, self.negatives - sum(map(len, parts)), field_rows)
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
        """Return the pools of corpus rows of all queries that were added."""
        if not self.queries:
            raise TaskUnavailableError(why_none)
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

    def _draw_random(self, query: int, taken: NDArray[np.uint64], count: int, field_rows: Rows) -> list[Rows]:
        if count <= 0:
            return []
        rng, first = self.data.stream(self.task, query), _NONE
        if len(field_rows):
            first = self.data.first_distinct(rng.permutation(field_rows), count, taken)
            taken = np.concatenate([taken, self.data.title_keys[first]])
        mixed = rng.permutation(self.data.sample)
        for tried in (8 * count, len(mixed)):  # the first ones nearly always suffice, and give the same draw
            others = self.data.first_distinct(mixed[:tried], count - len(first), taken)
            if len(first) + len(others) == count:
                break
        return [first, others]


# --- pools by citations ----------------------------------------------------------------------------------


def make_cite(data: SuiteData) -> RowPools:
    """Draw the corpus suite's pools of `cite`: what a held-out paper cites, among random papers."""
    builder = PoolBuilder(data, "cite")
    for query in data.citing_queries.tolist():
        builder.add(query, find_cited(data, query), find_connected(data, query))
        if builder.is_full:
            break
    return builder.finish(why_none="no held-out paper cites a paper with a title")


def make_hard_cite(data: SuiteData) -> RowPools:
    """Draw the corpus suite's pools of `hard_cite`; a query without a second hop would be as in `cite` and is left out."""
    builder = PoolBuilder(data, "hard_cite")
    for query in data.citing_queries.tolist():
        hop = find_second_hop(data, query)
        if not len(hop):
            builder.counts["queries left out: no second hop"] += 1
            continue
        near = [HardCandidates("second-hop", hop, builder.negatives)]
        builder.add(query, find_cited(data, query), find_connected(data, query), near)
        if builder.is_full:
            break
    return builder.finish(why_none="no paper that a held-out paper cites has other references in the corpus")


def make_cocite(data: SuiteData) -> RowPools:
    """Draw the corpus suite's pools of `cocite`: pairs that only held-out papers cite together, unseen in training."""
    data.require_citations()
    held, signal = data.held_graph, Signal("cocited", longest=MAX_LIST)
    queries = np.flatnonzero((np.diff(held.citing.offsets) > 0) & data.has_title)
    queries = data.stream("cocite", "queries").permutation(queries)
    builder = PoolBuilder(data, "cocite")
    for span, everywhere in stream_related(data.graph, signal, queries, memory=MEMORY, workers=1):
        unseen = related(held, signal, queries[span])
        for number, query in enumerate(queries[span].tolist()):
            rows, strengths = unseen.row(number)
            known, total = everywhere.row(number)
            # strengths are numbers of papers that cite both: all of them are held out
            is_unseen = total[np.searchsorted(known, rows)] == strengths
            relevant = _sort_by_strength(data, "cocite", query, rows[is_unseen], strengths[is_unseen])
            builder.add(query, relevant, np.concatenate([known, find_connected(data, query)]))
            if builder.is_full:
                return builder.finish()
    return builder.finish(why_none="no two papers are cited together by held-out papers alone")


def make_couple(data: SuiteData) -> RowPools:
    """Draw the corpus suite's pools of `couple`: shared references; queries with references in the corpus come first."""
    outside = data.corpus.references_outside("citing")
    inside = data.citing_queries if len(data.corpus.citing) or not len(outside) else np.zeros(0, np.int64)
    others = np.setdiff1d(outside[data.held_out[outside] & data.has_title[outside]], inside)
    rows = np.concatenate([inside, data.stream("couple", "queries").permutation(others)])
    builder, signal = PoolBuilder(data, "couple"), Signal("coupled", longest=MAX_LIST)
    graph = _build_coupling_graph(data, rows)
    for span, coupled in stream_related(graph, signal, rows, memory=MEMORY, workers=1):
        for number, query in enumerate(rows[span].tolist()):
            relevant = _sort_by_strength(data, "couple", query, *coupled.row(number))
            builder.add(query, relevant, find_connected(data, query))
            if builder.is_full:
                return builder.finish()
    return builder.finish(why_none="no held-out paper shares a reference with another paper")


def find_cited(data: SuiteData, query: int) -> Rows:
    """Return what the query cites, in an order that every task shares, without papers whose citation of it is trained on."""
    rows = np.setdiff1d(data.graph.cited.row(query), _citing_in_training(data, query))
    return data.stream("relevant", query).permutation(rows.astype(np.int64))


def find_connected(data: SuiteData, query: int) -> Rows:
    """Return what the query cites and what cites it."""
    graph = data.graph
    return np.concatenate([graph.cited.row(query), graph.citing.row(query)]).astype(np.int64)


def find_second_hop(data: SuiteData, query: int) -> Rows:
    """Find hard candidates for a pool of the corpus suite: papers cited by what the query cites, not connected to it.

    They come in an order that every task shares. Reference lists of held-out papers are not used.
    """
    graph = data.graph
    cited = graph.cited.row(query)
    lists = [graph.cited.row(int(row)) for row in cited if not data.held_out[row]]
    hop = np.unique(np.concatenate([cited[:0], *(rows for rows in lists if len(rows) <= MAX_LIST)]))
    hop = np.setdiff1d(hop, np.append(find_connected(data, query), query)).astype(np.int64)
    return data.stream("second hop", query).permutation(hop[data.has_title[hop]])


def find_cocited(data: SuiteData, rows: Rows, strongest: int) -> Related:
    """Return the papers most often cited together with each of these."""
    return related(data.graph, Signal("cocited", longest=MAX_LIST, strongest=strongest), rows)


def _build_coupling_graph(data: SuiteData, queries: Rows) -> CitationGraph:
    """Build the graph of who cites what the queries cite; references outside the corpus are nodes after its papers."""
    corpus, papers = data.corpus, len(data.corpus)
    is_query = np.zeros(papers, bool)
    is_query[queries] = True
    wanted = np.zeros(papers, bool)
    wanted[corpus.cited[is_query[corpus.citing]]] = True
    inside = np.flatnonzero(wanted[corpus.cited])
    citing, keys = corpus.references_outside("citing"), corpus.references_outside("key")
    names = np.unique(keys[is_query[citing]])
    outside = np.flatnonzero(np.isin(keys, names)) if len(names) else np.zeros(0, np.int64)
    return graph_from_edges(
        np.concatenate([corpus.citing[inside], citing[outside]]),
        np.concatenate([corpus.cited[inside], papers + np.searchsorted(names, keys[outside])]),
        papers + len(names),
    )


def _sort_by_strength(
    data: SuiteData, task: str, query: int, rows: NDArray[np.int32], strengths: NDArray[np.float32]
) -> Rows:
    """Return rows by decreasing strength, ties in random order."""
    ties = data.stream(task, "ties", query).random(len(rows))
    return rows[np.lexsort((ties, -strengths))].astype(np.int64)


def _citing_in_training(data: SuiteData, query: int) -> NDArray[np.int32]:
    rows = data.graph.citing.row(query)
    return rows[~data.held_out[rows]]


# --- pools by citation intent ----------------------------------------------------------------------------


@dataclass
class _IntentPools:
    """The pools of one intent as they grow, query by query."""

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


def make_intent_pools(data: SuiteData, graph: CitationGraph, intent: str) -> tuple[RowPools, RowPools]:
    """Draw a corpus suite's pools of an intent, plain and mixed; `graph` has all citations with their intents."""
    plain, mixed, keys = _IntentPools(), _IntentPools(), data.title_keys
    for query in data.citing_queries.tolist():
        if len(plain.queries) == data.options.queries:
            break
        cited = find_cited(data, query)
        masks = _read_intent_masks(graph, query, cited)  # (cited papers,)
        is_right = (masks & INTENTS[intent]) != 0
        right = data.first_distinct(cited[is_right], INTENT_RELEVANT, keys[[query]])
        taken = keys[np.append(cited[is_right], query)]
        others = data.first_distinct(cited[~is_right & ((masks & ANY_INTENT) != 0)], OTHERS, taken)
        if not len(right) or not len(others):
            what = "other intent" if len(right) else "paper with this intent"
            plain.counts[f"queries left out: no {what}"] += 1
            continue
        plain.add(query, right, others)
        mixed.add(query, right, others, _draw_unconnected(data, intent, query))
    if not plain.queries:
        raise TaskUnavailableError(f"no held-out paper cites some papers for {intent} and others for something else")
    return plain.finish(intent), mixed.finish(intent)


def _read_intent_masks(graph: CitationGraph, query: int, cited: Rows) -> NDArray[np.uint8]:
    """Return the intents with which a paper cites each of these papers, all of which it must cite; (cited,)."""
    start = int(graph.cited.offsets[query])
    places = start + np.searchsorted(graph.cited.row(query), cited)
    return np.asarray(graph.intents[places])


def _draw_unconnected(data: SuiteData, intent: str, query: int) -> Rows:
    """Draw random papers that are not connected with the query."""
    banned = data.title_keys[np.append(find_connected(data, query), query)]
    mixed = data.stream("intents", intent, query).permutation(data.sample)
    return data.first_distinct(mixed, RANDOM, banned)
