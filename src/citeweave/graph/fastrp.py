"""FastRP: node vectors by random projection of a walk's powers (Chen et al., CIKM 2019). No training, seconds.

    R     random signs, one row a node, times degree^exponent
    U_k   = P^k R, every row made of length 1              P: one step to a random neighbour
    U     = w_1 U_1 + w_2 U_2 + ...                        two nodes are near if their walks end at the same nodes
    X     = U, its directions evened out, rows of length 1

Differences from the paper: signs are dense, which are as cheap here as sparse ones and less noisy; the rows of every
power are normalised, as in the authors' code with `normalization=True`; and the directions are evened out by the Gram
matrix (their code standardises columns), which keeps the few directions that hubs share from covering the rest.

A graph in which few nodes both cite and are cited is nearly bipartite: papers alike meet after an even number of
steps, citing and cited ones after an odd number. So an even and an odd power have weight by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.dense_rows import rescale
from citeweave.graph.embedding_run import EmbeddingRun
from citeweave.graph.row_kernels import fill_signs, unit_rows
from citeweave.graph.walks import Panels, PowerSum
from citeweave.progress import Reporter
from citeweave.randomness import stream


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


def embed(
    adjacency: Adjacency, out: NDArray[np.float32], chosen: FastRP, run: EmbeddingRun, reporter: Reporter
) -> None:
    """Write the vectors of all nodes into `out`, (nodes, dimension)."""
    degrees = adjacency.degrees()
    nodes, dimension = out.shape
    scale = np.zeros(nodes, np.float32)  # (nodes,)
    np.power(degrees, chosen.exponent, out=scale, where=degrees > 0, casting="same_kind")
    key = int(stream(run.seed, "fastrp").integers(1 << 63))
    powers = PowerSum(adjacency, degrees, chosen.weights, normalised=True, workers=run.workers)
    panels = Panels(nodes, dimension, run.memory, np.uint16)
    out[:] = 0
    with reporter.task(
        "node vectors (fastrp)", total=len(panels) * len(chosen.weights) * nodes, unit="rows"
    ) as advance:
        for panel in panels:
            fill_signs(key, panel.columns.start, scale, panel.now)
            powers.add(panel, out, advance)
    if chosen.evening:
        rescale(out, chosen.evening)
    unit_rows(out)
