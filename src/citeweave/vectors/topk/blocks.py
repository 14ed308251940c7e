"""Approximate scores of a block of queries by matrix products, on the CPU or a GPU: candidates of a top-k search.

    pool (680,967 x 128, float16 on disk) -> tile (4,096 x 128, float32, scaled) -> scores (queries x 4,096)
    -> per query a little more than the k best positions, with every one that rounding might have put out of order

    CpuScan(pool, k=4000, block=2048, workers=8).scan(block)       numpy
    TorchScan(pool, k=4000, device="cuda").scan(block)             the same candidates with torch, mostly on a GPU

    scores 0.1 0.9 0.4 0.7, cut 0.3      ->   kept 0.9 0.4 0.7, at the positions 1 2 3
    the second best of them              ->   0.7: when room is needed, 0.4 is dropped and the cut becomes 0.7

An approximate score is wrong by at most half of its query's margin, so what is within the margin of a border is kept.
No copy of the pool is made, only one norm per row. In a large pool, a sample gives each query's cut, and of every tile only
what is above the cut is kept, some thousands of a million. On a GPU, where bands hold only a few of these, the others stay
on the device (`_narrowed`), and a query whose cut was guessed too high keeps the best of every tile instead.

Does not decide ranks: exact scores do, in `engine.py`, so the device makes no difference. Does not use TF32 or half
precision: their errors are larger than the margin of an approximate score. Torch is imported when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, require
from citeweave.core.executor import available_cores, run_range_in_threads
from citeweave.core.randomness import stream
from citeweave.vectors.topk.kernels import Doubles, Floats, Ints, Longs
from citeweave.vectors.topk.request import TILE, CandidateColumns, Pool, PreparedRequest, QueryBlock, Ranks

CHUNK = 16
"""Scores compared with the cut at a time: most chunks have none above it and cost a few instructions."""

RESCORED_TOGETHER = 4096
"""Pairs rescored exactly at a time by one thread."""

_MIN_BLOCK, _MAX_BLOCK = 16, 2048

SAMPLE = 16_384
"""Rows of a large pool from which the first cut is guessed; changes the speed, never the result."""

GPU_TILE = 65_536
"""Rows of the pool in one matrix product on a GPU."""

BESIDE = 256
"""Candidates kept on both sides of a band; fewer are within the margin of its borders, unless vectors repeat."""

RESIDENT = 8 << 30
"""A pool of at most so many bytes as float32 stays on the GPU from block to block."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How many queries and candidates of a top-k request are handled at once."""

    block: int
    """Queries compared at a time."""

    room: int
    """Candidates held at a time to be rescored."""

    workers: int


def plan_memory(request: PreparedRequest, *, workers: int, memory: int) -> MemoryPlan:
    """Plan a top-k request: the largest block of queries that fits into `memory` bytes, without arguments and results.

    Every worker has its own memory, more for longer vectors; where that does not fit there are fewer workers.
    """
    workers = workers or available_cores()
    size, width, bands = len(request.pool), request.pool.width, len(request.ranks)
    capacity, queries = capacity_for(request.ranks.deepest, size), len(request.queries)
    # a candidate to be rescored takes 4 (position) + 8 (its query) + 8 bytes (its key)
    room = max(memory // 8 // 20, bands * capacity)
    tile = 4 * min(TILE, size) * width
    fixed, a_worker = 8 * (size + queries) + 2 * tile, 4 * capacity + 8 * RESCORED_TOGETHER * width
    each = 8 * capacity + 4 * min(TILE, size) + 12 * width + 48 * bands + 8 * int(request.ranks.columns[-1]) + 64
    smallest = min(_MIN_BLOCK, queries)
    workers = max(1, min(workers, (memory - fixed - 20 * room - smallest * each) // a_worker))
    fixed += workers * a_worker
    block = min((memory - fixed - 20 * room) // each, _MAX_BLOCK, max(queries, 1))
    if block < smallest:
        # an eighth of the memory, or what one query may need, is for candidates
        minimum = max((fixed + smallest * each) * 8 // 7, fixed + smallest * each + 20 * bands * capacity) + 64
        raise UserError(
            f"memory is {memory:,} bytes; {queries:,} queries in {size:,} vectors need at least {minimum:,} "
            f"({-(-minimum >> 20)} MiB); give that much memory"
        )
    return MemoryPlan(int(block), room, workers)


@dataclass(frozen=True, slots=True)
class KeptCandidates:
    """The candidates of a block of queries: per query, all positions whose approximate score is above the cut, unordered."""

    scores: Floats
    positions: Ints
    """(queries, capacity), as `scores`; only the first `counts` of each query are valid."""

    counts: Longs
    """-1 for an overflowing query: more positions are within the margin of the border than there is room for."""

    cuts: Floats
    ranks: Ranks | None = None
    """The bands' ranks among these positions, where positions between the bands were left out; None = unchanged."""


def capacity_for(k: int, size: int, spare: int = 1024) -> int:
    """Return the room for a query's candidates in a search of the k best; when full, it is cut down to about half."""
    return min(2 * k + spare, size + CHUNK)


class CpuScan:
    """Scans a pool for blocks of queries on the CPU: the product on numpy's threads, all else on `workers` threads."""

    def __init__(self, pool: Pool, k: int, block: int, workers: int) -> None:
        self._pool, self._k, self._workers = pool, k, workers
        capacity, height = capacity_for(k, len(pool)), min(TILE, -(-len(pool) // CHUNK) * CHUNK)
        self._tile = np.zeros((height, pool.width), np.float32)
        self._products = np.empty((block, height), np.float32)
        self._scores = np.empty((block, capacity), np.float32)
        self._positions = np.empty((block, capacity), np.int32)
        self._sample = _draw_sample(len(pool), SAMPLE) if len(pool) >= 8 * SAMPLE else None

    def scan(self, block: QueryBlock, *, guess: bool = True) -> KeptCandidates:
        """Return at least the k best candidates of a block's queries and all within the margin; valid until the next.

        A guessed first cut may be too high, which `find_windows` detects; without a guess it never is.
        """
        size = len(block)
        counts, cuts = np.zeros(size, np.int64), np.full(size, -np.inf, np.float32)
        kept = KeptCandidates(self._scores[:size], self._positions[:size], counts, cuts)
        if guess and self._sample is not None:
            rank = guessed_rank(self._k, SAMPLE, len(self._pool))
            self._walk(block, kept, rank, self._sample)
            run_range_in_threads(
                size,
                lambda low, high: raise_cuts(rank, block.margins, cuts, counts, kept.scores, low, high),
                self._workers,
            )
        self._walk(block, kept, self._k, None)
        return kept

    def _walk(self, block: QueryBlock, kept: KeptCandidates, k: int, sample: Longs | None) -> None:
        total = len(self._pool) if sample is None else len(sample)
        itself = block.itself if sample is None else np.full(len(block), -1, np.int32)
        room = capacity_for(k, total, spare=1024 if sample is None else 128)
        approximate = self._products[: len(block)]
        tile = approximate.reshape(len(block), -1, CHUNK)
        for start in range(0, total, len(self._tile)):
            part = slice(start, min(start + len(self._tile), total))
            width = self._pool.fill(self._tile, part if sample is None else sample[part])
            np.matmul(block.ready, self._tile.T, out=approximate)
            run_range_in_threads(
                len(block),
                lambda low, high, start=start, width=width: filter_tile(  # type: ignore[misc]
                    tile, start, width, k, room, itself, block.margins, kept.cuts, kept.counts, kept.scores, kept.positions, low, high
                ),
                self._workers,
            )  # fmt: skip


def guessed_rank(k: int, sample: int, size: int) -> int:
    """Return a rank in a sample that is almost certainly beyond rank k of the pool: four standard deviations.

    >>> guessed_rank(4000, 16_384, 680_967)
    140
    """
    expected = k * sample / size
    return math.ceil(expected + 4 * math.sqrt(expected) + 4)


def _draw_sample(size: int, count: int) -> Longs:
    """Draw positions of a pool of this size from which the first cut is guessed, ascending."""
    return np.sort(stream(0, "first cut").choice(size, count, replace=False))


def has_cuda() -> bool:
    """Return whether torch is installed and finds a GPU."""
    return find_spec("torch") is not None and bool(require("torch", extra="minilm").cuda.is_available())


class TorchScan:
    """Scans a pool for blocks of queries with torch, on a GPU or any other device."""

    def __init__(
        self,
        pool: Pool,
        k: int,
        device: str,
        *,
        ranks: Ranks | None = None,
        tile: int = GPU_TILE,
        sample: int = SAMPLE,
        beside: int = BESIDE,
    ) -> None:
        """Prepare to scan for the k best of each query, or for these ranks, of which k is the deepest."""
        self._torch = require("torch", extra="minilm")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("device is 'cuda', but torch finds no GPU; use device 'cpu' or 'auto'")
        self._pool, self._k, self._device, self._height = pool, k, device, tile
        # with room for those within the margin; a query with more of them is not proved and is scanned again
        self._wanted = min(k + max(64, k // 32), len(pool))
        self._tiles: dict[int, Any] = {}
        self._ranks, self._beside = ranks, beside
        self._rank = guessed_rank(k, sample, len(pool))
        self._sample: Any = None
        if len(pool) >= 8 * sample >= 8 * self._rank:
            self._sample = self._prepared(_draw_sample(len(pool), sample), sample)

    def scan(self, block: QueryBlock, *, guess: bool = True) -> KeptCandidates:
        """Return the k best candidates of a block and some more; `find_windows` detects a cut guessed too high."""
        torch = self._torch
        with self._full_precision(), torch.inference_mode():
            queries = torch.from_numpy(block.ready).to(self._device)  # (queries, width)
            itself = torch.from_numpy(block.itself).to(self._device, torch.int64)
            if not guess or self._sample is None:
                return self._best(queries, itself)
            best = torch.topk(queries @ self._sample.T, self._rank).values[:, -1].cpu().numpy()
            cuts = (best - block.margins).astype(np.float32)  # (queries,)
            return self._above(queries, itself, cuts, block)

    def _best(self, queries: Any, itself: Any) -> KeptCandidates:
        """Return the best candidates of every tile, merged."""
        torch = self._torch
        scores = torch.empty((len(queries), 0), device=self._device)
        positions = torch.empty((len(queries), 0), device=self._device, dtype=torch.int64)
        for start, approximate in self._products(queries, itself):
            best, at = torch.topk(approximate, min(self._wanted, approximate.shape[1]), sorted=False)
            scores, positions = torch.cat([scores, best], 1), torch.cat([positions, at + start], 1)
            if scores.shape[1] > self._wanted:
                scores, at = torch.topk(scores, self._wanted, sorted=False)
                positions = positions.gather(1, at)
        scores, order = torch.sort(scores, descending=True)
        kept, at = scores.cpu().numpy(), positions.gather(1, order).to(torch.int32).cpu().numpy()
        is_complete = kept.shape[1] == len(self._pool)
        cuts = np.full(len(kept), -np.inf, np.float32) if is_complete else kept[:, -1].copy()
        return KeptCandidates(kept, at, np.isfinite(kept).sum(axis=1), cuts)

    def _above(self, queries: Any, itself: Any, cuts: Floats, block: QueryBlock) -> KeptCandidates:
        """Return all candidates above the cuts; a query with more of them than there is room for overflows."""
        torch, size = self._torch, len(queries)
        limits, room = torch.from_numpy(cuts).to(self._device)[:, None], capacity_for(self._k, len(self._pool))
        # one additional cell, for what does not fit
        scores = torch.full((size * room + 1,), -torch.inf, device=self._device)
        positions = torch.empty(size * room + 1, device=self._device, dtype=torch.int32)
        counts = torch.zeros(size, device=self._device, dtype=torch.int64)
        for start, approximate in self._products(queries, itself):
            row, at = torch.nonzero(approximate > limits, as_tuple=True)  # row after row
            added = torch.bincount(row, minlength=size)
            firsts = torch.cumsum(added, 0) - added
            place = torch.arange(len(row), device=self._device) - firsts[row] + counts[row]
            cell = torch.where(place < room, row * room + place, size * room)
            scores[cell], positions[cell] = approximate[row, at], (at + start).to(torch.int32)
            counts += added
        counts = torch.where(counts > room, -1, counts)
        width = max(1, int(counts.max())) if size else 1
        best, where = (values[:-1].view(size, room)[:, :width] for values in (scores, positions))
        if self._ranks is not None and (block.depths == self._k).all() and width >= self._k:
            columns = self._ranks.columns_around(self._beside)
            if 2 * int(columns.count(np.int64(width))) <= width:
                return self._narrowed(best, where, counts, cuts, block, columns)
        kept_scores, kept_positions, kept = (values.contiguous().cpu().numpy() for values in (best, where, counts))
        return KeptCandidates(kept_scores, kept_positions, kept, cuts)

    def _narrowed(
        self, best: Any, where: Any, counts: Any, cuts: Floats, block: QueryBlock, columns: CandidateColumns
    ) -> KeptCandidates:
        """Return only the columns around the bands, of candidates sorted by score (queries, width).

        By `find_windows`, a member of the band of ranks a to b has an approximate score from q_b - m to q_a + m. So nothing of
        a band is lost if the first of its columns is above q_a + m and the last below q_b - m: what was left out is
        farther away still. A query for which that does not hold counts as overflowing.
        """
        assert self._ranks is not None
        torch, width = self._torch, best.shape[1]
        best, order = torch.sort(best, dim=1, descending=True)
        margins, complete = torch.from_numpy(block.margins).to(self._device), counts >= 0  # (queries,)
        for start, stop, bands in columns.spans:
            for low, high in bands:
                if start:
                    complete &= best[:, start].double() > best[:, low].double() + margins
                if stop < width:
                    complete &= best[:, stop - 1].double() < best[:, high - 1].double() - margins
        left = torch.cat(
            [torch.arange(span.start, min(span.stop, width), device=self._device) for span in columns.spans]
        )
        kept = torch.where(complete, columns.count(counts), -1)
        scores, at, kept = (values.cpu().numpy() for values in (best[:, left], where.gather(1, order[:, left]), kept))
        return KeptCandidates(scores, at, kept, cuts, columns.remaining_ranks(self._ranks))

    def _products(self, queries: Any, itself: Any) -> Iterator[tuple[int, Any]]:
        """Yield where each tile of the pool begins, and the approximate scores of its rows, (queries, rows of the tile)."""
        torch = self._torch
        for start in range(0, len(self._pool), self._height):
            approximate = queries @ self._tile(start).T
            mine = torch.nonzero((itself >= start) & (itself < start + approximate.shape[1]))[:, 0]
            approximate[mine, itself[mine] - start] = -torch.inf
            yield start, approximate

    def _prepared(self, positions: slice | Longs, size: int) -> Any:
        """Return the vectors at some positions of the pool on the device, prepared for products, (size, width)."""
        ready = np.empty((size, self._pool.width), np.float32)
        self._pool.fill(ready, positions)
        return self._torch.from_numpy(ready).to(self._device)

    def _tile(self, start: int) -> Any:
        if start not in self._tiles:
            size = min(self._height, len(self._pool) - start)
            ready = self._prepared(slice(start, start + size), size)
            if 4 * len(self._pool) * self._pool.width > RESIDENT:
                return ready
            self._tiles[start] = ready
        return self._tiles[start]

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        before = self._torch.get_float32_matmul_precision()
        self._torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            self._torch.set_float32_matmul_precision(before)


# --- compiled -----------------------------------------------------------------------------------------------


@compiled()
def kth_largest(values: Floats, count: int, k: int) -> np.float32:
    """Return the k-th largest (k from 1) of the first `count` scores, reordered so that the k largest come first.

    Hoare's FIND (1961) around the median of three; it splits equal values evenly, so ties do not make it slow.
    """
    left, right, target = 0, count - 1, k - 1
    while left < right:
        a, b, c = values[left], values[(left + right) >> 1], values[right]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = left, right
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if target <= j:
            right = j
        elif target >= i:
            left = i
        else:
            break
    value: np.float32 = values[target]
    return value


@compiled()
def _shrink(
    scores: Floats, positions: Ints, count: int, k: int, margin: float, scratch: Floats
) -> tuple[int, np.float32]:
    """Keep the k best candidates and all within the margin of the k-th; return how many, and the new cut."""
    scratch[:count] = scores[:count]
    cut = np.float32(kth_largest(scratch, count, k) - margin)
    kept = 0
    for at in range(count):
        if scores[at] > cut:
            scores[kept], positions[kept] = scores[at], positions[at]
            kept += 1
    return kept, cut


@compiled(fastmath={"nnan", "nsz"})
def _highest(line: Floats, chunk: int) -> np.float32:
    # four at a time: one maximum after the other would wait for the one before
    a, b, c, d = line[chunk, 0], line[chunk, 1], line[chunk, 2], line[chunk, 3]
    for at in range(4, CHUNK, 4):
        a, b = max(a, line[chunk, at]), max(b, line[chunk, at + 1])
        c, d = max(c, line[chunk, at + 2]), max(d, line[chunk, at + 3])
    highest: np.float32 = max(max(a, b), max(c, d))
    return highest


@compiled()
def filter_tile(
    tile: Floats, start: int, width: int, k: int, room: int, itself: Ints, margins: Doubles, cuts: Floats, counts: Longs,
    scores: Floats, positions: Ints, low: int, high: int,
) -> None:  # fmt: skip
    """Filter a tile by a scan kernel: keep the scores above the cut of their query, (queries, capacity).

    `tile` (queries, chunks, CHUNK) holds the scores of the positions from `start` on, of which `width` are
    valid; queries `low` to `high` are filtered. When `room` of the capacity is used up, the k best stay. A query with
    more positions than that within its margin overflows: it gets the count -1.
    """
    scratch = np.empty(room, np.float32)
    for query in range(low, high):
        count, cut, line, own = counts[query], cuts[query], tile[query], itself[query] - start
        if count < 0:
            continue
        for chunk in range((width + CHUNK - 1) // CHUNK):
            if _highest(line, chunk) <= cut:
                continue
            if count + CHUNK > room:
                count, cut = _shrink(scores[query], positions[query], count, k, margins[query], scratch)
                if count + CHUNK > room:
                    count = -1
                    break
            left = chunk * CHUNK
            for at in range(CHUNK):
                if line[chunk, at] > cut and left + at < width and left + at != own:
                    scores[query, count], positions[query, count] = line[chunk, at], start + left + at
                    count += 1
        counts[query], cuts[query] = count, cut


@compiled()
def raise_cuts(k: int, margins: Doubles, cuts: Floats, counts: Longs, scores: Floats, low: int, high: int) -> None:
    """Set each query's cut by a scan kernel: the k-th best score kept, less the margin; discard what was kept."""
    for query in range(low, high):
        cut = -np.inf
        if counts[query] >= k:
            cut = kth_largest(scores[query], counts[query], k) - margins[query]
        cuts[query], counts[query] = cut, 0
