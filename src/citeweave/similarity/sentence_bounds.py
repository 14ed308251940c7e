"""One walk through a matrix of sentence vectors: how near each paper can be to each query at most.

    query of 2 sentences, paper of 3      nearest of the 3 to each of the 2: 0.3, 0.5
    single 0.3      mean_best 0.4      transport, alike masses: at least 0.4, as what a sentence sends goes no shorter way,
                                       nor comes from nearer than the nearest to each of the 3, whichever is more

Quick products give the nearest sentences; what rounding may have added is taken off, so that a bound is never above the
distance that `transport.py` computes. The matrix is read once, tile by tile, and never copied whole.
Does not rank: see `sentence_search.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.progress import QUIET, Reporter
from citeweave.similarity.sentence_vectors import SentenceVectors
from citeweave.similarity.topk.blocks import Pool, inverse, norms_of
from citeweave.similarity.topk.kernels import COSINE, L2
from citeweave.similarity.transport import DocumentDistance

TILE = 4096
"""Sentences taken at a time; a paper is never divided."""

_LEAST, _MOST = 1e-20, 1e30
"""Squares of lengths between which float32 loses nothing."""

_CODES = {"l2": L2, "cosine": COSINE}

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueryBlock:
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
    queries: QueryBlock,
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
            tile = _Tile.of(block, queries.matrix, norms, distance.metric)
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
class _Tile:
    """How far the sentences of the queries are from those of some papers, as quick products tell."""

    apart: Singles
    """(sentences of the queries, sentences of the tile) squares of L2 distances over scale^2, or 1 - cosine."""

    error: float
    """No number of it is wrong by more."""

    scale: float
    """0 for the cosine."""

    @classmethod
    def of(cls, block: Singles, queries: Singles, norms: Doubles, metric: str) -> _Tile:
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


def _bound(tile: _Tile, queries: Longs, papers: Longs, distance: DocumentDistance) -> Doubles:
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
