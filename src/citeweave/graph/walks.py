"""What every way to embed nodes is told beside its own options.

Tall dense matrices, row block by row block, in place: Gram matrix, change of basis, evening out.

    >>> matrix = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float32)
    >>> rescale(matrix, 1.0)          # every direction the same weight; the strongest first
    array([9., 1.])
    >>> np.abs(matrix).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]

A matrix of a million rows needs no copy of itself, and may be a memory map. BLAS uses the threads it is told to use.

Columns of a tall matrix in files, some columns to a file, so that no more than a panel of them is ever in memory.

    folder/00000-00032.npy     columns 0 to 31 of all rows, float32 or float16
    folder/gains-4.npy         what rows of the power 4 are multiplied by, found from the first panel

    >>> from tempfile import mkdtemp
    >>> files = PanelFiles(Path(mkdtemp()), nodes=3, dimension=3, dtype=np.float32)
    >>> files.write(slice(0, 2), np.array([[1, 2], [3, 4], [5, 6]], np.float32)), files.done
    (None, 2)
    >>> files.write(slice(2, 3), np.array([[7], [8], [9]], np.float32))
    >>> [block.tolist() for block in files.blocks()]
    [[[1.0, 2.0, 7.0], [3.0, 4.0, 8.0], [5.0, 6.0, 9.0]]]

A file gets its name when it is whole; whoever opens the folder again goes on at `done`. Does not know what the columns
are of.

Sums of powers of a walk over a graph, applied to dense columns: what FastRP and ProNE's propagation are made of.

One step goes from a node to a neighbor in proportion to the weights of its edges, or, with a loop, stays:
P = (D + loop I)^-1 (A + loop I). A walk cannot leave a node without neighbors, and nothing is known of it: 0.

    out += w[0] P X + w[1] P^2 X + w[2] P^3 X ...

A step acts on every column by itself, so the columns are worked off in panels whose width is set by the memory.
Does not know where X comes from.

Sums of powers of a walk on a graphics card, by torch's sparse products: `PowerSum` of `walks.py`, elsewhere.

    powers = DevicePowers(adjacency, degrees, weights, device="cuda")
    powers.add(panel, out, column, advance)

The start is the same random signs, and powers are rounded to bfloat16 between steps as on a processor. Sums of a row's
neighbors are made in another order, so vectors differ by what bfloat16 rounds: numbers of a vector of length 1 by about
0.001, cosines of a vector with its twin are above 0.9999. Runs on one card may differ as much. The graph, 8 bytes an
entry, and three panels in float32 must fit into the card's memory.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import (
    MatrixWriter,
    open_matrix,
    open_numbers,
    release,
    write_numbers,
)
from citeweave.core.errors import UserError, require
from citeweave.core.files import move, sync
from citeweave.core.progress import Advance
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.kernels import LINE, add_gained, end_step, find_gains, narrow_into, seen_by_kernels, widen_into


@dataclass(frozen=True, slots=True)
class EmbeddingRun:
    """How to run; only the seed changes the result."""

    seed: int
    memory: int
    """Bytes of working memory beside the graph and the result."""

    workers: int
    """Threads; 0 = one a core."""

    device: str
    """cpu, cuda or auto; for methods that can use a graphics card."""


# Tall dense matrices, row block by row block, in place: Gram matrix, change of basis, evening out.

ROW_BLOCK = 4096
"""Rows at a time."""

NEGLIGIBLE = 1e-6
"""A direction with less than this share of the strongest one's squared length drowns in rounding: it becomes 0."""

Matrix = NDArray[np.float32]


def gram(matrix: Matrix) -> NDArray[np.float64]:
    """The inner products of all columns, (columns, columns); blocks in single precision, their sum in double."""
    total = np.zeros((matrix.shape[1],) * 2)
    for rows in _blocks(matrix):
        total += rows.T @ rows
    return total


def rescale(matrix: Matrix, power: float) -> NDArray[np.float64]:
    """Turn X = U S V' into U S^(1 - power) in place, and return the squares of S: 0 keeps lengths, 1 evens them out.

    By the eigenvectors of the Gram matrix, so the columns come out by falling strength.
    """
    basis, values = evening_basis(gram(matrix), power)
    for rows in _blocks(matrix):
        rows[:] = rows @ basis
    return values


def evening_basis(total: NDArray[np.float64], power: float) -> tuple[Matrix, NDArray[np.float64]]:
    """What X is multiplied by to become U S^(1 - power), (columns, columns), and the squares of S; from X' X."""
    values, vectors = np.linalg.eigh(total)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > NEGLIGIBLE * values[0]
    factors = np.where(kept, np.where(kept, values, 1.0) ** (-power / 2), 0.0)
    return (vectors * factors).astype(np.float32), np.where(kept, values, 0.0)


def in_order(work: Callable[[Matrix], Matrix], blocks: Iterable[Matrix], workers: int = 0) -> Iterator[Matrix]:
    """The results of all blocks in their order, made on threads; few blocks are in memory at a time.

    >>> [int(block[0]) for block in in_order(np.negative, (np.array([i]) for i in range(5)), workers=2)]
    [0, -1, -2, -3, -4]
    """
    workers = workers or os.cpu_count() or 1
    waiting: deque[Future[Matrix]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _blocks(matrix: Matrix) -> Iterator[Matrix]:
    for start in range(0, len(matrix), ROW_BLOCK):
        yield matrix[start : start + ROW_BLOCK]


# Columns of a tall matrix in files, some columns to a file, so that no more than a panel of them is ever in memory.

_WRITTEN = 1 << 16
"""Rows written at a time."""

_WALKED = 64
"""Blocks read before the memory of the mapped files is given back."""


class PanelFiles:
    """The panels of a matrix of shape (nodes, dimension) in a folder."""

    def __init__(self, folder: Path, nodes: int, dimension: int, dtype: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.nodes, self.dimension, self.dtype = folder, nodes, dimension, np.dtype(dtype)

    @property
    def done(self) -> int:
        """So many columns are there, from the first on."""
        return max((columns.stop for columns in self._columns()), default=0)

    def write(self, columns: slice, panel: NDArray[Any]) -> None:
        """The next columns of all rows, (nodes, columns)."""
        assert columns.start == self.done, (columns, self.done)
        path = self._path(columns)
        begun = path.with_suffix(".new")
        writer = MatrixWriter(begun, self.dtype, panel.shape[1])
        for start in range(0, self.nodes, _WRITTEN):
            writer.append(panel[start : start + _WRITTEN])
        writer.close()
        _name(begun, path)

    def read_gains(self) -> dict[int, NDArray[np.float32]]:
        """What was kept of the first panel for later ones, empty before it."""
        if not self.done:
            return {}
        found = {int(path.stem.split("-")[1]): path for path in self._folder.glob("gains-*.npy")}
        return {power: np.array(open_numbers(path, np.float32)) for power, path in found.items()}

    def write_gains(self, gains: Mapping[int, NDArray[np.float32]]) -> None:
        """Before the first panel is written."""
        for power, values in gains.items():
            path = self._folder / f"gains-{power}.npy"
            write_numbers(path.with_suffix(".new"), values, np.float32)
            _name(path.with_suffix(".new"), path)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All rows with all columns, float32, BLOCK rows at a time."""
        assert self.done == self.dimension, (self.done, self.dimension)
        panels = [(c, open_matrix(self._path(c), self.dtype, (self.nodes, c.stop - c.start))) for c in self._columns()]
        for number, start in enumerate(range(0, self.nodes, ROW_BLOCK)):
            out = np.empty((min(ROW_BLOCK, self.nodes - start), self.dimension), np.float32)  # (rows, dimension)
            for columns, panel in panels:
                widen_into(seen_by_kernels(panel[start : start + ROW_BLOCK]), columns.start, out)
            yield out
            if number % _WALKED == 0:
                release(*(panel for _, panel in panels))

    def _columns(self) -> list[slice]:
        names = (re.fullmatch(r"(\d{5})-(\d{5})\.npy", path.name) for path in sorted(self._folder.iterdir()))
        return [slice(int(name[1]), int(name[2])) for name in names if name]

    def _path(self, columns: slice) -> Path:
        return self._folder / f"{columns.start:05}-{columns.stop:05}.npy"


def _name(begun: Path, path: Path) -> None:
    """Give a file its name once it has reached the disk."""
    sync(begun)
    move(begun, path)


# Sums of powers of a walk over a graph, applied to dense columns: what FastRP and ProNE's propagation are made of.

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
        normalized: bool = False,
        workers: int = 0,
    ) -> None:
        self._adjacency, self._weights, self._loop, self._workers = adjacency, weights, loop, workers
        scale = np.zeros(len(degrees))  # (nodes,)
        np.divide(1, degrees + loop, out=scale, where=degrees > 0)
        self._scale = scale.astype(np.float32)
        self.gains: dict[int, NDArray[np.float32]] = {}
        """Of every power with a weight: what its rows are multiplied by; (nodes,)."""
        if not normalized:
            self.gains = {k: np.full(len(degrees), weight, np.float32) for k, weight in enumerate(weights) if weight}

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """out[:, column:] += the sum for the panel's columns; both of the panel's buffers are overwritten.

        If normalized, every power's rows are made of length 1 first, where the length is estimated from the columns
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


# Sums of powers of a walk on a graphics card, by torch's sparse products: `PowerSum` of `walks.py`, elsewhere.

_FULL = "the graphics card's memory is too small for this graph; use --device cpu, or less --memory for narrower panels"


class DevicePowers:
    """A weighted sum of the powers of one walk, every power's rows made of length 1."""

    def __init__(
        self, adjacency: Adjacency, degrees: NDArray[np.float64], weights: Sequence[float], device: str
    ) -> None:
        self._torch: Any = require("torch", extra="minilm")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("--device is cuda, but torch finds no graphics card; use cpu or auto")
        self._weights, self._device = weights, device
        self.gains: dict[int, NDArray[np.float32]] = {}
        """Of every power with a weight: what its rows are multiplied by; (nodes,)."""
        scale = np.zeros(len(degrees))  # (nodes,)
        np.divide(1, degrees, out=scale, where=degrees > 0)
        try:
            self._scale = self._torch.from_numpy(scale.astype(np.float32)).to(device)[:, None]
            self._parts = [self._matrix(part) for part in adjacency.parts]
        except self._torch.OutOfMemoryError:
            raise UserError(_FULL) from None

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """out[:, column:] = the sum for the panel's columns, which `PowerSum.add` adds."""
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
            raise UserError(_FULL) from None
        narrow_into(total.cpu().numpy(), column, out)

    def _step(self, now: Any) -> Any:
        sums = self._parts[0] @ now
        for part in self._parts[1:]:
            sums += part @ now
        return sums.mul_(self._scale)

    def _gains(self, k: int, weight: float, power: Any) -> Any:
        """(nodes, 1), found at the first panel."""
        torch = self._torch
        if k not in self.gains:
            lengths = power[:, :NARROWEST].square().sum(1).sqrt()
            self.gains[k] = torch.where(lengths > 0, weight / lengths, 0.0).float().cpu().numpy()
        return torch.from_numpy(self.gains[k]).to(self._device)[:, None]

    def _matrix(self, part: Csr) -> Any:
        torch = self._torch
        kind = np.int32 if part.edges < 2**31 else np.int64
        weights = np.ones(part.edges, np.float32) if part.weights is None else np.array(part.weights)
        columns = (part.offsets.astype(kind), part.targets.astype(kind), weights)
        offsets, targets, values = (torch.from_numpy(column).to(self._device) for column in columns)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(offsets, targets, values, (part.nodes,) * 2, check_invariants=False)
