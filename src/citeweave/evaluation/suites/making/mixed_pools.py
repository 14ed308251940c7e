"""Pools that are hard in several ways, field by field, as in MDCR (Medic and Snajder, 2022).

    5 relevant    papers that a held-out paper cites
    15 by words   the nearest by BM25 of title and abstract
    15 by graph   10 cited by papers that it cites, 5 cited together with it; more of one where the other lacks
    10 by fame    of the 50 most cited papers of its field
    15 at random  of its field, as far as there are any

Nothing of them is cited by the query or cites it. Fields take turns, so that small ones have as many queries as large
ones while they last. Unlike MDCR's, no pool holds papers that an encoder chose: it would work against that encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from citeweave.corpus.text import TextRecipe, paper_text
from citeweave.evaluation.suites.making.citation_pools import cited_of, cocited_with, connected_of, second_hop_of
from citeweave.evaluation.suites.making.material import Material, Rows
from citeweave.evaluation.suites.making.pools import Near, PoolDrawing, RowPools
from citeweave.similarity.lexical import Bm25

NEGATIVES = 55
BY_WORDS, BY_GRAPH, BY_FAME = 15, 15, 10
BY_HOP = 10
"""Of those by graph: the first of `hard_cite`'s, so that an encoder reads them once."""

FAMOUS = 50
"""Most cited papers of a field that are drawn from."""

INDEXED = 50_000
"""BM25 looks at no more papers than this."""

DEPTH = 60
"""Nearest papers by words that are looked at: some are cited and so no negatives."""

FEWEST, MOST_FIELDS = 30, 20
"""A field has at least so many papers; only the largest count."""

ALL = "all"

_RECIPE = TextRecipe(separator=" ")


class Groups(NamedTuple):
    """The fields that queries are asked by."""

    names: Sequence[str]

    codes: Rows
    """(papers,) place of the paper's field among the names, -1 = none of them."""


def make_mdcr(material: Material) -> RowPools:
    groups = groups_of(material)
    queries = _take_turns(material.citing_queries, groups.codes)
    drawing = PoolDrawing(material, "mdcr", NEGATIVES)
    famous, sample = _most_cited(material, groups), material.sample
    peers = [sample[groups.codes[sample] == code] for code in range(len(groups.names))]
    finder = _WordFinder(material)
    block = min(material.options.queries, 256)
    for start in range(0, len(queries), block):
        asked = queries[start : start + block]
        by_words, cocited = finder.nearest(asked), cocited_with(material, asked, strongest=FAMOUS)
        for number, query in enumerate(asked.tolist()):
            code, rng = int(groups.codes[query]), material.stream("mdcr", "near", query)
            hop, together = second_hop_of(material, query), rng.permutation(cocited.row(number)[0].astype(np.int64))
            by_graph = np.concatenate([hop[:BY_HOP], together, hop[BY_HOP:]])
            near = [
                Near("word-near", by_words[number], BY_WORDS),
                Near("graph-near", by_graph, BY_GRAPH),
                Near("most cited", rng.permutation(famous[code]), BY_FAME),
            ]
            drawing.add(
                query,
                cited_of(material, query),
                connected_of(material, query),
                near,
                field_rows=peers[code],
                group=groups.names[code],
            )
            if drawing.is_full:
                return drawing.finish(grouped=True)
    return drawing.finish(grouped=True, why_none="no held-out paper cites a paper with a title")


class _WordFinder:
    """BM25 over the papers with a title, or over so many of them that it stays fast."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._rows = material.order[:INDEXED]
        self._index = Bm25(self._texts(self._rows))

    def nearest(self, queries: Rows) -> Rows:
        """(queries, DEPTH) rows, best first."""
        return self._rows[self._index.top(self._texts(queries), DEPTH).rows]

    def _texts(self, rows: Rows) -> list[str]:
        corpus = self._material.corpus
        pairs = zip(corpus.titles.take(rows), corpus.abstracts.take(rows), strict=True)
        return [paper_text(title, abstract, _RECIPE) for title, abstract in pairs]


def groups_of(material: Material) -> Groups:
    """The largest fields; one group of all papers where no held-out paper has one of them."""
    names, codes = material.fields
    sizes = np.bincount(codes[material.readable & (codes >= 0)], minlength=len(names))
    largest = np.argsort(-sizes, kind="stable")[:MOST_FIELDS]
    kept = largest[sizes[largest] >= FEWEST]
    places = np.full(len(names) + 1, -1, np.int64)  # the last is that of papers without field
    places[kept] = np.arange(len(kept))
    if (places[codes[material.citing_queries]] < 0).all():
        return Groups([ALL], np.zeros(len(codes), np.int64))
    return Groups([names[code] for code in kept], places[codes])


def _take_turns(queries: Rows, groups: Rows) -> Rows:
    """The queries that have a field, the first of every field before the second of any.

    >>> _take_turns(np.array([4, 0, 3, 1]), np.array([7, 7, -1, 8, 7])).tolist()
    [4, 3, 0, 1]
    """
    queries = queries[groups[queries] >= 0]
    codes = groups[queries]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], codes[order])
    turns = np.empty(len(queries), np.int64)
    turns[order] = np.arange(len(queries)) - starts
    return queries[np.argsort(turns, kind="stable")]


def _most_cited(material: Material, groups: Groups) -> list[Rows]:
    """Of every field, by citations that training may see."""
    corpus = material.corpus
    counts = np.bincount(corpus.cited[~material.held[corpus.citing]], minlength=len(corpus))  # (papers,)
    ranked = np.argsort(-counts, kind="stable")
    ranked = ranked[material.readable[ranked] & (counts[ranked] > 0)]
    return [ranked[groups.codes[ranked] == code][:FAMOUS] for code in range(len(groups.names))]
