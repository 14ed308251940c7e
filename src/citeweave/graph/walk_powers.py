"""Random-walk powers P X, P^2 X, ... of a graph over panels of columns, on CPU or GPU; whitening.

One step goes from a node to a neighbor in proportion to the weights of its edges or, with a self-loop, stays:
P = (D + loop I)^-1 (A + loop I). A node without neighbors has the row 0.

    out += w[0] P X + w[1] P^2 X + w[2] P^3 X ...

A step acts on every column by itself, so the columns are processed in panels whose width is set by the memory. FastRP
and ProNE's propagation are made of these sums; they choose X. Whitening works in place, block of rows by block of rows,
so that a matrix of a million rows needs no copy and may be a memory map:

    >>> matrix = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float32)
    >>> whiten(matrix, 1.0)          # every direction gets the same weight; the strongest comes first
    array([9., 1.])
    >>> np.abs(matrix).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]

On a GPU the start is the same random signs, and powers are rounded to bfloat16 between steps as on the CPU. Sums over
neighbors are made in another order, so vectors differ by bfloat16 rounding: numbers of a vector of length 1 by about
0.001; the cosine with the CPU's vector is above 0.9999. Runs on one GPU may differ as much. The graph, 8 bytes per
entry, and three panels in float32 must fit into GPU memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.progress import Advance
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.kernels import LINE, add_gained, end_step, find_gains, narrow_into


@dataclass(frozen=True, slots=True)
class EmbeddingRun:
    """Seed and resources of one run of an embedding method; only the seed changes the result."""

    seed: int
    memory: int
    """Bytes of working memory beside the graph and the result."""

    workers: int
    """Threads; 0 = one per core."""

    device: str
    """cpu, cuda or auto; for methods that can use a GPU."""


MIN_PANEL_WIDTH = 16
"""Columns of the narrowest panel; widths are multiples of it. Row norms are estimated from the first so many columns."""


class Panel(NamedTuple):
    """A panel of columns of walk powers: two buffers of shape (nodes, width) between which walk steps alternate."""

    columns: slice
    now: NDArray[Any]
    """The columns that the walk starts from."""

    after: NDArray[Any]


class Panels:
    """Iterates over the columns of walk powers panel by panel; all panels share two buffers."""

    def __init__(
        self,
        nodes: int,
        dimension: int,
        memory: int,
        dtype: Any = np.float32,
        *,
        start: int = 0,
        reserved: int = 0,
        extra: int = 0,
    ) -> None:
        """Choose the panel width that fits `memory` bytes, less `reserved`, with `extra` more per node and column.

        Columns before `start` are left out.
        """
        size = np.dtype(dtype).itemsize
        column = nodes * (2 * size + extra)
        width = max(0, memory - reserved) // column // MIN_PANEL_WIDTH * MIN_PANEL_WIDTH
        if not width:
            raise UserError(
                f"--memory is {memory:,} bytes; node vectors of {nodes:,} nodes need at least "
                f"{reserved + column * MIN_PANEL_WIDTH:,} beside the graph and the result"
            )
        # a row fills whole cache lines if it can: fetching part of a line costs as much as all of it
        unit = max(MIN_PANEL_WIDTH, LINE // size if width >= LINE // size else 0)
        # panels of equal width, so that the last one is not narrow and slow
        columns = dimension - start
        number = -(-columns // (width // unit * unit))
        self.width: int = min(columns, -(-columns // (number * unit)) * unit)
        self.nodes, self.dimension, self.start = nodes, dimension, start
        self._buffers = [empty_aligned(nodes * self.width, dtype) for _ in range(2)]

    def __len__(self) -> int:
        return -(-(self.dimension - self.start) // self.width)

    def __iter__(self) -> Iterator[Panel]:
        for start in range(self.start, self.dimension, self.width):
            width = min(self.width, self.dimension - start)
            now, after = (buffer[: self.nodes * width].reshape(self.nodes, width) for buffer in self._buffers)
            yield Panel(slice(start, start + width), now, after)


def empty_aligned(size: int, dtype: Any) -> NDArray[Any]:
    """Return an empty buffer for walk powers, (size,), that starts at a cache line, so that rows span no extra line.

    numpy alone starts 16 bytes later, which made gathering rows of 64 bytes a fifth slower.
    """
    length = size * np.dtype(dtype).itemsize
    raw = np.empty(length + LINE, np.uint8)
    shift = -raw.ctypes.data % LINE
    return raw[shift : shift + length].view(dtype)


class PowerSum:
    """A weighted sum of random-walk powers on the CPU; `weights[k]` is the weight of k + 1 steps."""

    def __init__(
        self,
        adjacency: Adjacency,
        degrees: NDArray[np.float64],
        weights: Sequence[float],
        *,
        loop: float = 0.0,
        normalized: bool = False,
        workers: int = 0,
    ) -> None:
        self._adjacency, self._weights, self._loop, self._workers = adjacency, weights, loop, workers
        scale = np.zeros(len(degrees))  # (nodes,)
        np.divide(1, degrees + loop, out=scale, where=degrees > 0)
        self._scale = scale.astype(np.float32)
        self.gains: dict[int, NDArray[np.float32]] = {}
        """For every power with a weight: the factors of its rows; (nodes,)."""
        if not normalized:
            self.gains = {k: np.full(len(degrees), weight, np.float32) for k, weight in enumerate(weights) if weight}

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """Add the sum of walk powers of a panel to out[:, column:]; both buffers of the panel are overwritten.

        If normalized, every power's rows are scaled to length 1 first, where the length is estimated from the columns
        of the first panel: 16 of them are enough, and complete rows need not be in memory.
        """
        now, after = panel.now, panel.after
        for k, weight in enumerate(self._weights):
            is_new = bool(weight) and k not in self.gains
            if is_new:
                self.gains[k] = np.empty(len(out), np.float32)
            sink = partial(self._end_step, k, is_new, now, after, column, out)
            self._adjacency.sweep(now, sink, self._workers, advance)
            now, after = after, now

    def _end_step(
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
        """Finish one walk step for the rows of one chunk and add it to the sum."""
        end_step(sums, now, self._loop, self._scale, first, after)
        if k in self.gains:
            if is_new:
                find_gains(sums, self._weights[k], min(MIN_PANEL_WIDTH, sums.shape[1]), first, self.gains[k])
            add_gained(sums, self.gains[k], first, column, out)


# The same sums on a GPU.

_OUT_OF_MEMORY = "GPU memory is too small for this graph; use --device cpu, or less --memory for narrower panels"


class GpuPowerSum:
    """A weighted sum of random-walk powers on a GPU, every power's rows scaled to length 1."""

    def __init__(
        self, adjacency: Adjacency, degrees: NDArray[np.float64], weights: Sequence[float], device: str
    ) -> None:
        self._torch: Any = require("torch", extra="minilm")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("--device is cuda, but torch finds no GPU; use cpu or auto")
        self._weights, self._device = weights, device
        self.gains: dict[int, NDArray[np.float32]] = {}
        """For every power with a weight: the factors of its rows; (nodes,)."""
        scale = np.zeros(len(degrees))  # (nodes,)
        np.divide(1, degrees, out=scale, where=degrees > 0)
        try:
            self._scale = self._torch.from_numpy(scale.astype(np.float32)).to(device)[:, None]
            self._parts = [self._matrix(part) for part in adjacency.parts]
        except self._torch.OutOfMemoryError:
            raise UserError(_OUT_OF_MEMORY) from None

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """Write the sum of walk powers of a panel into out[:, column:]; unlike `PowerSum.add` it overwrites."""
        torch = self._torch
        try:
            signs = torch.from_numpy(panel.now.view(np.int16)).to(self._device).view(torch.bfloat16)
            total = torch.zeros(panel.now.shape, dtype=torch.float32, device=self._device)
            now = signs.float()  # (nodes, width)
            for k, weight in enumerate(self._weights):
                power = self._step(now)
                if weight:
                    total += self._gains(k, weight, power) * power
                now = power.to(torch.bfloat16).float()
                advance(len(total))
        except torch.OutOfMemoryError:
            raise UserError(_OUT_OF_MEMORY) from None
        narrow_into(total.cpu().numpy(), column, out)

    def _step(self, now: Any) -> Any:
        sums = self._parts[0] @ now
        for part in self._parts[1:]:
            sums += part @ now
        return sums.mul_(self._scale)

    def _gains(self, k: int, weight: float, power: Any) -> Any:
        """Return the row factors of one power, (nodes, 1), estimated from the first panel."""
        torch = self._torch
        if k not in self.gains:
            lengths = power[:, :MIN_PANEL_WIDTH].square().sum(1).sqrt()
            self.gains[k] = torch.where(lengths > 0, weight / lengths, 0.0).float().cpu().numpy()
        return torch.from_numpy(self.gains[k]).to(self._device)[:, None]

    def _matrix(self, part: Csr) -> Any:
        """Copy one sparse part of the adjacency to the GPU."""
        torch = self._torch
        kind = np.int32 if part.edges < 2**31 else np.int64
        weights = np.ones(part.edges, np.float32) if part.weights is None else np.array(part.weights)
        columns = (part.offsets.astype(kind), part.targets.astype(kind), weights)
        offsets, targets, values = (torch.from_numpy(column).to(self._device) for column in columns)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(offsets, targets, values, (part.nodes,) * 2, check_invariants=False)


# Whitening of a matrix with many rows, in place.

ROW_BLOCK = 4096
"""Rows processed at a time."""

NEGLIGIBLE = 1e-6
"""Share of the largest eigenvalue below which a direction is rounding noise: it becomes 0."""

Matrix = NDArray[np.float32]


def _gram_matrix(matrix: Matrix) -> NDArray[np.float64]:
    """Return the inner products of all columns, (columns, columns); blocks in single precision, their sum in double."""
    total = np.zeros((matrix.shape[1],) * 2)
    for rows in _blocks(matrix):
        total += rows.T @ rows
    return total


def whiten(matrix: Matrix, power: float) -> NDArray[np.float64]:
    """Whiten sums of walk powers in place, X = U S V' to U S^(1 - power); return S squared: 0 rotates only, 1 is full.

    Uses the eigenvectors of the Gram matrix, so the columns come out in order of decreasing strength.
    """
    basis, values = whitening_basis(_gram_matrix(matrix), power)
    for rows in _blocks(matrix):
        rows[:] = rows @ basis
    return values


def whitening_basis(gram: NDArray[np.float64], power: float) -> tuple[Matrix, NDArray[np.float64]]:
    """Return the matrix that whitens sums of walk powers, X to U S^(1 - power), and S squared; from X' X."""
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    relevant = values > NEGLIGIBLE * values[0]
    factors = np.where(relevant, np.where(relevant, values, 1.0) ** (-power / 2), 0.0)
    return (vectors * factors).astype(np.float32), np.where(relevant, values, 0.0)


def _blocks(matrix: Matrix) -> Iterator[Matrix]:
    for start in range(0, len(matrix), ROW_BLOCK):
        yield matrix[start : start + ROW_BLOCK]
