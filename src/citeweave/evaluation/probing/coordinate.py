"""Dual coordinate descent without an intercept, step for step as sklearn-contrib-lightning walks it.

The benchmarks of the field were recorded with lightning's LinearSVC and LinearSVR (tolerance 1e-3, at most 1,000 passes).
Both stop before the optimum, so that their numbers depend on the path, and the path on a generator of random numbers: numpy's
legacy `RandomState` draws the same stream and shuffles in the same way, and the paths agree.

LinearSVR never reaches an optimum. It keeps two dual variables a paper, but which paper a variable belongs to changes with
every shuffle, so the bounds of one paper are held against another. That is kept here on purpose: the right optimum is 10
points of Kendall tau away from what lightning answers on the fixtures. It is a mode for comparing with published numbers.

Does not choose C, and has no intercept.

>>> vectors, signs = np.array([[2.0], [1.0], [-1.0]]), np.array([1.0, 1.0, -1.0])
>>> separate(vectors, signs, 1.0, Way("hinge"), np.random.RandomState(42)).weights.round(2).tolist()
[1.0]
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from citeweave.evaluation.probing.linear import Codes, Floats, Linear, Way, one_against_rest

TOLERANCE = 1e-3
"""Lightning's default: on the spread of projected gradients (classes), on their sum against the first pass (numbers)."""

_HUGE = np.finfo(np.float64).max
_STILL = 1e-12
"""Projected gradient that is too small for a step."""


class Descent(NamedTuple):
    weights: Floats  # (d,)
    converged: bool


def fit_classes(vectors: Floats, codes: Codes, c: float, way: Way, random: np.random.RandomState) -> Linear:
    """Lightning's LinearSVC: one class after the other, on one stream of random numbers."""
    classes = np.unique(codes)
    signs = one_against_rest(codes, classes)  # (n, k)
    found = [separate(vectors, np.ascontiguousarray(column), c, way, random) for column in signs.T]
    weights = np.array([descent.weights for descent in found])  # (k, d)
    return Linear(weights, np.zeros(len(weights)), classes, all(descent.converged for descent in found))


def fit_numbers(vectors: Floats, targets: Floats, c: float, way: Way, random: np.random.RandomState) -> Linear:
    """Lightning's LinearSVR. The answers are `scores`, (m, 1)."""
    found = follow(vectors, targets, c, way, random)
    return Linear(found.weights[None, :], np.zeros(1), np.empty(0, dtype=np.int64), found.converged)


def separate(vectors: Floats, signs: Floats, c: float, way: Way, random: np.random.RandomState) -> Descent:
    """The weights that tell +1 from -1, (d,); the loss is hinge or squared_hinge.

    Dual coordinate descent with shrinking: Hsieh et al., A dual coordinate descent method for large-scale linear SVM
    (ICML 2008), algorithm 3.
    """
    count = len(vectors)
    bound, ridge = (c, 0.0) if way.loss == "hinge" else (_HUGE, 1.0 / (2.0 * c))
    weights, dual = np.zeros(vectors.shape[1]), np.zeros(count)  # (d,), (n,)
    curvature = np.einsum("ij,ij->i", vectors, vectors) + ridge  # (n,)
    curvature[curvature == 0.0] = np.inf  # hinge and a paper of zeros: lightning divides by 0; here it takes no step
    order = np.arange(count)  # (n,): the active papers first
    active, low, high = count, -_HUGE, _HUGE
    for _ in range(way.passes):
        random.shuffle(order[:active])
        active, least, most = _class_pass(
            vectors, signs, weights, dual, curvature, order, (active, bound, ridge, low, high)
        )
        if most - least <= TOLERANCE:
            if active == count:
                return Descent(weights, True)
            active, low, high = count, -_HUGE, _HUGE  # once more with the papers that were put aside
            continue
        low, high = (least if least < 0 else -_HUGE), (most if most > 0 else _HUGE)
    return Descent(weights, False)


def follow(vectors: Floats, targets: Floats, c: float, way: Way, random: np.random.RandomState) -> Descent:
    """The weights that give the numbers, (d,), with epsilon 0 and the mixed-up variables."""
    bound, ridge = (c, 0.0) if way.loss == "epsilon_insensitive" else (_HUGE, 1.0 / (2.0 * c))
    weights, dual = np.zeros(vectors.shape[1]), np.zeros(2 * len(vectors))  # (d,), (2n,)
    curvature = np.einsum("ij,ij->i", vectors, vectors) + ridge  # (n,)
    curvature[curvature == 0.0] = np.inf
    order = np.arange(len(vectors))  # (n,)
    first = 0.0
    for step in range(way.passes):
        random.shuffle(order)
        violation = _number_pass(vectors, targets, weights, dual, curvature, order, (bound, ridge))
        first = first if step else violation
        if violation <= first * TOLERANCE and (violation < first * TOLERANCE or first == 0.0):
            return Descent(weights, True)
    return Descent(weights, False)


@numba.njit(cache=True, nogil=True)
def _class_pass(vectors, signs, weights, dual, curvature, order, state):  # type: ignore[no-untyped-def]
    """One pass: changes weights, dual and order; returns papers still active, least and greatest projected gradient."""
    active, bound, ridge, low, high = state
    least, most = _HUGE, -_HUGE
    s = 0
    while s < active:
        i = order[s]
        row, sign, old = vectors[i], signs[i], abs(dual[i])
        gradient = 0.0
        for j in range(len(row)):
            gradient += weights[j] * row[j]
        gradient = sign * gradient - 1.0 + ridge * old
        projected = gradient
        if (old == 0.0 and gradient >= 0.0) or (old == bound and gradient <= 0.0):
            projected = 0.0
            if (old == 0.0 and gradient > high) or (old == bound and gradient < low):
                active -= 1
                order[s], order[active] = order[active], order[s]
                continue
        most, least = max(most, projected), min(least, projected)
        if abs(projected) > _STILL:
            new = min(max(old - gradient / curvature[i], 0.0), bound)
            dual[i] = new * sign
            move = (new - old) * sign
            for j in range(len(row)):
                weights[j] += move * row[j]
        s += 1
    return active, least, most


@numba.njit(cache=True, nogil=True)
def _number_pass(vectors, targets, weights, dual, curvature, order, state):  # type: ignore[no-untyped-def]
    """One pass: changes weights and dual; returns the sum of projected gradients."""
    bound, ridge = state
    violation = 0.0
    for s in range(len(dual)):
        i = order[s % len(order)]  # the variable s is another paper's after each shuffle: as lightning has it
        row, old = vectors[i], dual[s]
        side = 1.0 if s % 2 == 0 else -1.0
        answer = 0.0
        for j in range(len(row)):
            answer += weights[j] * row[j]
        gradient = side * (answer - targets[i]) + ridge * old
        projected = gradient
        if (old == 0.0 and gradient >= 0.0) or (old == bound and gradient <= 0.0):
            projected = 0.0
        violation += abs(projected)
        if abs(projected) > _STILL:
            dual[s] = min(max(old - gradient / curvature[i], 0.0), bound)
            move = side * (dual[s] - old)
            for j in range(len(row)):
                weights[j] += move * row[j]
    return violation
