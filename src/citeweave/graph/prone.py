"""ProNE: node vectors by a sparse factorization and its smoothing over the graph (Zhang et al., IJCAI 2019).

    M_ij  = log(p_ij / (shift n_j)) at every edge    p: one step of a walk, n: how often it ends at j, to the 3/4
    E     = the strongest directions of M            randomized singular vectors, times the root of their values
    X     = (A + I) g(L) E, its directions evened    g(L) = 1 - exp(theta) exp(-theta (L - mu)^2 / 2), L = I - P

Differences from the authors' code, none of which changes what is computed: the singular vectors come from Gram
matrices, so that nothing beside the result is held but a panel of columns; and the filter g is interpolated in P itself
by a polynomial of `order` steps, where their series in (L - mu)^2 needs about twice as many for the same precision.
Few iterations are meant: more of them make M's directions more exact and the vectors no better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.progress import Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency, Csr, Use
from citeweave.graph.kernels import add_columns, fill_log_weights, fill_signs, unit_rows
from citeweave.graph.walks import EmbeddingRun, Panels, PowerSum, rescale

_NEGATIVE_POWER = 0.75
"""Of word2vec's negative sampling (Mikolov et al. 2013), which ProNE takes over."""


@dataclass(frozen=True, slots=True)
class ProNE:
    """Options of ProNE."""

    shift: float = 1.0
    """Negatives a positive in the objective that the factorization stands for."""

    iterations: int = 2
    """Rounds of the randomized factorization; 1 is a little better against random papers, 3 against much-cited ones."""

    order: int = 5
    """Steps over which vectors are smoothed."""

    mu: float = -0.3
    """Where the spectrum of L is kept most: 0 is what neighbors share, 2 what sets them apart."""

    theta: float = 8.0
    """How narrow a part of the spectrum is kept; the authors' mu 0.2 and theta 0.5 keep nearly all and find fewer
    held-out citations."""

    def __post_init__(self) -> None:
        checks = {
            "shift": (0 < self.shift < 1e6, "a number over 0 and under 1e6"),
            "iterations": (1 <= self.iterations <= 100, "a whole number from 1 to 100"),
            "order": (1 <= self.order <= 30, "a whole number from 1 to 30"),
            "mu": (-2 <= self.mu <= 2, "a number from -2 to 2"),
            "theta": (0 < self.theta <= 10, "a number over 0, at most 10"),
        }
        for name, (is_good, rule) in checks.items():
            if not is_good:
                raise UserError(f"graph.prone.{name} is {getattr(self, name)}; it must be {rule}")


def embed(adjacency: Adjacency, out: NDArray[np.float32], chosen: ProNE, run: EmbeddingRun, reporter: Reporter) -> None:
    """Write the vectors of all nodes into `out`, (nodes, dimension)."""
    degrees, nodes = adjacency.degrees(), len(out)
    taken = 8 * adjacency.edges if adjacency.is_symmetric else 12 * adjacency.edges + 8 * nodes
    panels = Panels(nodes, out.shape[1], run.memory, taken=taken)
    steps = 1 + 2 * chosen.iterations + chosen.order + 1
    with reporter.task("node vectors (prone)", total=len(panels) * steps * nodes, unit="rows") as advance:
        _factorize(adjacency, degrees, panels, out, chosen, run, advance)
        weights = filter_weights(chosen.order, chosen.mu, chosen.theta)
        powers = PowerSum(adjacency, degrees, weights, loop=1.0, workers=run.workers)
        for panel in panels:
            panel.now[:] = out[:, panel.columns]
            out[:, panel.columns] = 0
            powers.add(panel, out, panel.columns.start, advance)
    for start in range(0, nodes, 8192):
        out[start : start + 8192] *= (degrees[start : start + 8192, None] + 1).astype(np.float32)
    rescale(out, 0.5)
    unit_rows(out)


def filter_weights(order: int, mu: float, theta: float) -> list[float]:
    """Weights of P, P^2, ... in P g(I - P), with g interpolated at Chebyshev's points over the spectrum of P.

    >>> weights = filter_weights(8, mu=0.0, theta=0.5)
    >>> exact = 1 - np.exp(0.5) * np.exp(-0.5 * 0.7**2 / 2)
    >>> bool(abs(np.polyval(weights[::-1], 0.3) - exact) < 1e-6)
    True
    """
    series: Any = chebyshev.chebinterpolate(lambda p: 1 - np.exp(theta * (1 - (1 - p - mu) ** 2 / 2)), order)
    return [float(weight) for weight in chebyshev.cheb2poly(series)]


def _factorize(
    adjacency: Adjacency,
    degrees: NDArray[np.float64],
    panels: Panels,
    out: NDArray[np.float32],
    chosen: ProNE,
    run: EmbeddingRun,
    advance: Advance,
) -> None:
    """Randomized subspace iteration (Halko, Martinsson and Tropp 2011): out = E, rows of length 1."""
    there, back = _proximity(adjacency, degrees, chosen.shift)
    workers = run.workers
    key = int(stream(run.seed, "prone").integers(1 << 63))
    ones = np.ones(len(out), np.float32)
    for panel in panels:
        fill_signs(key, panel.columns.start, ones, panel.now)
        there.sweep(panel.now, _into(out, panel.columns), workers, advance)
    for _ in range(chosen.iterations):
        rescale(out, 1.0)
        for panel in panels:
            panel.now[:] = out[:, panel.columns]
            back.sweep(panel.now, _into(panel.after, slice(None)), workers, advance)
            there.sweep(panel.after, _into(out, panel.columns), workers, advance)
    # singular values of M M' Q are the squares of M's, and E has the root of M's: S^(1/4)
    rescale(out, 0.75)
    unit_rows(out)


def _into(out: NDArray[np.float32], columns: slice) -> Use:
    def use(first: int, sums: NDArray[np.float32]) -> None:
        out[first : first + len(sums), columns] = sums

    return use


def _proximity(adjacency: Adjacency, degrees: NDArray[np.float64], shift: float) -> tuple[Adjacency, Adjacency]:
    """M, and M turned: the graph's own rows with other weights, where it has no directions."""
    inverse = np.divide(1, degrees, out=np.zeros_like(degrees), where=degrees > 0)  # (nodes,)
    ends = np.zeros_like(degrees)
    for part in adjacency.parts:
        add_columns(part.offsets, part.targets, part.weights, inverse, ends)
    chances = ends**_NEGATIVE_POWER
    chances /= chances.sum()
    rows, columns = (-np.log(values, out=np.zeros_like(values), where=values > 0) for values in (degrees, chances))
    columns -= np.log(shift)
    turned = adjacency if adjacency.is_symmetric else adjacency.transposed()
    return _log_weighted(adjacency, rows, columns), _log_weighted(turned, columns, rows)


def _log_weighted(adjacency: Adjacency, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Adjacency:
    parts = []
    for part in adjacency.parts:
        weights = np.empty(part.edges, np.float32)  # (edges,)
        fill_log_weights(part.offsets, part.targets, part.weights, rows, columns, weights)
        parts.append(Csr(part.offsets, part.targets, weights))
    return Adjacency(tuple(parts))
