"""Answer a query to an index: every kind of search goes through `answer`, which returns hits, the best first.

    result = answer(index, query_encoder, Query(text="rain measured by telephones", where=Filter(years=(2015, None))))
    result.hits[0].title, result.exact, result.note
    answer(index, None, Query(paper="doi:10.1/x", diversity=0.3))         papers need no model
    answer(index, Query(text="rain"))                                     loads the model of the index

A text, a paper, or liked and disliked papers are compared in one of three ways:

    hybrid     the best by words and the best by vectors, their scores added (`rankings.fuse_scores`)
    vectors    cosines in the encoder's space or that of an aspect
    words      BM25

By default a text is searched by both; while vectors are missing, by words, and the note says so. A text to which no paper
is close has no hits by default (`confidence.py`). Hits are ordered by
score, then by id, so that they do not depend on the index's history; with `diversity` the best ones are reordered.
Sentences are searched by `sentences.py`, citations for a draft by `cite.py`. Does not explain hits (`explain.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.notebook import Tabular, one_line
from citeweave.corpus.plain_text import clean_text
from citeweave.search.cite import recommend_for_passage
from citeweave.search.confidence import NONE, judge_ranking, noise_level
from citeweave.search.display import hits_as_html
from citeweave.search.filters import filter_rows, unknown_names
from citeweave.search.index import Index
from citeweave.search.look_up import ORDERED, Lookup, look_up, order_ranking
from citeweave.search.nearest import MAX_COUNT, QueryEncoder, nearest_papers, need_vectors, open_query_encoder
from citeweave.search.query import Hit, MatchedSentence, Query
from citeweave.search.rankings import Ranking, diverse_order, fuse_scores, pool_size, rank_rows, rocchio_vector
from citeweave.search.sentences import match_sentences, nearest_sentence, rank_by_sentences
from citeweave.search.words import match_words, search_words, searchable_text
from citeweave.vectors.topk import Neighbors
from citeweave.vectors.vectors import unit_rows

FUSION_DEPTH = 200
"""Places of each ranking that count where words and vectors are fused."""

Mask = NDArray[np.bool_]
Singles = NDArray[np.float32]


class OwnModel:
    """The index's own model, which is loaded where a query needs it."""


OWN_MODEL: Any = OwnModel()


@dataclass(frozen=True, slots=True)
class SearchResult(Tabular):
    """The answer to one query: its hits, and what to know about them."""

    query: Query
    hits: list[Hit]
    exact: bool
    """Whether it is certain that no other paper belongs to the hits."""

    note: str
    """One plain sentence where the search could do less than the query wanted; else empty."""

    took: float
    """Seconds."""

    by: str = ""
    """What was compared: hybrid, vectors, words or sentences."""

    confidence: str = "high"
    """Whether a text's answer is likely among the hits: high, low, or none where no paper is close to it."""

    passage: list[str] = field(default_factory=list)
    """With `cite` and `each`: the sentences of the passage."""

    total: int = 0
    """Papers found, listed among the hits or not."""

    read: dict[str, Any] = field(default_factory=dict)
    """How the text was read: any of ids, authors, phrases, years and venues, and text, the rest; {} if it is plain text."""

    def __repr__(self) -> str:
        shown = f"{len(self.hits):,} of {self.total:,} hits by {self.by}, confidence {self.confidence}"
        return f"SearchResult({one_line(repr(self.query), 100)}: {shown})"

    def as_json(self) -> dict[str, Any]:
        payload: dict[str, Any] = {"query": self.query.as_json(), "by": self.by}
        payload |= {"hits": [hit.as_json() for hit in self.hits], "exact": self.exact, "note": self.note}
        payload |= {"total": self.total, "read": self.read, "confidence": self.confidence}
        if self.passage:
            payload["passage"] = self.passage
        return {**payload, "took_ms": round(1000 * self.took, 2)}

    def records(self) -> list[dict[str, Any]]:
        """Return the hits as dictionaries, the best first, which are also the rows of `to_pandas` and `to_polars`."""
        about = [{"authors": list(hit.authors), "venue": hit.venue, "doi": hit.doi} for hit in self.hits]
        return [{**hit.as_json(), **more} for hit, more in zip(self.hits, about, strict=True)]

    def _repr_html_(self) -> str:
        return hits_as_html(self.as_json())


class NearestSearch(Protocol):
    """A function that finds the papers nearest to a vector: `nearest_papers`, or a store filled from the index."""

    def __call__(
        self, index: Index, queries: Singles, count: int, aspect: str, *, allowed: Mask, exact: bool
    ) -> Neighbors: ...


def answer(
    index: Index,
    query_encoder: QueryEncoder | Query | None = OWN_MODEL,
    query: Query | QueryEncoder | None = None,
    *,
    near: NearestSearch = nearest_papers,
) -> SearchResult:
    """Answer a query of any kind to an index: search it and return the hits.

        answer(index, "rain measured by telephones")                   loads the index's own model where the query needs it
        answer(index, query_encoder, "rain")                           a model that is loaded once, by `open_query_encoder`
        answer(index, None, Query(text="rain"))                        no model: by words alone

    The query and its encoder may be in either order. `query_encoder` may be None where `needs_query_encoder` says so, or
    to search by words alone. `near` compares vectors: the index itself, or a
    store (`nearest_in_store`), which sentences and drafts do not use.
    """
    if isinstance(query_encoder, Query):
        query_encoder, query = OWN_MODEL if query is None else query, query_encoder
    if not isinstance(query, Query) or isinstance(query_encoder, Query):
        raise UserError("answer takes an index, a query encoder or None, and a query; or an index and a query")
    if query_encoder is OWN_MODEL:
        loads = needs_query_encoder(query, index) and index.with_vector.any()
        query_encoder = open_query_encoder(index) if loads else None
    began = time.perf_counter()
    found = look_up(index, query)
    allowed, unknown = allowed_rows(index, query, found), unknown_names(index, query.where)  # (size,)
    if query.cite is not None:
        hits, sentences = _hits_to_cite(index, query_encoder, query, allowed)
        took = time.perf_counter() - began
        total = len({hit.row for hit in hits})
        return SearchResult(query, hits, True, unknown, took, "vectors", passage=sentences, total=total)
    if query.kind == "text" and found.is_listing:
        ranking, leading = found.listed(index, allowed, query.order), 0
    else:
        candidates = _Candidates(index, allowed, near, keep=bool(query.by or query.where) or found.mask is not None)
        rank = partial(_rank, query_encoder=query_encoder, query=_left_of(query, found), depth=found.depth)
        ranking, leading = found.lead(
            rank(candidates), allowed, lambda own: rank(replace(candidates, allowed=own & allowed, keep=True))
        )
    ranking, total = order_ranking(index, query, ranking, allowed, leading)
    page = slice(query.offset, query.offset + query.count)
    rows, scores = ranking.rows[page].tolist(), ranking.scores[page].tolist()
    matched = zip(rows, scores, _sentence_matches(index, query, ranking, rows), strict=True)
    hits = [replace(index.hit(row, score), matches=matches) for row, score, matches in matched]
    note, took = "; ".join(filter(None, (*found.notes, ranking.note, unknown))), time.perf_counter() - began
    confidence = ranking.confidence if total else NONE
    return SearchResult(query, hits, ranking.exact, note, took, ranking.by, confidence, total=total, read=found.read)


def _left_of(query: Query, found: Lookup) -> Query:
    """Return a query with what is left of its text after what it names was looked up."""
    return replace(query, text=found.text) if query.kind == "text" else query


def needs_query_encoder(query: Query, index: Index | None = None) -> bool:
    """Return whether the index's model must be loaded to answer a query completely; with the index, not for names alone."""
    if index is not None and query.kind == "text" and look_up(index, query).is_listing:
        return False
    pasted = query.sentences is not None and bool(query.sentences.texts)
    return pasted or query.cite is not None or (query.kind == "text" and query.by != "words")


def allowed_rows(index: Index, query: Query, found: Lookup | None = None) -> Mask:
    """Return the mask of papers that a query may find, (size,): those its filter and its text admit, without mere references."""
    where, found = query.where, look_up(index, query) if found is None else found
    if where.local is None and not (query.outside or query.cite):
        where = replace(where, local=True)
    allowed = filter_rows(index, where)
    return allowed if found.mask is None else allowed & found.mask


def title_and_abstract(text: str) -> tuple[str, str]:
    r"""Answer a pasted text as a paper: where it has a line break, the first line is its title, the rest its abstract.

    >>> title_and_abstract("Rain\nIt falls.\nOften."), title_and_abstract("Why does it rain?")
    (('Rain', 'It falls. Often.'), ('Why does it rain?', ''))
    """
    title, _, abstract = text.strip().partition("\n")
    return clean_text(title), clean_text(abstract)


def _hits_to_cite(
    index: Index, query_encoder: QueryEncoder | None, query: Query, allowed: Mask
) -> tuple[list[Hit], list[str]]:
    """Return the papers to cite in a passage of a draft, and its sentences where each is answered."""
    passage = query.cite
    assert passage is not None
    need_vectors(index, "what to cite")
    if query_encoder is None:
        raise UserError(f"what to cite needs the model of {index.folder}, and none is loaded")
    return recommend_for_passage(index, query_encoder, passage, count=query.count, offset=query.offset, allowed=allowed)


# --- ranking papers for each kind of query ---------------------------------------------------------------

_NO_VECTORS, _NO_PAPER = "this index has no vectors yet", "this index holds no paper"


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The papers of an index that a query may find, and how their vectors are searched."""

    index: Index
    allowed: Mask
    """(size,)"""

    near: NearestSearch = nearest_papers
    keep: bool = False
    """Whether papers are listed even if none is close to a text."""

    def without(self, rows: list[int]) -> _Candidates:
        """Return the candidates without the query's own papers."""
        allowed = self.allowed.copy()
        allowed[rows] = False
        return replace(self, allowed=allowed)


def _rank(candidates: _Candidates, query_encoder: QueryEncoder | None, query: Query, depth: int = 0) -> Ranking:
    """Rank the candidates for a query, at least as many as its page needs, or `depth`."""
    index, end = candidates.index, max(query.offset + query.count, depth)
    pool = ORDERED if query.order else pool_size(query.count) if query.diversity else 0
    count = min(max(end, pool), MAX_COUNT)
    if query.sentences is not None:
        exact = not query.approximate
        ranking = rank_by_sentences(index, query_encoder, query.sentences, candidates.allowed, count, exact=exact)
    else:
        index.check_aspect(query.aspect)
        if query.kind == "text":
            ranking = _rank_by_text(candidates, query_encoder, query, count)
        elif query.kind == "paper":
            ranking = _rank_by_paper(candidates, query, count)
        else:
            assert query.kind == "liked", query.kind
            ranking = _rank_by_liked(candidates, query, count)
    return _diversify(index, query, ranking, pool) if query.diversity else ranking


def _rank_by_text(candidates: _Candidates, query_encoder: QueryEncoder | None, query: Query, count: int) -> Ranking:
    """Rank candidates for a query text, by words alone where vectors or the model are missing."""
    index = candidates.index
    title, abstract = title_and_abstract(query.text)
    by, note = query.by or ("vectors" if query.aspect else "hybrid"), ""
    if by != "words" and not (index.with_vector.any() and query_encoder is not None):
        if by == "vectors" or query.aspect:
            need_vectors(index, "this search")
            raise UserError(f"this search needs the model of {index.folder}, and none is loaded; search by words")
        why = "the model is not loaded" if index.with_vector.any() else _NO_VECTORS if len(index) else _NO_PAPER
        by, note = "words", f"by words alone: {why}"
    words = searchable_text(title, abstract)
    if by == "words":
        return judge_ranking(_rank_by_words(candidates, words, count, note), 0.0, keep=candidates.keep)
    assert query_encoder is not None
    vector = query_encoder.encode(title, abstract=abstract)  # (dimension,)
    projected = query_encoder.project(vector, query.aspect)
    ranking = _rank_by_vector(candidates, projected, query, by, words, count)._replace(vectors=vector[None])
    return judge_ranking(ranking, noise_level(index, query_encoder, query.aspect), keep=candidates.keep)


def _rank_by_paper(candidates: _Candidates, query: Query, count: int) -> Ranking:
    """Rank candidates by their similarity to a paper of the index."""
    index = candidates.index
    row = index.row(query.paper)
    others = candidates.without([row])
    paper, by, note = index.paper(row), query.by or "vectors", ""
    words = searchable_text(paper.title, paper.abstract)
    if not index.with_vector[row] and (by == "hybrid" or not (query.by or query.aspect)):
        by, note = "words", "by the paper's words alone: it has no vector yet"
    if by == "words":
        return _rank_by_words(others, words, count, note)
    vector = index.take(np.array([row]), query.aspect)[0]  # (dimension,)
    return _rank_by_vector(others, vector, query, by, words, count)


def _rank_by_liked(candidates: _Candidates, query: Query, count: int) -> Ranking:
    """Rank candidates by the Rocchio vector of liked and disliked papers."""
    index = candidates.index
    need_vectors(index, "searching by several papers")
    liked, disliked = ([index.row(id) for id in ids] for ids in (query.liked, query.disliked))
    vectors = [index.take(np.array(rows, np.int64), query.aspect) for rows in (liked, disliked)]  # (papers, dimension)
    others = candidates.without([*liked, *disliked])
    return _rank_by_vector(others, rocchio_vector(*vectors), query, "vectors", "", count)


def _rank_by_words(candidates: _Candidates, words: str, count: int, note: str) -> Ranking:
    best = search_words(candidates.index, words, count, allowed=candidates.allowed)
    return Ranking(best.rows, best.scores, "words", note=note)


def _rank_by_vector(candidates: _Candidates, vector: Singles, query: Query, by: str, words: str, count: int) -> Ranking:
    """Rank candidates by cosines to a vector; with `by` hybrid, fuse that ranking with one by words."""
    index, allowed, exact = candidates.index, candidates.allowed, not query.approximate
    depth = count if by == "vectors" else max(count, FUSION_DEPTH)
    near = candidates.near(index, vector, min(depth, MAX_COUNT), query.aspect, allowed=allowed, exact=exact)
    filled = near.rows[0] >= 0
    rows, scores = near.rows[0][filled].astype(np.int64), near.scores[0][filled].astype(np.float64)
    note = _missing_note(index, by)
    if by == "vectors":
        return Ranking(rows, scores, by, exact, note)
    matches = match_words(index, words, allowed=allowed)
    others = np.setdiff1d(matches.best(depth, name=index.id).rows, rows)
    cosines = np.concatenate([scores, _cosines(index, vector, others, query.aspect)])
    rows = np.concatenate([rows, others])
    coverage = matches.coverage(rows)
    fused = rank_rows(rows, fuse_scores(cosines, coverage), count, name=index.id)
    return Ranking(fused.rows, fused.scores, by, exact, note, coverage=float(coverage.max(initial=0.0)))


def _cosines(index: Index, vector: Singles, rows: NDArray[np.int64], aspect: str) -> NDArray[np.float64]:
    """Return the cosines of papers to a vector, (rows,), NaN where a paper has no vector."""
    cosines, known = np.full(len(rows), np.nan), index.with_vector[rows]
    cosines[known] = unit_rows(index.take(rows[known], aspect)) @ unit_rows(vector[None])[0]
    return cosines


def _missing_note(index: Index, by: str) -> str:
    """Return a note about papers whose vectors are not made yet."""
    missing = int(index.not_embedded.sum())
    if not missing:
        return ""
    effect = "are not found by vectors" if by == "vectors" else "are found by words alone"
    return f"{missing:,} of {len(index):,} papers have no vector yet and {effect}"


def _diversify(index: Index, query: Query, ranking: Ranking, pool: int) -> Ranking:
    """Reorder the best `pool` papers of a ranking for diversity, all others behind: pages of one size fit together."""
    need_vectors(index, "diversity")
    rows = ranking.rows[:pool]
    known = index.with_vector[rows]
    own = index.take(rows[known], query.aspect)
    vectors = np.zeros((len(rows), own.shape[1]), np.float32)  # (pool, dimension)
    vectors[known] = own
    order = diverse_order(ranking.scores[:pool], vectors, query.diversity, query.offset + query.count)
    order = np.concatenate([order, np.arange(len(rows), len(ranking.rows))]) if len(order) == len(rows) else order
    return ranking._replace(rows=ranking.rows[order], scores=ranking.scores[order])


def _sentence_matches(
    index: Index, query: Query, ranking: Ranking, rows: list[int]
) -> list[tuple[MatchedSentence, ...]]:
    """Return the sentences of each hit that match the query."""
    if ranking.vectors is None:
        return [()] * len(rows)
    if query.sentences is not None:
        return match_sentences(index, ranking.vectors, rows)
    return [nearest_sentence(index, ranking.vectors[0], row) for row in rows]
