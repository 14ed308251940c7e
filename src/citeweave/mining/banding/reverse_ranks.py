"""At which rank one given paper stands among the neighbours of another: counted, never sorted.

    >>> matrix = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0.3]], np.float32)
    >>> ranks_of(matrix, np.array([0, 0, 2]), np.array([1, 3, 0])).tolist()     # of row 1 seen from row 0, ...
    [1, 2, 3]

Ranks are those of `similarity/topk`: 1 is the nearest, a paper is not its own neighbour, of equal scores the
lower row comes first. A pair costs one pass over the pool, in tiles, so any pool will do.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.progress import QUIET, Reporter
from citeweave.similarity.topk.blocks import TILE
from citeweave.similarity.topk.kernels import exact_score
from citeweave.similarity.topk.request import Band, Question, check_request

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
    """The rank of each target among the neighbours of its row; shape (pairs,). Both are rows of the pool."""
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


class _Pairs(NamedTuple):
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


class _Tile(NamedTuple):
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
    pairs = _Pairs(
        block.vectors, block.norms, block.margins, block.itself.astype(np.int64), targets, quick, quick.copy()
    )
    _score_targets(pairs, pool.vectors(targets), pool.norms[targets], pool.metric)
    edges = [*range(0, len(targets), _SHARE), len(targets)]
    for start in range(0, len(pool), TILE):
        span = slice(start, min(start + TILE, len(pool)))
        width = pool.fill(tile, span)
        scores = block.ready @ tile[:width].T  # (pairs, tile)
        here = _Tile(start, pool.vectors(span), pool.norms[span])
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
