"""One walk through a matrix of sentence vectors: how near each paper can be to each query at most.

    query of 2 sentences, paper of 3      nearest of the 3 to each of the 2: 0.3, 0.5
    single 0.3      mean_best 0.4      transport, alike masses: at least 0.4, as what a sentence sends goes no shorter way,
                                       nor comes from nearer than the nearest to each of the 3, whichever is more

Quick products give the nearest sentences; what rounding may have added is taken off, so that a bound is never above the
distance that `transport.py` computes. The matrix is read once, tile by tile, and never copied whole.
Does not rank: see `sentence_search.py`.

Search among papers by the vectors of their sentences: all papers, no index, whole abstracts or chosen sentences.

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

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.vectors.document_distance import DocumentDistance, PlacedSentences
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk.blocks import Pool, inverse, norms_of
from citeweave.vectors.topk.kernels import COSINE, L2

TILE = 4096
"""Sentences taken at a time; a paper is never divided."""

_LEAST, _MOST = 1e-20, 1e30
"""Squares of lengths between which float32 loses nothing."""

_CODES = {"l2": L2, "cosine": COSINE}

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentenceQueries:
    """The sentences of some queries, one query after the other."""

    matrix: Singles
    """(sentences, dimension)"""

    offsets: Longs
    """(queries + 1,); every query has a sentence."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


def lower_bounds(
    vectors: SentenceVectors,
    papers: Longs,
    queries: SentenceQueries,
    distance: DocumentDistance,
    reporter: Reporter = QUIET,
) -> Singles:
    """(queries, papers) a distance that none of these papers, each of which has a sentence, can be nearer than.

    Of `single` and `mean_best` it is the distance itself but for rounding.
    """
    bounds = np.empty((len(queries), len(papers)), np.float32)
    starts, lengths = vectors.offsets[papers], vectors.offsets[papers + 1] - vectors.offsets[papers]
    norms = norms_of(queries.matrix, None, "queries")
    with reporter.task("searching", int(lengths.sum()), "sentences") as advance:
        for part in _tiles(lengths):
            block = np.asarray(vectors.matrix[_spread(starts[part], lengths[part])], np.float32)
            firsts = np.cumsum(lengths[part]) - lengths[part]
            tile = _DistanceTile.of(block, queries.matrix, norms, distance.metric)
            bounds[:, part] = _down(_bound(tile, queries.offsets[:-1], firsts, distance))
            advance(len(block))
    return bounds


def _tiles(lengths: Longs) -> Iterator[slice]:
    """Ranges of papers with about TILE sentences, at least one paper each."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + TILE, side="right")))
        yield slice(start, stop)
        start = stop


def _spread(starts: Longs, lengths: Longs) -> slice | Longs:
    """The rows of papers that begin at `starts`; a slice where they lie side by side, which is read far faster."""
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return slice(int(starts[0]), int(starts[-1] + lengths[-1]))
    return spread_rows(starts, lengths)


def spread_rows(starts: Longs, lengths: Longs) -> Longs:
    """
    >>> spread_rows(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    firsts = np.cumsum(lengths) - lengths
    rows: Longs = np.arange(lengths.sum()) + np.repeat(starts - firsts, lengths)
    return rows


@dataclass(frozen=True, slots=True)
class _DistanceTile:
    """How far the sentences of the queries are from those of some papers, as quick products tell."""

    apart: Singles
    """(sentences of the queries, sentences of the tile) squares of L2 distances over scale^2, or 1 - cosine."""

    error: float
    """No number of it is wrong by more."""

    scale: float
    """0 for the cosine."""

    @classmethod
    def of(cls, block: Singles, queries: Singles, norms: Doubles, metric: str) -> _DistanceTile:
        squares = np.einsum("ij,ij->i", block, block)  # (sentences of the tile,)
        is_usual = all(part.min() > _LEAST and part.max() < _MOST for part in (squares, norms**2))
        lengths = np.sqrt(squares.astype(np.float64)) if is_usual else norms_of(block, None, "sentence vectors")
        scale = (max(float(lengths.max()), float(norms.max())) or 1.0) if metric == "l2" else 0.0
        pool = Pool(block, None, lengths, _CODES[metric], scale or 1.0)
        quick: Singles  # (sentences of the queries, sentences of the tile)
        if is_usual:
            ready: Singles = queries * _column(inverse(np.full(len(norms), scale**2) if scale else norms))
            quick = ready @ block.T
            if scale:
                quick -= _row(squares / (2 * scale**2))
            else:
                quick /= _row(lengths)
        else:
            tile = np.empty((len(block), pool.width), np.float32)
            pool.fill(tile, slice(0, len(block)))
            quick = pool.prepare(queries, norms) @ tile.T
        # twice the error of a product of vectors of length 1: that of others is half as much again, with their squares
        margin = float(pool.margins(norms)[0])
        if scale:
            return cls(_column((norms / scale) ** 2) - 2 * quick, margin, scale)
        return cls(1 - quick, margin, 0.0)

    def between(self, values: Singles) -> tuple[Doubles, Doubles]:
        """The least and the greatest distance that these numbers of `apart` may stand for."""
        low, high = values - np.float64(self.error), values + np.float64(self.error)
        if not self.scale:
            return low, high
        return self.scale * np.sqrt(np.maximum(low, 0)), self.scale * np.sqrt(np.maximum(high, 0))


def _column(values: Doubles) -> Singles:
    return values.astype(np.float32)[:, None]


def _row(values: NDArray[Any]) -> Singles:
    return values.astype(np.float32)[None, :]


def _bound(tile: _DistanceTile, queries: Longs, papers: Longs, distance: DocumentDistance) -> Doubles:
    """(queries, papers); `queries` and `papers` say where each begins among the sentences of its side."""
    low, high = tile.between(np.minimum.reduceat(tile.apart, papers, axis=1))  # (sentences of the queries, papers)
    if distance.name == "mean_best":
        counts = np.diff(np.append(queries, len(low)))[:, None]
        return np.asarray(np.add.reduceat(low, queries, axis=0) / counts)
    if distance.name == "transport":
        # what leaves a sentence goes at least to the nearest one, and what arrives comes at least from there
        leaving = _carried(low, high, queries, distance.temperature)
        low, high = tile.between(np.minimum.reduceat(tile.apart, queries, axis=0).T)  # (sentences of papers, queries)
        return np.maximum(leaving, _carried(low, high, papers, distance.temperature).T)
    nearest = np.minimum.reduceat(low, queries, axis=0)
    return np.asarray(2 * nearest if distance.name == "top2" else nearest)


def _carried(low: Doubles, high: Doubles, firsts: Longs, temperature: float) -> Doubles:
    """The mean nearest distance of a paper's sentences with the masses softmax(-nearest / t), (papers, others).

    `low` and `high`, (sentences, others), are around the nearest distances m. The mean f has the slopes
    a_i (1 - (m_i - f) / t), so that an error d of all m changes it by at most d (1 + sum a_i |m_i - f| / t), to the
    first order; twice as much is taken off.
    """
    owners = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(low))))
    nearest = np.minimum.reduceat(low, firsts, axis=0)
    weights = np.exp((nearest[owners] - low) / temperature)  # (sentences, others)
    total = np.add.reduceat(weights, firsts, axis=0)
    mean = np.add.reduceat(weights * low, firsts, axis=0) / total  # (papers, others)
    spread = np.add.reduceat(weights * np.abs(low - mean[owners]), firsts, axis=0) / total
    error = np.maximum.reduceat(high - low, firsts, axis=0)
    return np.asarray(mean - 2 * error * (1 + spread / temperature))


def _down(bounds: Doubles) -> Singles:
    """Rounded to float32, never upwards; a little lower still, for the last digits of what is compared with them."""
    rounded = (bounds - 1e-9 * np.abs(bounds)).astype(np.float32)
    return np.nextafter(rounded, np.float32(-np.inf))


# Search among papers by the vectors of their sentences: all papers, no index, whole abstracts or chosen sentences.

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
class _SentenceQuery:
    """One query."""

    sentences: Singles
    own: int
    """Its position among the papers, -1 where it is none of them."""


class SentenceSearchOptions(TypedDict, total=False):
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
    **options: Unpack[SentenceSearchOptions],
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
) -> list[_SentenceQuery]:
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


def _of_paper(vectors: SentenceVectors, row: int, wanted: NDArray[np.integer[Any]] | None) -> _SentenceQuery:
    span = slice(int(vectors.offsets[row]), int(vectors.offsets[row + 1]))
    numbers = np.asarray(vectors.numbers[span])
    return _SentenceQuery(_chosen(vectors.sentences(row), numbers, wanted, f"paper {vectors.ids[row]!r}"), row)


def _given(
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


def _blocks(asked: Sequence[_SentenceQuery], most: int) -> Iterator[Sequence[_SentenceQuery]]:
    """Queries that are walked with together: at most so many, with at most SENTENCES; at least one."""
    start, sentences = 0, 0
    for at, query in enumerate(asked):
        sentences += len(query.sentences)
        if at > start and (at - start >= most or sentences > SENTENCES):
            yield asked[start:at]
            start, sentences = at, len(query.sentences)
    yield asked[start:]


def _block(asked: Sequence[_SentenceQuery]) -> SentenceQueries:
    offsets = np.cumsum([0, *(len(query.sentences) for query in asked)])
    return SentenceQueries(np.concatenate([query.sentences for query in asked]), offsets)


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
    query: _SentenceQuery,
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
