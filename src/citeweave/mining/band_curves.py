"""Curves for choosing rank bands: by rank, the share of colliding negatives and of related neighbors.

    reverse = reverse_ranks(vectors, rows, anchors, Band(20, 25))
    collision_shares(reverse, len(rows), [50, 100, 1000, 4000], pool)       [0.081, 0.022, 0.0004, 0.0]

A negative b of anchor a collides when a is a positive of b (SciNCL, section 6.4). Positive pairs are far fewer than
negatives, so they are counted: for anchors b drawn at random, each of their positives a, and the rank of b among the
neighbors of a. If that rank lies in the band of negatives, the two collide. So one count serves every band, and a
thousandth of a percent can be measured with a few hundred anchors. Ranks are exact; only the anchors are a sample.

The rank of one paper among the neighbors of another is counted, never sorted:

    >>> matrix = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0.3]], np.float32)
    >>> rank_pairs(matrix, np.array([0, 0, 2]), np.array([1, 3, 0])).tolist()     # of row 1 seen from row 0, ...
    [1, 2, 3]

Ranks are those of `vectors/topk`: 1 is the nearest, a paper is not its own neighbor, of equal scores the lower row
comes first. A pair costs one pass over the pool, in tiles, so the pool may have any size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.citations import CitationGraph
from citeweave.mining.false_negatives import relate_pairs, relation_bit
from citeweave.mining.inputs import PoolVectors
from citeweave.vectors.topk import Band, search
from citeweave.vectors.topk.kernels import exact_score
from citeweave.vectors.topk.request import TILE, PreparedRequest, check_request

STEP = 1.25
"""Factor from one rank of a grid to the next; a point of a curve stands for the ranks within this factor."""

NEIGHBORS_PER_RANK = 10
"""Neighbors examined around each rank of a grid."""

RELATED = {
    "connected": relation_bit("cited") | relation_bit("citing"),
    "co-cited": relation_bit("cocited"),
    "coupled": relation_bit("coupled"),
    "connected or co-cited": relation_bit("cited") | relation_bit("citing") | relation_bit("cocited"),
}
"""Relations that are counted, as bits of `false_negatives.relate_pairs`."""


@dataclass(frozen=True, slots=True)
class CollisionCurve:
    """Curve of the expected share of hard negatives that collide (are positives elsewhere), by their rank."""

    ranks: NDArray[np.int64]
    shares: NDArray[np.float64]
    """Shape of `ranks`: the share at this rank, averaged over the ranks around it by a factor of `STEP`."""

    pairs: int
    """Positive pairs that were ranked."""


@dataclass(frozen=True, slots=True)
class RelatedCurve:
    """Curve of the share of neighbors that the citation graph relates to the anchor, by their rank."""

    ranks: NDArray[np.int64]
    shares: dict[str, NDArray[np.float64]]
    """By the names of `RELATED`; of the shape of `ranks`. Single ranks where the grid is dense, else some before it."""

    background: dict[str, float]
    """The same for random papers of the pool."""


def rank_grid(first: int, last: int) -> NDArray[np.int64]:
    """Return the ranks of a curve for choosing bands: they grow by a quarter at a time, including the last one.

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
    """Draw anchors that have a vector in the pool, as ascending rows of its matrix, to measure curves on."""
    rows = vectors.row_of[anchors]
    known = np.intersect1d(rows[rows >= 0], vectors.pool)
    return np.sort(stream(seed, "bands", "anchors").choice(known, min(count, len(known)), replace=False))


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
    """Return ranks for the collision curve: of anchors among the neighbors of each positive that is an anchor too.

    Positives are the papers in a band of ranks. Rows are rows of the matrix, anchors are papers.
    """
    [neighbors] = _search(vectors, rows, [positives], metric, workers)  # (rows, width of the band)
    own, other = np.repeat(rows, neighbors.shape[1]), neighbors.ravel().astype(np.int64)
    usable = (other >= 0) & np.isin(other, vectors.row_of[anchors])
    return rank_pairs(
        vectors.matrix,
        other[usable],
        own[usable],
        metric=metric,
        pool_rows=vectors.pool,
        workers=workers,
        reporter=reporter,
    )


def collision_shares(
    reverse: NDArray[np.int64], anchors: int, ranks: Sequence[int] | NDArray[np.integer[Any]], pool: int
) -> NDArray[np.float64]:
    """Convert reverse ranks into the curve of expected shares of colliding negatives at each rank.

    Positive pairs with a reverse rank from low to high collide with the negatives taken there, as many as there are
    ranks from low to high.
    """
    ordered = np.sort(reverse)
    high = np.minimum(np.ceil(np.asarray(ranks) * STEP).astype(np.int64), pool - 1)
    low = np.minimum(np.floor(np.asarray(ranks) / STEP).astype(np.int64), high - 1)
    inside = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "right")
    return np.asarray(inside / max(1, anchors) / (high - low), np.float64)


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
    """Measure the curve of related neighbors: how often the graph relates them to some anchors (matrix rows), by rank.

    Counted are each of the nearest `near` neighbors, and up to ten before every farther rank of the grid.
    """
    far = ranks[ranks > near]
    before = np.maximum(np.concatenate([[near], far[:-1]]), far - NEIGHBORS_PER_RANK)
    bands = [Band(0, near), *(Band(int(low), int(high)) for low, high in zip(before, far, strict=True))]
    nearest, *others = _search(vectors, rows, bands, metric, workers)
    columns = [nearest[:, [at]] for at in range(near)] + others
    relations = [_relate(vectors, graph, rows, column, workers) for column in columns]
    random = stream(seed, "bands", "background").choice(vectors.pool, (len(rows), 4 * NEIGHBORS_PER_RANK))
    return RelatedCurve(
        ranks=np.concatenate([np.arange(1, near + 1), far]),
        shares={name: np.array([_share(bits, relation) for bits in relations]) for name, relation in RELATED.items()},
        background={
            name: _share(_relate(vectors, graph, rows, random, workers), relation) for name, relation in RELATED.items()
        },
    )


def _search(
    vectors: PoolVectors, rows: NDArray[np.int64], bands: Sequence[Band], metric: str, workers: int
) -> list[NDArray[Any]]:
    """Return the neighbors of some rows in every band of ranks, (rows, width of the band)."""
    matrix, pool = vectors.matrix, vectors.pool
    found = search(matrix, matrix[rows], bands, metric=metric, pool_rows=pool, itself=rows, workers=workers)
    return [neighbors.rows for neighbors in found]


def _relate(
    vectors: PoolVectors, graph: CitationGraph, rows: NDArray[np.int64], others: NDArray[Any], workers: int
) -> NDArray[np.uint8]:
    """Return the relations of every row with its neighbors, (rows, number), without missing ones."""
    own, other = np.repeat(rows, others.shape[1]), others.ravel()
    known = (other >= 0) & (other != own)
    return relate_pairs(graph, vectors.paper_of[own[known]], vectors.paper_of[other[known]], workers=workers)


def _share(bits: NDArray[np.uint8], relation: int) -> float:
    return float(((bits & relation) > 0).mean()) if len(bits) else 0.0


# Ranks of pairs.

_PAIRS_PER_BLOCK = 1024
"""Pairs ranked at a time; with a tile of the pool they take 16 MB."""

_PAIRS_PER_THREAD = 256
"""Pairs that a thread ranks at a time."""


def rank_pairs(
    matrix: NDArray[Any],
    rows: NDArray[np.integer[Any]],
    targets: NDArray[np.integer[Any]],
    *,
    metric: str = "cosine",
    pool_rows: NDArray[np.integer[Any]] | None = None,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> NDArray[np.int64]:
    """Rank pairs for a band curve: each target, of the pool, among its row's neighbors, by counting nearer papers."""
    pool = np.arange(len(matrix)) if pool_rows is None else np.asarray(pool_rows, np.int64)
    request = check_request(matrix, matrix[rows], [Band(0, 1)], metric=metric, pool_rows=pool, itself=np.asarray(rows))
    question = request.prepare(workers)
    places = np.searchsorted(pool, targets).astype(np.int64)
    ranks = np.ones(len(rows), np.int64)
    threads = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as executor, reporter.task("ranking", len(rows), "pairs") as advance:
        for start in range(0, len(rows), _PAIRS_PER_BLOCK):
            part = slice(start, min(start + _PAIRS_PER_BLOCK, len(rows)))
            _count_nearer(question, part, places[part], ranks[part], executor)
            advance(part.stop - part.start)
    return ranks


class _QueryTargets(NamedTuple):
    """Query papers and the targets to rank, as compiled code reads them."""

    queries: NDArray[np.float32]
    norms: NDArray[np.float64]
    margins: NDArray[np.float64]
    itself: NDArray[np.int64]
    targets: NDArray[np.int64]
    """Positions in the pool, as `itself`."""

    quick: NDArray[np.float32]
    """Score of the target by matrix product."""

    exact: NDArray[np.float32]


class _PoolTile(NamedTuple):
    """A tile of pool vectors against which pairs are ranked."""

    start: int
    vectors: NDArray[np.float32]
    norms: NDArray[np.float64]


def _count_nearer(
    question: PreparedRequest,
    part: slice,
    targets: NDArray[np.int64],
    ranks: NDArray[np.int64],
    executor: ThreadPoolExecutor,
) -> None:
    """Add to `ranks` how many papers are nearer than the target, for a part of the pairs."""
    pool, block = question.pool, question.block(part)
    tile = np.zeros((max(TILE, len(targets)), pool.width), np.float32)
    pool.fill(tile, targets)
    quick = np.einsum("ij,ij->i", block.ready, tile[: len(targets)]).astype(np.float32)  # (pairs,)
    pairs = _QueryTargets(
        block.vectors, block.norms, block.margins, block.itself.astype(np.int64), targets, quick, quick.copy()
    )
    _score_targets(pairs, pool.vectors(targets), pool.norms[targets], pool.metric)
    edges = [*range(0, len(targets), _PAIRS_PER_THREAD), len(targets)]
    for start in range(0, len(pool), TILE):
        span = slice(start, min(start + TILE, len(pool)))
        width = pool.fill(tile, span)
        scores = block.ready @ tile[:width].T  # (pairs, tile)
        here = _PoolTile(start, pool.vectors(span), pool.norms[span])
        list(executor.map(partial(_add_nearer, scores, here, pairs, pool.metric, ranks), edges[:-1], edges[1:]))


@compiled()
def _score_targets(pairs, vectors, norms, metric):  # type: ignore[no-untyped-def]
    for i in range(len(pairs.targets)):
        pairs.exact[i] = exact_score(pairs.queries[i], vectors[i], pairs.norms[i] * norms[i], metric)


@compiled()
def _add_nearer(scores, tile, pairs, metric, ranks, low, high):  # type: ignore[no-untyped-def]
    """Count nearer papers by matrix products where they are certain; close to the target compute exact scores."""
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
