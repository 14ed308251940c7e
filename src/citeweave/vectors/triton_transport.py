"""A Triton kernel of entropic optimal transport: the distances of many pairs of papers, and their gradients.

    values = transport_values(costs, heights, widths, 0.5)      (pairs, n, m) -> (pairs,), differentiable
    scores = transport_distances(costs, starts, lengths, widths, temperature=0.5)        numpy, for search

The method of `transport.py`: one program solves one pair in float64, from its masses to its distance, with all Newton steps
in registers. A pair has at most `MAX_SIDE` sentences on either side. The gradient is the same as there: with plan
P_ij = a_i s_ij, the implicit function theorem at sum_i P_ij = b_j gives for the distance <P, C>

    r_i = sum_j s_ij C_ij,    G_ij = P_ij (C_ij - r_i),    (diag(b) - s^T diag(a) s) u = sum_i G_ij,    q_i = sum_j s_ij u_j
    d/dC_ij = P_ij (1 + (u_j - q_i - C_ij + r_i) / ENTROPY),    d/da_i = r_i - q_i,    d/db_j = u_j

and the masses a and b depend on the nearest sentences. The kernel computes it together with the distance, so that backward
is one product. `anneal` is geomloss's schedule, one program per pair too. Imports triton, which comes with torch on Linux with
CUDA: import this module inside functions.
"""

# A kernel takes many pointers and sizes, without Python types.
# ruff: noqa: PLR0913
# mypy: disable-error-code="untyped-decorator,no-untyped-def,import-not-found"

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from citeweave.vectors.transport import BLUR, COOLING, ENTROPY, MAX_STEPS, SCALING, TOLERANCE, WARM_ERROR, Masses

MAX_SIDE = 64
"""Sentences of a paper that the kernel can hold."""

SETTINGS: dict[str, Any] = {
    "entropy": ENTROPY,
    "cooling": COOLING,
    "warm": WARM_ERROR,
    "tolerance": TOLERANCE,
    "max_steps": MAX_STEPS,
}

VARYING = ["starts", "heights", "widths", "order", "row_stride", "column_stride"]
"""Arguments by whose alignment nothing is compiled again."""

Longs = NDArray[np.int64]


@triton.jit
def _shares(cost, weights, entropy):
    """Return the share of its mass that each row sends to each column, (rows, columns)."""
    exponents = weights - cost / entropy
    shares = tl.exp(exponents - tl.max(exponents, 1, keep_dims=True))
    return shares / tl.sum(shares, 1, keep_dims=True)


@triton.jit
def _newton(shares, supply, sums, right, height, width, rows: tl.constexpr, columns: tl.constexpr):
    """Solve the Newton system of `transport._batch_newton` by Gauss-Jordan elimination of columns, (1, columns)."""
    i, j = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    k = tl.arange(0, columns)[:, None]
    root = tl.sqrt(tl.maximum(sums, 1e-300))  # (1, columns)
    scaled = shares * tl.sqrt(supply) / root  # (rows, columns)
    matrix = tl.trans(root) * root  # (columns, columns)
    matrix += tl.where(k == j, matrix * 0 + (1 + 1e-13), 0.0)
    for at in range(height):
        row = tl.sum(tl.where(i == at, scaled, 0.0), 0, keep_dims=True)  # (1, columns)
        matrix -= tl.trans(row) * row
    found = right / root
    lowest = tl.min(sums, 1, keep_dims=True) * 0 + 1  # (1, 1)
    for at in range(width):
        row = tl.sum(tl.where(k == at, matrix, 0.0), 0, keep_dims=True)  # (1, columns)
        column = tl.sum(tl.where(j == at, matrix, 0.0), 1, keep_dims=True)  # (columns, 1)
        pivot = tl.sum(tl.where(j == at, row, 0.0), 1, keep_dims=True)  # (1, 1)
        value = tl.sum(tl.where(j == at, found, 0.0), 1, keep_dims=True)
        factor = tl.where(j == at, 0.0, row / pivot)
        matrix -= column * factor
        found -= value * factor
        lowest = tl.minimum(lowest, pivot)
    diagonal = tl.sum(tl.where(k == j, matrix, 0.0), 0, keep_dims=True)
    return tl.where(lowest > 0, found / diagonal / root, right / (root * root))


@triton.jit
def _side_masses(nearest, low, inside, axis: tl.constexpr, temperature: tl.constexpr):
    """Return the logarithms of the masses of one side and the masses; -inf and 0 on padding."""
    weights = tl.where(inside, (low - nearest) / temperature, float("-inf"))
    logs = weights - tl.log(tl.sum(tl.exp(weights), axis, keep_dims=True))
    return logs, tl.exp(logs)


@triton.jit
def _mass_slopes(cost, nearest, masses, slopes, inside, axis: tl.constexpr, temperature: tl.constexpr):
    """Return the gradient at the costs through one side's masses; equally near sentences share it."""
    wanted = masses * (slopes - tl.sum(masses * slopes, 1 - axis, keep_dims=True)) / temperature
    hits = tl.where(inside & (cost == nearest), 1.0, 0.0).to(tl.float64)
    return -wanted * hits / tl.maximum(tl.sum(hits, axis, keep_dims=True), 1.0)


@triton.jit
def _round(plan, sums, supply, demand):
    """Round a plan whose rows sum to their masses as `transport.round_to_marginals` does."""
    part = tl.minimum(demand / tl.maximum(sums, 1e-300), 1.0)
    plan = plan * part
    row_rest = tl.maximum(supply - tl.sum(plan, 1, keep_dims=True), 0.0)
    column_rest = tl.maximum(demand - part * sums, 0.0)
    return plan + row_rest * (column_rest / tl.maximum(tl.sum(column_rest, 1, keep_dims=True), 1e-300))


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=VARYING)
def _solve(
    costs, starts, heights, widths, order, distances, slopes, row_stride, column_stride,
    temperature: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, with_slopes: tl.constexpr,
    entropy: tl.constexpr, cooling: tl.constexpr, warm: tl.constexpr, tolerance: tl.constexpr, max_steps: tl.constexpr,
):  # fmt: skip
    pair = tl.load(order + tl.program_id(0))
    height, width = tl.load(heights + pair).to(tl.int32), tl.load(widths + pair).to(tl.int32)
    i, j = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    inside = (i < height) & (j < width)
    places = tl.load(starts + pair) + i * row_stride + j * column_stride
    cost = tl.load(costs + places, mask=inside, other=0.0)
    far, near = tl.where(inside, cost, float("-inf")), tl.where(inside, cost, float("inf"))
    row_nearest, column_nearest = tl.min(near, 1, keep_dims=True), tl.min(near, 0, keep_dims=True)
    low = tl.min(column_nearest, 1, keep_dims=True)  # (1, 1), as all scalars here
    high = tl.max(tl.max(far, 0, keep_dims=True), 1, keep_dims=True)
    _, supply = _side_masses(row_nearest, low, i < height, 0, temperature)  # (rows, 1)
    weights, demand = _side_masses(column_nearest, low, j < width, 1, temperature)  # (1, columns)
    small = tolerance + 1e-14 / entropy * high
    floor = low * 0 + entropy  # a number beside `where` or `maximum` would be rounded to single precision
    heat = tl.maximum(high - low, floor)
    potentials = demand * 0
    number = 0
    while number < max_steps:
        shares = _shares(cost, weights + potentials, heat)
        sums = tl.sum(supply * shares, 0, keep_dims=True)
        error = demand - sums
        size = tl.sum(tl.abs(error), 1, keep_dims=True)
        done = (heat <= floor) & (size < small)
        step = _newton(shares, supply, sums, error, height, width, rows, columns)
        step = tl.where(j < width, step, 0.0)
        span = tl.max(step, 1, keep_dims=True) - tl.min(step, 1, keep_dims=True)
        # 1 - span / 2 where the logarithm has lost digits
        damping = tl.where(span < 1e-5, 1 - span / 2, tl.log(1 + span) / tl.maximum(span, 1e-5))
        cooler = tl.where(size < warm, tl.maximum(heat * cooling, floor), heat)
        potentials = (potentials + damping * step) * (heat / cooler)
        heat = cooler
        number = tl.where(tl.max(tl.max(done.to(tl.int32), 1), 0) > 0, max_steps, number + 1)
    potentials *= heat / entropy
    shares = _shares(cost, weights + potentials, floor)
    plan = supply * shares
    sums = tl.sum(plan, 0, keep_dims=True)
    rounded = _round(plan, sums, supply, demand)
    tl.store(distances + pair, tl.sum(tl.sum(rounded * cost, 1), 0))
    if with_slopes:
        mean = tl.sum(shares * cost, 1, keep_dims=True)  # (rows, 1)
        excess = plan * (cost - mean)
        lift = _newton(shares, supply, sums, tl.sum(excess, 0, keep_dims=True), height, width, rows, columns)
        lift = tl.where(j < width, lift, 0.0)
        back = tl.sum(shares * lift, 1, keep_dims=True)  # (rows, 1)
        found = rounded + plan * (lift - back - cost + mean) / entropy
        found += _mass_slopes(cost, row_nearest, supply, mean - back, inside, 1, temperature)
        found += _mass_slopes(cost, column_nearest, demand, lift, inside, 0, temperature)
        tl.store(slopes + places, found, mask=inside)


@triton.jit
def _softmin(exponents, axis: tl.constexpr, heat):
    """Return -heat log sum exp of exponents along an axis; 0 where all are -inf."""
    highest = tl.max(exponents, axis, keep_dims=True)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp(exponents - highest), axis, keep_dims=True)
    return tl.where(total > 0, -heat * (highest + tl.log(tl.where(total > 0, total, 1.0))), 0.0)


@triton.jit(do_not_specialize=["n", "m"])
def _anneal(
    costs, row_logs, column_logs, diameters, row_potentials, column_potentials, n, m,
    rows: tl.constexpr, columns: tl.constexpr, blur: tl.constexpr, log_blur: tl.constexpr, log_scaling: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    inside = (i < n) & (j < m)
    cost = tl.load(costs + pair * n * m + i * m + j, mask=inside, other=0.0)
    own = tl.load(row_logs + pair * n + i, mask=i < n, other=float("-inf"))  # (rows, 1)
    theirs = tl.load(column_logs + pair * m + j, mask=j < m, other=float("-inf"))  # (1, columns)
    start = tl.load(diameters + pair + tl.zeros([1, 1], tl.int64))  # (1, 1)
    floor = start * 0 + blur
    start = tl.where(start > 0, start, floor)
    between = tl.maximum(tl.ceil((tl.log(start) - log_blur) / -log_scaling), 0.0)  # (1, 1)
    heat, number = start, start * 0
    f, g = _softmin(theirs - cost / heat, 1, heat), _softmin(own - cost / heat, 0, heat)
    steps = tl.max(tl.max(between, 1), 0).to(tl.int32) + 2
    for _ in range(steps):
        new_f = _softmin(theirs + g / heat - cost / heat, 1, heat)
        new_g = _softmin(own + f / heat - cost / heat, 0, heat)
        f, g = (f + new_f) / 2, (g + new_g) / 2
        heat = tl.where(number >= between, floor, tl.exp(tl.log(start) + number * log_scaling))
        number += 1
    tl.store(row_potentials + pair * n + i, f, mask=i < n)
    tl.store(column_potentials + pair * m + j, g, mask=j < m)


def anneal(costs: Tensor, masses: Masses, diameter: Tensor) -> tuple[Tensor, Tensor]:
    """Run geomloss's schedule of entropies as `transport.anneal` does: potentials (pairs, n) and (pairs, m)."""
    (pairs, n, m), diameter = costs.shape, diameter.double().contiguous()
    f, g = costs.new_empty(pairs, n), costs.new_empty(pairs, m)
    sides = _padded(n), _padded(m)
    _anneal[(pairs,)](
        costs.contiguous(), masses.queries.contiguous(), masses.candidates.contiguous(), diameter, f, g, n, m,
        rows=sides[0], columns=sides[1], blur=BLUR, log_blur=math.log(BLUR), log_scaling=math.log(SCALING),
        num_warps=_warps(sides),
    )  # fmt: skip
    return f, g


def _launch(
    costs: Tensor, places: tuple[Tensor, ...], out: tuple[Tensor, Tensor | None], strides: tuple[int, int],
    sides: tuple[int, int], temperature: float,
) -> None:  # fmt: skip
    """Solve the pairs `order` of places (starts, heights, widths, order), whose sides are padded to powers of two."""
    starts, heights, widths, order = places
    if sides[0] < sides[1]:  # there are as many Newton equations as columns
        heights, widths, strides, sides = widths, heights, strides[::-1], sides[::-1]
    distances, slopes = out
    _solve[(len(order),)](
        costs, starts, heights, widths, order, distances, distances if slopes is None else slopes, *strides,
        temperature=float(temperature), rows=sides[0], columns=sides[1], with_slopes=slopes is not None, **SETTINGS,
        num_warps=_warps(sides),
    )  # fmt: skip


def _warps(sides: tuple[int, int]) -> int:
    return 1 if max(sides) <= 16 else 4 if max(sides) == 32 else 8


def _padded(length: int) -> int:
    return max(2, 1 << (length - 1).bit_length())


class _TransportValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, costs: Tensor, heights: Tensor, widths: Tensor, temperature: float) -> Tensor:
        pairs, n, m = costs.shape
        costs, order = costs.contiguous(), torch.arange(pairs, device=costs.device)
        values, slopes = costs.new_empty(pairs), torch.zeros_like(costs) if ctx.needs_input_grad[0] else None
        places = order * (n * m), heights, widths, order
        _launch(costs, places, (values, slopes), (m, 1), (_padded(n), _padded(m)), temperature)
        if slopes is not None:
            ctx.save_for_backward(slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return grads[0][:, None, None] * ctx.saved_tensors[0], None, None, None


def transport_values(costs: Tensor, heights: Tensor, widths: Tensor, temperature: float) -> Tensor:
    """Compute the transport distances <plan, costs> of pairs, (pairs, n, m) float64 -> (pairs,); differentiable in costs.

    Pair p has heights[p] x widths[p] costs, both at least 1 and at most `MAX_SIDE`; the rest is padding.
    """
    values: Tensor = _TransportValues.apply(costs, heights, widths, temperature)  # type: ignore[no-untyped-call]
    return values


def transport_distances(
    costs: Tensor, starts: Longs, lengths: Longs, widths: Longs, *, temperature: float
) -> NDArray[np.float64]:
    """Compute the transport distance of each pair, (pairs,), from costs (sentences of all candidates, longest query).

    The arguments are those of `transport_kernels.transport_distances`, with costs on the device. NaN where a side is
    longer than `MAX_SIDE`.
    """
    short = np.flatnonzero(np.maximum(lengths, widths) <= MAX_SIDE)
    sides = _powers(np.stack([lengths[short], widths[short]]))  # (2, short pairs)
    classes, members = np.unique(sides[0] * 2 * MAX_SIDE + sides[1], return_inverse=True)
    order = short[np.argsort(members, kind="stable")]
    ends = np.cumsum(np.bincount(members, minlength=len(classes))).tolist()
    padded = np.zeros_like(starts)
    padded[: len(order)] = order
    packed = torch.from_numpy(np.stack([starts * costs.shape[1], lengths, widths, padded])).to(costs.device)
    distances = costs.new_full((len(starts),), np.nan)
    for both, low, high in zip(classes.tolist(), [0, *ends], ends, strict=False):
        places = packed[0], packed[1], packed[2], packed[3, low:high]
        rows, columns = divmod(both, 2 * MAX_SIDE)
        _launch(costs, places, (distances, None), (costs.stride(0), 1), (rows, columns), temperature)
    found: NDArray[np.float64] = distances.cpu().numpy()
    return found


def _powers(lengths: Longs) -> Longs:
    """Return the powers of two that lengths are padded to.

    >>> _powers(np.array([1, 2, 3, 8, 9])).tolist()
    [2, 2, 4, 8, 16]
    """
    powers: Longs = np.maximum(2, 1 << np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64))
    return powers
