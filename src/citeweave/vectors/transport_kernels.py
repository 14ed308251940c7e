"""The transport of `entropic.py` compiled for the processor: distances of many pairs, or the plan of one; no gradients.

    costs    (sentences of all candidates, widest query)     candidate p has the rows starts[p] : starts[p] + lengths[p],
    result   (pairs,)                                         its query the first widths[p] columns

One pair after the other lies in the cache and nothing is padded, which is several times as fast as torch's calls on
whole batches. Same method, same constants; `match` gives the plans of whole batches.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.vectors.transport import (
    COOLING,
    ENTROPY,
    MOST_STEPS,
    TOLERANCE,
    WARM_ERROR,
)

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

RANGE = 256
"""Pairs that a thread takes at a time; each is solved alone, so that it changes no result."""

_TINIEST = 1e-300


def transport_distances(
    costs: Doubles, starts: Longs, lengths: Longs, widths: Longs, *, temperature: float, workers: int
) -> Doubles:
    """<plan, costs> of every pair, (pairs,); no pair may have an empty side."""
    found = np.empty(len(starts))
    ranges = [slice(low, low + RANGE) for low in range(0, len(starts), RANGE)]

    def work(part: slice) -> None:
        _solve_range(costs, starts[part], lengths[part], widths[part], temperature, found[part])

    if workers == 1:
        for part in ranges:
            work(part)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, ranges))
    return found


def transport_plan(costs: Doubles, *, temperature: float) -> Doubles:
    """The plan of one pair, (n, m) as its costs; neither side may be empty."""
    plan = np.empty(costs.shape)
    _solve_one(np.ascontiguousarray(costs, np.float64), temperature, plan)
    return plan


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _solve_one(costs: Doubles, temperature: float, found: Doubles) -> None:
    n, m = costs.shape
    side = max(n, m)
    cost, plan, matrix = np.empty((side, side)), np.empty((side, side)), np.empty((side, side))
    for i in range(n):
        for j in range(m):
            if n >= m:
                cost[i, j] = costs[i, j]
            else:
                cost[j, i] = costs[i, j]
    _solve_pair(cost[: max(n, m), : min(n, m)], plan, matrix, np.empty((8, side)), temperature)
    for i in range(n):
        for j in range(m):
            found[i, j] = plan[i, j] if n >= m else plan[j, i]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _solve_range(
    costs: Doubles, starts: Longs, lengths: Longs, widths: Longs, temperature: float, found: Doubles
) -> None:
    side = max(lengths.max(), widths.max())
    cost = np.empty((side, side))
    plan = np.empty((side, side))
    matrix = np.empty((side, side))
    vectors = np.empty((8, side))
    for pair in range(len(starts)):
        rows, columns = lengths[pair], widths[pair]
        block = costs[starts[pair] : starts[pair] + rows, :columns]
        if rows >= columns:  # Newton's equations are as many as there are columns
            for i in range(rows):
                for j in range(columns):
                    cost[i, j] = block[i, j]
        else:
            rows, columns = columns, rows
            for i in range(rows):
                for j in range(columns):
                    cost[i, j] = block[j, i]
        found[pair] = _solve_pair(cost[:rows, :columns], plan, matrix, vectors, temperature)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _solve_pair(cost: Doubles, plan: Doubles, matrix: Doubles, vectors: Doubles, temperature: float) -> float:
    """<plan, cost>, with the plan in the first rows and columns of `plan`."""
    rows, columns = cost.shape
    given, log_taken, taken = vectors[0, :rows], vectors[1, :columns], vectors[2, :columns]
    potentials, error, sums, step = (
        vectors[3, :columns],
        vectors[4, :columns],
        vectors[5, :columns],
        vectors[6, :columns],
    )
    low, high = _masses(cost, given, log_taken, taken, temperature)
    potentials[:] = 0
    entropy = max(high - low, ENTROPY)
    tolerance = TOLERANCE + 1e-14 * high / ENTROPY
    for _ in range(MOST_STEPS):
        _pair_shares(cost, log_taken, potentials, entropy, plan)
        sums[:] = 0
        for i in range(rows):
            for j in range(columns):
                sums[j] += given[i] * plan[i, j]
        size = 0.0
        for j in range(columns):
            error[j] = taken[j] - sums[j]
            size += abs(error[j])
        if entropy <= ENTROPY and size < tolerance:
            break
        _pair_newton(plan, given, sums, error, matrix, step, rows)
        least, most = step[0], step[0]
        for j in range(columns):
            least, most = min(least, step[j]), max(most, step[j])
        span = max(most - least, _TINIEST)
        damping = math.log1p(span) / span
        cooler = max(entropy * COOLING, ENTROPY) if size < WARM_ERROR else entropy
        for j in range(columns):
            potentials[j] = (potentials[j] + damping * step[j]) * (entropy / cooler)
        entropy = cooler
    return _rounded(cost, plan, given, taken, vectors)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _masses(
    cost: Doubles, given: Doubles, log_taken: Doubles, taken: Doubles, temperature: float
) -> tuple[float, float]:
    """Fill in the masses of both sides; the least and the greatest cost."""
    rows, columns = cost.shape
    given[:] = math.inf
    taken[:] = math.inf
    high = 0.0
    for i in range(rows):
        for j in range(columns):
            value = cost[i, j]
            given[i], taken[j], high = min(given[i], value), min(taken[j], value), max(high, value)
    low = given.min()  # the least of the rows' least ones, and of the columns'
    total = 0.0
    for i in range(rows):
        given[i] = math.exp((low - given[i]) / temperature)
        total += given[i]
    for i in range(rows):
        given[i] /= total
    total = 0.0
    for j in range(columns):
        log_taken[j] = (low - taken[j]) / temperature
        total += math.exp(log_taken[j])
    for j in range(columns):
        log_taken[j] -= math.log(total)
        taken[j] = math.exp(log_taken[j])
    return low, high


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _pair_shares(cost: Doubles, log_taken: Doubles, potentials: Doubles, entropy: float, shares: Doubles) -> None:
    """What share of its mass each row sends to each column."""
    rows, columns = cost.shape
    inverse = 1 / entropy
    for i in range(rows):
        highest = -math.inf
        for j in range(columns):
            shares[i, j] = log_taken[j] + potentials[j] - cost[i, j] * inverse
            highest = max(highest, shares[i, j])
        total = 0.0
        for j in range(columns):
            shares[i, j] = math.exp(shares[i, j] - highest)
            total += shares[i, j]
        inverse_total = 1 / total
        for j in range(columns):
            shares[i, j] *= inverse_total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _pair_newton(
    shares: Doubles, given: Doubles, sums: Doubles, error: Doubles, matrix: Doubles, step: Doubles, rows: int
) -> None:
    """`entropic._pair_newton`: diag(sums) - shares^T flows, scaled to a unit diagonal, factored and solved in place."""
    columns = len(sums)
    for j in range(columns):
        root = math.sqrt(max(sums[j], _TINIEST))
        step[j] = 1 / root
        sums[j] = root  # which are needed no more
    for j in range(columns):
        for k in range(columns):
            matrix[j, k] = sums[j] * sums[k]
        matrix[j, j] += 1 + 1e-13
    for i in range(rows):
        for j in range(columns):
            sums[j] = shares[i, j] * step[j]
        for j in range(columns):
            part = given[i] * sums[j]
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _eliminate(matrix: Doubles, right: Doubles) -> bool:
    """Solve for `right` in place by L D L^T; False where the matrix is not positive definite."""
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _rounded(cost: Doubles, plan: Doubles, given: Doubles, taken: Doubles, vectors: Doubles) -> float:
    """<plan, cost> of the plan that `entropic.round_to_marginals` makes of these shares."""
    rows, columns = cost.shape
    sums, rest = vectors[5, :columns], vectors[7, :rows]
    sums[:] = 0
    for i in range(rows):
        for j in range(columns):
            plan[i, j] *= given[i]  # every row sums up to its mass
            sums[j] += plan[i, j]
    rest[:] = given
    for j in range(columns):
        part = min(taken[j] / max(sums[j], _TINIEST), 1.0)
        sums[j] = max(taken[j] - part * sums[j], 0.0)
        for i in range(rows):
            plan[i, j] *= part
            rest[i] -= plan[i, j]
    total = max(sums.sum(), _TINIEST)
    distance = 0.0
    for i in range(rows):
        for j in range(columns):
            plan[i, j] += max(rest[i], 0.0) * (sums[j] / total)
            distance += cost[i, j] * plan[i, j]
    return distance
