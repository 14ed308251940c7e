"""FastRP: node vectors by random projection of a walk's powers (Chen et al., CIKM 2019). No training, seconds.

    R     random signs, one row a node, times degree^exponent
    U_k   = P^k R, every row made of length 1              P: one step to a random neighbor
    U     = w_1 U_1 + w_2 U_2 + ...                        two nodes are near if their walks end at the same nodes
    X     = U, its directions evened out, rows of length 1

Differences from the paper: signs are dense, which are as cheap here as sparse ones and less noisy; the rows of every
power are normalized, as in the authors' code with `normalization=True`; and the directions are evened out by the Gram
matrix (their code standardizes columns), which keeps the few directions that hubs share from covering the rest.

A graph in which few nodes both cite and are cited is nearly bipartite: papers alike meet after an even number of
steps, citing and cited ones after an odd number. So an even and an odd power have weight by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.progress import Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.kernels import fill_signs, seen_by_kernels, unit_rows
from citeweave.graph.walks import (
    DevicePowers,
    EmbeddingRun,
    Panel,
    PanelFiles,
    Panels,
    PowerSum,
    aligned,
    evening_basis,
    in_order,
    rescale,
)

_LABEL = "node vectors (fastrp)"


@dataclass(frozen=True, slots=True)
class FastRP:
    """Options of FastRP."""

    weights: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    """Weight of 1, 2, 3 ... steps. Of citation graphs, walks of 5 and 6 steps tell more than shorter ones."""

    exponent: float = 0.0
    """Random vectors count by degree to this power: below 0, walks that end at hubs say less."""

    evening: float = 0.5
    """0 keeps the directions' strengths, 1 makes all equal, 0.5 takes the square roots of them."""

    def __post_init__(self) -> None:
        if not any(self.weights) or not np.isfinite(self.weights).all() or len(self.weights) > 100:
            raise UserError(
                f"graph.fastrp.weights is {list(self.weights)}; give one number a step, 1 to 100 of them, not all 0"
            )
        if not -2 <= self.exponent <= 2:
            raise UserError(f"graph.fastrp.exponent is {self.exponent}; it must be a number from -2 to 2")
        if not 0 <= self.evening <= 1:
            raise UserError(f"graph.fastrp.evening is {self.evening}; it must be a number from 0 to 1")


class Projection:
    """What all columns of one graph's vectors share."""

    def __init__(self, adjacency: Adjacency, chosen: FastRP, run: EmbeddingRun) -> None:
        degrees = adjacency.degrees()
        self._scale = np.zeros(len(degrees), np.float32)  # (nodes,)
        np.power(degrees, chosen.exponent, out=self._scale, where=degrees > 0, casting="same_kind")
        self._key = int(stream(run.seed, "fastrp").integers(1 << 63))
        self.powers: PowerSum | DevicePowers
        if run.device == "cuda":
            self.powers = DevicePowers(adjacency, degrees, chosen.weights, run.device)
        else:
            self.powers = PowerSum(adjacency, degrees, chosen.weights, normalized=True, workers=run.workers)
        self.taken = 4 * len(degrees) * (2 + sum(map(bool, chosen.weights)))
        """Bytes of the numbers that are kept of every node: two scales, and the gains of every power."""

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """out[:, column:] += the panel's columns of U."""
        fill_signs(self._key, panel.columns.start, self._scale, panel.now)
        self.powers.add(panel, out, column, advance)


def embed(
    adjacency: Adjacency, out: NDArray[np.float32], chosen: FastRP, run: EmbeddingRun, reporter: Reporter
) -> None:
    """Write the vectors of all nodes into `out`, (nodes, dimension)."""
    projection = Projection(adjacency, chosen, run)
    panels = Panels(len(out), out.shape[1], run.memory, np.uint16)
    out[:] = 0
    with reporter.task(_LABEL, total=len(panels) * len(chosen.weights) * len(out), unit="rows") as advance:
        for panel in panels:
            projection.add(panel, out, panel.columns.start, advance)
    if chosen.evening:
        rescale(out, chosen.evening)
    unit_rows(out)


def fill_panels(adjacency: Adjacency, files: PanelFiles, chosen: FastRP, run: EmbeddingRun, reporter: Reporter) -> None:
    """Write U, not evened out, panel by panel into files; goes on after those that are there.

    All that is held is within `run.memory`: what is kept of every node, and three panels.
    """
    if files.done == files.dimension:
        return
    projection, nodes = Projection(adjacency, chosen, run), files.nodes
    projection.powers.gains |= files.read_gains()
    panels = Panels(
        nodes,
        files.dimension,
        run.memory,
        np.uint16,
        start=files.done,
        taken=projection.taken,
        beside=files.dtype.itemsize,
    )
    sums = aligned(nodes * panels.width, files.dtype)
    with reporter.task(_LABEL, total=len(panels) * len(chosen.weights) * nodes, unit="rows") as advance:
        for panel in panels:
            out = sums[: panel.now.size].reshape(panel.now.shape)  # (nodes, width)
            out[:] = 0
            projection.add(panel, seen_by_kernels(out), 0, advance)
            if not panel.columns.start:
                files.write_gains(projection.powers.gains)
            files.write(panel.columns, out)


def finished_rows(files: PanelFiles, chosen: FastRP, run: EmbeddingRun) -> Iterator[NDArray[np.float32]]:
    """The vectors in the order of the nodes, block by block: U evened out, rows of length 1; bits as of `embed`."""
    basis = None
    if chosen.evening:
        total = np.zeros((files.dimension,) * 2)
        for product in in_order(lambda block: block.T @ block, files.blocks(), run.workers):
            total += product
        basis = evening_basis(total, chosen.evening)[0]

    def finish(block: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = block if basis is None else block @ basis
        unit_rows(rows)
        return rows

    yield from in_order(finish, files.blocks(), run.workers)
