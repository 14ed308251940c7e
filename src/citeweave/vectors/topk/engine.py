"""Exact top-k search: for each query the nearest vectors of a pool, or those at given ranks, on the CPU or a GPU.

    >>> pool = np.array([[0, 1], [1, 1], [1, 0], [2, 0]], np.float32)
    >>> neighbors = nearest(pool, pool[[2]], 2, itself=np.array([2]))     # itself: row 2 is not its own neighbor
    >>> neighbors.rows.tolist(), neighbors.scores.tolist()
    ([[3, 1]], [[1.0, 0.7071067690849304]])
    >>> [band.rows.tolist() for band in search(pool, pool[[2]], [Band(0, 1), Band(2, 4)], metric="l2")]
    [[[2]], [[3, 0]]]

Ranks count from 1 and leave the query itself out; a band holds the ranks low < rank <= high, as SciNCL takes its
positives from (20, 25] and its hard negatives from (3998, 4000] (Ostendorff and others, 2022). Neighbors are sorted by
score, the highest first, then by row: the same on any machine, with any number of workers, blocks or devices. Scores
are computed from the vectors as float32, summed as float64, rounded to float32; a vector of zeros has the cosine 0.

Every query is compared with every vector of the pool, which is never copied as a whole; there is no index and nothing
is approximate, except in `far_band` and, if you choose it, with `exact=False`. The method depends on the request:

    few queries, codes, cosine        a scan of int8 codes (`scan.py`, `codes.py`)
    few queries                       one pass over the rows as they are (`scan.py`)
    many queries                      blocks of matrix products, on the CPU or a GPU (`blocks.py`)

In every method, approximate scores with a proved error bound select candidates, and exact scores decide:

    band of ranks 3999 and 4000: 3,997 candidates are certainly better, 6 may be members -> 6 exact scores, not 4,000
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, choose
from citeweave.core.executor import run_range_in_threads
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import split_rows
from citeweave.core.randomness import stream
from citeweave.vectors.topk.blocks import (
    RESCORED_TOGETHER,
    CpuScan,
    KeptCandidates,
    MemoryPlan,
    TorchScan,
    has_cuda,
    kth_largest,
    plan_memory,
)
from citeweave.vectors.topk.kernels import (
    L2,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    exact_score,
    key,
    row_of,
    score_of,
    split_keys,
)
from citeweave.vectors.topk.request import (
    TILE,
    Band,
    Neighbors,
    Pool,
    PreparedRequest,
    QueryBlock,
    Ranks,
    RequestOptions,
    TopkRequest,
    check_bands,
    check_request,
)
from citeweave.vectors.topk.scan import Queries, Rows, best_keys, can_scan, memory_for
from citeweave.vectors.topk.small_pool import is_small_search, nearest_in_small_pool

DEVICES = ("auto", "cpu", "cuda")

FEW_QUERIES = 32
"""Up to this many queries are searched by a scan of the rows; more are faster by matrix products."""


class TopkOptions(RequestOptions, total=False):
    """Keyword options of the top-k engine's functions, all of which may be left out."""

    exact: bool
    """False skips the proof that a scan of codes has missed nothing; True is the default."""

    workers: int
    """Threads, besides those of numpy's matrix product; 0, the default, means one per core."""

    memory: int
    """Bytes of working memory, without the arguments and the results; the default is 512 MiB."""

    device: str
    """One of DEVICES; the default is cpu. cuda needs torch; auto takes a GPU, if there is one, for many queries."""

    reporter: Reporter


def search(
    pool: NDArray[Any], queries: NDArray[Any], bands: Sequence[Band], **options: Unpack[TopkOptions]
) -> list[Neighbors]:
    """Search with the top-k engine: the neighbors of all queries at the ranks of each band, one `Neighbors` per band.

    `pool` (rows, dimension) and `queries` (queries, dimension) are float16 or float32, in memory or mapped.
    """
    parts = search_blocks(pool, queries, bands, **options)
    shapes = [(len(queries), band.high - band.low) for band in bands]
    neighbors = [Neighbors(np.empty(shape, np.int32), np.empty(shape, np.float32)) for shape in shapes]
    for part, blocks in parts:
        for complete, block in zip(neighbors, blocks, strict=True):
            complete.put(part, block)
    return neighbors


def search_blocks(
    pool: NDArray[Any],
    queries: NDArray[Any],
    bands: Sequence[Band],
    *,
    exact: bool = True,
    workers: int = 0,
    memory: int = 512 << 20,
    device: str = "cpu",
    reporter: Reporter = QUIET,
    **options: Unpack[RequestOptions],
) -> Iterator[tuple[slice, list[Neighbors]]]:
    """Search with the top-k engine as `search` does, yielding blocks: which queries, and one `Neighbors` per band.

    The arguments are checked at once, not when the first block is taken.
    """
    choose(device, DEVICES, "device")
    if workers < 0:
        raise UserError(f"workers is {workers}; it must be 0 (one per core) or more")
    request = check_request(pool, queries, bands, **options)
    if not len(queries) or ((rows := request.rows()) is not None and not len(rows)):
        return iter([(slice(0, len(queries)), [Neighbors.empty(len(queries), b.high - b.low) for b in bands])])
    needed = memory_for(len(pool), len(queries), request.deepest)
    if len(queries) <= FEW_QUERIES and device != "cuda" and can_scan(pool) and needed <= memory:
        return iter([(slice(0, len(queries)), _search_by_scan(request, exact, workers, reporter))])
    on_gpu = device == "cuda" or (device == "auto" and has_cuda())
    prepared, memory = request.prepare(workers), memory // 2 if on_gpu else memory  # a GPU has two blocks at once
    plan, ranks = plan_memory(prepared, workers=workers, memory=memory), prepared.ranks
    gpu_scan = TorchScan(prepared.pool, ranks.deepest, "cuda", ranks=ranks) if on_gpu else None
    return _search_by_products(prepared, plan, gpu_scan, reporter)


def nearest(pool: NDArray[Any], queries: NDArray[Any], k: int, **options: Unpack[TopkOptions]) -> Neighbors:
    """Search the k nearest vectors of each query, the nearest first: the band (0, k]; options as in `search`."""
    if not set(options) - {"allowed", "itself", "codes", "exact"} and is_small_search(pool, queries, k):
        near = nearest_in_small_pool(pool, queries, k, options.get("allowed"), options.get("itself"))
        if near is not None:
            return near
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
    """Search with the engine at about the ranks of a far band, in a random subsample; options as in `search`.

    In a uniform subsample of m of n vectors, without replacement, the vector of rank r has the rank r n / m of the
    complete pool, give or take a relative standard error of about sqrt((1 - m / n) / r). So of a band (low, high] the
    high - low ranks that end at round(high m / n) are taken, or the first ones where that is less than their number.

    A tenth of 680,967 vectors makes (3998, 4000] into (398, 400] at a tenth of the cost: true ranks are 4,000 give or
    take sqrt(0.9 / 400) = 4.7 %, 190 ranks. For (20, 25] it would be 60 %: search near bands exactly.
    """
    rows = options.get("pool_rows")
    size = len(pool) if rows is None else len(rows)
    width = band.high - band.low
    if not width <= subsample <= size:
        raise UserError(
            f"subsample is {subsample:,}; it must be from {width:,}, the width of the band, to {size:,}, the pool"
        )
    check_bands([band], size)
    chosen = np.sort(stream(seed, "far band").choice(size, subsample, replace=False))
    high = max(round(band.high * subsample / size), width)
    options["pool_rows"] = chosen if rows is None else np.asarray(rows)[chosen]
    return search(pool, queries, [Band(high - width, high)], **options)[0]


def _search_by_scan(request: TopkRequest, exact: bool, workers: int, reporter: Reporter) -> list[Neighbors]:
    rows = Rows.of(request.matrix, metric=request.metric, codes=request.codes, allowed=request.mask())
    queries = Queries.of(request.queries, request.itself)
    neighbors = [Neighbors.empty(len(queries), band.high - band.low) for band in request.bands]
    with reporter.task("searching", len(queries), "queries") as advance:
        for query, keys in enumerate(best_keys(rows, queries, request.deepest, exact=exact, workers=workers)):
            for band, into in zip(request.bands, neighbors, strict=True):
                members = keys[band.low : band.high]
                split_keys(members, into.rows[query], into.scores[query])
            advance(1)
    return neighbors


def _search_by_products(
    request: PreparedRequest, plan: MemoryPlan, gpu_scan: TorchScan | None, reporter: Reporter
) -> Iterator[tuple[slice, list[Neighbors]]]:
    """Yield the neighbors of each block of queries: candidates by matrix products, ranked by exact scores."""
    pool, ranks, total = request.pool, request.ranks, len(request.queries)
    with reporter.task("searching", total, "queries") as advance:
        cpu_scan = CpuScan(pool, ranks.deepest, plan.block, plan.workers)
        ranker = ExactRanker(pool, ranks, plan.workers, plan.room)
        blocks = _scan_ahead(request, plan, gpu_scan) if gpu_scan else _scan_blocks(request, plan, cpu_scan)
        for part, block, candidates in blocks:
            results, proved = ranker.rank_candidates(block, candidates)
            unproved = np.flatnonzero(~proved)
            # the guessed cut was too high, or many scores are almost equal
            for scan in (gpu_scan, cpu_scan):
                if scan is not None and len(unproved):
                    again = block.take(unproved)
                    results_again, proved = ranker.rank_candidates(again, scan.scan(again, guess=False))
                    results.put(unproved, results_again)
                    unproved = unproved[~proved]
            if len(unproved):
                results.put(unproved, ranker.rank_pool(block.take(unproved)))
            yield part, _neighbors(request, results)
            advance(part.stop - part.start)


def _scan_blocks(
    request: PreparedRequest, plan: MemoryPlan, scan: CpuScan | TorchScan
) -> Iterator[tuple[slice, QueryBlock, KeptCandidates]]:
    """Yield blocks of queries and the candidates that a scan of the pool keeps for them."""
    total = len(request.queries)
    for start in range(0, total, plan.block):
        part = slice(start, min(start + plan.block, total))
        block = request.block(part)
        yield part, block, scan.scan(block)


def _scan_ahead(
    request: PreparedRequest, plan: MemoryPlan, scan: TorchScan
) -> Iterator[tuple[slice, QueryBlock, KeptCandidates]]:
    """Yield as `_scan_blocks`, while the GPU scans the next block of queries during the exact ranking of one."""
    blocks = _scan_blocks(request, plan, scan)
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(next, blocks, None)
        while (scanned := coming.result()) is not None:
            coming = ahead.submit(next, blocks, None)
            yield scanned


def _neighbors(request: PreparedRequest, results: Neighbors) -> list[Neighbors]:
    positions, rows, edges = results.rows, request.pool.rows, request.ranks.columns
    members = positions if rows is None else np.where(positions < 0, -1, rows[positions]).astype(np.int32)
    return [
        Neighbors(members[:, left:right].copy(), results.scores[:, left:right].copy())
        for left, right in pairwise(edges)
    ]


# --- exact ranks of candidates -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExactRanker:
    """Ranks the top-k engine's candidates by exact scores near the borders of the bands; it may hold `room` of them.

    Its results have the columns of all bands side by side, and positions in the pool for rows.
    """

    pool: Pool
    ranks: Ranks
    workers: int
    room: int

    def rank_candidates(self, block: QueryBlock, kept: KeptCandidates) -> tuple[Neighbors, Flags]:
        """Rank the engine's candidates; return the bands' members, and for which queries they are proved."""
        size, bands = len(block), len(self.ranks)
        ranks = kept.ranks or self.ranks
        depths = np.minimum(block.depths, ranks.deepest)
        edges, proved = np.full((size, bands, 2), np.inf), np.zeros(size, np.bool_)
        above, sizes = np.zeros((size, bands), np.int64), np.zeros((size, bands), np.int64)
        steps = np.unique(np.concatenate([ranks.lows + 1, ranks.highs]))[::-1].copy()
        at = np.stack([np.searchsorted(-steps, -ranks.lows - 1), np.searchsorted(-steps, -ranks.highs)], axis=1)
        run_range_in_threads(
            size,
            lambda low, high: find_windows(
                kept.scores, kept.counts, kept.cuts, block.margins, depths, steps, at, edges, above, sizes, proved, low, high
            ),
            self.workers,
        )  # fmt: skip
        take = np.where(proved[:, None], self.ranks.member_counts(block.depths), 0)
        skip = ranks.lows - above
        assert np.all((take == 0) | ((skip >= 0) & (skip + take <= sizes))), "a member is outside its window"
        placed = Neighbors.empty(size, int(self.ranks.columns[-1]))
        for part in split_rows(sizes.sum(axis=1), self.room):
            members = self._members(kept, edges, sizes, part)
            keys = self._keys(block, np.repeat(np.arange(part.start, part.stop), sizes[part].sum(axis=1)), members)
            self._place(keys, sizes, skip, take, part, placed)
        return placed, proved

    def rank_pool(self, block: QueryBlock) -> Neighbors:
        """Rank the complete pool in the engine by exact scores, for queries with more ties than a scan can hold."""
        size = len(block)
        # to a query of zeros all rows are equally near, and the first rows have the first ranks
        alike = (block.norms == 0) & (self.pool.metric != L2)
        best: list[Keys] = [np.empty(0, np.uint64) for _ in range(size)]
        for start in range(0, len(self.pool), TILE):
            tile = np.arange(start, min(start + TILE, len(self.pool)), dtype=np.int32)
            for query in np.flatnonzero(~alike | (block.depths >= start)).tolist():
                others = tile[tile != block.itself[query]]
                keys = np.concatenate([best[query], self._keys(block, np.full(len(others), query), others)])
                depth = int(block.depths[query])
                best[query] = np.partition(keys, depth - 1)[:depth] if depth < len(keys) else keys
        placed = Neighbors.empty(size, int(self.ranks.columns[-1]))
        take = self.ranks.member_counts(block.depths)
        for query in range(size):
            part = slice(query, query + 1)
            keys = np.tile(best[query], len(self.ranks))
            sizes = np.full((size, len(self.ranks)), len(best[query]))
            self._place(keys, sizes, np.broadcast_to(self.ranks.lows, take.shape), take, part, placed)
        return placed

    def _members(self, kept: KeptCandidates, edges: Doubles, sizes: Longs, part: slice) -> Ints:
        ends = np.cumsum(sizes[part])  # (queries * bands,)
        members = np.empty(int(ends[-1]), np.int32)
        scores, positions, counts = kept.scores[part], kept.positions[part], np.maximum(kept.counts[part], 0)
        run_range_in_threads(
            len(counts),
            lambda low, high: collect(scores, positions, counts, edges[part], ends, members, low, high),
            self.workers,
        )
        return members

    def _keys(self, block: QueryBlock, owners: Longs, members: Ints) -> Keys:
        keys = np.empty(len(members), np.uint64)

        def score(low: int, high: int) -> None:
            for start in range(low, high, RESCORED_TOGETHER):
                part = slice(start, min(start + RESCORED_TOGETHER, high))
                own = members[part]
                vectors, norms = self.pool.vectors(own), self.pool.norms[own]
                _rescore(block.vectors, block.norms, owners[part], vectors, norms, own, self.pool.metric, keys[part])

        run_range_in_threads(len(members), score, self.workers)
        return keys

    def _place(self, keys: Keys, sizes: Longs, skip: Longs, take: Longs, part: slice, placed: Neighbors) -> None:
        ends, columns = np.cumsum(sizes[part]), self.ranks.columns[:-1].copy()
        positions, scores = placed.rows[part], placed.scores[part]
        skip, take = np.ascontiguousarray(skip[part]), np.ascontiguousarray(take[part])
        run_range_in_threads(
            len(positions),
            lambda low, high: _place(keys, ends, skip, take, columns, positions, scores, low, high),
            self.workers,
        )


@compiled()
def _rescore(
    queries: Floats, norms: Doubles, owners: Longs, vectors: Floats, lengths: Doubles, positions: Ints, metric: int,
    out: Keys,
) -> None:  # fmt: skip
    """Compute the keys of pairs: query `owners[i]` with `vectors[i]`, of length `lengths[i]`, at `positions[i]`."""
    for at in range(len(owners)):
        own = owners[at]
        score = exact_score(queries[own], vectors[at], norms[own] * lengths[at], metric)
        out[at] = key(score, positions[at])


@compiled()
def _place(
    keys: Keys, ends: Longs, skip: Longs, take: Longs, columns: Longs, positions: Ints, scores: Floats, low: int, high: int
) -> None:  # fmt: skip
    """Sort the candidates of each band and write the members `skip` to `skip + take` to the band's columns.

    `skip` and `take` are (queries, bands), `columns` says where the band begins in `positions` and `scores`
    (queries, columns).
    """
    bands = len(columns)
    for query in range(low, high):
        for band in range(bands):
            window = query * bands + band
            members = keys[ends[window - 1] if window else 0 : ends[window]]
            if take[query, band]:
                members.sort()
            for at in range(take[query, band]):
                one = members[skip[query, band] + at]
                scores[query, columns[band] + at] = score_of(one)
                positions[query, columns[band] + at] = row_of(one)


@compiled()
def find_windows(
    scores: Floats, counts: Longs, cuts: Floats, margins: Doubles, depths: Longs, ranks: Longs, bands: Longs,
    edges: Doubles, above: Longs, sizes: Longs, proved: Flags, low: int, high: int,
) -> None:  # fmt: skip
    """Find by a scan kernel the window of scores that holds the members of each band; count who is in or above it.

    Let q be the approximate scores, t the true ones and e the largest error. The r-th largest of q and of t differ by at
    most e, so a member of the band of ranks a to b has t between q_b - e and q_a + e and q between q_b - 2e and
    q_a + 2e; a higher q has a better rank than a. With m = 2e the margin:

        edges (queries, bands, 2) = q_b - m, q_a + m      above, sizes (queries, bands)

    `ranks` are all the ranks that bands begin and end at, the largest first; `bands` (bands, 2) says where in them.
    `depths` is the deepest rank of each query. A query is proved if nothing that its windows need was cut away.
    """
    scratch = np.empty(scores.shape[1], np.float32)
    values = np.empty(len(ranks), np.float64)
    for query in range(low, high):
        count, depth, margin = counts[query], depths[query], margins[query]
        proved[query] = count >= depth
        if not proved[query]:
            continue
        scratch[:count] = scores[query, :count]
        left = count
        for at in range(len(ranks)):
            rank = min(ranks[at], depth)
            values[at] = kth_largest(scratch, left, rank) if rank else np.inf
            left = rank
        proved[query] = cuts[query] < values[0] - margin
        for band in range(len(bands)):
            if not proved[query] or ranks[bands[band, 0]] > depth:
                continue
            first, last = values[bands[band, 0]] + margin, values[bands[band, 1]] - margin
            better = inside = 0
            for at in range(count):
                better += scores[query, at] > first
                inside += scores[query, at] >= last
            edges[query, band, 0], edges[query, band, 1] = last, first
            above[query, band], sizes[query, band] = better, inside - better


@compiled()
def collect(
    scores: Floats, positions: Ints, counts: Longs, edges: Doubles, ends: Longs, out: Ints, low: int, high: int
) -> None:
    """Copy by a scan kernel the candidates in the windows to `out`, window after window; `ends` is where each ends."""
    bands = edges.shape[1]
    for query in range(low, high):
        for band in range(bands):
            at = ends[query * bands + band] - 1
            last, first = edges[query, band, 0], edges[query, band, 1]
            for entry in range(counts[query]):
                if last <= scores[query, entry] <= first:
                    out[at] = positions[query, entry]
                    at -= 1
