"""What an index answers: papers, the best first, each with the reason that the search itself knows.

    Found(id="a", title="Rain", year=2019, score=0.71, row=7, matches=(Match(query=0, sentence=2, mass=0.4, score=0.8),))

Says nothing about papers beyond that; `Index.paper` does.

Papers by a text, by a paper, by liked and disliked papers: rankings by vectors, by words, or by both.

    find(Among(index, allowed), reader, Query(text="rain gauges"), 10).rows

    hybrid     reciprocal ranks of the best by words and of the best by vectors (`fusion.py`)
    vectors    cosines in the encoder's space or that of an aspect
    words      BM25

Where nobody said how, a text is searched by both; as long as vectors are missing, by words, and the ranking says so.
Does not search by sentences (`sentences.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.plain_text import clean_text
from citeweave.search.cite import Recommendation
from citeweave.search.index import Index
from citeweave.search.nearest import MOST, QueryEncoder, nearest_papers
from citeweave.search.query import Query
from citeweave.search.ranked_rows import fuse, rocchio
from citeweave.search.segment import NOT_YET
from citeweave.search.words import search_words, text_of
from citeweave.vectors.topk import Neighbors


class Ranking(NamedTuple):
    """Rows of an index, the best first, and what is to be said about them."""

    rows: NDArray[np.int64]
    """(found,)"""

    scores: NDArray[np.float64]
    """(found,)"""

    by: str
    """What was compared: hybrid, vectors, words or sentences."""

    exact: bool = True
    """Whether surely no other paper belongs to them."""

    note: str = ""
    vectors: NDArray[np.float32] | None = None
    """What was compared with the papers, (queries, dimension) in the encoder's own space."""


@dataclass(frozen=True, slots=True)
class MatchedSentence:
    """Which sentence of a hit answers which sentence of the query."""

    query: int
    """Place among the query's sentences; a whole text is one sentence."""

    sentence: int
    """Number in the hit's abstract, from 0."""

    mass: float
    """How much the pair counts: its share of all pairs of query and hit."""

    score: float
    """Cosine of the two."""

    def as_json(self) -> dict[str, Any]:
        return {"query": self.query, "sentence": self.sentence, "mass": self.mass, "score": self.score}


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A paper that was found."""

    id: str
    title: str
    year: int | None
    score: float
    """A cosine by vectors and by sentences (the mean over matched pairs), BM25 by words, reciprocal ranks by both."""

    row: int
    matches: tuple[MatchedSentence, ...] = ()
    cited: Recommendation | None = None
    """With `cite`: why the paper is to be cited."""

    passage: int | None = None
    """With `cite` and `each`: which sentence of the passage it is for."""

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"id": self.id, "title": self.title, "year": self.year}
        told |= {"score": self.score, "row": self.row, "matches": [match.as_json() for match in self.matches]}
        if self.cited is not None:
            told |= self.cited.as_json()
        if self.passage is not None:
            told["passage"] = self.passage
        return told


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer to one query."""

    query: Query
    hits: list[SearchHit]
    exact: bool
    """Whether surely no other paper belongs to the hits."""

    note: str
    """One plain sentence where the answer is less than was asked for; else empty."""

    took: float
    """Seconds."""

    by: str = ""
    """What was compared."""

    passage: list[str] = field(default_factory=list)
    """With `cite` and `each`: the sentences of the passage."""

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"query": self.query.as_json(), "by": self.by}
        told |= {"hits": [hit.as_json() for hit in self.hits], "exact": self.exact, "note": self.note}
        if self.passage:
            told["passage"] = self.passage
        return {**told, "took_ms": round(1000 * self.took, 2)}


# Papers by a text, by a paper, by liked and disliked papers: rankings by vectors, by words, or by both.

DEPTH = 200
"""Places of each ranking that count where two are united."""

Mask = NDArray[np.bool_]
Singles = NDArray[np.float32]


class NearestSearch(Protocol):
    """What finds the papers that are near to a vector: `nearest_papers`, or a store that was filled from the index."""

    def __call__(
        self, index: Index, queries: Singles, count: int, aspect: str, *, allowed: Mask, exact: bool
    ) -> Neighbors: ...


@dataclass(frozen=True, slots=True)
class Among:
    """The papers that may be found."""

    index: Index
    allowed: Mask
    """(size,)"""

    near: NearestSearch = nearest_papers

    def without(self, rows: list[int]) -> Among:
        allowed = self.allowed.copy()
        allowed[rows] = False
        return Among(self.index, allowed, self.near)


def find(among: Among, reader: QueryEncoder | None, query: Query, wanted: int) -> Ranking:
    """The `wanted` best papers for a text, a paper, or liked papers."""
    among.index.check_aspect(query.aspect)
    if query.kind == "text":
        return _by_text(among, reader, query, wanted)
    if query.kind == "paper":
        return _by_paper(among, query, wanted)
    assert query.kind == "liked", query.kind
    return _by_liked(among, query, wanted)


def title_and_abstract(text: str) -> tuple[str, str]:
    r"""A pasted text as a paper: where it has a line break, the first line is the title.

    >>> title_and_abstract("Rain\nIt falls.\nOften."), title_and_abstract("Why does it rain?")
    (('Rain', 'It falls. Often.'), ('Why does it rain?', ''))
    """
    title, _, abstract = text.strip().partition("\n")
    return clean_text(title), clean_text(abstract)


def need_papers(index: Index) -> None:
    if not len(index):
        raise UserError(f"{index.folder} holds no paper; add some with `citeweave change {index.folder} --add CORPUS`")


def need_vectors(index: Index, what: str) -> None:
    """Refuse what an index of words alone cannot do."""
    need_papers(index)
    if not index.with_vector.any():
        raise UserError(
            f"{what} needs vectors, and {index.folder} has none yet; make them with "
            f"`citeweave change {index.folder} --fill`, or search by words"
        )


# --- the kinds of queries ------------------------------------------------------------------------------


def _by_text(among: Among, reader: QueryEncoder | None, query: Query, wanted: int) -> Ranking:
    index = among.index
    title, abstract = title_and_abstract(query.text)
    by, note = query.by or ("vectors" if query.aspect else "hybrid"), ""
    if by != "words" and not (index.with_vector.any() and reader is not None):
        if by == "vectors" or query.aspect:
            need_vectors(index, "this search")
            raise UserError(f"this search needs the model of {index.folder}, and none is loaded; search by words")
        why = "the model is not loaded" if index.with_vector.any() else _NO_VECTORS if len(index) else _NO_PAPER
        by, note = "words", f"by words alone: {why}"
    words = text_of(title, abstract)
    if by == "words":
        return _words(among, words, wanted, note)
    assert reader is not None
    vector = reader.read(title, abstract=abstract)  # (dimension,)
    into = reader.into(vector, query.aspect)
    found = _vectors_or_both(among, into, query, by, words, wanted)
    return found._replace(vectors=vector[None])


def _by_paper(among: Among, query: Query, wanted: int) -> Ranking:
    index = among.index
    row = index.row(query.paper)
    others = among.without([row])
    paper, by, note = index.paper(row), query.by or "vectors", ""
    words = text_of(paper.title, paper.abstract)
    if not index.with_vector[row] and (by == "hybrid" or not (query.by or query.aspect)):
        by, note = "words", "by the paper's words alone: it has no vector yet"
    if by == "words":
        return _words(others, words, wanted, note)
    vector = index.take(np.array([row]), query.aspect)[0]  # (dimension,)
    return _vectors_or_both(others, vector, query, by, words, wanted)


def _by_liked(among: Among, query: Query, wanted: int) -> Ranking:
    index = among.index
    need_vectors(index, "searching by several papers")
    liked, disliked = ([index.row(id) for id in ids] for ids in (query.liked, query.disliked))
    both = [index.take(np.array(rows, np.int64), query.aspect) for rows in (liked, disliked)]  # (papers, dimension)
    return _vectors_or_both(among.without([*liked, *disliked]), rocchio(*both), query, "vectors", "", wanted)


# --- the ways of comparing -----------------------------------------------------------------------------

_NO_VECTORS, _NO_PAPER = "this index has no vectors yet", "this index holds no paper"


def _words(among: Among, words: str, wanted: int, note: str) -> Ranking:
    found = search_words(among.index, words, wanted, allowed=among.allowed)
    return Ranking(found.rows, found.scores, "words", note=note)


def _vectors_or_both(among: Among, vector: Singles, query: Query, by: str, words: str, wanted: int) -> Ranking:
    index, allowed, exact = among.index, among.allowed, not query.approximate
    depth = wanted if by == "vectors" else max(wanted, DEPTH)
    near = among.near(index, vector, min(depth, MOST), query.aspect, allowed=allowed, exact=exact)
    known = near.rows[0] >= 0
    rows, scores = near.rows[0][known].astype(np.int64), near.scores[0][known].astype(np.float64)
    note = _missing(index, by)
    if by == "vectors":
        return Ranking(rows, scores, by, exact, note)
    lexical = search_words(index, words, depth, allowed=allowed)
    fused = fuse([lexical.rows, rows], wanted, name=index.id)
    return Ranking(
        np.array([one.item for one in fused], np.int64),
        np.array([one.score for one in fused]),
        by,
        exact,
        note,
    )


def _missing(index: Index, by: str) -> str:
    """What is to be said while vectors are still being made."""
    missing = sum(int(np.count_nonzero(part.alive & (part.embedded == NOT_YET))) for part in index.segments)
    if not missing:
        return ""
    how = "are not found by vectors" if by == "vectors" else "are found by words alone"
    return f"{missing:,} of {len(index):,} papers have no vector yet and {how}"
