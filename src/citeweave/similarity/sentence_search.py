"""Search among papers by the vectors of their sentences: all papers, no index, whole abstracts or chosen sentences.

    found = search_sentences(vectors, ["s2:1"], 10, DocumentDistance("single"))
    found.rows[0], found.scores[0], found.is_exact[0]
    search_sentences(vectors, ["s2:1"], 10, DocumentDistance("transport", 0.5), query_sentences=[np.array([2, 3])])

A walk through all sentences gives a bound of every paper's distance; papers are then scored by the distance itself, the
lowest bound first, until no other can be nearer. `single` and `mean_best` are always exact. The bounds of `transport`,
`attention` and `top2` may be loose: there at most `first` papers are scored, and `is_exact` says of which queries it was
proved that nothing is missing. Equal scores stand in the order of papers. Needs torch (the extra minilm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.sentence_bounds import Longs, QueryBlock, Singles, lower_bounds
from citeweave.similarity.sentence_vectors import SentenceVectors
from citeweave.similarity.transport import DocumentDistance, PlacedSentences

EXACT = ("single", "mean_best")
"""Distances whose bound is the distance itself."""

FIRST = 200
"""Papers that are scored by other distances, unless told otherwise."""

MEMORY = 256 << 20
"""Bytes of bounds held at a time; at least those of one query."""

SENTENCES = 512
"""Of queries, that are compared at a time."""

TOGETHER = 4096
"""Papers scored at a time."""


@dataclass(frozen=True, slots=True)
class SentenceHits:
    """The nearest papers of every query, the nearest first."""

    rows: Longs
    """(queries, k) positions of papers; -1 where there are no more."""

    scores: NDArray[np.float64]
    """(queries, k) minus the distance; NaN where the row is -1."""

    is_exact: NDArray[np.bool_]
    """(queries,) whether surely no other paper belongs to them."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One query."""

    sentences: Singles
    own: int
    """Its position among the papers, -1 where it is none of them."""


class Options(TypedDict, total=False):
    """The options of a search, all of which may be left out."""

    query_sentences: Sequence[NDArray[np.integer[Any]] | None] | None
    """Only these sentences of query i take part: numbers as in `SentenceVectors.numbers`; None = all."""

    pool: NDArray[np.integer[Any]] | None
    """Positions of the papers that may be found; all unless told otherwise."""

    first: int | None
    """Papers scored by a distance that is none of EXACT, FIRST unless told otherwise; None = until it is sure."""

    device: str
    """Where papers are scored, as of `document_scores`; cpu unless told otherwise. The walk is the processor's."""

    reporter: Reporter


def search_sentences(
    vectors: SentenceVectors,
    queries: Sequence[str] | NDArray[np.integer[Any]] | Sequence[NDArray[np.floating[Any]]],
    k: int,
    distance: DocumentDistance,
    **options: Unpack[Options],
) -> SentenceHits:
    """The k nearest papers of every query.

    A query is a paper, by id or position, and then no answer to itself; or a matrix, (sentences, dimension), whose
    sentences are counted from 0.
    """
    limit = _limit(k, options.get("first", FIRST), distance)
    asked = _read_queries(vectors, queries, options.get("query_sentences"))
    papers = _papers(vectors, options.get("pool"))
    device, reporter = options.get("device", "cpu"), options.get("reporter", QUIET)
    hits = SentenceHits(
        np.full((len(asked), k), -1, np.int64), np.full((len(asked), k), np.nan), np.ones(len(asked), np.bool_)
    )
    placed, done = PlacedSentences(vectors, device), 0
    for part in _blocks(asked, MEMORY // (4 * len(papers))) if len(papers) else ():
        bounds = lower_bounds(vectors, papers, _block(part), distance, reporter)
        for at, query in enumerate(part):
            best, hits.is_exact[done + at] = _settle(placed, papers, query, bounds[at], k, limit, distance)
            found = len(best.rows)
            hits.rows[done + at, :found], hits.scores[done + at, :found] = best.rows, best.scores
        done += len(part)
    return hits


# --- the question --------------------------------------------------------------------------------------


def _limit(k: int, first: int | None, distance: DocumentDistance) -> int | None:
    """Most papers to score; None = until it is sure."""
    if k < 1:
        raise UserError(f"k is {k}; it must be at least 1")
    if first is not None and first < k:
        raise UserError(f"first is {first} and k is {k}; at least as many papers must be scored as are wanted")
    return None if distance.name in EXACT else first


def _read_queries(
    vectors: SentenceVectors, queries: Any, chosen: Sequence[NDArray[np.integer[Any]] | None] | None
) -> list[_Asked]:
    wanted = [None] * len(queries) if chosen is None else list(chosen)
    if len(wanted) != len(queries):
        raise UserError(
            f"query_sentences has {len(wanted):,} entries for {len(queries):,} queries; give one a query, None for all"
        )
    if len(queries) and np.ndim(queries[0]) == 2:
        return [_given(vectors, *each, at) for at, each in enumerate(zip(queries, wanted, strict=True))]
    rows = find_papers(vectors, queries) if len(queries) and isinstance(queries[0], str) else np.asarray(queries)
    outside = [row for row in rows.tolist() if not 0 <= row < len(vectors)]
    if outside:
        raise UserError(
            f"paper {outside[0]} is asked for; the sentence vectors have the papers 0 to {len(vectors) - 1}"
        )
    return [_of_paper(vectors, int(row), numbers) for row, numbers in zip(rows, wanted, strict=True)]


def find_papers(vectors: SentenceVectors, ids: Sequence[str]) -> Longs:
    """Positions of papers by their ids; one that is not there is an error."""
    rows = vectors.rows(list(ids))
    lost = np.flatnonzero(rows < 0)
    if len(lost):
        raise UserError(
            f"{ids[int(lost[0])]!r} is none of the {len(vectors):,} papers of these sentence vectors, whose ids are such "
            f"as {vectors.ids[0]!r}; check the id"
        )
    return rows


def _of_paper(vectors: SentenceVectors, row: int, wanted: NDArray[np.integer[Any]] | None) -> _Asked:
    span = slice(int(vectors.offsets[row]), int(vectors.offsets[row + 1]))
    numbers = np.asarray(vectors.numbers[span])
    return _Asked(_chosen(vectors.sentences(row), numbers, wanted, f"paper {vectors.ids[row]!r}"), row)


def _given(vectors: SentenceVectors, matrix: NDArray[Any], wanted: NDArray[np.integer[Any]] | None, at: int) -> _Asked:
    dimension = vectors.matrix.shape[1]
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        raise UserError(
            f"query {at} has the shape {matrix.shape}; the papers have sentence vectors of {dimension} numbers: give "
            "(sentences, dimension) of the same model"
        )
    return _Asked(_chosen(matrix, np.arange(len(matrix)), wanted, f"query {at}"), -1)


def _chosen(
    sentences: NDArray[Any], numbers: NDArray[Any], wanted: NDArray[np.integer[Any]] | None, what: str
) -> Singles:
    taken = sentences if wanted is None else sentences[np.isin(numbers, wanted)]
    if not len(sentences):
        raise UserError(f"{what} has no sentence vectors; ask with another one")
    if not len(taken):
        asked = ", ".join(map(str, np.asarray(wanted).tolist())) or "none"
        raise UserError(
            f"no sentence of {what} is chosen: asked for {asked}, it has vectors of the sentences "
            f"{', '.join(map(str, numbers[:20].tolist()))}{' ...' if len(numbers) > 20 else ''}"
        )
    return np.ascontiguousarray(taken, np.float32)


def _papers(vectors: SentenceVectors, pool: NDArray[np.integer[Any]] | None) -> Longs:
    """The papers that may be found, ascending: those that have a sentence."""
    papers = np.arange(len(vectors)) if pool is None else np.unique(np.asarray(pool, np.int64))
    if len(papers) and not 0 <= papers[0] <= papers[-1] < len(vectors):
        raise UserError(
            f"pool reaches from {papers[0]} to {papers[-1]}; the sentence vectors have the papers 0 to {len(vectors) - 1}"
        )
    return papers[vectors.offsets[papers + 1] > vectors.offsets[papers]]


def _blocks(asked: Sequence[_Asked], most: int) -> Iterator[Sequence[_Asked]]:
    """Queries that are walked with together: at most so many, with at most SENTENCES; at least one."""
    start, sentences = 0, 0
    for at, query in enumerate(asked):
        sentences += len(query.sentences)
        if at > start and (at - start >= most or sentences > SENTENCES):
            yield asked[start:at]
            start, sentences = at, len(query.sentences)
    yield asked[start:]


def _block(asked: Sequence[_Asked]) -> QueryBlock:
    offsets = np.cumsum([0, *(len(query.sentences) for query in asked)])
    return QueryBlock(np.concatenate([query.sentences for query in asked]), offsets)


# --- the answer ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Best:
    """The nearest papers so far, the nearest first, equal ones in the order of papers."""

    rows: Longs
    scores: NDArray[np.float64]

    def with_others(self, rows: Longs, scores: NDArray[np.float64], k: int) -> _Best:
        every, values = np.concatenate([self.rows, rows]), np.concatenate([self.scores, scores])
        order = np.lexsort((every, -values))[:k]
        return _Best(every[order], values[order])


def _settle(
    vectors: PlacedSentences,
    papers: Longs,
    query: _Asked,
    bounds: Singles,
    k: int,
    limit: int | None,
    distance: DocumentDistance,
) -> tuple[_Best, bool]:
    """Score papers, the lowest bound first, until none that is left can be among the k; and whether that was reached."""
    best, left = _Best(np.empty(0, np.int64), np.empty(0)), np.flatnonzero(papers != query.own)
    room, size = len(left) if limit is None else limit, max(2 * k, 64)
    # plans of the peer's mode do not keep the masses, on which the bound rests
    is_bound = distance.name != "transport" or distance.mode == "exact"
    while True:
        if is_bound and len(best.rows) == k:
            left = left[bounds[left] <= -best.scores[-1]]
        count = min(size, room, len(left), TOGETHER)
        if not count:
            return best, not len(left)
        order = np.argpartition(bounds[left], count - 1)
        part, left = np.sort(left[order[:count]]), left[order[count:]]  # a mapped file is read forwards
        best = best.with_others(papers[part], vectors.scores(query.sentences, papers[part], distance), k)
        room, size = room - count, 2 * size
