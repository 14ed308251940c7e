"""Scanning a pool with torch: on a graphics card, or wherever torch can compute.

    scan = TorchScan(pool, k=4000, device="cuda")
    kept = scan.scan(block)        # as `CpuScan.scan`: candidates, from which `settling.py` makes exact ranks

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
from citeweave.similarity.searching.scanning import Block, Kept, Pool

TILE = 65_536
"""Rows of the pool taken at a time."""

RESIDENT = 8 << 30
"""A pool that takes no more bytes than this as float32 stays on the device from block to block."""


def has_cuda() -> bool:
    """Whether torch is installed and finds a graphics card."""
    return find_spec("torch") is not None and bool(require("torch", extra="train").cuda.is_available())


class TorchScan:
    """Scans on a device of torch: the best of every tile, merged."""

    def __init__(self, pool: Pool, k: int, device: str, *, tile: int = TILE) -> None:
        self._torch = require("torch", extra="train")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("device is 'cuda', but torch finds no graphics card; use device 'cpu' or 'auto'")
        self._pool, self._device, self._height = pool, device, tile
        # the members of the margin come on top; a query with more of them is not sure and is scanned again elsewhere
        self._wanted = min(k + max(64, k // 32), len(pool))
        self._tiles: dict[int, Any] = {}

    def scan(self, block: Block, *, guess: bool = True) -> Kept:
        """The k best of each query and some more; nothing is guessed here."""
        torch = self._torch
        with self._full_precision(), torch.inference_mode():
            queries = torch.from_numpy(block.ready).to(self._device)  # (queries, width)
            itself = torch.from_numpy(block.itself).to(self._device, torch.int64)
            scores = torch.empty((len(block), 0), device=self._device)
            positions = torch.empty((len(block), 0), device=self._device, dtype=torch.int64)
            for start in range(0, len(self._pool), self._height):
                quick = queries @ self._tile(start).T  # (queries, rows of the tile)
                mine = torch.nonzero((itself >= start) & (itself < start + quick.shape[1]))[:, 0]
                quick[mine, itself[mine] - start] = -torch.inf
                best, at = torch.topk(quick, min(self._wanted, quick.shape[1]), sorted=False)
                scores, positions = torch.cat([scores, best], 1), torch.cat([positions, at + start], 1)
                if scores.shape[1] > self._wanted:
                    scores, at = torch.topk(scores, self._wanted, sorted=False)
                    positions = positions.gather(1, at)
            scores, order = torch.sort(scores, descending=True)
            return self._kept(scores, positions.gather(1, order))

    def _kept(self, scores: Any, positions: Any) -> Kept:
        found = np.ascontiguousarray(scores.cpu().numpy())
        at = np.ascontiguousarray(positions.cpu().numpy(), np.int32)
        whole = found.shape[1] == len(self._pool)
        cuts = np.full(len(found), -np.inf, np.float32) if whole else found[:, -1].copy()
        return Kept(found, at, np.isfinite(found).sum(axis=1), cuts)

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
