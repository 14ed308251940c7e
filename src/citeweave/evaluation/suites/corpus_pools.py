"""Pools of a corpus suite by citations, relevant papers among others; held-out references, the training graph.

    cite        papers that a held-out paper cites, among random ones
    hard_cite   the same queries and relevant papers, among papers cited by those it cites (Cohan et al., 2020)
    cocite      papers cited together with the query by held-out papers and by no others (Small, 1973)
    couple      papers that share the most references with a held-out paper (Kessler, 1963)

Pools are as in SciDocs: up to five relevant papers among thirty. No pool holds its query, a paper twice, or a copy of a
relevant paper under another id. A query's pool depends only on the corpus, the seed, the task and the query.

    builder = PoolBuilder(data, "cite", negatives=25)
    builder.add(query, relevant=cited, banned=connected)
    builder.finish()

Held-out papers are the queries. A citation belongs to its citing paper, as in `corpus/split.py`, so that training that
splits by the same rule and seed never sees a held-out citation.

    year:2016    papers from 2016 on are queries; a model may learn from the citations of earlier ones
    share:0.1    a tenth of the papers, drawn by a hash of their ids

    order        every paper with a title, shuffled once by the seed
    sample       the first of them: random candidates of every query come from these

Tasks that can use any papers take the first of `order`, so that they share papers and an encoder reads few. Does not read
texts and does not make tasks: see `from_corpus.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError
from citeweave.core.hash_keys import hash_texts
from citeweave.core.ragged import to_offsets
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.plain_text import fold
from citeweave.corpus.split import SplitPart, split_by_share, split_by_year
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.signals import Related, Signal, related, stream_related

Rows = NDArray[np.int64]
"""Rows of the corpus."""

PURPOSE = "corpus suite"
NO_CITATIONS = "the corpus has no citations"

RELEVANT = 5
NEGATIVES = 25
"""SciDocs has five relevant papers among thirty."""

MAX_LIST = 1000
"""Papers with longer lists in the middle do not count; see `graph/signals.py`."""

MEMORY = 64 << 20

_NONE = np.zeros(0, np.int64)


def held_out_rows(corpus: Corpus, options: CorpusSuiteOptions) -> NDArray[np.bool_]:
    """Return which papers the data of a corpus suite hold out, (papers,): a model must not learn from their references."""
    year, share = options.rule
    try:
        if year:
            split = split_by_year(corpus.years, validation_from=year, test_from=year)
        else:
            split = split_by_share(corpus.ids, validation=0, test=share, seed=options.seed)
    except EmptyResultError:
        raise EmptyResultError(
            f"--held-out {options.held_out} {_explain_empty_split(corpus, year, options.seed)}"
        ) from None
    return np.asarray(split.codes == SplitPart.TEST)


def training_graph(corpus: Corpus, options: CorpusSuiteOptions | None) -> CitationGraph:
    """Return a corpus suite's citations to learn from: all but those of held-out papers; without options, all."""
    trained = slice(None) if options is None else ~held_out_rows(corpus, options)[corpus.citing]
    return graph_from_edges(
        corpus.citing[trained],
        corpus.cited[trained],
        len(corpus),
        intents=corpus.intents[trained],
        strengths=corpus.strengths[trained],
    )


def _explain_empty_split(corpus: Corpus, year: int, seed: int) -> str:
    if not year:
        return (
            f"with seed {seed} leaves nothing on one side of {len(corpus):,} papers; "
            "choose a larger share or another seed"
        )
    known = corpus.years[corpus.years > 0]
    if not len(known):
        return "cannot be applied: no paper has a year; hold out a share, such as share:0.1"
    return (
        f"leaves nothing on one side: the papers' years go from {known.min()} to {known.max()}; "
        "choose a later year than the first and none after the last"
    )


class TaskUnavailableError(Exception):
    """A task that the corpus cannot give; the text says why. Never leaves `make_suite`."""


class PaperFields(NamedTuple):
    """The fields of study of a corpus suite's papers: the first of each paper, or a group of it."""

    names: Sequence[str]

    codes: NDArray[np.int32]
    """(papers,) place of the field among the names, -1 where a paper has none."""


@dataclass(frozen=True)
class SuiteData:
    """Data of a corpus suite: the corpus and what its tasks share, each computed once, when it is first needed."""

    corpus: Corpus
    options: CorpusSuiteOptions

    def stream(self, *purpose: str | int) -> np.random.Generator:
        """Return the suite's random generator for one purpose."""
        return stream(self.options.seed, PURPOSE, *purpose)

    @property
    def has_references(self) -> bool:
        """Whether papers of the corpus cite anything, inside it or outside."""
        return len(self.corpus.citing) > 0 or len(self.corpus.references_outside("citing")) > 0

    @cached_property
    def held_out(self) -> NDArray[np.bool_]:
        """(papers,) whether a paper's references are held out."""
        if not self.has_references:
            raise TaskUnavailableError(NO_CITATIONS)
        return held_out_rows(self.corpus, self.options)

    def require_citations(self) -> None:
        """Raise TaskUnavailableError for a task that needs citations where the corpus has none."""
        if not len(self.corpus.citing):
            raise TaskUnavailableError(NO_CITATIONS)

    @cached_property
    def graph(self) -> CitationGraph:
        """All citations of the corpus."""
        return graph_from_edges(self.corpus.citing, self.corpus.cited, len(self.corpus))

    @cached_property
    def held_graph(self) -> CitationGraph:
        """The citations of held-out papers."""
        is_held = self.held_out[self.corpus.citing]
        return graph_from_edges(self.corpus.citing[is_held], self.corpus.cited[is_held], len(self.corpus))

    @cached_property
    def has_title(self) -> NDArray[np.bool_]:
        """(papers,) whether a paper has a title; others are neither queries nor candidates."""
        return self.corpus.titles.lengths() > 0

    @cached_property
    def order(self) -> Rows:
        """Every paper with a title, shuffled: the order in which tasks take papers."""
        return self.stream("order").permutation(np.flatnonzero(self.has_title))

    @property
    def sample(self) -> Rows:
        """The papers from which random candidates are drawn."""
        return self.order[: self.options.sample]

    @cached_property
    def citing_queries(self) -> Rows:
        """A corpus suite's held-out papers with references in the corpus, in the order that all its tasks share."""
        self.require_citations()
        cites = np.diff(self.graph.cited.offsets) > 0  # (papers,)
        queries = np.flatnonzero(self.held_out & cites & self.has_title)
        if not len(queries):
            raise TaskUnavailableError(
                f"no paper held out by {self.options.held_out} cites a paper of the corpus; hold out other papers"
            )
        return self.stream("citing papers").permutation(queries)

    @cached_property
    def title_keys(self) -> NDArray[np.uint64]:
        """(papers,) hash of the folded title: papers that share it are most likely one paper under two ids."""
        titles, keys = self.corpus.titles, np.empty(len(self.corpus), np.uint64)
        for start in range(0, len(keys), BLOCK):
            keys[start : start + BLOCK] = hash_texts([fold(title) for title in titles[start : start + BLOCK]])
        return keys

    @cached_property
    def fields(self) -> PaperFields:
        """The first field of every paper."""
        places: dict[str, int] = {}
        firsts = (text.partition("\n")[0] for text in self.corpus.fields)
        codes = np.array([places.setdefault(name, len(places)) if name else -1 for name in firsts], np.int32)
        return PaperFields(list(places), codes)

    def first_distinct(self, rows: Rows, count: int, banned: NDArray[np.uint64]) -> Rows:
        """Return a corpus suite's first `count` rows with a title whose `title_keys` are neither banned nor repeated."""
        rows = rows[self.has_title[rows]]
        keys = self.title_keys[rows]
        fresh = ~np.isin(keys, banned)
        first = np.unique(keys[fresh], return_index=True)[1]
        return np.asarray(rows[fresh][np.sort(first)][:count])


# --- pools -----------------------------------------------------------------------------------------------


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
        self.append(query, right, wrong, group)

    def append(self, query: int, right: Rows, wrong: Rows, group: str = "") -> None:
        """Append a query's pool of the corpus suite: its relevant papers, then the others."""
        self.queries.append(query)
        self.candidates.append(np.concatenate([right, wrong]))
        self.grades.append(np.repeat([1, 0], [len(right), len(wrong)]).astype(np.int64))
        self.groups.append(group)

    def finish(self, *, grouped: bool = False, why_none: str = "no query has relevant papers") -> RowPools:
        """Return the pools of corpus rows of all queries that were added."""
        if not self.queries:
            raise TaskUnavailableError(why_none)
        return RowPools(
            np.array(self.queries, np.int64),
            to_offsets([len(rows) for rows in self.candidates]),
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


def make_cite(data: SuiteData, *, hard: bool = False) -> RowPools:
    """Draw the corpus suite's pools of `cite`: what a held-out paper cites, among random papers; or of `hard_cite`.

    A query of `hard_cite` without a second hop would be as in `cite` and is left out.
    """
    builder, near = PoolBuilder(data, "hard_cite" if hard else "cite"), list[HardCandidates]()
    for query in data.citing_queries.tolist():
        if hard:
            near = [HardCandidates("second-hop", find_second_hop(data, query), builder.negatives)]
            if not len(near[0].rows):
                builder.counts["queries left out: no second hop"] += 1
                continue
        builder.add(query, find_cited(data, query), find_connected(data, query), near)
        if builder.is_full:
            break
    no_hop = "no paper that a held-out paper cites has other references in the corpus"
    return builder.finish(why_none=no_hop if hard else "no held-out paper cites a paper with a title")


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
    citing = data.graph.citing.row(query)
    rows = np.setdiff1d(data.graph.cited.row(query), citing[~data.held_out[citing]])
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
