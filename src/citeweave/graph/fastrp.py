"""FastRP node vectors: random projection of random-walk powers, in memory or streamed to disk.

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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import MatrixWriter, open_matrix, open_numbers, release, write_numbers
from citeweave.core.files import move, sync
from citeweave.core.progress import Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.kernels import as_kernel_array, fill_signs, unit_rows, widen_into
from citeweave.graph.options import FastRP
from citeweave.graph.walk_powers import (
    ROW_BLOCK,
    EmbeddingRun,
    GpuPowerSum,
    Matrix,
    Panel,
    Panels,
    PowerSum,
    empty_aligned,
    whiten,
    whitening_basis,
)

_LABEL = "node vectors (fastrp)"


class Projection:
    """The random projection of one graph: signs and walk powers that all panels of FastRP columns share."""

    def __init__(self, adjacency: Adjacency, options: FastRP, run: EmbeddingRun) -> None:
        degrees = adjacency.degrees()
        self._scale = np.zeros(len(degrees), np.float32)  # (nodes,)
        np.power(degrees, options.exponent, out=self._scale, where=degrees > 0, casting="same_kind")
        self._key = int(stream(run.seed, "fastrp").integers(1 << 63))
        self.powers: PowerSum | GpuPowerSum
        if run.device == "cuda":
            self.powers = GpuPowerSum(adjacency, degrees, options.weights, run.device)
        else:
            self.powers = PowerSum(adjacency, degrees, options.weights, normalized=True, workers=run.workers)
        self.reserved = 4 * len(degrees) * (2 + sum(map(bool, options.weights)))
        """Bytes held for all nodes: two scales, and the gains of every power."""

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """Add the panel's columns of U, the projected walk powers, to out[:, column:]."""
        fill_signs(self._key, panel.columns.start, self._scale, panel.now)
        self.powers.add(panel, out, column, advance)


def embed(
    adjacency: Adjacency, out: NDArray[np.float32], options: FastRP, run: EmbeddingRun, reporter: Reporter
) -> None:
    """Write the FastRP vectors of all nodes into `out`, (nodes, dimension)."""
    projection = Projection(adjacency, options, run)
    panels = Panels(len(out), out.shape[1], run.memory, np.uint16)
    out[:] = 0
    with reporter.task(_LABEL, total=len(panels) * len(options.weights) * len(out), unit="rows") as advance:
        for panel in panels:
            projection.add(panel, out, panel.columns.start, advance)
    if options.evening:
        whiten(out, options.evening)
    unit_rows(out)


def fill_panels(
    adjacency: Adjacency, files: PanelFiles, options: FastRP, run: EmbeddingRun, reporter: Reporter
) -> None:
    """Write U of FastRP, before whitening, panel by panel into files; resumes after the panels that already exist.

    Everything held is within `run.memory`: scales and gains of every node, and three panels.
    """
    if files.done == files.dimension:
        return
    projection, nodes = Projection(adjacency, options, run), files.nodes
    projection.powers.gains |= files.read_gains()
    panels = Panels(
        nodes,
        files.dimension,
        run.memory,
        np.uint16,
        start=files.done,
        reserved=projection.reserved,
        extra=files.dtype.itemsize,
    )
    sums = empty_aligned(nodes * panels.width, files.dtype)
    with reporter.task(_LABEL, total=len(panels) * len(options.weights) * nodes, unit="rows") as advance:
        for panel in panels:
            out = sums[: panel.now.size].reshape(panel.now.shape)  # (nodes, width)
            out[:] = 0
            projection.add(panel, as_kernel_array(out), 0, advance)
            if not panel.columns.start:
                files.write_gains(projection.powers.gains)
            files.write(panel.columns, out)


def finished_rows(files: PanelFiles, options: FastRP, run: EmbeddingRun) -> Iterator[NDArray[np.float32]]:
    """Yield the FastRP vectors in node order, block by block: U whitened, rows of length 1, bit for bit as `embed`."""
    basis = None
    if options.evening:
        gram = np.zeros((files.dimension,) * 2)
        for product in _map_in_order(lambda block: block.T @ block, files.blocks(), run.workers):
            gram += product
        basis = whitening_basis(gram, options.evening)[0]

    def finish(block: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = block if basis is None else block @ basis
        unit_rows(rows)
        return rows

    yield from _map_in_order(finish, files.blocks(), run.workers)


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
