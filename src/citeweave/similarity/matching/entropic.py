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

_TINY = 1e-300


class Masses(NamedTuple):
    """Logarithms of how much each sentence has to give or to take; -inf on padding."""

    queries: Tensor
    candidates: Tensor


def sentence_masses(distances: Tensor, rows: Tensor, columns: Tensor, *, temperature: float) -> Masses:
    """softmax(-distance to the nearest sentence of the other paper / temperature) over the sentences of a paper."""
    nearest_column = distances.masked_fill(~columns[:, None, :], math.inf).amin(2)  # (pairs, n)
    nearest_row = distances.masked_fill(~rows[:, :, None], math.inf).amin(1)  # (pairs, m)
    return Masses(
        (-nearest_column / temperature).masked_fill(~rows, -math.inf).log_softmax(1),
        (-nearest_row / temperature).masked_fill(~columns, -math.inf).log_softmax(1),
    )


def entropic_plan(distances: Tensor, masses: Masses) -> Tensor:
    """The transport plan, (pairs, n, m), whose marginals are the masses; differentiable in both arguments."""
    if distances.shape[1] < distances.shape[2]:  # Newton's equations are as many as there are columns
        return entropic_plan(distances.mT, Masses(masses.candidates, masses.queries)).mT
    torch = require("torch", extra="minilm")
    with torch.no_grad():
        potentials = _solve(distances.detach(), Masses(masses.queries.detach(), masses.candidates.detach()))
    shares, flows = _flows(distances, masses, potentials, ENTROPY)
    error = masses.candidates.exp() - flows.sum(1)  # (pairs, m)
    step = _newton(shares.detach(), flows.detach(), error)
    step = step - (step * (1 - _damping(step))).detach()  # the damping is no part of the solution's gradient
    _, plan = _flows(distances, masses, potentials + step, ENTROPY)
    with torch.no_grad():
        rest = round_to_marginals(plan, masses.queries.exp(), masses.candidates.exp()) - plan
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
    solution = torch.zeros_like(masses.candidates)
    potentials, left = solution.clone(), torch.arange(len(distances), device=distances.device)
    for _ in range(MOST_STEPS):
        shares, flows = _flows(distances, masses, potentials, entropy[:, None, None])
        error = masses.candidates.exp() - flows.sum(1)  # (pairs left, m)
        size = error.abs().sum(1)
        done = (entropy <= ENTROPY) & (size < tolerance)
        solution[left] = potentials * (entropy / ENTROPY)[:, None]
        if done.any():
            if done.all():
                break
            kept = torch.nonzero(~done)[:, 0]
            state = (distances, *masses, potentials, left, entropy, tolerance, shares, flows, error, size)
            distances, *pair, potentials, left, entropy, tolerance, shares, flows, error, size = (
                part[kept] for part in state
            )
            masses = Masses(*pair)
        step = _newton(shares, flows, error)
        potentials = potentials + step * _damping(step)
        cooler = torch.where(size < WARM_ERROR, (entropy * COOLING).clamp_min(ENTROPY), entropy)
        potentials = (
            potentials * (entropy / cooler)[:, None]
        )  # the potential itself stays, its ratio to the entropy not
        entropy = cooler
    return solution


def _flows(distances: Tensor, masses: Masses, potentials: Tensor, entropy: Tensor | float) -> tuple[Tensor, Tensor]:
    """What share of its mass each query sentence sends to each candidate sentence, and how much that is."""
    shares = (masses.candidates[:, None, :] + potentials[:, None, :] - distances / entropy).softmax(2)
    return shares, masses.queries.exp()[:, :, None] * shares


def _newton(shares: Tensor, flows: Tensor, error: Tensor) -> Tensor:
    """Newton's step for potentials over the entropy, (pairs, m), 0 on padding; differentiable in `error`.

    The matrix diag(c) - shares^T flows, c being the columns' sums, is scaled to a unit diagonal; the direction in which
    all potentials grow alike, which changes nothing, is filled up.
    """
    torch = require("torch", extra="minilm")
    sums = flows.sum(1).clamp_min(_TINY)  # (pairs, m)
    root = sums.sqrt()
    matrix = root[:, :, None] * root[:, None, :]
    matrix = matrix - _gram(shares / root[:, None, :], flows / root[:, None, :])
    matrix.diagonal(dim1=1, dim2=2).add_(1 + 1e-13)  # parts that exchange nothing may shift against each other freely
    factor, failed = torch.linalg.cholesky_ex(matrix)
    step = torch.cholesky_solve((error / root)[:, :, None], factor)[:, :, 0] / root
    return torch.where((failed == 0)[:, None], step, error / sums)


def _damping(step: Tensor) -> Tensor:
    """The part of each step that surely ascends, (pairs, 1)."""
    span = (step.amax(1, keepdim=True) - step.amin(1, keepdim=True)).clamp_min(_TINY)
    return span.log1p() / span


def _gram(one: Tensor, other: Tensor) -> Tensor:
    """one^T other, (pairs, m, m)."""
    if one.is_cuda or one.shape[2] > 24:
        return one.mT @ other
    # a product of many small matrices costs torch more than their sums on a processor
    total = one[:, 0, :, None] * other[:, 0, None, :]
    for row in range(1, one.shape[1]):
        total.addcmul_(one[:, row, :, None], other[:, row, None, :])
    return total
