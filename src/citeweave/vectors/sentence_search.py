"""Search for the nearest papers by their sentence vectors and a document distance, over all papers, without an index.

    hits = search_sentences(vectors, ["s2:1"], 10, DocumentDistance("single"))
    hits.rows[0], hits.scores[0], hits.is_exact[0]
    search_sentences(vectors, ["s2:1"], 10, DocumentDistance("transport", 0.5), query_sentences=[np.array([2, 3])])

One pass over all sentences gives a lower bound of every paper's distance; papers are then scored by the distance itself,
lowest bound first, until no other paper can be nearer. `single` and `mean_best` are always exact. The bounds of
`transport`, `attention` and `top2` may be loose: there at most `first` papers are scored, and `is_exact` says for which
queries it was proved that nothing is missing. Equal scores are in the order of papers. Needs torch (the extra minilm).

    query of 2 sentences, paper of 3      nearest of the 3 to each of the 2: 0.3, 0.5
    single 0.3      mean_best 0.4      transport, equal masses: at least 0.4, because mass goes at least to the nearest
                                       sentence and comes at least from the nearest one, whichever is more

The nearest sentences come from float32 products; the largest rounding error is subtracted, so that a bound is never above
the distance that `document_distance.py` computes. The matrix is read once, tile by tile, and never copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import Ragged, owners_of, spans, split_rows, to_offsets
from citeweave.vectors.document_distance import DocumentDistance, PlacedSentences
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk.request import METRIC_CODES, Pool, inverse, norms_of

TILE = 4096
"""Sentences compared at a time; a paper is never divided."""

EXACT = ("single", "mean_best")
"""Distances whose lower bound is the distance itself."""

FIRST = 200
"""Default number of papers that are scored by the other distances."""

MEMORY = 256 << 20
"""Bytes of bounds held at a time; at least those of one query."""

SENTENCES = 512
"""Query sentences compared at a time."""

SCORED_TOGETHER = 4096
"""Papers scored at a time by the document distance."""

_SMALLEST_SQUARE, _LARGEST_SQUARE = 1e-20, 1e30
"""Squared lengths between which float32 neither underflows nor overflows."""

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentenceHits:
    """The nearest papers of each query of a sentence search, the nearest first."""

    rows: Longs
    """(queries, k) positions of papers; -1 where there are no more."""

    scores: NDArray[np.float64]
    """(queries, k) minus the distance; NaN where the row is -1."""

    is_exact: NDArray[np.bool_]
    """(queries,) whether it is proved that no nearer paper is missing."""


class _SentenceQuery(NamedTuple):
    """The sentence vectors of one query of a sentence search."""

    sentences: Singles
    own: int
    """The query's own position among the papers, -1 where it is not one of them."""


class SentenceSearchOptions(TypedDict, total=False):
    """The options of `search_sentences`, all of which may be left out."""

    query_sentences: Sequence[NDArray[np.integer[Any]] | None] | None
    """For each query the numbers of the sentences that take part, as in `SentenceVectors.numbers`; None = all."""

    pool: NDArray[np.integer[Any]] | None
    """Positions of the papers to search; the default is all."""

    first: int | None
    """How many papers to score by a distance that is not in EXACT; the default is FIRST, None = until it is proved."""

    device: str
    """Where papers are scored, as in `document_scores`; the default is cpu. Bounds are always computed on the CPU."""

    reporter: Reporter


def search_sentences(
    vectors: SentenceVectors,
    queries: Sequence[str] | NDArray[np.integer[Any]] | Sequence[NDArray[np.floating[Any]]],
    k: int,
    distance: DocumentDistance,
    **options: Unpack[SentenceSearchOptions],
) -> SentenceHits:
    """Search by sentence vectors for the k nearest papers of each query in a document distance.

    A query is a paper, by id or position, which is then not a hit of itself; or a matrix (sentences, dimension), whose
    sentences are counted from 0.
    """
    limit = _limit(k, options.get("first", FIRST), distance)
    read = _read_queries(vectors, queries, options.get("query_sentences"))
    papers = _papers(vectors, options.get("pool"))
    device, reporter = options.get("device", "cpu"), options.get("reporter", QUIET)
    hits = SentenceHits(
        np.full((len(read), k), -1, np.int64), np.full((len(read), k), np.nan), np.ones(len(read), np.bool_)
    )
    placed, done = PlacedSentences(vectors, device), 0
    for part in _blocks(read, MEMORY // (4 * len(papers))) if len(papers) else ():
        bounds = lower_bounds(vectors, papers, _stack(part), distance, reporter)
        for at, query in enumerate(part):
            rows, scores, hits.is_exact[done + at] = _rank_papers(placed, papers, query, bounds[at], k, limit, distance)
            hits.rows[done + at, : len(rows)], hits.scores[done + at, : len(rows)] = rows, scores
        done += len(part)
    return hits


# --- queries -------------------------------------------------------------------------------------------


def _limit(k: int, first: int | None, distance: DocumentDistance) -> int | None:
    """Return the largest number of papers to score; None = until the search is proved exact."""
    if k < 1:
        raise UserError(f"k is {k}; it must be at least 1")
    if first is not None and first < k:
        raise UserError(f"first is {first} and k is {k}; at least k papers must be scored")
    return None if distance.name in EXACT else first


def _read_queries(
    vectors: SentenceVectors, queries: Any, chosen: Sequence[NDArray[np.integer[Any]] | None] | None
) -> list[_SentenceQuery]:
    wanted = [None] * len(queries) if chosen is None else list(chosen)
    if len(wanted) != len(queries):
        raise UserError(
            f"query_sentences has {len(wanted):,} entries for {len(queries):,} queries; give one per query, None for all"
        )
    if len(queries) and np.ndim(queries[0]) == 2:
        return [_query_of_vectors(vectors, *each, at) for at, each in enumerate(zip(queries, wanted, strict=True))]
    rows = vectors.rows_of_all(queries) if len(queries) and isinstance(queries[0], str) else np.asarray(queries)
    outside = [row for row in rows.tolist() if not 0 <= row < len(vectors)]
    if outside:
        raise UserError(
            f"paper {outside[0]} is out of range; the sentence vectors have the papers 0 to {len(vectors) - 1}"
        )
    return [_query_of_paper(vectors, row, numbers) for row, numbers in zip(rows.tolist(), wanted, strict=True)]


def _query_of_paper(vectors: SentenceVectors, row: int, wanted: NDArray[np.integer[Any]] | None) -> _SentenceQuery:
    numbers = vectors.numbers[vectors.span(row)]
    return _SentenceQuery(_chosen(vectors.sentences(row), numbers, wanted, f"paper {vectors.ids[row]!r}"), row)


def _query_of_vectors(
    vectors: SentenceVectors, matrix: NDArray[Any], wanted: NDArray[np.integer[Any]] | None, at: int
) -> _SentenceQuery:
    dimension = vectors.matrix.shape[1]
    if matrix.ndim != 2 or matrix.shape[1] != dimension:
        raise UserError(
            f"query {at} has the shape {matrix.shape}; the papers have sentence vectors of {dimension} numbers: give "
            "(sentences, dimension) of the same model"
        )
    return _SentenceQuery(_chosen(matrix, np.arange(len(matrix)), wanted, f"query {at}"), -1)


def _chosen(
    sentences: NDArray[Any], numbers: NDArray[Any], wanted: NDArray[np.integer[Any]] | None, what: str
) -> Singles:
    taken = sentences if wanted is None else sentences[np.isin(numbers, wanted)]
    if not len(sentences):
        raise UserError(f"{what} has no sentence vectors; choose another query")
    if not len(taken):
        numbers_given = ", ".join(map(str, np.asarray(wanted).tolist())) or "none"
        raise UserError(
            f"none of the sentences {numbers_given} of {what} has a vector; it has vectors of the sentences "
            f"{', '.join(map(str, numbers[:20].tolist()))}{' ...' if len(numbers) > 20 else ''}"
        )
    return np.ascontiguousarray(taken, np.float32)


def _papers(vectors: SentenceVectors, pool: NDArray[np.integer[Any]] | None) -> Longs:
    """Return the papers to search, ascending: those of the pool that have a sentence."""
    papers = np.arange(len(vectors)) if pool is None else np.unique(np.asarray(pool, np.int64))
    if len(papers) and not 0 <= papers[0] <= papers[-1] < len(vectors):
        raise UserError(
            f"pool reaches from {papers[0]} to {papers[-1]}; the sentence vectors have the papers 0 to {len(vectors) - 1}"
        )
    return papers[vectors.offsets[papers + 1] > vectors.offsets[papers]]


def _blocks(queries: Sequence[_SentenceQuery], max_queries: int) -> Iterator[Sequence[_SentenceQuery]]:
    """Yield queries to bound together: at most `max_queries` with at most SENTENCES sentences; at least one."""
    start, sentences = 0, 0
    for at, query in enumerate(queries):
        sentences += len(query.sentences)
        if at > start and (at - start >= max_queries or sentences > SENTENCES):
            yield queries[start:at]
            start, sentences = at, len(query.sentences)
    yield queries[start:]


def _stack(queries: Sequence[_SentenceQuery]) -> SentenceQueries:
    offsets = to_offsets([len(query.sentences) for query in queries])
    return SentenceQueries(offsets, np.concatenate([query.sentences for query in queries]))


# --- ranking -------------------------------------------------------------------------------------------


def _rank_papers(
    vectors: PlacedSentences,
    papers: Longs,
    query: _SentenceQuery,
    bounds: Singles,
    k: int,
    limit: int | None,
    distance: DocumentDistance,
) -> tuple[Longs, Doubles, bool]:
    """Score papers, lowest bound first, until no other can be among the k nearest.

    Return the nearest, ties in the order of papers, their scores, and whether it is proved that no nearer one is missing.
    """
    rows, scores, left = np.empty(0, np.int64), np.empty(0), np.flatnonzero(papers != query.own)
    room, size = len(left) if limit is None else limit, max(2 * k, 64)
    # the bound needs plans with the masses as marginals, which those of mode geomloss do not have
    is_bound = distance.name != "transport" or distance.mode == "exact"
    while True:
        if is_bound and len(rows) == k:
            left = left[bounds[left] <= -scores[-1]]
        count = min(size, room, len(left), SCORED_TOGETHER)
        if not count:
            return rows, scores, not len(left)
        order = np.argpartition(bounds[left], count - 1)
        part, left = np.sort(left[order[:count]]), left[order[count:]]  # reads a mapped file forwards
        rows = np.concatenate([rows, papers[part]])
        scores = np.concatenate([scores, vectors.scores(query.sentences, papers[part], distance)])
        nearest = np.lexsort((rows, -scores))[:k]
        rows, scores = rows[nearest], scores[nearest]
        room, size = room - count, 2 * size


# --- lower bounds --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SentenceQueries(Ragged):
    """The sentence vectors of the queries of a sentence search, one query after the other; each has a sentence."""

    matrix: Singles
    """(sentences, dimension)"""


def lower_bounds(
    vectors: SentenceVectors,
    papers: Longs,
    queries: SentenceQueries,
    distance: DocumentDistance,
    reporter: Reporter = QUIET,
) -> Singles:
    """Return lower bounds of the distances in a sentence search from queries to papers, (queries, papers).

    For `single` and `mean_best` the bound is the distance itself but for rounding.
    """
    bounds = np.empty((len(queries), len(papers)), np.float32)
    starts, lengths = vectors.offsets[papers], vectors.offsets[papers + 1] - vectors.offsets[papers]
    norms = norms_of(queries.matrix, None, "queries")
    with reporter.task("searching", int(lengths.sum()), "sentences") as advance:
        for part in split_rows(lengths, TILE):
            block = np.asarray(vectors.matrix[_paper_rows(starts[part], lengths[part])], np.float32)
            firsts = to_offsets(lengths[part])[:-1]
            tile = _DistanceTile.of(block, queries.matrix, norms, distance.metric)
            bounds[:, part] = _round_down(_bound(tile, queries.offsets[:-1], firsts, distance))
            advance(len(block))
    return bounds


def _paper_rows(starts: Longs, lengths: Longs) -> slice | Longs:
    """Return the sentence rows of papers; a slice where they are adjacent, which is read far faster."""
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return slice(int(starts[0]), int(starts[-1] + lengths[-1]))
    return spans(starts, lengths)


@dataclass(frozen=True, slots=True)
class _DistanceTile:
    """Approximate distances of the query sentences to the sentences of some papers, with their largest error."""

    distances: Singles
    """(query sentences, tile sentences) squared L2 distances over scale^2, or 1 - cosine."""

    error: float
    """The largest error of these distances."""

    scale: float
    """0 for the cosine."""

    @classmethod
    def of(cls, block: Singles, queries: Singles, norms: Doubles, metric: str) -> _DistanceTile:
        squares = np.einsum("ij,ij->i", block, block)  # (sentences of the tile,)
        is_usual = all(part.min() > _SMALLEST_SQUARE and part.max() < _LARGEST_SQUARE for part in (squares, norms**2))
        lengths = np.sqrt(squares.astype(np.float64)) if is_usual else norms_of(block, None, "sentence vectors")
        scale = (max(float(lengths.max()), float(norms.max())) or 1.0) if metric == "l2" else 0.0
        pool = Pool(block, None, lengths, METRIC_CODES[metric], scale or 1.0)
        products: Singles  # (sentences of the queries, sentences of the tile)
        if is_usual:
            ready: Singles = queries * _column(inverse(np.full(len(norms), scale**2) if scale else norms))
            products = ready @ block.T
            if scale:
                products -= _row(squares / (2 * scale**2))
            else:
                products /= _row(lengths)
        else:
            tile = np.empty((len(block), pool.width), np.float32)
            pool.fill(tile, slice(0, len(block)))
            products = pool.prepare(queries, norms) @ tile.T
        # twice the error of a product of unit vectors; that of other vectors, with their squares, is at most 1.5 times it
        margin = float(pool.margins(norms)[0])
        if scale:
            return cls(_column((norms / scale) ** 2) - 2 * products, margin, scale)
        return cls(1 - products, margin, 0.0)

    def between(self, values: Singles) -> tuple[Doubles, Doubles]:
        """Return the lowest and the highest true distance of these approximate ones."""
        low, high = values - np.float64(self.error), values + np.float64(self.error)
        if not self.scale:
            return low, high
        return self.scale * np.sqrt(np.maximum(low, 0)), self.scale * np.sqrt(np.maximum(high, 0))


def _column(values: Doubles) -> Singles:
    return values.astype(np.float32)[:, None]


def _row(values: NDArray[Any]) -> Singles:
    return values.astype(np.float32)[None, :]


def _bound(tile: _DistanceTile, queries: Longs, papers: Longs, distance: DocumentDistance) -> Doubles:
    """Return lower bounds (queries, papers) of one tile; `queries` and `papers` are where each begins among its sentences."""
    low, high = tile.between(np.minimum.reduceat(tile.distances, papers, axis=1))  # (sentences of the queries, papers)
    if distance.name == "mean_best":
        counts = np.diff(np.append(queries, len(low)))[:, None]
        return np.asarray(np.add.reduceat(low, queries, axis=0) / counts)
    if distance.name == "transport":
        # mass goes at least to the nearest sentence, and comes at least from the nearest one
        sending = _transport_bound(low, high, queries, distance.temperature)
        nearest = np.minimum.reduceat(tile.distances, queries, axis=0).T  # (sentences of papers, queries)
        low, high = tile.between(nearest)
        return np.maximum(sending, _transport_bound(low, high, papers, distance.temperature).T)
    nearest = np.minimum.reduceat(low, queries, axis=0)
    return np.asarray(2 * nearest if distance.name == "top2" else nearest)


def _transport_bound(low: Doubles, high: Doubles, firsts: Longs, temperature: float) -> Doubles:
    """Return a lower bound of the transport distance: the mean nearest distance by mass, (papers, others).

    Masses are softmax(-nearest / t); `low` and `high`, (sentences, others), are around the nearest distances m. The mean f has the slopes
    a_i (1 - (m_i - f) / t), so that an error d of all m changes it by at most d (1 + sum a_i |m_i - f| / t), to the
    first order; twice as much is subtracted.
    """
    owners = owners_of(np.append(firsts, len(low)))
    nearest = np.minimum.reduceat(low, firsts, axis=0)
    weights = np.exp((nearest[owners] - low) / temperature)  # (sentences, others)
    total = np.add.reduceat(weights, firsts, axis=0)
    mean = np.add.reduceat(weights * low, firsts, axis=0) / total  # (papers, others)
    spread = np.add.reduceat(weights * np.abs(low - mean[owners]), firsts, axis=0) / total
    error = np.maximum.reduceat(high - low, firsts, axis=0)
    return np.asarray(mean - 2 * error * (1 + spread / temperature))


def _round_down(bounds: Doubles) -> Singles:
    """Round lower bounds down to float32, and a little more for the rounding of the distances themselves."""
    rounded = (bounds - 1e-9 * np.abs(bounds)).astype(np.float32)
    return np.nextafter(rounded, np.float32(-np.inf))
