"""Adjacency: who is next to whom, as sparse rows; a sum of parts, so that both directions need no copy.

    row 0 -> 1, 2        offsets [0, 2, 3, 3]
    row 1 -> 2           targets [1, 2, 2]
    row 2 -> nobody      weights [1.0, 1.0, 0.5], or None where every edge counts 1

    >>> there = Csr(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32))
    >>> both = Adjacency((there, there.transposed()))
    >>> both.times(np.array([[1.0], [10.0], [100.0]], np.float32)).tolist(), both.degrees().tolist()
    ([[110.0], [101.0], [11.0]], [2.0, 2.0, 2.0])

Knows nothing of papers, citations or what an edge means.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import release
from citeweave.errors import UserError
from citeweave.graph.row_kernels import add_rows, add_weights, hash_entries, store_scaled, transpose
from citeweave.progress import Advance

CHUNK = 2048
"""Rows that a thread sums at a time: few enough to stay in a core's cache, enough to hide what a call costs."""

WALKED = 1 << 26
"""Entries after which the memory of mapped columns is given back."""

Use = Callable[[int, NDArray[np.float32]], None]
"""Gets the first row of a chunk and the sums of its rows, (rows, width), which are overwritten afterwards."""


@dataclass(frozen=True, slots=True)
class Csr:
    """Compressed sparse rows: the neighbours of row i are targets[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    """Shape (nodes + 1,)."""

    targets: NDArray[np.int32]
    """Shape (edges,), ascending within a row."""

    weights: NDArray[np.float32] | None = None
    """Shape (edges,); None where every edge counts 1."""

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.targets)

    def row(self, node: int) -> NDArray[np.int32]:
        """The neighbours of one node."""
        return self.targets[self.offsets[node] : self.offsets[node + 1]]

    def transposed(self) -> Csr:
        """Rows become columns; a new matrix of the same size."""
        offsets = np.zeros(self.nodes + 1, np.int64)  # (nodes + 1,)
        np.cumsum(np.bincount(self.targets, minlength=self.nodes), out=offsets[1:])
        sources = np.empty(self.edges, np.int32)  # (edges,)
        weights = None if self.weights is None else np.empty(self.edges, np.float32)
        transpose(self.offsets, self.targets, self.weights, offsets[:-1].copy(), sources, weights)
        return Csr(offsets, sources, weights)


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The sum of sparse matrices of one size; a citation graph without directions is forward + backward."""

    parts: tuple[Csr, ...]

    @property
    def nodes(self) -> int:
        return self.parts[0].nodes

    @property
    def edges(self) -> int:
        """Entries of all parts."""
        return sum(part.edges for part in self.parts)

    @property
    def is_symmetric(self) -> bool:
        """Whether every entry (i, j) has its (j, i) of the same weight; by 64-bit hashes, in one pass."""
        sums = [hash_entries(part.offsets, part.targets, part.weights) for part in self.parts]
        there, back = (sum(int(pair[side]) for pair in sums) % 2**64 for side in (0, 1))
        return there == back

    def degrees(self) -> NDArray[np.float64]:
        """Sum of the weights of every row, (nodes,); 0 is a node without neighbours."""
        sums = np.zeros(self.nodes)  # (nodes,)
        good = [add_weights(part.offsets, part.targets, part.weights, sums) for part in self.parts]
        if not all(good):
            raise UserError("a weight of the graph is negative or not finite; weights of edges are numbers from 0 up")
        return sums

    def transposed(self) -> Adjacency:
        """Rows become columns, part by part."""
        return Adjacency(tuple(part.transposed() for part in self.parts))

    def times(
        self,
        block: NDArray[np.float32],
        out: NDArray[np.float32] | None = None,
        *,
        scale: NDArray[np.float32] | None = None,
        workers: int = 0,
    ) -> NDArray[np.float32]:
        """The product with a dense block of shape (nodes, width), its row i times scale[i] where there is a scale.

        `out` must not be `block`; both may be columns of a wider array.
        """
        out = np.empty(block.shape, np.float32) if out is None else out
        self.sweep(block, lambda first, sums: store_scaled(sums, scale, first, out), workers)
        return out

    def sweep(self, block: NDArray[Any], use: Use, workers: int = 0, advance: Advance = lambda rows: None) -> None:
        """Sum the neighbours' rows of `block` for every node, and hand the sums to `use`, chunk by chunk, on threads.

        `block` is float32, or bfloat16 as uint16; sums are float32 and never depend on the workers.
        """
        local = threading.local()

        def work(first: int) -> int:
            if not hasattr(local, "sums"):
                local.sums = np.empty((CHUNK, block.shape[1]), np.float32)
            sums = local.sums[: min(CHUNK, self.nodes - first)]  # (rows, width)
            sums[:] = 0
            for part in self.parts:
                add_rows(part.offsets, part.targets, part.weights, block, first, sums)
            use(first, sums)
            return len(sums)

        walked, most = 0, self.nodes * WALKED // max(1, self.edges)
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            for rows in pool.map(work, range(0, self.nodes, CHUNK)):
                advance(rows)
                walked += rows
                if walked > most:
                    walked = 0
                    self.release()

    def release(self) -> None:
        """Give back the memory in which mapped columns were cached."""
        for part in self.parts:
            release(part.offsets, part.targets, *(() if part.weights is None else (part.weights,)))
