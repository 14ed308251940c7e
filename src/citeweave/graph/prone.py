"""ProNE node vectors: sparse matrix factorization and spectral propagation over the graph.

After Zhang et al., IJCAI 2019:

    M_ij  = log(p_ij / (shift n_j)) at every edge    p: one random-walk step, n: how often it ends at j, to the 3/4
    E     = the strongest directions of M            randomized singular vectors, times the root of their values
    X     = (A + I) g(L) E, partly whitened          g(L) = 1 - exp(theta) exp(-theta (L - mu)^2 / 2), L = I - P

Differences from the authors' code, none of which changes what is computed: the singular vectors come from Gram
matrices, so that nothing but the result and a panel of columns is held; and the filter g is interpolated in P itself
by a polynomial of `order` steps, where their series in (L - mu)^2 needs about twice as many for the same precision.
Few iterations are meant: more of them make M's directions more exact and the vectors no better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from citeweave.core.progress import Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency, ChunkSink, Csr
from citeweave.graph.kernels import add_columns, fill_log_weights, fill_signs, unit_rows
from citeweave.graph.options import ProNE
from citeweave.graph.walk_powers import EmbeddingRun, Panels, PowerSum, whiten

_NEGATIVE_POWER = 0.75
"""Exponent of word2vec's negative sampling (Mikolov et al. 2013), which ProNE adopts."""


def embed(
    adjacency: Adjacency, out: NDArray[np.float32], options: ProNE, run: EmbeddingRun, reporter: Reporter
) -> None:
    """Write the ProNE vectors of all nodes into `out`, (nodes, dimension)."""
    degrees, nodes = adjacency.degrees(), len(out)
    reserved = 8 * adjacency.edges if adjacency.is_symmetric else 12 * adjacency.edges + 8 * nodes
    panels = Panels(nodes, out.shape[1], run.memory, reserved=reserved)
    steps = 1 + 2 * options.iterations + options.order + 1
    with reporter.task("node vectors (prone)", total=len(panels) * steps * nodes, unit="rows") as advance:
        _factorize(adjacency, degrees, panels, out, options, run, advance)
        weights = filter_weights(options.order, options.mu, options.theta)
        powers = PowerSum(adjacency, degrees, weights, loop=1.0, workers=run.workers)
        for panel in panels:
            panel.now[:] = out[:, panel.columns]
            out[:, panel.columns] = 0
            powers.add(panel, out, panel.columns.start, advance)
    for start in range(0, nodes, 8192):
        out[start : start + 8192] *= (degrees[start : start + 8192, None] + 1).astype(np.float32)
    whiten(out, 0.5)
    unit_rows(out)


def filter_weights(order: int, mu: float, theta: float) -> list[float]:
    """Return the weights of P, P^2, ... in ProNE's filter P g(I - P), with g interpolated at Chebyshev points.

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
    options: ProNE,
    run: EmbeddingRun,
    advance: Advance,
) -> None:
    """Factorize M by randomized subspace iteration (Halko, Martinsson and Tropp 2011): out = E, rows of length 1."""
    proximity, transposed = _proximity(adjacency, degrees, options.shift)
    workers = run.workers
    key = int(stream(run.seed, "prone").integers(1 << 63))
    ones = np.ones(len(out), np.float32)
    for panel in panels:
        fill_signs(key, panel.columns.start, ones, panel.now)
        proximity.sweep(panel.now, _into(out, panel.columns), workers, advance)
    for _ in range(options.iterations):
        whiten(out, 1.0)
        for panel in panels:
            panel.now[:] = out[:, panel.columns]
            transposed.sweep(panel.now, _into(panel.after, slice(None)), workers, advance)
            proximity.sweep(panel.after, _into(out, panel.columns), workers, advance)
    # singular values of M M' Q are the squares of M's, and E has the root of M's: S^(1/4)
    whiten(out, 0.75)
    unit_rows(out)


def _into(out: NDArray[np.float32], columns: slice) -> ChunkSink:
    """Return a sink that stores the sums of a sweep in some columns of `out`."""

    def sink(first: int, sums: NDArray[np.float32]) -> None:
        out[first : first + len(sums), columns] = sums

    return sink


def _proximity(adjacency: Adjacency, degrees: NDArray[np.float64], shift: float) -> tuple[Adjacency, Adjacency]:
    """Return ProNE's proximity matrix M and its transpose; an undirected graph shares its rows with both."""
    inverse = np.divide(1, degrees, out=np.zeros_like(degrees), where=degrees > 0)  # (nodes,)
    ends = np.zeros_like(degrees)
    for part in adjacency.parts:
        add_columns(part.offsets, part.targets, part.weights, inverse, ends)
    chances = ends**_NEGATIVE_POWER
    chances /= chances.sum()
    rows, columns = (-np.log(values, out=np.zeros_like(values), where=values > 0) for values in (degrees, chances))
    columns -= np.log(shift)
    transposed = adjacency if adjacency.is_symmetric else adjacency.transposed()
    return _log_weighted(adjacency, rows, columns), _log_weighted(transposed, columns, rows)


def _log_weighted(adjacency: Adjacency, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Adjacency:
    """Return the adjacency with the log proximities of ProNE as edge weights."""
    parts = []
    for part in adjacency.parts:
        weights = np.empty(part.edges, np.float32)  # (edges,)
        fill_log_weights(part.offsets, part.targets, part.weights, rows, columns, weights)
        parts.append(Csr(part.offsets, part.targets, weights))
    return Adjacency(tuple(parts))
