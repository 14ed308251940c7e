"""At which rank one given paper stands among the neighbors of another: counted, never sorted.

    >>> matrix = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0.3]], np.float32)
    >>> ranks_of(matrix, np.array([0, 0, 2]), np.array([1, 3, 0])).tolist()     # of row 1 seen from row 0, ...
    [1, 2, 3]

Ranks are those of `similarity/topk`: 1 is the nearest, a paper is not its own neighbor, of equal scores the
lower row comes first. A pair costs one pass over the pool, in tiles, so any pool will do.

What rank bands would give before anything is mined: how many negatives would collide, how many are related.

    curve = collision_curve(vectors, anchors, positives=Band(20, 25), ranks=[50, 100, 1000, 4000])
    curve.shares                [0.081, 0.022, 0.0004, 0.0]       of the hard negatives taken around each rank

A negative b of anchor a collides when a is a positive of b (SciNCL, section 6.4). Positive pairs are few and negatives
far more, so the few are followed: for anchors b drawn at random, each of their positives a, and the rank at which a
sees b. Where that rank lies in the band of negatives, the two collide. So one count serves every band, and a
thousandth of a per cent can be told from a few hundred anchors. Ranks are exact; only the anchors are a sample.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.citations import CitationGraph
from citeweave.mining.false_negatives import bit_of, relate_pairs
from citeweave.mining.mining_data import PoolVectors
from citeweave.vectors.topk import search
from citeweave.vectors.topk.blocks import TILE
from citeweave.vectors.topk.kernels import exact_score
from citeweave.vectors.topk.request import Band, Question, check_request

_PAIRS = 1024
"""Pairs at a time; with a tile of the pool they take 16 MB."""

_SHARE = 256
"""Pairs that a thread counts for at a time."""


def ranks_of(
    matrix: NDArray[Any],
    rows: NDArray[np.integer[Any]],
    targets: NDArray[np.integer[Any]],
    *,
    metric: str = "cosine",
    pool_rows: NDArray[np.integer[Any]] | None = None,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> NDArray[np.int64]:
    """The rank of each target among the neighbors of its row; shape (pairs,). Both are rows of the pool."""
    pool = np.arange(len(matrix)) if pool_rows is None else np.asarray(pool_rows, np.int64)
    request = check_request(matrix, matrix[rows], [Band(0, 1)], metric=metric, pool_rows=pool, itself=np.asarray(rows))
    question = request.question(workers)
    places = np.searchsorted(pool, targets).astype(np.int64)
    ranks = np.ones(len(rows), np.int64)
    threads = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as executor, reporter.task("ranking", len(rows), "pairs") as advance:
        for start in range(0, len(rows), _PAIRS):
            part = slice(start, min(start + _PAIRS, len(rows)))
            _count_nearer(question, part, places[part], ranks[part], executor)
            advance(part.stop - part.start)
    return ranks


class _QueryTargets(NamedTuple):
    """Queries and their targets, as compiled code reads them."""

    queries: NDArray[np.float32]
    norms: NDArray[np.float64]
    margins: NDArray[np.float64]
    itself: NDArray[np.int64]
    targets: NDArray[np.int64]
    """Positions in the pool, as `itself`."""

    quick: NDArray[np.float32]
    """Score of the target, as a product gives it."""

    exact: NDArray[np.float32]


class _PoolTile(NamedTuple):
    """Some vectors of the pool."""

    start: int
    vectors: NDArray[np.float32]
    norms: NDArray[np.float64]


def _count_nearer(
    question: Question, part: slice, targets: NDArray[np.int64], ranks: NDArray[np.int64], executor: ThreadPoolExecutor
) -> None:
    """Add to `ranks` how many papers are nearer than the target, for a part of the queries."""
    pool, block = question.pool, question.block(part)
    tile = np.zeros((max(TILE, len(targets)), pool.width), np.float32)
    pool.fill(tile, targets)
    quick = np.einsum("ij,ij->i", block.ready, tile[: len(targets)]).astype(np.float32)  # (pairs,)
    pairs = _QueryTargets(
        block.vectors, block.norms, block.margins, block.itself.astype(np.int64), targets, quick, quick.copy()
    )
    _score_targets(pairs, pool.vectors(targets), pool.norms[targets], pool.metric)
    edges = [*range(0, len(targets), _SHARE), len(targets)]
    for start in range(0, len(pool), TILE):
        span = slice(start, min(start + TILE, len(pool)))
        width = pool.fill(tile, span)
        scores = block.ready @ tile[:width].T  # (pairs, tile)
        here = _PoolTile(start, pool.vectors(span), pool.norms[span])
        list(executor.map(partial(_add_nearer, scores, here, pairs, pool.metric, ranks), edges[:-1], edges[1:]))


@numba.njit(cache=True, nogil=True)
def _score_targets(pairs, vectors, norms, metric):  # type: ignore[no-untyped-def]
    for i in range(len(pairs.targets)):
        pairs.exact[i] = exact_score(pairs.queries[i], vectors[i], pairs.norms[i] * norms[i], metric)


@numba.njit(cache=True, nogil=True)
def _add_nearer(scores, tile, pairs, metric, ranks, low, high):  # type: ignore[no-untyped-def]
    """Products decide where they are sure; near the target the scores that count are computed."""
    for i in range(low, high):
        above = np.float64(pairs.quick[i]) + pairs.margins[i]
        below = np.float64(pairs.quick[i]) - pairs.margins[i]
        count = 0
        for j in range(scores.shape[1]):
            score = np.float64(scores[i, j])
            at = tile.start + j
            if score < below or at == pairs.itself[i] or at == pairs.targets[i]:
                continue
            if score > above:
                count += 1
                continue
            exact = exact_score(pairs.queries[i], tile.vectors[j], pairs.norms[i] * tile.norms[j], metric)
            count += exact > pairs.exact[i] or (exact == pairs.exact[i] and at < pairs.targets[i])
        ranks[i] += count


# What rank bands would give before anything is mined: how many negatives would collide, how many are related.

STEP = 1.25
"""From one rank of a grid to the next; a point of a curve speaks for the ranks this far around it."""

WIDE = 10
"""Neighbors looked at around each rank of a grid."""

RELATED = {
    "connected": bit_of("cited") | bit_of("citing"),
    "co-cited": bit_of("cocited"),
    "coupled": bit_of("coupled"),
    "connected or co-cited": bit_of("cited") | bit_of("citing") | bit_of("cocited"),
}
"""What is counted, and the bits of `pair_relations` that it stands for."""


@dataclass(frozen=True, slots=True)
class CollisionCurve:
    """The expected share of hard negatives that are positives elsewhere, by their rank."""

    ranks: NDArray[np.int64]
    shares: NDArray[np.float64]
    """Shape of `ranks`: the share at this rank, averaged over the ranks around it by a factor of `STEP`."""

    pairs: int
    """Positive pairs that were followed."""


@dataclass(frozen=True, slots=True)
class RelatedCurve:
    """The share of neighbors that the graph relates to the anchor, by their rank."""

    ranks: NDArray[np.int64]
    shares: dict[str, NDArray[np.float64]]
    """By the names of `RELATED`; of the shape of `ranks`. Single ranks where the grid is dense, else some before it."""

    background: dict[str, float]
    """The same for random papers of the pool."""


def rank_grid(first: int, last: int) -> NDArray[np.int64]:
    """Ranks that grow by a quarter at a time, the last one included.

    >>> rank_grid(1, 12).tolist(), rank_grid(100, 200).tolist()
    ([1, 2, 3, 4, 5, 6, 8, 10, 12], [100, 125, 156, 200])
    """
    ranks = [first]
    while ranks[-1] < last:
        ranks.append(max(ranks[-1] + 1, round(ranks[-1] * STEP)))
        if ranks[-1] * STEP**0.5 > last:
            ranks[-1] = last
    return np.array(ranks, np.int64)


def draw_anchors(vectors: PoolVectors, anchors: NDArray[np.integer[Any]], count: int, seed: int) -> NDArray[np.int64]:
    """So many anchors that have a vector in the pool, as rows of its matrix, ascending."""
    rows = vectors.row_of[anchors]
    known = np.intersect1d(rows[rows >= 0], vectors.pool)
    return np.sort(stream(seed, "bands", "anchors").choice(known, min(count, len(known)), replace=False))


def collision_curve(
    vectors: PoolVectors,
    anchors: NDArray[np.integer[Any]],
    *,
    positives: Band,
    ranks: Sequence[int] | NDArray[np.integer[Any]],
    count: int | None = None,
    metric: str = "cosine",
    sample: int = 500,
    seed: int = 0,
) -> CollisionCurve:
    """The expected share of colliding negatives at each rank. Anchors are papers.

    `count` positives are drawn from the band; left out, the band holds just as many as are wanted.
    """
    rows = draw_anchors(vectors, anchors, sample, seed)
    seen = reverse_ranks(vectors, rows, anchors, positives, metric=metric)
    shares = collision_shares(seen, len(rows), positives, ranks, len(vectors.pool), count=count)
    return CollisionCurve(np.asarray(ranks, np.int64), shares, len(seen))


def reverse_ranks(
    vectors: PoolVectors,
    rows: NDArray[np.int64],
    anchors: NDArray[np.integer[Any]],
    positives: Band,
    *,
    metric: str = "cosine",
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> NDArray[np.int64]:
    """For each of some anchors, and each paper in its band of positives that is an anchor too: at which rank that
    paper sees the anchor. Rows are of the matrix, anchors are papers."""
    found = search(
        vectors.matrix, vectors.matrix[rows], [positives], metric=metric, pool_rows=vectors.pool, itself=rows, workers=workers
    )[0].rows  # (rows, width of the band)  # fmt: skip
    own, other = np.repeat(rows, found.shape[1]), found.ravel().astype(np.int64)
    usable = (other >= 0) & np.isin(other, vectors.row_of[anchors])
    return ranks_of(
        vectors.matrix,
        other[usable],
        own[usable],
        metric=metric,
        pool_rows=vectors.pool,
        workers=workers,
        reporter=reporter,
    )


def collision_shares(
    seen: NDArray[np.int64],
    anchors: int,
    positives: Band,
    ranks: Sequence[int] | NDArray[np.integer[Any]],
    pool: int,
    *,
    count: int | None = None,
) -> NDArray[np.float64]:
    """From reverse ranks to shares: an anchor makes `count` positive pairs, of which the part with a reverse rank
    from low to high collides with the negatives taken there, as many as there are ranks from low to high."""
    ordered = np.sort(seen)
    high = np.minimum(np.ceil(np.asarray(ranks) * STEP).astype(np.int64), pool - 1)
    low = np.minimum(np.floor(np.asarray(ranks) / STEP).astype(np.int64), high - 1)
    inside = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "right")
    drawn = 1.0 if count is None else count / (positives.high - positives.low)
    return np.asarray(drawn * inside / max(1, anchors) / (high - low), np.float64)


def related_curve(
    vectors: PoolVectors,
    graph: CitationGraph,
    rows: NDArray[np.int64],
    *,
    near: int,
    ranks: NDArray[np.int64],
    metric: str = "cosine",
    seed: int = 0,
    workers: int = 0,
) -> RelatedCurve:
    """Ask the graph about the neighbors of some anchors (rows of the matrix): each of the nearest `near`, and up to
    ten around every farther rank of the grid."""
    far = ranks[ranks > near]
    before = np.maximum(np.concatenate([[near], far[:-1]]), far - WIDE)
    bands = [Band(0, near), *(Band(int(low), int(high)) for low, high in zip(before, far, strict=True))]
    found = search(
        vectors.matrix, vectors.matrix[rows], bands, metric=metric, pool_rows=vectors.pool, itself=rows, workers=workers
    )
    columns = [block.rows[:, [at]] for block in found[:1] for at in range(near)] + [block.rows for block in found[1:]]
    asked = [_relate(vectors, graph, rows, column, workers) for column in columns]
    random = stream(seed, "bands", "background").choice(vectors.pool, (len(rows), 4 * WIDE))
    return RelatedCurve(
        ranks=np.concatenate([np.arange(1, near + 1), far]),
        shares={name: np.array([_share(bits, wanted) for bits in asked]) for name, wanted in RELATED.items()},
        background={
            name: _share(_relate(vectors, graph, rows, random, workers), wanted) for name, wanted in RELATED.items()
        },
    )


def _relate(
    vectors: PoolVectors, graph: CitationGraph, rows: NDArray[np.int64], others: NDArray[Any], workers: int
) -> NDArray[np.uint8]:
    """Relations of every row with its others, shape of `others` (rows, number) without those that are missing."""
    own, other = np.repeat(rows, others.shape[1]), others.ravel()
    known = (other >= 0) & (other != own)
    return relate_pairs(graph, vectors.paper_of[own[known]], vectors.paper_of[other[known]], workers=workers)


def _share(bits: NDArray[np.uint8], wanted: int) -> float:
    return float(((bits & wanted) > 0).mean()) if len(bits) else 0.0
