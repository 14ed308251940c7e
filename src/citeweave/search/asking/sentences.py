"""Search by sentences: chosen ones of a paper's abstract, or pasted ones.

    by_sentences(index, reader, Chosen("rain", (1,)), allowed, 10)      papers with a sentence like rain's second
    by_sentences(index, reader, Chosen(texts=("We train networks on graphs.",)), allowed, 10)

Two steps. All papers are compared by the sum of the best cosines of each query sentence to one of theirs. The best
RERANKED of them are ranked by optimal transport between the sentences
(Mysore et al., NAACL 2022, ASPIRE), with cosine distances: the score is 1 - that distance, the mean cosine of the
sentences that were matched, weighted by their mass. Needs torch (the extra minilm) and an index with sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.sentences import encode_sentences
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.search.asking.answers import Match, Ranking
from citeweave.search.asking.finding import need_papers
from citeweave.search.asking.query import Chosen
from citeweave.search.index import Index
from citeweave.search.ranking import rank_rows
from citeweave.search.searching import Reader
from citeweave.similarity.matching.compiled import transport_plan
from citeweave.similarity.topk import make_codes
from citeweave.similarity.topk.sentences import best_papers
from citeweave.similarity.transport import DocumentDistance, rerank

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


class Asked(NamedTuple):
    """The sentences of a query."""

    vectors: Singles
    """(sentences, dimension)"""

    own: int
    """Row of the paper that they are of, -1 where they were pasted."""


def by_sentences(
    index: Index, reader: Reader | None, chosen: Chosen, allowed: Mask, wanted: int, *, exact: bool = True
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


def matches_of(index: Index, queries: Singles, rows: Sequence[int]) -> list[tuple[Match, ...]]:
    """For each row, of every query sentence the sentence of the paper with the most mass; by the query's order."""
    asked, found = _unit(np.asarray(queries, np.float64)), []
    for row in rows:
        cosines = asked @ _unit(_sentences(index, row).astype(np.float64)).T  # (query sentences, sentences)
        plan, numbers = transport_plan(1 - cosines, temperature=FACET.temperature), index.sentence_numbers(row)
        masses = plan / (float(plan.sum()) or 1.0)
        found.append(tuple(_best_match(query, masses[query], cosines[query], numbers) for query in range(len(plan))))
    return found


def best_sentence(index: Index, vector: Singles, row: int) -> tuple[Match, ...]:
    """The sentence of a paper that is nearest to a whole text, (dimension,); nothing where it has none."""
    sentences = index.sentence_vectors(row)
    if sentences is None:
        return ()
    cosines = _unit(np.asarray(sentences, np.float32)) @ _unit(vector[None])[0]  # (sentences,)
    at = int(np.argmax(cosines))
    return (Match(0, int(index.sentence_numbers(row)[at]), 1.0, float(cosines[at])),)


# --- the query -----------------------------------------------------------------------------------------


def _of_paper(index: Index, chosen: Chosen) -> Asked:
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
    return Asked(np.asarray(vectors[[numbers.index(number) for number in wanted]], np.float32), row)


def _pasted(reader: Reader | None, texts: Sequence[str]) -> Asked:
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
    return Asked(np.asarray(vectors, np.float32), -1)


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


def _best_match(query: int, masses: NDArray[Any], cosines: NDArray[Any], numbers: NDArray[np.int32]) -> Match:
    at = int(np.lexsort((-cosines, -masses))[0])
    return Match(query, int(numbers[at]), float(masses[at]), float(cosines[at]))


def _missing(index: Index) -> str:
    lost = len(index) - int(np.count_nonzero(index.with_sentences))
    return f"{lost:,} of {len(index):,} papers have no vectors of sentences and are not found" if lost else ""


def _unit(vectors: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), vectors.dtype)
