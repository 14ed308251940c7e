"""Exact nearest neighbors: for each query, the vectors at given ranks of a pool.

    >>> pool = np.array([[0, 1], [1, 1], [1, 0], [2, 0]], np.float32)
    >>> found = nearest(pool, pool[[2]], 2, itself=np.array([2]))     # itself: row 2 is not its own neighbor
    >>> found.rows.tolist(), found.scores.tolist()
    ([[3, 1]], [[1.0, 0.7071067690849304]])
    >>> [band.rows.tolist() for band in search(pool, pool[[2]], [Band(0, 1), Band(2, 4)], metric="l2")]
    [[[2]], [[3, 0]]]

Ranks count from 1 and leave the query itself out; a band holds the ranks low < rank <= high, as SciNCL takes its
positives from (20, 25] and its hard negatives from (3998, 4000] (Ostendorff and others, 2022). Neighbors stand by
score, the highest first, then by row: the same on any machine, with any number of workers, blocks or devices. Scores
are computed from the vectors as float32, summed as float64, rounded to float32; a vector of zeros has the cosine 0.

Every query is compared with every vector of the pool, which is never copied as a whole; there is no index and nothing
is approximate, except in `far_band` and, if you ask for it, with `exact=False`. How that is done depends on the request:

    few queries, codes, cosine        a scan of int8 codes (`scan.py`, `codes.py`)
    few queries                       one pass over the rows as they are (`scan.py`)
    many queries                      blocks of matrix products, on the CPU (`blocks.py`) or a GPU (`gpu.py`)

In every way quick scores with a proved error bound propose, and exact scores decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.vectors.topk import scan as few
from citeweave.vectors.topk.blocks import CpuScan, KeptCandidates, QueryBlock, TorchScan, has_cuda
from citeweave.vectors.topk.codes import Codes
from citeweave.vectors.topk.request import (
    METRICS,
    Band,
    BandResults,
    MemoryPlan,
    Neighbors,
    Question,
    Settler,
    TopkRequest,
    check_request,
    plan_for,
)
from citeweave.vectors.topk.scan_kernels import split_keys

__all__ = ["DEVICES", "METRICS", "Band", "Neighbors", "TopkOptions", "far_band", "nearest", "search", "search_blocks"]

DEVICES = ("auto", "cpu", "cuda")

FEW = 32
"""Up to so many queries are searched by a scan of the rows; more are faster by matrix products."""


class TopkOptions(TypedDict, total=False):
    """The options of every search here, all of which may be left out."""

    metric: str
    """One of METRICS; the default is cosine."""

    codes: Codes | None
    """The int8 codes of the pool, which make searches for few queries by cosine two to four times as fast."""

    exact: bool
    """False leaves out the proof that a scan of codes has missed nothing; True is the default."""

    pool_rows: NDArray[Any] | None
    """Ascending: only these rows of the pool's matrix count; results are rows of the complete matrix all the same."""

    allowed: NDArray[np.bool_] | None
    """(rows,): rows that are False do not count; where fewer are left than ranks, results end with -1."""

    itself: NDArray[Any] | None
    """(queries,): each query's own row, or -1; it is no neighbor of that query and takes no rank."""

    workers: int
    """Threads, beside those of numpy's own matrix product; 0, the default, means one per core."""

    memory: int
    """Bytes of working memory, without the arguments and the results; the default is 512 MiB."""

    device: str
    """One of DEVICES; the default is cpu. cuda needs torch; auto takes a GPU, if there is one, for many queries."""

    reporter: Reporter


def search(
    pool: NDArray[Any], queries: NDArray[Any], bands: Sequence[Band], **options: Unpack[TopkOptions]
) -> list[Neighbors]:
    """The neighbors of all queries, one `Neighbors` per band, in the order of `bands`; see `TopkOptions`.

    `pool` (rows, dimension) and `queries` (queries, dimension) are float16 or float32, in memory or mapped.
    """
    parts = search_blocks(pool, queries, bands, **options)
    shapes = [(len(queries), band.high - band.low) for band in bands]
    found = [Neighbors(np.empty(shape, np.int32), np.empty(shape, np.float32)) for shape in shapes]
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
    codes: Codes | None = None,
    exact: bool = True,
    pool_rows: NDArray[Any] | None = None,
    allowed: NDArray[np.bool_] | None = None,
    itself: NDArray[Any] | None = None,
    workers: int = 0,
    memory: int = 512 << 20,
    device: str = "cpu",
    reporter: Reporter = QUIET,
) -> Iterator[tuple[slice, list[Neighbors]]]:
    """As `search`, block of queries by block: which queries, and their neighbors, one `Neighbors` per band.

    The arguments are checked at once, not when the first block is taken.
    """
    choose(device, DEVICES, "device")
    if workers < 0:
        raise UserError(f"workers is {workers}; it must be 0 (one per core) or more")
    request = check_request(
        pool, queries, bands, metric=metric, codes=codes, pool_rows=pool_rows, allowed=allowed, itself=itself
    )
    if not len(queries) or ((rows := request.rows()) is not None and not len(rows)):
        return iter([(slice(0, len(queries)), [Neighbors.empty(len(queries), b.high - b.low) for b in bands])])
    if _are_few(request, device, memory):
        return iter([(slice(0, len(queries)), _scan(request, exact, workers, reporter))])
    on_gpu = device == "cuda" or (device == "auto" and has_cuda())
    question = request.question(workers)
    plan = plan_for(question, workers=workers, memory=memory // 2 if on_gpu else memory)  # two blocks are under way
    ranks = question.ranks
    scan = TorchScan(question.pool, ranks.deepest, "cuda", ranks=ranks) if on_gpu else None
    return _answer(question, plan, scan, reporter)


def nearest(pool: NDArray[Any], queries: NDArray[Any], k: int, **options: Unpack[TopkOptions]) -> Neighbors:
    """The k nearest, the nearest first: the band (0, k]. Options are those of `search`."""
    return search(pool, queries, [Band(0, k)], **options)[0]


def far_band(
    pool: NDArray[Any],
    queries: NDArray[Any],
    band: Band,
    *,
    subsample: int,
    seed: int = 0,
    **options: Unpack[TopkOptions],
) -> Neighbors:
    """Neighbors of about the ranks of a far band, out of a random subsample of the pool; options as of `search`.

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


def _are_few(request: TopkRequest, device: str, memory: int) -> bool:
    """Whether a scan is the faster way, and fits into the memory."""
    queries, needed = len(request.queries), few.memory_for(len(request.matrix), len(request.queries), request.deepest)
    return queries <= FEW and device != "cuda" and few.can_scan(request.matrix) and needed <= memory


def _scan(request: TopkRequest, exact: bool, workers: int, reporter: Reporter) -> list[Neighbors]:
    rows = few.Rows.of(request.matrix, metric=request.metric, codes=request.codes, allowed=request.mask())
    queries = few.Queries.of(request.queries, request.itself)
    found = [Neighbors.empty(len(queries), band.high - band.low) for band in request.bands]
    with reporter.task("searching", len(queries), "queries") as advance:
        for query, keys in enumerate(few.best_keys(rows, queries, request.deepest, exact=exact, workers=workers)):
            for band, into in zip(request.bands, found, strict=True):
                members = keys[band.low : band.high]
                split_keys(members, into.rows[query], into.scores[query])
            advance(1)
    return found


def _answer(
    question: Question, plan: MemoryPlan, scan: TorchScan | None, reporter: Reporter
) -> Iterator[tuple[slice, list[Neighbors]]]:
    pool, ranks, total = question.pool, question.ranks, len(question.queries)
    with reporter.task("searching", total, "queries") as advance:
        own = CpuScan(pool, ranks.deepest, plan.block, plan.workers)
        settler = Settler(pool, ranks, plan.workers, plan.room)
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
            yield part, _neighbors(question, placed)
            advance(part.stop - part.start)


def _scanned(
    question: Question, plan: MemoryPlan, scan: CpuScan | TorchScan
) -> Iterator[tuple[slice, QueryBlock, KeptCandidates]]:
    """The blocks of queries and their candidates."""
    total = len(question.queries)
    for start in range(0, total, plan.block):
        part = slice(start, min(start + plan.block, total))
        block = question.block(part)
        yield part, block, scan.scan(block)


def _one_ahead(
    question: Question, plan: MemoryPlan, scan: TorchScan
) -> Iterator[tuple[slice, QueryBlock, KeptCandidates]]:
    """The same; a GPU scans the next block while the ranks of one are settled here."""
    blocks = _scanned(question, plan, scan)
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(next, blocks, None)
        while (found := coming.result()) is not None:
            coming = ahead.submit(next, blocks, None)
            yield found


def _neighbors(question: Question, placed: BandResults) -> list[Neighbors]:
    positions, rows, edges = placed.positions, question.pool.rows, question.ranks.columns
    found = positions if rows is None else np.where(positions < 0, -1, rows[positions]).astype(np.int32)
    return [
        Neighbors(found[:, left:right].copy(), placed.scores[:, left:right].copy()) for left, right in pairwise(edges)
    ]
