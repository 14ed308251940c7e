"""Search by sentences: chosen ones of a paper's abstract, or pasted ones.

    by_sentences(index, reader, Chosen("rain", (1,)), allowed, 10)      papers with a sentence like rain's second
    by_sentences(index, reader, Chosen(texts=("We train networks on graphs.",)), allowed, 10)

Two steps. All papers are compared by the sum of the best cosines of each query sentence to one of theirs. The best
RERANKED of them are ranked by optimal transport between the sentences
(Mysore et al., NAACL 2022, ASPIRE), with cosine distances: the score is 1 - that distance, the mean cosine of the
sentences that were matched, weighted by their mass. Needs torch (the extra minilm) and an index with sentences.

What to cite in a pasted passage of a draft: for the whole of it, or sentence by sentence.

    >>> needing(["Rain is rare [CIT].", "We count drops.", "Others did (Chen, 2014)."])
    [0, 2]
    >>> needing(["Rain is rare.", "We count drops."])
    [0, 1]

A sentence seems to need a citation where the author left a mark for one; in a passage without any mark each does. Does
not guess from the words whether a claim needs support.

Answers a query: the door to everything that an index can be asked.

    found = answer(index, reader, Query(text="rain measured by telephones", where=Filter(years=(2015, None))))
    found.hits[0].title, found.exact, found.note
    answer(index, None, Query(paper="doi:10.1/x", diversity=0.3))         no model is needed for papers
    answer(index, Query(text="rain"))                                     loads the model of the index

Hits stand by score, then by id, so that they do not depend on how the index came to be; with `diversity` the best are
put in another order. Does not explain: see `explaining.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.plain_text import clean_text
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.search.cite import Draft, Recommendation, recommend
from citeweave.search.filters import filter_rows, unknown_names
from citeweave.search.hits import (
    Among,
    MatchedSentence,
    NearestSearch,
    Ranking,
    SearchHit,
    SearchResult,
    find,
    need_papers,
    need_vectors,
)
from citeweave.search.index import Index
from citeweave.search.nearest import MOST, QueryEncoder, nearest_papers, open_reader
from citeweave.search.query import Passage, Query, SentenceQuery
from citeweave.search.ranked_rows import diverse_order, pool_size, rank_rows
from citeweave.search.segment import without_marks
from citeweave.vectors.document_distance import DocumentDistance, rerank
from citeweave.vectors.topk import make_codes
from citeweave.vectors.topk.sentences import best_papers
from citeweave.vectors.transport_kernels import transport_plan

RERANKED = 100
"""Papers that are ranked by transport."""

FACET = DocumentDistance("transport", temperature=0.1, metric="cosine")
"""Of 0.5, as ASPIRE has it for L2, 0.1 and 0.05 the best on CSFCube with MiniLM: docs/search.md."""

Mask = NDArray[np.bool_]
Singles = NDArray[np.float32]


@runtime_checkable
class SentenceEncoder(Protocol):
    """An encoder that reads sentences alone as `encode_alone` does, such as one that shares a model."""

    def encode_sentences(self, texts: Sequence[str]) -> Singles: ...


class QuerySentences(NamedTuple):
    """The sentences of a query."""

    vectors: Singles
    """(sentences, dimension)"""

    own: int
    """Row of the paper that they are of, -1 where they were pasted."""


def by_sentences(
    index: Index, reader: QueryEncoder | None, chosen: SentenceQuery, allowed: Mask, wanted: int, *, exact: bool = True
) -> Ranking:
    """The `wanted` best of the allowed papers; the paper that the sentences are of is none of them."""
    need_sentences(index)
    asked = _of_paper(index, chosen) if chosen.paper else _pasted(reader, chosen.texts)
    allowed = allowed & index.with_sentences
    if asked.own >= 0:
        allowed[asked.own] = False
    pool = max(RERANKED, wanted)
    rows = _proposed(index, asked.vectors, allowed, pool, exact=exact)
    papers = [_sentences(index, row) for row in rows.tolist()]
    scores = 1 + rerank(asked.vectors, papers, None, FACET)  # (rows,)
    found = rank_rows(rows, scores, wanted, name=index.id)
    every = int(np.count_nonzero(allowed)) <= pool
    return Ranking(found.rows, found.scores, "sentences", every, _missing(index), asked.vectors)


def need_sentences(index: Index) -> None:
    """Refuse what an index without vectors of sentences cannot do."""
    need_papers(index)
    if not index.with_sentences.any():
        raise UserError(
            f"searching by sentences needs vectors of them, and {index.folder} has none; make them with "
            f"`citeweave change {index.folder} --fill --sentences`"
        )


def encode_alone(encoder: TorchEncoder, texts: Sequence[str]) -> Singles:
    """A vector a sentence, each read alone, comparable with those of abstracts; (texts, dimension), zeros if unread."""
    found = encode_sentences(encoder, [""] * len(texts), [[text] for text in texts])
    vectors = np.zeros((len(texts), encoder.dimension), np.float32)
    counts = np.diff(found.offsets)
    vectors[counts > 0] = found.matrix[found.offsets[:-1][counts > 0]]
    return vectors


def matches_of(index: Index, queries: Singles, rows: Sequence[int]) -> list[tuple[MatchedSentence, ...]]:
    """For each row, of every query sentence the sentence of the paper with the most mass; by the query's order."""
    asked, found = _unit(np.asarray(queries, np.float64)), []
    for row in rows:
        cosines = asked @ _unit(_sentences(index, row).astype(np.float64)).T  # (query sentences, sentences)
        plan, numbers = transport_plan(1 - cosines, temperature=FACET.temperature), index.sentence_numbers(row)
        masses = plan / (float(plan.sum()) or 1.0)
        found.append(tuple(_best_match(query, masses[query], cosines[query], numbers) for query in range(len(plan))))
    return found


def best_sentence(index: Index, vector: Singles, row: int) -> tuple[MatchedSentence, ...]:
    """The sentence of a paper that is nearest to a whole text, (dimension,); nothing where it has none."""
    sentences = index.sentence_vectors(row)
    if sentences is None:
        return ()
    cosines = _unit(np.asarray(sentences, np.float32)) @ _unit(vector[None])[0]  # (sentences,)
    at = int(np.argmax(cosines))
    return (MatchedSentence(0, int(index.sentence_numbers(row)[at]), 1.0, float(cosines[at])),)


# --- the query -----------------------------------------------------------------------------------------


def _of_paper(index: Index, chosen: SentenceQuery) -> QuerySentences:
    row = index.row(chosen.paper)
    vectors, numbers = index.sentence_vectors(row), index.sentence_numbers(row).tolist()
    if vectors is None:
        raise UserError(f"paper {chosen.paper!r} has no vectors of sentences in {index.folder}; ask with another one")
    wanted = list(dict.fromkeys(chosen.numbers)) or numbers
    lost = [number for number in wanted if number not in numbers]
    if lost:
        raise UserError(
            f"sentence {lost[0]} of paper {chosen.paper!r} has no vector; it has those of the sentences "
            f"{', '.join(map(str, numbers[:20]))}{' ...' if len(numbers) > 20 else ''}, counted from 0"
        )
    return QuerySentences(np.asarray(vectors[[numbers.index(number) for number in wanted]], np.float32), row)


def _pasted(reader: QueryEncoder | None, texts: Sequence[str]) -> QuerySentences:
    if reader is None:
        raise UserError("searching by pasted sentences needs the index's model, and none is loaded")
    encoder = reader.encoder
    if isinstance(encoder, TorchEncoder):
        vectors = encode_alone(encoder, texts)
    elif isinstance(encoder, SentenceEncoder):
        vectors = encoder.encode_sentences(texts)
    else:
        vectors = encoder.encode(list(texts))
    for text, vector in zip(texts, vectors, strict=True):
        if not vector.any() or not any(sign.isalnum() for sign in text):
            raise UserError(f"the sentence {text[:40]!r} holds no word that {encoder.name} can read; give another")
    return QuerySentences(np.asarray(vectors, np.float32), -1)


# --- the two steps -------------------------------------------------------------------------------------


def _proposed(index: Index, queries: Singles, allowed: Mask, pool: int, *, exact: bool) -> NDArray[np.int64]:
    """The rows with the highest sum over the query's sentences of the best cosine to one of theirs, the best first."""
    rows, sums = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for segment in index.segments:
        chosen = allowed[segment.start : segment.start + segment.size]
        if segment.sentences is None or not chosen.any():
            continue
        vectors = segment.sentences
        # small segments are written without codes; made here they give the same numbers
        codes = segment.sentence_codes or make_codes(vectors.matrix)
        found = best_papers(codes, vectors.matrix, vectors.offsets, queries, pool, allowed=chosen, exact=exact)
        rows.append(found.papers.astype(np.int64) + segment.start)
        sums.append(found.scores)
    return rank_rows(np.concatenate(rows), np.concatenate(sums), pool, name=index.id).rows


def _sentences(index: Index, row: int) -> Singles:
    found = index.sentence_vectors(row)
    assert found is not None, row
    return np.array(found, np.float32)  # torch wants its own


def _best_match(query: int, masses: NDArray[Any], cosines: NDArray[Any], numbers: NDArray[np.int32]) -> MatchedSentence:
    at = int(np.lexsort((-cosines, -masses))[0])
    return MatchedSentence(query, int(numbers[at]), float(masses[at]), float(cosines[at]))


def _missing(index: Index) -> str:
    lost = len(index) - int(np.count_nonzero(index.with_sentences))
    return f"{lost:,} of {len(index):,} papers have no vectors of sentences and are not found" if lost else ""


def _unit(vectors: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), vectors.dtype)


# What to cite in a pasted passage of a draft: for the whole of it, or sentence by sentence.

MOST_ASKED = 30
"""Sentences of a passage that are answered."""


def recommend_all(
    index: Index, reader: QueryEncoder, query: Query, allowed: NDArray[np.bool_]
) -> tuple[list[SearchHit], list[str]]:
    """The papers to cite, of every sentence the best first, and the sentences of the passage; none for the whole."""
    passage = query.cite
    assert passage is not None
    if not passage.each:
        return [_found(one, None) for one in _page(index, reader, passage.text, query, allowed)], []
    sentences = sentence_texts(passage.text)
    asked = [at for at in needing(sentences) if without_marks(sentences[at])]
    if not asked:
        raise UserError(f"cite is {passage.text[:60]!r}: without its citation marks nothing is left; give a passage")
    if len(asked) > MOST_ASKED:
        raise UserError(f"{len(asked)} sentences of the passage need a citation; ask for at most {MOST_ASKED} at once")
    hits = [_found(one, number) for number in asked for one in _page(index, reader, sentences[number], query, allowed)]
    return hits, sentences


def needing(sentences: Sequence[str]) -> list[int]:
    """Which sentences seem to need a citation."""
    marked = [at for at, sentence in enumerate(sentences) if without_marks(sentence) != clean_text(sentence)]
    return marked or list(range(len(sentences)))


def _page(
    index: Index, reader: QueryEncoder, sentence: str, query: Query, allowed: NDArray[np.bool_]
) -> list[Recommendation]:
    passage = query.cite or Passage(sentence)
    draft = Draft(sentence, passage.intent, passage.draft, passage.least_share)
    return recommend(index, reader, draft, count=query.offset + query.count, allowed=allowed)[query.offset :]


def _found(one: Recommendation, passage: int | None) -> SearchHit:
    hit = one.hit
    return SearchHit(hit.id, hit.title, hit.year, hit.score, hit.row, cited=one, passage=passage)


# Answers a query: the door to everything that an index can be asked.


def needs_reader(query: Query) -> bool:
    """Whether the index's model must be loaded to answer in full."""
    pasted = query.sentences is not None and bool(query.sentences.texts)
    return pasted or query.cite is not None or (query.kind == "text" and query.by != "words")


def allowed_rows(index: Index, query: Query) -> NDArray[np.bool_]:
    """The papers among which a query searches, (size,): what its filter lets through, without mere references."""
    where = query.where
    if where.local is None and not (query.outside or query.cite):
        where = replace(where, local=True)
    return filter_rows(index, where)


def answer(
    index: Index,
    reader: QueryEncoder | Query | None,
    query: Query | None = None,
    *,
    near: NearestSearch = nearest_papers,
) -> SearchResult:
    """The papers that a query asks for; `reader` may be None where `needs_reader` says so, or for words alone.

    With the query in its place, the index's own model is loaded where the query needs it.

    `near` compares vectors: the index itself, or a store (`stores/asking.py`), which sentences and drafts do not ask.
    """
    if isinstance(reader, Query) and query is None:
        query = reader
        reader = open_reader(index) if needs_reader(query) and index.with_vector.any() else None
    if query is None or isinstance(reader, Query):
        raise UserError("answer takes an index, a reader or None, and a query; or an index and a query")
    began = time.perf_counter()
    allowed, unknown = allowed_rows(index, query), unknown_names(index, query.where)  # (size,)
    if query.cite is not None:
        need_vectors(index, "what to cite")
        if reader is None:
            raise UserError(f"what to cite needs the model of {index.folder}, and none is loaded")
        hits, passage = recommend_all(index, reader, query, allowed)
        return SearchResult(query, hits, True, unknown, time.perf_counter() - began, "vectors", passage)
    ranking = _ranking(Among(index, allowed, near), reader, query)
    page = slice(query.offset, query.offset + query.count)
    rows, scores = ranking.rows[page].tolist(), ranking.scores[page].tolist()
    hits = [
        SearchHit(hit.id, hit.title, hit.year, hit.score, hit.row, matches)
        for hit, matches in zip(
            (index.hit(row, score) for row, score in zip(rows, scores, strict=True)),
            _matches(index, query, ranking, rows),
            strict=True,
        )
    ]
    note = "; ".join(filter(None, (ranking.note, unknown)))
    return SearchResult(query, hits, ranking.exact, note, time.perf_counter() - began, ranking.by)


def _ranking(among: Among, reader: QueryEncoder | None, query: Query) -> Ranking:
    end, pool = query.offset + query.count, pool_size(query.count) if query.diversity else 0
    wanted = min(max(end, pool), MOST)
    if query.sentences is not None:
        found = by_sentences(among.index, reader, query.sentences, among.allowed, wanted, exact=not query.approximate)
    else:
        found = find(among, reader, query, wanted)
    return _diverse(among.index, query, found, pool) if query.diversity else found


def _diverse(index: Index, query: Query, found: Ranking, pool: int) -> Ranking:
    """The best `pool` papers in another order, all others behind them: pages of one size fit together."""
    need_vectors(index, "diversity")
    rows = found.rows[:pool]
    known = index.with_vector[rows]
    own = index.take(rows[known], query.aspect)
    vectors = np.zeros((len(rows), own.shape[1]), np.float32)  # (pool, dimension)
    vectors[known] = own
    order = diverse_order(found.scores[:pool], vectors, query.diversity, query.offset + query.count)
    order = np.concatenate([order, np.arange(len(rows), len(found.rows))]) if len(order) == len(rows) else order
    return found._replace(rows=found.rows[order], scores=found.scores[order])


def _matches(index: Index, query: Query, ranking: Ranking, rows: list[int]) -> list[tuple[MatchedSentence, ...]]:
    if ranking.vectors is None:
        return [()] * len(rows)
    if query.sentences is not None:
        return matches_of(index, ranking.vectors, rows)
    return [best_sentence(index, ranking.vectors[0], row) for row in rows]
