"""FastRP node vectors: random projection of random-walk powers, in memory or streamed to disk, on CPU or GPU.

After Chen et al., CIKM 2019; no training, seconds for a million nodes:

    R     random signs, one row per node, times degree^exponent
    U_k   = P^k R, every row scaled to length 1            P: one step to a random neighbor
    U     = w_1 U_1 + w_2 U_2 + ...                        two nodes are near if their walks end at the same nodes
    X     = U, partly whitened, rows of length 1

Differences from the paper: signs are dense, which are as cheap here as sparse ones and less noisy; the rows of every
power are normalized, as in the authors' code with `normalization=True`; and directions are whitened by the Gram matrix
(their code standardizes columns), which keeps the few directions that hubs share from hiding the rest.

A graph in which few nodes both cite and are cited is nearly bipartite: similar papers meet after an even number of
steps, citing and cited ones after an odd number. So an even and an odd power have weight by default.

A step of the walk goes from a node to a neighbor in proportion to the weights of its edges or, with a self-loop, stays:
P = (D + loop I)^-1 (A + loop I). A node without neighbors has the row 0. A step acts on every column by itself, so the
columns are processed in panels whose width is set by the memory. ProNE's propagation is made of these sums as well.

On a GPU the start is the same random signs, and powers are rounded to bfloat16 between steps as on the CPU. Sums over
neighbors are made in another order, so vectors differ by bfloat16 rounding: numbers of a vector of length 1 by about
0.001; the cosine with the CPU's vector is above 0.9999. Runs on one GPU may differ as much. The graph, 8 bytes per
entry, and three panels in float32 must fit into GPU memory.

Streaming writes U panel by panel, so that no more than one panel of columns is ever in memory:

    folder/00000-00032.npy     columns 0 to 31 of all rows, float32 or float16
    folder/gains-4.npy         factors of the rows of power 4, estimated from the first panel

    >>> from tempfile import mkdtemp
    >>> files = PanelFiles(Path(mkdtemp()), nodes=3, dimension=3, dtype=np.float32)
    >>> files.write(slice(0, 2), np.array([[1, 2], [3, 4], [5, 6]], np.float32)), files.done
    (None, 2)
    >>> files.write(slice(2, 3), np.array([[7], [8], [9]], np.float32))
    >>> [block.tolist() for block in files.blocks()]
    [[[1.0, 2.0, 7.0], [3.0, 4.0, 8.0], [5.0, 6.0, 9.0]]]
"""

from __future__ import annotations

import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import MatrixWriter, open_matrix, open_numbers, release, write_numbers
from citeweave.core.errors import UserError, require
from citeweave.core.files import move, sync
from citeweave.core.progress import Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.kernels import (
    LINE,
    add_gained,
    as_kernel_array,
    end_step,
    fill_signs,
    find_gains,
    narrow_into,
    unit_rows,
    widen_into,
)
from citeweave.graph.options import NodeVectorOptions

Matrix = NDArray[np.float32]

_LABEL = "node vectors (fastrp)"


class Projection:
    """The random projection of one graph: signs and walk powers that all panels of FastRP columns share."""

    def __init__(self, adjacency: Adjacency, options: NodeVectorOptions) -> None:
        degrees, weights = adjacency.degrees(), options.fastrp.weights
        self._scale = np.zeros(len(degrees), np.float32)  # (nodes,)
        np.power(degrees, options.fastrp.exponent, out=self._scale, where=degrees > 0, casting="same_kind")
        self._key = int(stream(options.seed, "fastrp").integers(1 << 63))
        self.powers: PowerSum | GpuPowerSum
        if options.device == "cuda":
            self.powers = GpuPowerSum(adjacency, degrees, weights, options.device)
        else:
            self.powers = PowerSum(adjacency, degrees, weights, normalized=True, workers=options.workers)
        self.reserved = 4 * len(degrees) * (2 + sum(map(bool, weights)))
        """Bytes held for all nodes: two scales, and the gains of every power."""

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """Add the panel's columns of U, the projected walk powers, to out[:, column:]."""
        fill_signs(self._key, panel.columns.start, self._scale, panel.now)
        self.powers.add(panel, out, column, advance)


def embed(adjacency: Adjacency, out: Matrix, options: NodeVectorOptions, reporter: Reporter) -> None:
    """Write the FastRP vectors of all nodes into `out`, (nodes, dimension)."""
    projection = Projection(adjacency, options)
    panels = Panels(len(out), out.shape[1], options.memory, np.uint16)
    out[:] = 0
    with reporter.task(_LABEL, total=len(panels) * len(options.fastrp.weights) * len(out), unit="rows") as advance:
        for panel in panels:
            projection.add(panel, out, panel.columns.start, advance)
    if options.fastrp.evening:
        whiten(out, options.fastrp.evening)
    unit_rows(out)


def fill_panels(adjacency: Adjacency, files: PanelFiles, options: NodeVectorOptions, reporter: Reporter) -> None:
    """Write U of FastRP, before whitening, panel by panel into files; resumes after the panels that already exist.

    Everything held is within `options.memory`: scales and gains of every node, and three panels.
    """
    projection, nodes = Projection(adjacency, options), files.nodes
    projection.powers.gains |= files.read_gains()
    panels = Panels(
        nodes,
        files.dimension,
        options.memory,
        np.uint16,
        start=files.done,
        reserved=projection.reserved,
        extra=files.dtype.itemsize,
    )
    sums = empty_aligned(nodes * panels.width, files.dtype)
    with reporter.task(_LABEL, total=len(panels) * len(options.fastrp.weights) * nodes, unit="rows") as advance:
        for panel in panels:
            out = sums[: panel.now.size].reshape(panel.now.shape)  # (nodes, width)
            out[:] = 0
            projection.add(panel, as_kernel_array(out), 0, advance)
            if not panel.columns.start:
                files.write_gains(projection.powers.gains)
            files.write(panel.columns, out)


def finished_rows(files: PanelFiles, options: NodeVectorOptions) -> Iterator[Matrix]:
    """Yield the FastRP vectors in node order, block by block: U whitened, rows of length 1, bit for bit as `embed`."""
    basis, workers = None, options.workers
    if options.fastrp.evening:
        gram = np.zeros((files.dimension,) * 2)
        for product in _map_in_order(lambda block: block.T @ block, files.blocks(), workers):
            gram += product
        basis = whitening_basis(gram, options.fastrp.evening)[0]

    def finish(block: Matrix) -> Matrix:
        rows = block if basis is None else block @ basis
        unit_rows(rows)
        return rows

    yield from _map_in_order(finish, files.blocks(), workers)


def _map_in_order(work: Callable[[Matrix], Matrix], blocks: Iterable[Matrix], workers: int = 0) -> Iterator[Matrix]:
    """Yield the results of a function over blocks of rows in order, computed on threads with few blocks in memory.

    >>> [int(block[0]) for block in _map_in_order(np.negative, (np.array([i]) for i in range(5)), workers=2)]
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


# Panels of columns, and sums of walk powers over them.

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


# Panels of columns in files.

_ROWS_PER_WRITE = 1 << 16
"""Rows written at a time."""

_RELEASE_EVERY = 64
"""Blocks read before the pages of the mapped panel files are released."""


class PanelFiles:
    """A folder of panel files that hold the columns of FastRP's matrix U of shape (nodes, dimension)."""

    def __init__(self, folder: Path, nodes: int, dimension: int, dtype: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.nodes, self.dimension, self.dtype = folder, nodes, dimension, np.dtype(dtype)

    @property
    def done(self) -> int:
        """Number of columns that are written, from the first on."""
        return max((columns.stop for columns in self._columns()), default=0)

    def write(self, columns: slice, panel: NDArray[Any]) -> None:
        """Write the next panel of FastRP columns, (nodes, columns); the file gets its name once it is complete."""
        assert columns.start == self.done, (columns, self.done)
        path = self._path(columns)
        partial_file = path.with_suffix(".new")
        writer = MatrixWriter(partial_file, self.dtype, panel.shape[1])
        for start in range(0, self.nodes, _ROWS_PER_WRITE):
            writer.append(panel[start : start + _ROWS_PER_WRITE])
        writer.close()
        _publish(partial_file, path)

    def read_gains(self) -> dict[int, NDArray[np.float32]]:
        """Read the gains of the walk powers, saved with the first panel; empty before it."""
        if not self.done:
            return {}
        paths = {int(path.stem.split("-")[1]): path for path in self._folder.glob("gains-*.npy")}
        return {power: np.array(open_numbers(path, np.float32)) for power, path in paths.items()}

    def write_gains(self, gains: Mapping[int, NDArray[np.float32]]) -> None:
        """Write the gains of the walk powers; call this before the first panel is written."""
        for power, values in gains.items():
            path = self._folder / f"gains-{power}.npy"
            write_numbers(path.with_suffix(".new"), values, np.float32)
            _publish(path.with_suffix(".new"), path)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield all rows of FastRP's panels with all columns as float32, ROW_BLOCK rows at a time."""
        assert self.done == self.dimension, (self.done, self.dimension)
        panels = [(c, open_matrix(self._path(c), self.dtype, (self.nodes, c.stop - c.start))) for c in self._columns()]
        for number, start in enumerate(range(0, self.nodes, ROW_BLOCK)):
            out = np.empty((min(ROW_BLOCK, self.nodes - start), self.dimension), np.float32)  # (rows, dimension)
            for columns, panel in panels:
                widen_into(as_kernel_array(panel[start : start + ROW_BLOCK]), columns.start, out)
            yield out
            if number % _RELEASE_EVERY == 0:
                release(*(panel for _, panel in panels))

    def _columns(self) -> list[slice]:
        names = (re.fullmatch(r"(\d{5})-(\d{5})\.npy", path.name) for path in sorted(self._folder.iterdir()))
        return [slice(int(name[1]), int(name[2])) for name in names if name]

    def _path(self, columns: slice) -> Path:
        return self._folder / f"{columns.start:05}-{columns.stop:05}.npy"


def _publish(partial_file: Path, path: Path) -> None:
    """Give a panel file its name once it has reached the disk."""
    sync(partial_file)
    move(partial_file, path)
