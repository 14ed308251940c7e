"""What every solver gives back: one row of weights a class, and the class that it predicts.

>>> model = Linear(np.array([[1.0, 0.0]]), np.array([-0.5]), np.array([0, 3]), converged=True)
>>> model.predict(np.array([[1.0, 9.0], [0.0, 9.0]])).tolist()
[3, 0]

Does not fit anything.

Dual coordinate descent without an intercept, step for step as sklearn-contrib-lightning walks it.

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

The linear SVM with squared hinge loss, solved to its optimum for many classes at once.

One column of weights w a class and a set of papers; x is a paper's vector, y is +1, -1, or 0 where the paper is left out:

    value(w) = 1/2 |w|^2 + C * sum over papers of |y| max(0, 1 - y x.w)^2

That is what liblinear minimizes (an intercept is one more number, 1, at the end of every vector, and its weight is kept
small like the others). The value is strictly convex and its minimum unique, so any solver that gets there gives the same
predictions. Liblinear goes one class at a time over sparse nodes; here all classes and all folds share each product of
matrices, and each C starts from the weights of the C before it.

Newton's method with the papers of positive loss as active set: Keerthi and DeCoste, A modified finite Newton method for fast
solution of large scale linear SVMs (JMLR 6, 2005). A step is found by conjugate gradients along the principal axes of the
vectors, or, where few papers are active and conjugate gradients would be slow, by solving the equations outright.

Does not choose C or make folds. All numbers are float64 at every size.

>>> axes = principal_axes(np.array([[2.0], [1.0], [-1.0]]), intercept=False)
>>> found = minimize(axes, np.array([[1.0], [1.0], [-1.0]]), 1.0, np.zeros((1, 1)))
>>> bool(found.converged[0]), (axes.turn @ found.weights).round(4).tolist()  # w = 2 * 2 (1 - w)
(True, [[0.8]])
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]


class Way(NamedTuple):
    """What all fits of a search share."""

    loss: str = "squared_hinge"
    intercept: bool = True
    passes: int = 1000


class Linear(NamedTuple):
    """Two classes have one row of weights, for the second of them; more classes have one row each."""

    weights: Floats  # (k, d)
    intercepts: Floats  # (k,)
    classes: Codes  # (k,), (2,) where k is 1, (0,) where numbers are predicted
    converged: bool

    def scores(self, vectors: Floats) -> Floats:
        """How much a paper belongs to a class, (m, k)."""
        return np.asarray(vectors @ self.weights.T + self.intercepts)

    def predict(self, vectors: Floats) -> Codes:
        """The class of each paper, (m,)."""
        return np.asarray(self.classes[winners(self.scores(vectors))])


def winners(scores: Floats) -> Codes:
    """Which class wins by scores (m, k), the first of equals; one column stands for two classes.

    >>> winners(np.array([[0.1], [0.0]])).tolist(), winners(np.array([[1.0, 2.0, 2.0]])).tolist()
    ([1, 0], [1])
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(scores.argmax(axis=1))


def one_against_rest(codes: Codes, classes: Codes) -> Floats:
    """+1 for the papers of a class, -1 for the others, (n, k); two classes give one column, the second's.

    >>> one_against_rest(np.array([0, 2, 1]), np.array([0, 1, 2])).tolist()
    [[1.0, -1.0, -1.0], [-1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]
    """
    columns = classes[1:] if len(classes) == 2 else classes
    return np.where(codes[:, None] == columns, 1.0, -1.0)


# Dual coordinate descent without an intercept, step for step as sklearn-contrib-lightning walks it.

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


# The linear SVM with squared hinge loss, solved to its optimum for many classes at once.

CLOSE = 1e-10
"""A column is done when its value can fall by no more than this share of itself."""

ROUNDING = 1e-14
"""Error of a score about 1; a gradient that such errors can make up is zero. Matters for vectors of length 10^6."""

STEPS = 200
"""Most Newton steps; ten are usual."""

ROUNDS = 200
"""Most rounds of conjugate gradients in a step."""

BLOCK = 2**24
"""Numbers of a table papers x columns that is worked on at once, 128 MiB each; about eight such tables live together."""

SMALL = 2**22
"""Fewer numbers than this in all vectors are worked on without threads: waiting for each other would take longer."""


class Axes(NamedTuple):
    """Vectors along their principal axes: the squared loss over all papers has no mixed terms there."""

    rows: Floats  # (n, r)
    spread: Floats  # (r,): sum of squares along each axis
    turn: Floats  # (d, r) or (d + 1, r): from the axes back to the vectors' own numbers


class Minimum(NamedTuple):
    weights: Floats  # (r, k)
    converged: NDArray[np.bool_]  # (k,)


class _Point(NamedTuple):
    """Where the columns that are not done yet stand."""

    signs: Floats  # (n, k)
    weights: Floats  # (r, k)
    scores: Floats  # (n, k): rows @ weights


class _Slope(NamedTuple):
    active: NDArray[np.bool_]  # (n, k): papers with a loss
    gradient: Floats  # (r, k)
    curvature: Floats  # (r, k): about the diagonal of the Hessian
    value: Floats  # (k,)
    gap: Floats  # (k,): about how far the value is above its minimum
    done: NDArray[np.bool_]  # (k,)


def principal_axes(vectors: Floats, *, intercept: bool) -> Axes:
    """Turn vectors (n, d) to their principal axes, with a number 1 added to each where there is an intercept."""
    if intercept:
        vectors = np.hstack([vectors, np.ones((len(vectors), 1))])
    if len(vectors) >= vectors.shape[1]:
        table = vectors.T @ vectors  # (d, d)
        with _blas().limit(limits=1):
            spread, turn = np.linalg.eigh(table)  # (r,), (d, r)
    else:
        with _blas().limit(limits=1):
            _, lengths, right = np.linalg.svd(vectors, full_matrices=False)
        spread, turn = lengths**2, np.ascontiguousarray(right.T)
    return Axes(vectors @ turn, np.maximum(spread, 0.0), turn)


def fit_classes_newton(axes: Axes, codes: Codes, c: float, *, intercept: bool, start: Floats | None = None) -> Linear:
    """One class against the rest for every class, (k, d), looked for from `start` (r, k)."""
    classes = np.unique(codes)
    signs = one_against_rest(codes, classes)  # (n, k)
    start = np.zeros((len(axes.spread), signs.shape[1])) if start is None else start
    found = minimize(axes, signs, c, start)
    weights = (axes.turn @ found.weights).T  # (k, d) or (k, d + 1)
    intercepts = weights[:, -1] if intercept else np.zeros(len(weights))
    return Linear(weights[:, :-1] if intercept else weights, intercepts, classes, bool(found.converged.all()))


def minimize(axes: Axes, signs: Floats, c: float, start: Floats) -> Minimum:
    """The weights (r, k) of least value for every column of signs (n, k), looked for from `start` (r, k)."""
    width = max(1, BLOCK // len(signs))
    with _blas().limit(limits=1 if axes.rows.size < SMALL else None):
        parts = [
            _minimize_block(axes, signs[:, left : left + width], c, start[:, left : left + width])
            for left in range(0, signs.shape[1], width)
        ]
    return Minimum(np.hstack([part.weights for part in parts]), np.concatenate([part.converged for part in parts]))


def _minimize_block(axes: Axes, signs: Floats, c: float, start: Floats) -> Minimum:
    weights, live = start.copy(), np.arange(signs.shape[1])
    converged = np.zeros(len(live), dtype=np.bool_)
    point = _Point(signs, weights, axes.rows @ weights)
    for _ in range(STEPS):
        slope = _slope(axes, point, c)
        if slope.done.any():
            done, rest = live[slope.done], ~slope.done
            weights[:, done], converged[done] = point.weights[:, slope.done], True
            live, point, slope = live[rest], _Point(*_columns(point, rest)), _Slope(*_columns(slope, rest))
        if not len(live):
            break
        step = _direction(axes, slope, c)  # (r, k)
        change = axes.rows @ step  # (n, k)
        length = _length(point, slope, step, change, c)  # (k,)
        point = point._replace(weights=point.weights + length * step, scores=point.scores + length * change)
    weights[:, live] = point.weights
    return Minimum(weights, converged)


def _columns(parts: tuple[NDArray[Any], ...], kept: NDArray[np.bool_]) -> Iterator[NDArray[Any]]:
    return (np.ascontiguousarray(part[..., kept]) for part in parts)


def _slope(axes: Axes, point: _Point, c: float) -> _Slope:
    active = point.signs * point.scores < np.abs(point.signs)  # (n, k)
    missing = np.where(active, point.signs - point.scores, 0.0)  # (n, k)
    gradient = point.weights - 2.0 * c * (axes.rows.T @ missing)  # (r, k)
    value = 0.5 * (point.weights**2).sum(axis=0) + c * (missing**2).sum(axis=0)  # (k,)
    # as if the active papers were spread like all papers
    curvature = 1.0 + 2.0 * c * axes.spread[:, None] * active.mean(axis=0)  # (r, k)
    gap = 0.5 * (gradient**2 / curvature).sum(axis=0)
    # the curvature is 1 at least in every direction: the value can fall by 1/2 |gradient|^2 at most
    steep = (gradient**2).sum(axis=0)
    noise = (2.0 * c * ROUNDING) ** 2 * axes.spread.max() * active.sum(axis=0)
    done = (0.5 * steep <= CLOSE * value) | (steep <= noise)
    return _Slope(active, gradient, curvature, value, gap, done)


def _direction(axes: Axes, slope: _Slope, c: float) -> Floats:
    """Newton's step for every column, (r, k): inexact while far from the minimum, by the cheaper of two ways."""
    accuracy = np.minimum(0.1, np.sqrt(slope.gap / slope.value))  # (k,)
    papers, axis_count = axes.rows.shape
    active = slope.active.sum(axis=0)  # (k,)
    smaller = np.minimum(active, axis_count)
    outright = active * smaller * axis_count + smaller**3 / 3  # (k,): multiplications
    in_rounds = _rounds(slope, active, accuracy) * 2 * papers * axis_count
    direct = outright <= in_rounds
    step = np.empty_like(slope.gradient)
    _solve_columns(step, axes, slope, np.flatnonzero(direct), c)
    if not direct.all():
        rest = _Slope(*_columns(slope, ~direct))
        step[:, ~direct] = _conjugate_gradients(axes, rest, c, accuracy[~direct])
    return step


def _rounds(slope: _Slope, active: NDArray[np.integer], accuracy: Floats) -> Floats:
    """Rounds of conjugate gradients that a column will about need, (k,).

    The more free directions a weight vector has for each active paper, the further the spread of the active papers is from
    that of all: eigenvalues lie in (1 - sqrt(q))^2 .. (1 + sqrt(q))^2 with q free directions a paper (Marchenko and Pastur
    1967), and conjugate gradients then win a factor sqrt(q) a round.
    """
    free = (1.0 - 1.0 / slope.curvature).sum(axis=0)  # (k,): directions that the loss holds, not the 1/2 |w|^2
    share = np.clip(free / np.maximum(active, 1), 1e-12, 0.99)
    return np.asarray(np.ceil(2.0 * np.log(accuracy) / np.log(share)), dtype=np.float64)


def _solve_columns(step: Floats, axes: Axes, slope: _Slope, columns: NDArray[np.intp], c: float) -> None:
    """Fill these columns of the step, a column a thread: one column gains nothing from the threads of BLAS."""

    def fill(column: int) -> None:
        step[:, column] = _solve(axes.rows[slope.active[:, column]], -slope.gradient[:, column], c)

    if axes.rows.size < SMALL:
        for column in columns:
            fill(column)
        return
    with _blas().limit(limits=1), ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, columns))


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _solve(rows: Floats, right: Floats, c: float) -> Floats:
    """The z (r,) with (1 + 2 C rows' rows) z = right, through whichever side of rows (a, r) is the shorter."""
    if len(rows) >= rows.shape[1]:
        return _solve_table(2.0 * c * (rows.T @ rows), right)
    inner = _solve_table(2.0 * c * (rows @ rows.T), rows @ right)  # (a,)
    return np.asarray(right - 2.0 * c * (rows.T @ inner))


def _solve_table(table: Floats, right: Floats) -> Floats:
    """The z with (1 + table) z = right; changes the table."""
    # very long vectors drown the 1; what rounding may take from the diagonal is given back
    table.flat[:: len(table) + 1] += 1.0 + len(table) * np.finfo(np.float64).eps * table.max(initial=0.0)
    factor = cho_factor(table, overwrite_a=True, check_finite=False)
    return np.asarray(cho_solve(factor, right, check_finite=False))


def _conjugate_gradients(axes: Axes, slope: _Slope, c: float, accuracy: Floats) -> Floats:
    """Newton's step (r, k) to the given accuracy (k,), each axis scaled by its curvature."""
    active = slope.active.astype(np.float64)  # (n, k)
    step, rest = np.zeros_like(slope.gradient), -slope.gradient
    scaled = rest / slope.curvature
    way, size = scaled, (rest * scaled).sum(axis=0)
    enough = size * accuracy**2
    for _ in range(ROUNDS):
        bent = way + 2.0 * c * (axes.rows.T @ (active * (axes.rows @ way)))  # (r, k): the Hessian times the way
        share = _ratio(size, (way * bent).sum(axis=0))
        step += share * way
        rest = rest - share * bent
        scaled = rest / slope.curvature
        before, size = size, (rest * scaled).sum(axis=0)
        if (size <= enough).all():
            break
        way = scaled + _ratio(size, before) * way
    return step


def _ratio(over: Floats, under: Floats) -> Floats:
    """0 for 0/0: a column that is solved to the last digit waits for the others."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _length(point: _Point, slope: _Slope, step: Floats, change: Floats, c: float) -> Floats:
    """How far to go along the step, (k,): halved from 1 until the value falls as its slope promises (Armijo)."""
    length, open_columns = np.ones(len(slope.value)), np.arange(len(slope.value))
    promise = (slope.gradient * step).sum(axis=0)  # (k,), negative
    noise = 1e-14 * slope.value  # rounding of the value, which must not be taken for a rise
    for _ in range(60):
        signs, scores, moved = (part[:, open_columns] for part in (point.signs, point.scores, change))
        here = length[open_columns]
        loss = np.maximum(np.abs(signs) - signs * (scores + here * moved), 0.0)  # (n, open)
        weights = point.weights[:, open_columns] + here * step[:, open_columns]
        value = 0.5 * (weights**2).sum(axis=0) + c * (loss**2).sum(axis=0)
        limit = slope.value + noise + 1e-4 * length * promise
        high = value > limit[open_columns]
        if not high.any():
            break
        open_columns = open_columns[high]
        length[open_columns] *= 0.5
    return length
