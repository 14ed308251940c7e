"""Optimal transport between the sentences of two papers, with a little entropy, solved to the end.

    plan = argmin over P >= 0, P 1 = a, P^T 1 = b of  <distances, P> + ENTROPY * KL(P | a b^T)      (Cuturi, 2013)

The plan has the form a_i b_j exp((f_i + g_j - distance_ij) / ENTROPY). Sinkhorn's iteration finds f and g, but where
sentences are far apart it needs thousands of rounds. Here the same f and g are found by Newton's method on g alone
(f follows from it), from a large entropy down to the wanted one; 6 to 20 steps are usual. A step is damped by
log(1 + s) / s, s being the step's span, which makes every step an ascent without trying lengths (Sun and Tran-Dinh,
2019, generalised self-concordance). The last step is differentiable, and by the implicit function theorem gives the
gradient of the solution. All numbers are float64. Does not follow ASPIRE's code, which stops early: see `peer.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from citeweave.extras import require
from citeweave.similarity.matching.pairs import Tensor

ENTROPY = 1 / 20
"""ASPIRE's weight of the entropy."""

COOLING, WARM_ERROR = 0.25, 0.3
"""The entropy falls to a quarter once the marginals are wrong by less than this; neither changes the result."""

TOLERANCE = 1e-9
"""Sum of the marginals' errors at which the iteration ends; rounding removes what is left."""

MOST_STEPS = 500

CPU_PAUSE, CPU_MOST_LEFT = 1, 0.9
CUDA_PAUSE, CUDA_MOST_LEFT = 4, 0.5
"""Steps until the device is asked which pairs are done, and the part that may be left for these to be dropped; both cost
time on a graphics card. A pair that is done rests, so that none of it changes a result."""

_TINY = 1e-300


class Masses(NamedTuple):
    """Logarithms of how much each sentence has to give or to take; -inf on padding."""

    queries: Tensor
    candidates: Tensor


def sentence_masses(distances: Tensor, rows: Tensor, columns: Tensor, *, temperature: float) -> Masses:
    """softmax(-distance to the nearest sentence of the other paper / temperature) over the sentences of a paper."""
    valid = distances.masked_fill(~(rows[:, :, None] & columns[:, None, :]), math.inf)  # (pairs, n, m)
    least = valid.detach().amin((1, 2))[:, None]  # taken off before the division, which then cannot overflow
    return Masses(
        ((least - valid.amin(2)) / temperature).log_softmax(1), ((least - valid.amin(1)) / temperature).log_softmax(1)
    )


def entropic_plan(distances: Tensor, masses: Masses) -> Tensor:
    """The transport plan, (pairs, n, m), whose marginals are the masses; differentiable in both arguments."""
    if distances.shape[1] < distances.shape[2]:  # Newton's equations are as many as there are columns
        return entropic_plan(distances.mT, Masses(masses.candidates, masses.queries)).mT
    torch = require("torch", extra="minilm")
    distances = distances.contiguous()  # else every step would copy them
    with torch.no_grad():
        potentials = _solve(distances.detach(), Masses(masses.queries.detach(), masses.candidates.detach()))
    given, taken = masses.queries.exp(), masses.candidates.exp()  # (pairs, n), (pairs, m)
    inverse = distances.new_full((1, 1, 1), 1 / ENTROPY)
    shares = _shares(distances, masses.candidates + potentials, inverse)
    sums = (given[:, :, None] * shares).sum(1)  # (pairs, m)
    step = _newton(shares.detach(), given.detach().sqrt(), sums.detach(), taken - sums)
    step = step - (step * (1 - _damping(step))).detach()  # the damping is no part of the solution's gradient
    plan = given[:, :, None] * _shares(distances, masses.candidates + potentials + step, inverse)
    with torch.no_grad():
        rest = round_to_marginals(plan, given, taken) - plan
    return plan + rest


def round_to_marginals(plan: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The plan with exactly these marginals that Altschuler, Weed and Rigollet (2017, algorithm 2) make of a near one."""
    plan = plan * (rows / plan.sum(2).clamp_min(_TINY)).clamp_max(1)[:, :, None]
    plan = plan * (columns / plan.sum(1).clamp_min(_TINY)).clamp_max(1)[:, None, :]
    row_rest, column_rest = (rows - plan.sum(2)).clamp_min(0), (columns - plan.sum(1)).clamp_min(0)
    total = column_rest.sum(1).clamp_min(_TINY)
    return plan + row_rest[:, :, None] * (column_rest / total[:, None])[:, None, :]


def _solve(distances: Tensor, masses: Masses) -> Tensor:
    """The candidates' potentials over the entropy, (pairs, m), each pair on its own."""
    torch = require("torch", extra="minilm")
    valid = (masses.queries > -math.inf)[:, :, None] & (masses.candidates > -math.inf)[:, None, :]
    farthest = distances.masked_fill(~valid, -math.inf).amax((1, 2))
    entropy = (farthest - distances.masked_fill(~valid, math.inf).amin((1, 2))).clamp_min(ENTROPY)  # (pairs,)
    # an exponent of this size is itself no more exact than this
    tolerance = TOLERANCE + 1e-14 * farthest / ENTROPY
    given, weights, taken = masses.queries.exp(), masses.candidates, masses.candidates.exp()
    root_given, potentials, solution = given.sqrt(), torch.zeros_like(taken), torch.zeros_like(taken)
    left = torch.arange(len(distances), device=distances.device)
    pause, most_left = (CUDA_PAUSE, CUDA_MOST_LEFT) if distances.is_cuda else (CPU_PAUSE, CPU_MOST_LEFT)
    for number in range(MOST_STEPS):
        shares = _shares(distances, weights + potentials, entropy.reciprocal()[:, None, None])
        sums = (given[:, :, None] * shares).sum(1)  # (pairs left, m)
        error = taken - sums
        size = torch.linalg.vector_norm(error, 1, dim=1)
        done = (entropy <= ENTROPY) & (size < tolerance)
        step = _newton(shares, root_given, sums, error)
        potentials = potentials + step * _damping(step).masked_fill(done[:, None], 0)
        cooler = torch.where(size < WARM_ERROR, (entropy * COOLING).clamp_min(ENTROPY), entropy)
        # the potential itself stays, its ratio to the entropy not
        potentials, entropy = potentials * (entropy / cooler)[:, None], cooler
        if number % pause == pause - 1:
            kept = torch.nonzero(~done)[:, 0]  # the processor waits here for the device
            if len(kept) <= len(done) * most_left:
                solution[left] = potentials
                if not len(kept):
                    return solution
                state = (distances, given, root_given, weights, taken, potentials, left, entropy, tolerance)
                distances, given, root_given, weights, taken, potentials, left, entropy, tolerance = (
                    part[kept] for part in state
                )
    solution[left] = potentials * (entropy / ENTROPY)[:, None]
    return solution


def _shares(distances: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    """What share of its mass each query sentence sends to each candidate sentence, (pairs, n, m); 1 / entropy is given."""
    return weights[:, None, :].addcmul(distances, inverse, value=-1).softmax(2)


def _newton(shares: Tensor, root_given: Tensor, sums: Tensor, error: Tensor) -> Tensor:
    """Newton's step for potentials over the entropy, (pairs, m), 0 on padding; differentiable in `error`.

    The matrix diag(sums) - shares^T diag(given) shares is scaled to a unit diagonal; the direction in which all
    potentials grow alike, which changes nothing, is filled up.
    """
    torch = require("torch", extra="minilm")
    root = sums.clamp_min(_TINY).sqrt()  # (pairs, m)
    scaled = shares * root_given[:, :, None] / root[:, None, :]
    matrix = _less_gram(root[:, :, None] * root[:, None, :], scaled)
    matrix.diagonal(dim1=1, dim2=2).add_(1 + 1e-13)  # parts that exchange nothing may shift against each other freely
    factor, failed = torch.linalg.cholesky_ex(matrix)
    step = torch.cholesky_solve((error / root)[:, :, None], factor)[:, :, 0] / root
    return torch.where((failed == 0)[:, None], step, error / root.square())


def _damping(step: Tensor) -> Tensor:
    """The part of each step that surely ascends, (pairs, 1)."""
    least, most = step.aminmax(dim=1, keepdim=True)
    span = (most - least).clamp_min(_TINY)
    return span.log1p() / span


def _less_gram(matrix: Tensor, factor: Tensor) -> Tensor:
    """matrix - factor^T factor, (pairs, m, m)."""
    if factor.is_cuda or factor.shape[2] > 24:
        return matrix.baddbmm(factor.mT, factor, alpha=-1)
    # a product of many small matrices costs torch more than their sums on a processor
    for row in range(factor.shape[1]):
        matrix.addcmul_(factor[:, row, :, None], factor[:, row, None, :], value=-1)
    return matrix
