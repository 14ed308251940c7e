"""Sums of powers of a walk over a graph, applied to dense columns: what FastRP and ProNE's propagation are made of.

One step goes from a node to a neighbour in proportion to the weights of its edges, or, with a loop, stays:
P = (D + loop I)^-1 (A + loop I). A walk cannot leave a node without neighbours, and nothing is known of it: 0.

    out += w[0] P X + w[1] P^2 X + w[2] P^3 X ...

A step acts on every column by itself, so the columns are worked off in panels whose width is set by the memory.
Does not know where X comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.memory_access import LINE
from citeweave.graph.row_kernels import add_gained, end_step, find_gains
from citeweave.progress import Advance

NARROWEST = 16
"""Columns of the narrowest panel; panels are multiples of it. Lengths of rows are taken from the first so many."""


class Panel(NamedTuple):
    """Some columns, and two buffers of shape (nodes, width of the panel) to walk between."""

    columns: slice
    now: NDArray[Any]
    """What the walk starts from."""

    after: NDArray[Any]


class Panels:
    """All columns, panel by panel; the buffers are used again for the next one."""

    def __init__(
        self,
        nodes: int,
        dimension: int,
        memory: int,
        dtype: Any = np.float32,
        *,
        start: int = 0,
        taken: int = 0,
        beside: int = 0,
    ) -> None:
        """As wide as `memory` bytes allow, of which `taken` are not for the buffers, nor `beside` a node and column.

        Columns before `start` are left out.
        """
        size = np.dtype(dtype).itemsize
        column = nodes * (2 * size + beside)
        width = max(0, memory - taken) // column // NARROWEST * NARROWEST
        if not width:
            raise UserError(
                f"--memory is {memory:,} bytes; node vectors of {nodes:,} nodes need at least "
                f"{taken + column * NARROWEST:,} beside the graph and the result"
            )
        # a row fills lines of the cache, where there is room for one: part of a line is fetched as dear as all of it
        unit = max(NARROWEST, LINE // size if width >= LINE // size else 0)
        # panels of equal width, so that the last one is not a narrow and slow one
        columns = dimension - start
        number = -(-columns // (width // unit * unit))
        self.width: int = min(columns, -(-columns // (number * unit)) * unit)
        self.nodes, self.dimension, self.start = nodes, dimension, start
        self._buffers = [aligned(nodes * self.width, dtype) for _ in range(2)]

    def __len__(self) -> int:
        return -(-(self.dimension - self.start) // self.width)

    def __iter__(self) -> Iterator[Panel]:
        for start in range(self.start, self.dimension, self.width):
            width = min(self.width, self.dimension - start)
            now, after = (buffer[: self.nodes * width].reshape(self.nodes, width) for buffer in self._buffers)
            yield Panel(slice(start, start + width), now, after)


def aligned(size: int, dtype: Any) -> NDArray[Any]:
    """An array of shape (size,) that begins with a line of the cache, so that rows of whole lines touch no others.

    numpy alone begins 16 bytes later, which made gathering rows of 64 bytes a fifth slower.
    """
    wanted = size * np.dtype(dtype).itemsize
    raw = np.empty(wanted + LINE, np.uint8)
    shift = -raw.ctypes.data % LINE
    return raw[shift : shift + wanted].view(dtype)


class PowerSum:
    """A weighted sum of the powers of one walk; `weights[k]` is that of k + 1 steps."""

    def __init__(
        self,
        adjacency: Adjacency,
        degrees: NDArray[np.float64],
        weights: Sequence[float],
        *,
        loop: float = 0.0,
        normalised: bool = False,
        workers: int = 0,
    ) -> None:
        self._adjacency, self._weights, self._loop, self._workers = adjacency, weights, loop, workers
        scale = np.zeros(len(degrees))  # (nodes,)
        np.divide(1, degrees + loop, out=scale, where=degrees > 0)
        self._scale = scale.astype(np.float32)
        self.gains: dict[int, NDArray[np.float32]] = {}
        """Of every power with a weight: what its rows are multiplied by; (nodes,)."""
        if not normalised:
            self.gains = {k: np.full(len(degrees), weight, np.float32) for k, weight in enumerate(weights) if weight}

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """out[:, column:] += the sum for the panel's columns; both of the panel's buffers are overwritten.

        If normalised, every power's rows are made of length 1 first, where the length is estimated from the columns
        of the first panel that is added: 16 of them are enough, and whole rows need not be in memory.
        """
        now, after = panel.now, panel.after
        for k, weight in enumerate(self._weights):
            is_new = bool(weight) and k not in self.gains
            if is_new:
                self.gains[k] = np.empty(len(out), np.float32)
            use = partial(self._end, k, is_new, now, after, column, out)
            self._adjacency.sweep(now, use, self._workers, advance)
            now, after = after, now

    def _end(
        self,
        k: int,
        is_new: bool,
        now: NDArray[Any],
        after: NDArray[Any],
        column: int,
        out: NDArray[Any],
        first: int,
        sums: NDArray[np.float32],
    ) -> None:
        """End one step for the rows of one chunk."""
        end_step(sums, now, self._loop, self._scale, first, after)
        if k in self.gains:
            if is_new:
                find_gains(sums, self._weights[k], min(NARROWEST, sums.shape[1]), first, self.gains[k])
            add_gained(sums, self.gains[k], first, column, out)
