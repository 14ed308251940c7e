"""Columns of a tall matrix in files, some columns to a file, so that no more than a panel of them is ever in memory.

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
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import MatrixWriter, open_matrix, open_numbers, release, write_numbers
from citeweave.files import move, sync
from citeweave.graph.dense_rows import BLOCK
from citeweave.graph.memory_access import seen_by_kernels
from citeweave.graph.row_kernels import widen_into

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
        for number, start in enumerate(range(0, self.nodes, BLOCK)):
            out = np.empty((min(BLOCK, self.nodes - start), self.dimension), np.float32)  # (rows, dimension)
            for columns, panel in panels:
                widen_into(seen_by_kernels(panel[start : start + BLOCK]), columns.start, out)
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
