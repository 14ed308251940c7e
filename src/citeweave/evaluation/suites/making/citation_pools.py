"""Which papers are relevant to a query by citations: cited, cited together with it, citing the same.

    cite        papers that a held-out paper cites, among random ones
    hard_cite   the same queries and relevant papers, among papers cited by those it cites (Cohan et al., 2020)
    cocite      papers cited together with the query by held-out papers and by no others (Small, 1973)
    couple      papers that share the most references with a held-out paper (Kessler, 1963)

Pools are as in SciDocs: up to five relevant papers among thirty. Does not read texts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.suites.making.material import Material, Rows
from citeweave.evaluation.suites.making.pools import Near, PoolDrawing, RowPools
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.signals import Related, Signal, related, stream_related

LONGEST = 1000
"""Papers with longer lists in the middle do not count; see `graph.signals`."""

MEMORY = 64 << 20


def make_cite(material: Material) -> RowPools:
    drawing = PoolDrawing(material, "cite")
    for query in material.citing_queries.tolist():
        drawing.add(query, cited_of(material, query), connected_of(material, query))
        if drawing.is_full:
            break
    return drawing.finish(why_none="no held-out paper cites a paper with a title")


def make_hard_cite(material: Material) -> RowPools:
    """A query without any second hop would be the one of `cite`, and is left out."""
    drawing = PoolDrawing(material, "hard_cite")
    for query in material.citing_queries.tolist():
        hop = second_hop_of(material, query)
        if not len(hop):
            drawing.counts["queries left out: no second hop"] += 1
            continue
        near = [Near("second-hop", hop, drawing.negatives)]
        drawing.add(query, cited_of(material, query), connected_of(material, query), near)
        if drawing.is_full:
            break
    return drawing.finish(why_none="no paper that a held-out paper cites has other references in the corpus")


def make_cocite(material: Material) -> RowPools:
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


def make_couple(material: Material) -> RowPools:
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


def cited_of(material: Material, query: int) -> Rows:
    """What the query cites, in an order that every task shares; pairs that training knows the other way round are not
    asked for."""
    rows = np.setdiff1d(material.graph.cited.row(query), _citing_in_training(material, query))
    return material.stream("relevant", query).permutation(rows.astype(np.int64))


def connected_of(material: Material, query: int) -> Rows:
    """What the query cites and what cites it."""
    graph = material.graph
    return np.concatenate([graph.cited.row(query), graph.citing.row(query)]).astype(np.int64)


def second_hop_of(material: Material, query: int) -> Rows:
    """What is cited by papers that the query cites, and not connected to it, in an order that every task shares.

    Reference lists of held-out papers are not looked into.
    """
    graph = material.graph
    cited = graph.cited.row(query)
    lists = [graph.cited.row(int(row)) for row in cited if not material.held[row]]
    found = np.unique(np.concatenate([cited[:0], *(rows for rows in lists if len(rows) <= LONGEST)]))
    found = np.setdiff1d(found, np.append(connected_of(material, query), query)).astype(np.int64)
    return material.stream("second hop", query).permutation(found[material.readable[found]])


def cocited_with(material: Material, rows: Rows, strongest: int) -> Related:
    """The papers most often cited together with each of these."""
    return related(material.graph, Signal("cocited", longest=LONGEST, strongest=strongest), rows)


def shared_references(material: Material, queries: Rows) -> CitationGraph:
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
    material: Material, task: str, query: int, rows: NDArray[np.int32], strengths: NDArray[np.float32]
) -> Rows:
    """Rows by falling strength, equal ones in random order."""
    ties = material.stream(task, "ties", query).random(len(rows))
    return rows[np.lexsort((ties, -strengths))].astype(np.int64)


def _citing_in_training(material: Material, query: int) -> NDArray[np.int32]:
    rows = material.graph.citing.row(query)
    return rows[~material.held[rows]]
