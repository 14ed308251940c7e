"""Entropic optimal transport compiled for the CPU: distances of many pairs of papers, or the plan of one pair.

The method of `transport.py`, pair after pair without padding, in float64 and without gradients. It needs numba, which
training does not load.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.executor import run_in_threads
from citeweave.vectors.transport import COOLING, ENTROPY, MAX_STEPS, TOLERANCE, WARM_ERROR

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

_TINY = 1e-300

PAIRS_PER_TASK = 256
"""Pairs that a CPU thread solves at a time; each is solved alone, so it changes no result."""


def transport_distances(
    costs: Doubles, starts: Longs, lengths: Longs, widths: Longs, *, temperature: float, workers: int
) -> Doubles:
    """Return the transport distance <plan, costs> of each pair, (pairs,), by compiled kernels on the CPU.

    `costs` is (sentences of all candidates, longest query): candidate p has the rows starts[p] : starts[p] + lengths[p],
    its query the first widths[p] columns. No pair may have an empty side.
    """
    distances = np.empty(len(starts))

    def work(number: int) -> None:
        part = slice(number * PAIRS_PER_TASK, (number + 1) * PAIRS_PER_TASK)
        _solve_range(costs, starts[part], lengths[part], widths[part], temperature, distances[part])

    run_in_threads(-(-len(starts) // PAIRS_PER_TASK), work, workers)
    return distances


def transport_plan(costs: Doubles, *, temperature: float) -> Doubles:
    """Return the transport plan of one pair, (n, m) like its costs; neither side may be empty."""
    if costs.shape[0] < costs.shape[1]:  # there are as many Newton equations as columns
        return transport_plan(costs.T, temperature=temperature).T
    cost = np.ascontiguousarray(costs, np.float64)
    plan, matrix, vectors = np.empty(cost.shape), np.empty((len(cost), len(cost))), np.empty((8, len(cost)))
    _solve_pair(cost, plan, matrix, vectors, temperature)
    return plan


@compiled(error_model="numpy")
def _solve_range(
    costs: Doubles, starts: Longs, lengths: Longs, widths: Longs, temperature: float, out: Doubles
) -> None:
    side = max(lengths.max(), widths.max())
    cost, plan, matrix = np.empty((side, side)), np.empty((side, side)), np.empty((side, side))
    vectors = np.empty((8, side))
    for pair in range(len(starts)):
        rows, columns = lengths[pair], widths[pair]
        block = costs[starts[pair] : starts[pair] + rows, :columns]
        if rows < columns:  # there are as many Newton equations as columns
            rows, columns, block = columns, rows, block.T
        for i in range(rows):
            for j in range(columns):
                cost[i, j] = block[i, j]
        out[pair] = _solve_pair(cost[:rows, :columns], plan, matrix, vectors, temperature)


@compiled(error_model="numpy")
def _solve_pair(cost: Doubles, plan: Doubles, matrix: Doubles, vectors: Doubles, temperature: float) -> float:
    """Return the transport distance of one pair, and leave its plan in the first rows and columns of `plan`."""
    rows, columns = cost.shape
    supply, log_demand, demand = vectors[0, :rows], vectors[1, :columns], vectors[2, :columns]
    potentials, error = vectors[3, :columns], vectors[4, :columns]
    sums, step = vectors[5, :columns], vectors[6, :columns]
    low, high = _masses(cost, supply, log_demand, demand, temperature)
    potentials[:] = 0
    entropy = max(high - low, ENTROPY)
    tolerance = TOLERANCE + 1e-14 * high / ENTROPY
    for _ in range(MAX_STEPS):
        _pair_shares(cost, log_demand, potentials, entropy, plan)
        sums[:] = 0
        for i in range(rows):
            for j in range(columns):
                sums[j] += supply[i] * plan[i, j]
        size = 0.0
        for j in range(columns):
            error[j] = demand[j] - sums[j]
            size += abs(error[j])
        if entropy <= ENTROPY and size < tolerance:
            break
        _pair_newton(plan, supply, sums, error, matrix, step, rows)
        lowest, highest = step[0], step[0]
        for j in range(columns):
            lowest, highest = min(lowest, step[j]), max(highest, step[j])
        span = max(highest - lowest, _TINY)
        damping = math.log1p(span) / span
        cooler = max(entropy * COOLING, ENTROPY) if size < WARM_ERROR else entropy
        for j in range(columns):
            potentials[j] = (potentials[j] + damping * step[j]) * (entropy / cooler)
        entropy = cooler
    return _round_pair(cost, plan, supply, demand, vectors)


@compiled(error_model="numpy")
def _masses(
    cost: Doubles, supply: Doubles, log_demand: Doubles, demand: Doubles, temperature: float
) -> tuple[float, float]:
    """Fill in the transport masses of both sides; return the lowest and the highest cost."""
    rows, columns = cost.shape
    supply[:] = math.inf
    demand[:] = math.inf
    high = 0.0
    for i in range(rows):
        for j in range(columns):
            value = cost[i, j]
            supply[i], demand[j], high = min(supply[i], value), min(demand[j], value), max(high, value)
    low = supply.min()  # of the rows and of the columns alike
    total = 0.0
    for i in range(rows):
        supply[i] = math.exp((low - supply[i]) / temperature)
        total += supply[i]
    for i in range(rows):
        supply[i] /= total
    total = 0.0
    for j in range(columns):
        log_demand[j] = (low - demand[j]) / temperature
        total += math.exp(log_demand[j])
    for j in range(columns):
        log_demand[j] -= math.log(total)
        demand[j] = math.exp(log_demand[j])
    return low, high


@compiled(error_model="numpy")
def _pair_shares(cost: Doubles, log_demand: Doubles, potentials: Doubles, entropy: float, shares: Doubles) -> None:
    """Compute the share of its mass that each row sends to each column, for one pair."""
    rows, columns = cost.shape
    inverse = 1 / entropy
    for i in range(rows):
        highest = -math.inf
        for j in range(columns):
            shares[i, j] = log_demand[j] + potentials[j] - cost[i, j] * inverse
            highest = max(highest, shares[i, j])
        total = 0.0
        for j in range(columns):
            shares[i, j] = math.exp(shares[i, j] - highest)
            total += shares[i, j]
        inverse_total = 1 / total
        for j in range(columns):
            shares[i, j] *= inverse_total


@compiled(error_model="numpy")
def _pair_newton(
    shares: Doubles, supply: Doubles, sums: Doubles, error: Doubles, matrix: Doubles, step: Doubles, rows: int
) -> None:
    """Compute Newton's step of one pair, as `_batch_newton` does, factored and solved in place."""
    columns = len(sums)
    for j in range(columns):
        root = math.sqrt(max(sums[j], _TINY))
        step[j] = 1 / root
        sums[j] = root  # no longer needed
    for j in range(columns):
        for k in range(columns):
            matrix[j, k] = sums[j] * sums[k]
        matrix[j, j] += 1 + 1e-13
    for i in range(rows):
        for j in range(columns):
            sums[j] = shares[i, j] * step[j]
        for j in range(columns):
            part = supply[i] * sums[j]
            for k in range(columns):
                matrix[j, k] -= part * sums[k]
    for j in range(columns):
        sums[j] = error[j] * step[j]
    if _eliminate(matrix, sums):
        for j in range(columns):
            step[j] *= sums[j]
    else:
        for j in range(columns):
            step[j] *= step[j] * error[j]


@compiled(error_model="numpy")
def _eliminate(matrix: Doubles, right: Doubles) -> bool:
    """Solve Newton's equations for `right` in place by L D L^T; False where the matrix is not positive definite."""
    columns = len(right)
    for j in range(columns):
        if not matrix[j, j] > 0:
            return False
        inverse = 1 / matrix[j, j]
        for i in range(j + 1, columns):
            part = matrix[i, j] * inverse
            for k in range(j + 1, columns):
                matrix[i, k] -= part * matrix[j, k]
            right[i] -= part * right[j]
    for j in range(columns - 1, -1, -1):
        left = right[j]
        for k in range(j + 1, columns):
            left -= matrix[j, k] * right[k]
        right[j] = left / matrix[j, j]
    return True


@compiled(error_model="numpy")
def _round_pair(cost: Doubles, plan: Doubles, supply: Doubles, demand: Doubles, vectors: Doubles) -> float:
    """Round the plan of one pair as `round_to_marginals` does, and return its transport distance."""
    rows, columns = cost.shape
    sums, rest = vectors[5, :columns], vectors[7, :rows]
    sums[:] = 0
    for i in range(rows):
        for j in range(columns):
            plan[i, j] *= supply[i]  # every row sums to its mass
            sums[j] += plan[i, j]
    rest[:] = supply
    for j in range(columns):
        part = min(demand[j] / max(sums[j], _TINY), 1.0)
        sums[j] = max(demand[j] - part * sums[j], 0.0)
        for i in range(rows):
            plan[i, j] *= part
            rest[i] -= plan[i, j]
    total = max(sums.sum(), _TINY)
    distance = 0.0
    for i in range(rows):
        for j in range(columns):
            plan[i, j] += max(rest[i], 0.0) * (sums[j] / total)
            distance += cost[i, j] * plan[i, j]
    return distance
