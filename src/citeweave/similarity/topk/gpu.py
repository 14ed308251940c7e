"""Quick scores of a block of queries with torch: on a GPU, or wherever torch can compute.

    scan = TorchScan(pool, k=4000, device="cuda")
    kept = scan.scan(block)        # as `CpuScan.scan`: candidates, from which `settle.py` makes exact ranks

A large pool is sifted as `CpuScan` does it: a sample of the pool gives each query's cut, and of every tile only what is
over the cut is kept, some thousands of a million. Where bands are asked for that hold a few of these, the others stay on
the device: see `_narrowed`. A small pool, or a query whose cut was guessed too high, keeps the best of every tile instead.

The ranks are the same as without torch, because quick scores only propose. Needs torch, which is imported when a scan
is made. Does not use TF32 or half precision: their errors are larger than the margin of a quick score.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.randomness import stream
from citeweave.similarity.topk.blocks import SAMPLE, Block, Kept, Pool, capacity_for, guessed_rank
from citeweave.similarity.topk.kernels import Floats
from citeweave.similarity.topk.ranks import Columns, Ranks

TILE = 65_536
"""Rows of the pool taken at a time."""

BESIDE = 256
"""Candidates kept on both sides of a band: few are within the margin of its borders, unless vectors repeat."""

RESIDENT = 8 << 30
"""A pool that takes no more bytes than this as float32 stays on the device from block to block."""


def has_cuda() -> bool:
    """Whether torch is installed and finds a GPU."""
    return find_spec("torch") is not None and bool(require("torch", extra="minilm").cuda.is_available())


class TorchScan:
    """Scans on a device of torch."""

    def __init__(
        self,
        pool: Pool,
        k: int,
        device: str,
        *,
        ranks: Ranks | None = None,
        tile: int = TILE,
        sample: int = SAMPLE,
        beside: int = BESIDE,
    ) -> None:
        """For the k best of each query, or for these ranks, of which k is the deepest."""
        self._torch = require("torch", extra="minilm")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("device is 'cuda', but torch finds no GPU; use device 'cpu' or 'auto'")
        self._pool, self._k, self._device, self._height = pool, k, device, tile
        # the members of the margin come on top; a query with more of them is not sure and is scanned again elsewhere
        self._wanted = min(k + max(64, k // 32), len(pool))
        self._tiles: dict[int, Any] = {}
        self._ranks, self._beside = ranks, beside
        self._rank = guessed_rank(k, sample, len(pool))
        self._sample = self._sampled(sample) if len(pool) >= 8 * sample >= 8 * self._rank else None

    def scan(self, block: Block, *, guess: bool = True) -> Kept:
        """The k best of each query and some more; a cut that was guessed too high is noticed by `find_windows`."""
        torch = self._torch
        with self._full_precision(), torch.inference_mode():
            queries = torch.from_numpy(block.ready).to(self._device)  # (queries, width)
            itself = torch.from_numpy(block.itself).to(self._device, torch.int64)
            if not guess or self._sample is None:
                return self._best(queries, itself)
            best = torch.topk(queries @ self._sample.T, self._rank).values[:, -1].cpu().numpy()
            cuts = (best - block.margins).astype(np.float32)  # (queries,)
            return self._above(queries, itself, cuts, block)

    def _best(self, queries: Any, itself: Any) -> Kept:
        """The best of every tile, merged."""
        torch = self._torch
        scores = torch.empty((len(queries), 0), device=self._device)
        positions = torch.empty((len(queries), 0), device=self._device, dtype=torch.int64)
        for start, quick in self._products(queries, itself):
            best, at = torch.topk(quick, min(self._wanted, quick.shape[1]), sorted=False)
            scores, positions = torch.cat([scores, best], 1), torch.cat([positions, at + start], 1)
            if scores.shape[1] > self._wanted:
                scores, at = torch.topk(scores, self._wanted, sorted=False)
                positions = positions.gather(1, at)
        scores, order = torch.sort(scores, descending=True)
        return self._kept(scores, positions.gather(1, order))

    def _above(self, queries: Any, itself: Any, cuts: Floats, block: Block) -> Kept:
        """All that is over the cuts; a query with more of it than there is room for is crowded."""
        torch, size = self._torch, len(queries)
        limits, room = torch.from_numpy(cuts).to(self._device)[:, None], capacity_for(self._k, len(self._pool))
        # one cell more, for what finds no room
        scores = torch.full((size * room + 1,), -torch.inf, device=self._device)
        positions = torch.empty(size * room + 1, device=self._device, dtype=torch.int32)
        counts = torch.zeros(size, device=self._device, dtype=torch.int64)
        for start, quick in self._products(queries, itself):
            row, at = torch.nonzero(quick > limits, as_tuple=True)  # row after row
            found = torch.bincount(row, minlength=size)
            firsts = torch.cumsum(found, 0) - found
            place = torch.arange(len(row), device=self._device) - firsts[row] + counts[row]
            cell = torch.where(place < room, row * room + place, size * room)
            scores[cell], positions[cell] = quick[row, at], (at + start).to(torch.int32)
            counts += found
        counts = torch.where(counts > room, -1, counts)
        width = max(1, int(counts.max())) if size else 1
        best, where = (values[:-1].view(size, room)[:, :width] for values in (scores, positions))
        if self._ranks is not None and (block.needs == self._k).all() and width >= self._k:
            columns = self._ranks.columns_around(self._beside)
            if 2 * int(columns.count(np.int64(width))) <= width:
                return self._narrowed(best, where, counts, cuts, block, columns)
        found, at, kept = (values.contiguous().cpu().numpy() for values in (best, where, counts))
        return Kept(found, at, kept, cuts)

    def _narrowed(self, best: Any, where: Any, counts: Any, cuts: Floats, block: Block, columns: Columns) -> Kept:
        """Only the columns around the bands, of candidates in the order of their scores (queries, width).

        By `find_windows`, a member of the band of ranks a to b has a quick score from q_b - m to q_a + m. So nothing of
        a band is lost if the first of its columns is over q_a + m and the last under q_b - m: what was left out is
        farther still. A query without that counts as crowded.
        """
        assert self._ranks is not None
        torch, width = self._torch, best.shape[1]
        best, order = torch.sort(best, dim=1, descending=True)
        margins, whole = torch.from_numpy(block.margins).to(self._device), counts >= 0  # (queries,)
        for start, stop, bands in columns.spans:
            for low, high in bands:
                if start:
                    whole &= best[:, start].double() > best[:, low].double() + margins
                if stop < width:
                    whole &= best[:, stop - 1].double() < best[:, high - 1].double() - margins
        left = torch.cat(
            [torch.arange(span.start, min(span.stop, width), device=self._device) for span in columns.spans]
        )
        kept = torch.where(whole, columns.count(counts), -1)
        found, at, kept = (values.cpu().numpy() for values in (best[:, left], where.gather(1, order[:, left]), kept))
        return Kept(found, at, kept, cuts, columns.ranks_left(self._ranks))

    def _products(self, queries: Any, itself: Any) -> Iterator[tuple[int, Any]]:
        """Where each tile begins, and the quick scores of its rows, (queries, rows of the tile); valid until the next."""
        torch = self._torch
        for start in range(0, len(self._pool), self._height):
            quick = queries @ self._tile(start).T
            mine = torch.nonzero((itself >= start) & (itself < start + quick.shape[1]))[:, 0]
            quick[mine, itself[mine] - start] = -torch.inf
            yield start, quick

    def _kept(self, scores: Any, positions: Any) -> Kept:
        found = np.ascontiguousarray(scores.cpu().numpy())
        at = np.ascontiguousarray(positions.cpu().numpy(), np.int32)
        whole = found.shape[1] == len(self._pool)
        cuts = np.full(len(found), -np.inf, np.float32) if whole else found[:, -1].copy()
        return Kept(found, at, np.isfinite(found).sum(axis=1), cuts)

    def _sampled(self, size: int) -> Any:
        chosen = np.sort(stream(0, "first cut").choice(len(self._pool), size, replace=False))
        ready = np.empty((size, self._pool.width), np.float32)
        self._pool.fill(ready, chosen)
        return self._torch.from_numpy(ready).to(self._device)

    def _tile(self, start: int) -> Any:
        if start not in self._tiles:
            size = min(self._height, len(self._pool) - start)
            tile = np.empty((size, self._pool.width), np.float32)
            self._pool.fill(tile, slice(start, start + size))
            ready = self._torch.from_numpy(tile).to(self._device)
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
