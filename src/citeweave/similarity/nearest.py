"""Exact nearest neighbours: for each query, the vectors at given ranks of a pool.

    >>> pool = np.array([[0, 1], [1, 1], [1, 0], [2, 0]], np.float32)
    >>> found = nearest(pool, pool[[2]], 2, itself=np.array([2]))     # itself: row 2 is not its own neighbour
    >>> found.rows.tolist(), found.scores.tolist()
    ([[3, 1]], [[1.0, 0.7071067690849304]])
    >>> [band.rows.tolist() for band in search(pool, pool[[2]], [Band(0, 1), Band(2, 4)], metric="l2")]
    [[[2]], [[3, 0]]]

Ranks count from 1 and leave the query itself out; a band holds the ranks low < rank <= high, as SciNCL takes its
positives from (20, 25] and its hard negatives from (3998, 4000] (Ostendorff and others, 2022). Neighbours stand by
score, the highest first, then by row: the same on any machine, with any number of workers, blocks or devices. Scores
are computed from the vectors as float32, summed as float64, rounded to float32; a vector of zeros has the cosine 0.

Every query is compared with every vector of the pool, which is never copied as a whole; there is no index and nothing
is approximate, except in `far_band`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError, choose
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream
from citeweave.similarity.searching.question import METRICS, Band, Plan, Question, ask, plan_for
from citeweave.similarity.searching.scanning import Block, CpuScan, Kept, Threads
from citeweave.similarity.searching.settling import Placed, Settler
from citeweave.similarity.searching.torch_scan import TorchScan, has_cuda

__all__ = ["DEVICES", "METRICS", "Band", "Neighbours", "Options", "far_band", "nearest", "search", "search_blocks"]

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The members of one band, one line a query, in the order of the ranks."""

    rows: NDArray[np.int32]
    """Rows of the matrix, (queries, high - low); -1 where the pool has no vector of that rank."""

    scores: NDArray[np.float32]
    """Higher is nearer: cosine, inner product, or minus the L2 distance; NaN where the row is -1."""


class Options(TypedDict, total=False):
    """The options of every search here, all of which may be left out."""

    metric: str
    """One of METRICS; cosine unless told otherwise."""

    pool_rows: NDArray[Any] | None
    """Ascending: only these rows of the pool's matrix count; results are rows of the whole matrix all the same."""

    itself: NDArray[Any] | None
    """(queries,): each query's own row, or -1; it is no neighbour of that query and takes no rank."""

    workers: int
    """Threads, beside those of numpy's own matrix product; 0, the default, is one a core."""

    memory: int
    """Bytes of working memory, without the arguments and the results; 512 MiB unless told otherwise."""

    device: str
    """One of DEVICES; cpu unless told otherwise. cuda needs torch; auto takes a graphics card where there is one."""

    reporter: Reporter


def search(
    pool: NDArray[Any], queries: NDArray[Any], bands: Sequence[Band], **options: Unpack[Options]
) -> list[Neighbours]:
    """The neighbours of all queries, one `Neighbours` a band, in the order of `bands`; see `Options`.

    `pool` (rows, dimension) and `queries` (queries, dimension) are float16 or float32, in memory or mapped.
    """
    parts = search_blocks(pool, queries, bands, **options)
    shapes = [(len(queries), band.high - band.low) for band in bands]
    found = [Neighbours(np.empty(shape, np.int32), np.empty(shape, np.float32)) for shape in shapes]
    for part, blocks in parts:
        for whole, block in zip(found, blocks, strict=True):
            whole.rows[part], whole.scores[part] = block.rows, block.scores
    return found


def search_blocks(
    pool: NDArray[Any],
    queries: NDArray[Any],
    bands: Sequence[Band],
    *,
    metric: str = "cosine",
    pool_rows: NDArray[Any] | None = None,
    itself: NDArray[Any] | None = None,
    workers: int = 0,
    memory: int = 512 << 20,
    device: str = "cpu",
    reporter: Reporter = QUIET,
) -> Iterator[tuple[slice, list[Neighbours]]]:
    """As `search`, block of queries by block: which queries, and their neighbours, one `Neighbours` a band.

    The arguments are checked at once, not when the first block is taken.
    """
    choose(device, DEVICES, "device")
    question = ask(pool, queries, bands, metric=metric, pool_rows=pool_rows, itself=itself)
    on_card = device == "cuda" or (device == "auto" and has_cuda())
    plan = plan_for(question, workers=workers, memory=memory // 2 if on_card else memory)  # two blocks are under way
    ranks = question.ranks
    scan = TorchScan(question.pool, ranks.deepest, "cuda", ranks=ranks) if on_card else None
    return _answer(question, plan, scan, reporter)


def nearest(pool: NDArray[Any], queries: NDArray[Any], k: int, **options: Unpack[Options]) -> Neighbours:
    """The k nearest, the nearest first: the band (0, k]. Options are those of `search`."""
    return search(pool, queries, [Band(0, k)], **options)[0]


def far_band(
    pool: NDArray[Any], queries: NDArray[Any], band: Band, *, subsample: int, seed: int = 0, **options: Unpack[Options]
) -> Neighbours:
    """Neighbours of about the ranks of a far band, out of a random subsample of the pool; options as of `search`.

    In a uniform subsample of m of n vectors, without replacement, the vector of rank r has the rank r n / m of the
    whole pool, give or take a relative standard error of about sqrt((1 - m / n) / r). So of a band (low, high] the
    high - low ranks that end at round(high m / n) are taken, or the first ones where that is less than their number.

    A tenth of 680,967 vectors makes (3998, 4000] into (398, 400] at a tenth of the cost: true ranks are 4,000 give or
    take sqrt(0.9 / 400) = 4.7 %, 190 ranks. For (20, 25] it would be 60 %: near bands are to be searched exactly.
    """
    rows = options.get("pool_rows")
    size = len(pool) if rows is None else len(rows)
    width = band.high - band.low
    if not width <= subsample <= size:
        raise UserError(
            f"subsample is {subsample:,}; it must be from {width:,}, the width of the band, to {size:,}, the pool"
        )
    if band.high > size:
        raise UserError(f"band ({band.low}, {band.high}] ends behind the pool of {size:,} vectors; ask for less")
    chosen = np.sort(stream(seed, "far band").choice(size, subsample, replace=False))
    high = max(round(band.high * subsample / size), width)
    options["pool_rows"] = chosen if rows is None else np.asarray(rows)[chosen]
    return search(pool, queries, [Band(high - width, high)], **options)[0]


def _answer(
    question: Question, plan: Plan, scan: TorchScan | None, reporter: Reporter
) -> Iterator[tuple[slice, list[Neighbours]]]:
    pool, ranks, total = question.pool, question.ranks, len(question.queries)
    with Threads(plan.workers) as threads, reporter.task("searching", total, "queries") as advance:
        own = CpuScan(pool, ranks.deepest, plan.block, threads)
        settler = Settler(pool, ranks, threads, plan.room)
        for part, block, kept in _one_ahead(question, plan, scan) if scan else _scanned(question, plan, own):
            placed, sure = settler.settle(block, kept)
            unsure = np.flatnonzero(~sure)
            # the guess was too bold, or many scores are all but equal
            for finder in (scan, own):
                if finder is not None and len(unsure):
                    again, sure = settler.settle(block.take(unsure), finder.scan(block.take(unsure), guess=False))
                    placed.put(unsure, again)
                    unsure = unsure[~sure]
            if len(unsure):
                placed.put(unsure, settler.exhaust(block.take(unsure)))
            yield part, _neighbours(question, placed)
            advance(part.stop - part.start)


def _scanned(question: Question, plan: Plan, scan: CpuScan | TorchScan) -> Iterator[tuple[slice, Block, Kept]]:
    """The blocks of queries and their candidates."""
    total = len(question.queries)
    for start in range(0, total, plan.block):
        part = slice(start, min(start + plan.block, total))
        block = question.block(part)
        yield part, block, scan.scan(block)


def _one_ahead(question: Question, plan: Plan, scan: TorchScan) -> Iterator[tuple[slice, Block, Kept]]:
    """The same; a graphics card scans the next block while the ranks of one are settled here."""
    blocks = _scanned(question, plan, scan)
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(next, blocks, None)
        while (found := coming.result()) is not None:
            coming = ahead.submit(next, blocks, None)
            yield found


def _neighbours(question: Question, placed: Placed) -> list[Neighbours]:
    positions, rows, edges = placed.positions, question.pool.rows, question.ranks.columns
    found = positions if rows is None else np.where(positions < 0, -1, rows[positions]).astype(np.int32)
    return [
        Neighbours(found[:, left:right].copy(), placed.scores[:, left:right].copy()) for left, right in pairwise(edges)
    ]
