"""Entropic optimal transport between the sentences of two papers: Newton's method, and geomloss's schedule.

    plan = argmin over P >= 0, P 1 = a, P^T 1 = b of  <distances, P> + ENTROPY * KL(P | a b^T)      (Cuturi, 2013)

The plan has the form a_i b_j exp((f_i + g_j - distance_ij) / ENTROPY). Sinkhorn's iteration finds f and g, but where
sentences are far apart it needs thousands of rounds. `entropic_plan` finds the same f and g by Newton's method on g alone
(f follows from it), from a large entropy down to the final one; 6 to 20 steps are usual. A step is damped by
log(1 + s) / s, s being the step's span, which makes every step an ascent without a line search (Sun and Tran-Dinh,
2019, generalized self-concordance). The last step is differentiable, and by the implicit function theorem gives the
gradient of the solution. All numbers are float64.

`transport_kernels.py` has the same method compiled for the CPU, without gradients, and `triton_transport.py` for a GPU.

`geomloss_plan` is transport as ASPIRE's code computes it: geomloss's schedule of entropies, one round each.

    diameter 4, blur 0.05  ->  entropies 4, 4, 3.6, 3.24, ..., 0.0528, 0.05       (scaling 0.9)

The schedule ends far from convergence: sums of the plan differ from the masses by up to 0.09, and the number for ranking,
<plan, distances>, is not the one for training, <masses, potentials>. Both are kept for comparison with published numbers.
Written from Feydy (2020), algorithm 3.5, and checked against geomloss, which is not needed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from citeweave.core.errors import choose, require
from citeweave.vectors.sentence_distances import PaperPairs, Tensor

ENTROPY = 1 / 20
"""ASPIRE's weight of the entropy term."""

COOLING, WARM_ERROR = 0.25, 0.3
"""The entropy is multiplied by COOLING once the marginals' error is below WARM_ERROR; neither changes the result."""

TOLERANCE = 1e-9
"""Sum of the marginals' errors at which the iteration ends; rounding to the marginals removes the rest."""

MAX_STEPS = 500

CPU_PAUSE, CPU_MAX_LEFT = 1, 0.9
CUDA_PAUSE, CUDA_MAX_LEFT = 4, 0.5
"""Steps between two checks which pairs have converged, and the share of unfinished pairs at which converged ones are
dropped; both cost time on a GPU. A converged pair no longer changes, so neither changes a result."""


BLUR, SCALING = 0.05, 0.9
"""ASPIRE's settings of geomloss; the cost is the distance itself (p = 1)."""

STARTS = ("pair", "batch")
"""Where geomloss's schedule starts: from the diameter of each pair, or of the batch."""

_TINY = 1e-300


class Masses(NamedTuple):
    """Logarithms of the transport masses of query and candidate sentences; -inf on padding."""

    queries: Tensor
    candidates: Tensor


def sentence_masses(distances: Tensor, rows: Tensor, columns: Tensor, *, temperature: float) -> Masses:
    """Return each sentence's transport mass: softmax(-distance to the nearest sentence of the other / temperature)."""
    valid = distances.masked_fill(~(rows[:, :, None] & columns[:, None, :]), math.inf)  # (pairs, n, m)
    lowest = valid.detach().amin((1, 2))[:, None]  # subtracted before the division, which then cannot overflow
    return Masses(
        ((lowest - valid.amin(2)) / temperature).log_softmax(1), ((lowest - valid.amin(1)) / temperature).log_softmax(1)
    )


def entropic_plan(distances: Tensor, masses: Masses) -> Tensor:
    """Solve the transport plan, (pairs, n, m), whose marginals are the masses; differentiable in both arguments."""
    if distances.shape[1] < distances.shape[2]:  # there are as many Newton equations as columns
        return entropic_plan(distances.mT, Masses(masses.candidates, masses.queries)).mT
    torch = require("torch", extra="minilm")
    distances = distances.contiguous()  # else every step copies them
    with torch.no_grad():
        potentials = _solve_batch(distances.detach(), Masses(masses.queries.detach(), masses.candidates.detach()))
    supply, demand = masses.queries.exp(), masses.candidates.exp()  # (pairs, n), (pairs, m)
    inverse = distances.new_full((1, 1, 1), 1 / ENTROPY)
    shares = _batch_shares(distances, masses.candidates + potentials, inverse)
    sums = (supply[:, :, None] * shares).sum(1)  # (pairs, m)
    step = _batch_newton(shares.detach(), supply.detach().sqrt(), sums.detach(), demand - sums)
    step = step - (step * (1 - _damping(step))).detach()  # the damping has no gradient
    plan = supply[:, :, None] * _batch_shares(distances, masses.candidates + potentials + step, inverse)
    with torch.no_grad():
        rest = round_to_marginals(plan, supply, demand) - plan
    return plan + rest


def round_to_marginals(plan: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Round a transport plan to exactly these marginals (Altschuler, Weed and Rigollet, 2017, algorithm 2)."""
    plan = plan * (rows / plan.sum(2).clamp_min(_TINY)).clamp_max(1)[:, :, None]
    plan = plan * (columns / plan.sum(1).clamp_min(_TINY)).clamp_max(1)[:, None, :]
    row_rest, column_rest = (rows - plan.sum(2)).clamp_min(0), (columns - plan.sum(1)).clamp_min(0)
    total = column_rest.sum(1).clamp_min(_TINY)
    return plan + row_rest[:, :, None] * (column_rest / total[:, None])[:, None, :]


def _solve_batch(distances: Tensor, masses: Masses) -> Tensor:
    """Solve the transport potentials of the candidates, over the entropy, (pairs, m), by Newton's method."""
    torch = require("torch", extra="minilm")
    valid = (masses.queries > -math.inf)[:, :, None] & (masses.candidates > -math.inf)[:, None, :]
    farthest = distances.masked_fill(~valid, -math.inf).amax((1, 2))
    entropy = (farthest - distances.masked_fill(~valid, math.inf).amin((1, 2))).clamp_min(ENTROPY)  # (pairs,)
    # exponents of this size have no more digits
    tolerance = TOLERANCE + 1e-14 * farthest / ENTROPY
    supply, weights, demand = masses.queries.exp(), masses.candidates, masses.candidates.exp()
    root_supply, potentials, solution = (supply.sqrt(), torch.zeros_like(demand), torch.zeros_like(demand))
    left = torch.arange(len(distances), device=distances.device)
    pause, max_left = (CUDA_PAUSE, CUDA_MAX_LEFT) if distances.is_cuda else (CPU_PAUSE, CPU_MAX_LEFT)
    for number in range(MAX_STEPS):
        shares = _batch_shares(distances, weights + potentials, entropy.reciprocal()[:, None, None])
        sums = (supply[:, :, None] * shares).sum(1)  # (pairs left, m)
        error = demand - sums
        size = torch.linalg.vector_norm(error, 1, dim=1)
        done = (entropy <= ENTROPY) & (size < tolerance)
        step = _batch_newton(shares, root_supply, sums, error)
        potentials = potentials + step * _damping(step).masked_fill(done[:, None], 0)
        cooler = torch.where(size < WARM_ERROR, (entropy * COOLING).clamp_min(ENTROPY), entropy)
        # the potential stays the same, its ratio to the entropy changes
        potentials, entropy = potentials * (entropy / cooler)[:, None], cooler
        if number % pause == pause - 1:
            unfinished = torch.nonzero(~done)[:, 0]  # waits for the device
            if len(unfinished) <= len(done) * max_left:
                solution[left] = potentials
                if not len(unfinished):
                    return solution
                state = (distances, supply, root_supply, weights, demand, potentials, left, entropy, tolerance)
                distances, supply, root_supply, weights, demand, potentials, left, entropy, tolerance = (
                    part[unfinished] for part in state
                )
    solution[left] = potentials * (entropy / ENTROPY)[:, None]
    return solution


def _batch_shares(distances: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    """Return the share of its mass that each query sentence sends to each candidate sentence, (pairs, n, m)."""
    return weights[:, None, :].addcmul(distances, inverse, value=-1).softmax(2)


def _batch_newton(shares: Tensor, root_supply: Tensor, sums: Tensor, error: Tensor) -> Tensor:
    """Return Newton's step for the transport potentials, (pairs, m), 0 on padding; differentiable in `error`.

    The matrix diag(sums) - shares^T diag(supply) shares is scaled to a unit diagonal; the direction in which all
    potentials grow alike, which changes nothing, is filled up.
    """
    torch = require("torch", extra="minilm")
    root = sums.clamp_min(_TINY).sqrt()  # (pairs, m)
    scaled = shares * root_supply[:, :, None] / root[:, None, :]
    matrix = _less_gram(root[:, :, None] * root[:, None, :], scaled)
    matrix.diagonal(dim1=1, dim2=2).add_(1 + 1e-13)  # components that exchange no mass may shift freely
    factor, failed = torch.linalg.cholesky_ex(matrix)
    step = torch.cholesky_solve((error / root)[:, :, None], factor)[:, :, 0] / root
    return torch.where((failed == 0)[:, None], step, error / root.square())


def _damping(step: Tensor) -> Tensor:
    """Return the share of each Newton step that is sure to ascend, (pairs, 1)."""
    lowest, highest = step.aminmax(dim=1, keepdim=True)
    span = (highest - lowest).clamp_min(_TINY)
    return span.log1p() / span


def _less_gram(matrix: Tensor, factor: Tensor) -> Tensor:
    """Return matrix - factor^T factor, (pairs, m, m)."""
    if factor.is_cuda or factor.shape[2] > 24:
        return matrix.baddbmm(factor.mT, factor, alpha=-1)
    # on a CPU, torch takes longer for a product of many small matrices than for these sums
    for row in range(factor.shape[1]):
        matrix.addcmul_(factor[:, row, :, None], factor[:, row, None, :], value=-1)
    return matrix


Anneal = Callable[[Tensor, Masses, Tensor], tuple[Tensor, Tensor]]
"""Function from distances, masses and diameters to the potentials at the end of geomloss's schedule."""


class GeomlossPlan(NamedTuple):
    """Transport as geomloss leaves it at the end of its schedule."""

    plan: Tensor
    """(pairs, n, m)"""

    value: Tensor
    """(pairs,) <masses, potentials>: the distance that ASPIRE trains with."""


def diameters(pairs: PaperPairs, start: str) -> Tensor:
    """Return geomloss's diameters for transport: the diagonal of the box around a pair's sentences, or the batch's.

    geomloss takes the batch with its padding of zeros, so that a distance depends on the other pairs of the batch;
    ASPIRE evaluates one pair at a time.
    """
    choose(start, STARTS, "start")
    torch = require("torch", extra="minilm")
    everything = torch.cat([pairs.queries, pairs.candidates], 1).double()  # (pairs, n + m, dimension)
    if start == "batch":
        sides = everything.flatten(0, 1)
        return (sides.amax(0) - sides.amin(0)).norm().expand(len(everything))
    outside = ~torch.cat([pairs.rows, pairs.columns], 1)[:, :, None]
    high, low = everything.masked_fill(outside, -math.inf).amax(1), everything.masked_fill(outside, math.inf).amin(1)
    return (high - low).norm(dim=1)


def geomloss_plan(
    to_queries: Tensor, to_candidates: Tensor, masses: Masses, diameter: Tensor, solve: Anneal | None = None
) -> GeomlossPlan:
    """Run geomloss's schedule of entropies for optimal transport between each pair of papers.

    `to_queries` and `to_candidates` are the same distances (pairs, n, m); only the sentences of the named side get a
    gradient through them, as in geomloss, which differentiates the last round alone. `solve` replaces `anneal`.
    """
    torch = require("torch", extra="minilm")
    with torch.no_grad():
        sides = Masses(masses.queries.detach(), masses.candidates.detach())
        f, g = (solve or anneal)(to_queries.detach(), sides, diameter)
        weighted = _weighted(sides, f, g, BLUR)
    f = -BLUR * (weighted.candidates[:, None, :] - to_queries / BLUR).logsumexp(2)
    g = -BLUR * (weighted.queries[:, :, None] - to_candidates / BLUR).logsumexp(1)
    value = (masses.queries.exp() * f).sum(1) + (masses.candidates.exp() * g).sum(1)
    exponents = _weighted(masses, f, g, BLUR)
    # no entry is near e, unless distances above 1e13 have lost the digits that the blur needs
    plan = (exponents.queries[:, :, None] + exponents.candidates[:, None, :] - to_queries / BLUR).clamp_max(1).exp()
    return GeomlossPlan(plan, value)


def anneal(costs: Tensor, sides: Masses, diameter: Tensor) -> tuple[Tensor, Tensor]:
    """Return the potentials at the end of geomloss's schedule, (pairs, n) and (pairs, m)."""
    torch = require("torch", extra="minilm")
    entropies, lengths = _schedule(diameter)
    f, g = _softmins(costs, sides, entropies[:, :1])  # (pairs, n), (pairs, m)
    for step in range(entropies.shape[1]):
        entropy = entropies[:, step : step + 1]  # (pairs, 1)
        new_f, new_g = _softmins(costs, _weighted(sides, f, g, entropy), entropy)
        running = (step < lengths)[:, None]
        f, g = torch.where(running, (f + new_f) / 2, f), torch.where(running, (g + new_g) / 2, g)
    return f, g


def _schedule(diameter: Tensor) -> tuple[Tensor, Tensor]:
    """Return geomloss's entropies of each pair, (pairs, longest), padded with the last, and how many each pair has."""
    torch = require("torch", extra="minilm")
    # identical sentences have the diameter 0, for which geomloss fails
    start = torch.where(diameter > 0, diameter, BLUR).double()[:, None]  # (pairs, 1)
    between = ((start.log() - math.log(BLUR)) / -math.log(SCALING)).ceil().clamp_min(0)
    step = torch.arange(int(between.max()) + 1, device=diameter.device, dtype=start.dtype)
    cooling = (start.log() + step * math.log(SCALING)).exp().masked_fill(step >= between, BLUR)
    return torch.cat([start, cooling], 1), between[:, 0] + 2


def _weighted(masses: Masses, f: Tensor, g: Tensor, entropy: Tensor | float) -> Masses:
    return Masses(masses.queries + f / entropy, masses.candidates + g / entropy)


def _softmins(costs: Tensor, weighted: Masses, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """Run one round of Sinkhorn's iteration for both sides: -entropy * log sum exp(weight - cost / entropy)."""
    exponents = -costs / entropy[:, :, None]
    f = -entropy * (weighted.candidates[:, None, :] + exponents).logsumexp(2)
    g = -entropy * (weighted.queries[:, :, None] + exponents).logsumexp(1)
    return f, g
