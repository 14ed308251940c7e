"""Search by sentences: match chosen sentences of a paper's abstract, or pasted ones, with those of other papers.

    rank_by_sentences(index, query_encoder, SentenceQuery("rain", (1,)), allowed, 10)     papers with a sentence like rain's second
    rank_by_sentences(index, query_encoder, SentenceQuery(texts=("We train networks on graphs.",)), allowed, 10)

Two steps. All papers are compared by the sum of the best cosines of each query sentence to one of theirs. The best
RERANKED of them are then ranked by optimal transport between the sentences (Mysore et al., NAACL 2022, ASPIRE) with
cosine distances: the score is 1 - that distance, the mean cosine of the matched sentences, weighted by their mass. Needs
torch (the extra minilm) and an index with sentence vectors. Citing sentences are another matter: `citing_sentences.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.search.index import Index
from citeweave.search.nearest import QueryEncoder, need_papers
from citeweave.search.query import MatchedSentence, SentenceQuery
from citeweave.search.rankings import Ranking, rank_rows
from citeweave.vectors.document_distance import DocumentDistance, rerank
from citeweave.vectors.topk import make_codes
from citeweave.vectors.topk.sentences import best_papers
from citeweave.vectors.transport_kernels import transport_plan
from citeweave.vectors.vectors import unit_rows

RERANKED = 100
"""Papers that are ranked by transport."""

FACET = DocumentDistance("transport", temperature=0.1, metric="cosine")
"""The best temperature on CSFCube with MiniLM of 0.5 (ASPIRE's for L2), 0.1 and 0.05: see docs/search.md."""

Mask = NDArray[np.bool_]
Singles = NDArray[np.float32]


def rank_by_sentences(
    index: Index,
    query_encoder: QueryEncoder | None,
    query: SentenceQuery,
    allowed: Mask,
    count: int,
    *,
    exact: bool = True,
) -> Ranking:
    """Search by sentences: rank the allowed papers by how well theirs match a query's; leave out the query's own paper."""
    _need_sentences(index)
    allowed = allowed & index.with_sentences
    if query.paper:
        queries = _paper_sentences(index, query)  # (sentences, dimension)
        allowed[index.row(query.paper)] = False
    else:
        queries = _pasted_sentences(query_encoder, query.texts)
    pool = max(RERANKED, count)
    rows = _candidate_rows(index, queries, allowed, pool, exact=exact)
    papers = [_sentence_vectors(index, row) for row in rows.tolist()]
    scores = 1 + rerank(queries, papers, FACET)  # (rows,)
    best = rank_rows(rows, scores, count, name=index.id)
    complete = int(np.count_nonzero(allowed)) <= pool
    return Ranking(best.rows, best.scores, "sentences", complete, _missing_note(index), vectors=queries)


def _need_sentences(index: Index) -> None:
    """Refuse to search by sentences in an index without sentence vectors."""
    need_papers(index)
    if not index.with_sentences.any():
        raise UserError(
            f"searching by sentences needs sentence vectors, and {index.folder} has none; make them with "
            f"`citeweave change {index.folder} --fill --sentences`"
        )


def match_sentences(index: Index, queries: Singles, rows: Sequence[int]) -> list[tuple[MatchedSentence, ...]]:
    """Return for each hit of a search by sentences which of its own matches each query sentence: by most transport mass."""
    query_units, matches = unit_rows(np.asarray(queries, np.float64)), []
    for row in rows:
        cosines = (
            query_units @ unit_rows(_sentence_vectors(index, row).astype(np.float64)).T
        )  # (query sentences, sentences)
        plan, numbers = transport_plan(1 - cosines, temperature=FACET.temperature), index.sentence_numbers(row)
        masses = plan / (float(plan.sum()) or 1.0)
        matches.append(tuple(_best_match(query, masses[query], cosines[query], numbers) for query in range(len(plan))))
    return matches


def nearest_sentence(index: Index, vector: Singles, row: int) -> tuple[MatchedSentence, ...]:
    """Match a query text, (dimension,), with the nearest of a paper's sentences in an index; empty where it has no vectors."""
    sentences = index.sentence_vectors(row)
    if sentences is None:
        return ()
    cosines = unit_rows(np.asarray(sentences, np.float32)) @ unit_rows(vector[None])[0]  # (sentences,)
    at = int(np.argmax(cosines))
    return (MatchedSentence(0, int(index.sentence_numbers(row)[at]), 1.0, float(cosines[at])),)


def encode_sentences_alone(encoder: TorchEncoder, texts: Sequence[str]) -> Singles:
    """Encode pasted sentences to search by, one by one, comparable with those of abstracts; zeros for unreadable ones."""
    encoded = encode_sentences(encoder, [""] * len(texts), [[text] for text in texts])
    vectors = np.zeros((len(texts), encoder.dimension), np.float32)
    counts = np.diff(encoded.offsets)
    vectors[counts > 0] = encoded.matrix[encoded.offsets[:-1][counts > 0]]
    return vectors


# --- the sentences of the query --------------------------------------------------------------------------


def _paper_sentences(index: Index, query: SentenceQuery) -> Singles:
    """Return the vectors of the chosen sentences of a paper's abstract."""
    row = index.row(query.paper)
    vectors, numbers = index.sentence_vectors(row), index.sentence_numbers(row).tolist()
    if vectors is None:
        raise UserError(f"paper {query.paper!r} has no sentence vectors in {index.folder}; search with another paper")
    chosen = list(dict.fromkeys(query.numbers)) or numbers
    missing = [number for number in chosen if number not in numbers]
    if missing:
        raise UserError(
            f"sentence {missing[0]} of paper {query.paper!r} has no vector; it has those of the sentences "
            f"{', '.join(map(str, numbers[:20]))}{' ...' if len(numbers) > 20 else ''}, counted from 0"
        )
    return np.asarray(vectors[[numbers.index(number) for number in chosen]], np.float32)


def _pasted_sentences(query_encoder: QueryEncoder | None, texts: Sequence[str]) -> Singles:
    """Encode pasted query sentences with the index's model."""
    if query_encoder is None:
        raise UserError("searching by pasted sentences needs the index's model, and none is loaded")
    encoder = query_encoder.encoder
    if isinstance(encoder, TorchEncoder):
        vectors = encode_sentences_alone(encoder, texts)
    else:  # one that shares a model has its own way
        vectors = getattr(encoder, "encode_sentences", encoder.encode)(list(texts))
    for text, vector in zip(texts, vectors, strict=True):
        if not vector.any() or not any(character.isalnum() for character in text):
            raise UserError(f"the sentence {text[:40]!r} holds no word that {encoder.name} can read; give another")
    return np.asarray(vectors, np.float32)


# --- the papers ------------------------------------------------------------------------------------------


def _candidate_rows(index: Index, queries: Singles, allowed: Mask, pool: int, *, exact: bool) -> NDArray[np.int64]:
    """Return the rows with the highest sum, over query sentences, of the best cosine to one of theirs."""
    vectors = index.sentences
    if vectors is None or not allowed.any():
        return np.empty(0, np.int64)
    # a small index is written without codes; made here they give the same numbers
    codes = index.sentence_codes or make_codes(vectors.matrix)
    best = best_papers(codes, vectors.matrix, vectors.offsets, queries, pool, allowed=allowed, exact=exact)
    return rank_rows(best.papers.astype(np.int64), best.scores, pool, name=index.id).rows


def _sentence_vectors(index: Index, row: int) -> Singles:
    vectors = index.sentence_vectors(row)
    assert vectors is not None, row
    return np.array(vectors, np.float32)  # a copy, as torch needs a writable array


def _best_match(query: int, masses: NDArray[Any], cosines: NDArray[Any], numbers: NDArray[np.int32]) -> MatchedSentence:
    at = int(np.lexsort((-cosines, -masses))[0])
    return MatchedSentence(query, int(numbers[at]), float(masses[at]), float(cosines[at]))


def _missing_note(index: Index) -> str:
    """Return a note about papers without sentence vectors, which a search by sentences cannot find."""
    missing = len(index) - int(np.count_nonzero(index.with_sentences))
    return f"{missing:,} of {len(index):,} papers have no sentence vectors and are not found" if missing else ""
