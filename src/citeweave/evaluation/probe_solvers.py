"""Solvers of linear probes: Newton's method for the squared hinge loss, and lightning's dual coordinate descent.

Newton's method finds the optimum of the linear SVM with squared hinge loss for many classes at once. One column of weights
w belongs to a class and a set of papers; x is a paper's vector, y is +1, -1, or 0 where the paper is left out:

    value(w) = 1/2 |w|^2 + C * sum over papers of |y| max(0, 1 - y x.w)^2

That is what liblinear minimizes (an intercept is one more number, 1, at the end of every vector, and its weight is kept
small like the others). The value is strictly convex and its minimum unique, so any solver that gets there gives the same
predictions. Liblinear solves one class at a time over sparse nodes; here all classes and all folds share each matrix
product, and each C starts from the weights of the C before it. The papers of positive loss are the active set: Keerthi and
DeCoste, A modified finite Newton method for fast solution of large scale linear SVMs (JMLR 6, 2005). A step is found by
conjugate gradients along the principal axes of the vectors, or, where few papers are active and conjugate gradients would
be slow, by solving the equations directly. All numbers are float64 at every size.

>>> axes = principal_axes(np.array([[2.0], [1.0], [-1.0]]), intercept=False)
>>> minimum = minimize(axes, np.array([[1.0], [1.0], [-1.0]]), 1.0, np.zeros((1, 1)))
>>> bool(minimum.converged[0]), (axes.turn @ minimum.weights).round(4).tolist()  # w = 2 * 2 (1 - w)
(True, [[0.8]])

Dual coordinate descent without an intercept repeats sklearn-contrib-lightning step by step. The benchmarks of the field
were recorded with its LinearSVC and LinearSVR (tolerance 1e-3, at most 1,000 passes). Both stop before the optimum, so
their numbers depend on the path, and the path on a random number generator: numpy's legacy `RandomState` draws the same
stream and shuffles in the same way, and the paths agree. Lightning's LinearSVR never reaches an optimum: it has two dual
variables per paper, but which paper a variable belongs to changes with every shuffle, so the bounds of one paper are
applied to another. That is kept here on purpose, to compare with published numbers: the right optimum is 10 points of
Kendall tau away from lightning's predictions on the fixtures.

>>> vectors, signs = np.array([[2.0], [1.0], [-1.0]]), np.array([1.0, 1.0, -1.0])
>>> descend_to_separate(vectors, signs, 1.0, ProbeRule((1.0,), "hinge"), np.random.RandomState(42)).weights.round(2).tolist()
[1.0]

Does not choose C or make folds: `probes.py` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from citeweave.core.compiled import compiled
from citeweave.evaluation.tasks import ProbeRule

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]

CLOSE = 1e-10
"""A column has converged when its value can fall by no more than this share of itself."""

ROUNDING = 1e-14
"""Rounding error of a score near 1; a gradient within such errors is zero. Matters for vectors of length 10^6."""

STEPS = 200
"""Maximum number of Newton steps; ten are usual."""

ROUNDS = 200
"""Maximum number of conjugate gradient rounds in a step."""

BLOCK = 2**24
"""Numbers in a papers x columns table that is processed at once, 128 MiB; about eight such tables are in memory."""

SMALL = 2**22
"""Fewer numbers than this in all vectors are processed without threads: waiting for each other would take longer."""

TOLERANCE = 1e-3
"""Lightning's default: for the range of projected gradients (classes), or their sum against the first pass (numbers)."""

_HUGE = np.finfo(np.float64).max
_STILL = 1e-12
"""A projected gradient up to this is too small for a step."""


NO_CLASSES = np.empty(0, dtype=np.int64)
"""Classes of a model that predicts numbers."""


class LinearModel(NamedTuple):
    """What a probe solver finds: rows of weights; two classes have one row, for the second of them, more have one each.

    >>> model = LinearModel(np.array([[1.0, 0.0]]), np.array([-0.5]), np.array([0, 3]), converged=True)
    >>> model.predict(np.array([[1.0, 9.0], [0.0, 9.0]])).tolist()
    [3, 0]
    """

    weights: Floats  # (k, d)
    intercepts: Floats  # (k,)
    classes: Codes  # (k,), (2,) where k is 1, (0,) where numbers are predicted
    converged: bool

    def scores(self, vectors: Floats) -> Floats:
        """Score each paper for each class, (m, k)."""
        return np.asarray(vectors @ self.weights.T + self.intercepts)

    def predict(self, vectors: Floats) -> Codes:
        """Predict the class of each paper, (m,)."""
        return np.asarray(self.classes[best_columns(self.scores(vectors))])


def best_columns(scores: Floats) -> Codes:
    """Return the class that a probe solver's scores (m, k) predict for each paper; one column is two classes.

    Of equal scores the first class is predicted.

    >>> best_columns(np.array([[0.1], [0.0]])).tolist(), best_columns(np.array([[1.0, 2.0, 2.0]])).tolist()
    ([1, 0], [1])
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(scores.argmax(axis=1))


def one_against_rest(codes: Codes, classes: Codes) -> Floats:
    """Return a probe solver's targets: +1 for papers of a class, -1 for others, (n, k); two classes have one column.

    >>> one_against_rest(np.array([0, 2, 1]), np.array([0, 1, 2])).tolist()
    [[1.0, -1.0, -1.0], [-1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]
    """
    columns = classes[1:] if len(classes) == 2 else classes
    return np.where(codes[:, None] == columns, 1.0, -1.0)


class Axes(NamedTuple):
    """Vectors along their principal axes: the squared loss over all papers has no mixed terms there."""

    rows: Floats  # (n, r)
    spread: Floats  # (r,): sum of squares along each axis
    turn: Floats  # (d, r) or (d + 1, r): from the axes back to the original dimensions


class Minimum(NamedTuple):
    """Weights found by Newton's method, and which columns converged."""

    weights: Floats  # (r, k)
    converged: NDArray[np.bool_]  # (k,)


class _Point(NamedTuple):
    """Current weights and scores of the columns that have not converged."""

    signs: Floats  # (n, k)
    weights: Floats  # (r, k)
    scores: Floats  # (n, k): rows @ weights


class _Slope(NamedTuple):
    """Value, gradient and curvature of the squared hinge loss at a point."""

    active: NDArray[np.bool_]  # (n, k): papers with a loss
    gradient: Floats  # (r, k)
    curvature: Floats  # (r, k): about the diagonal of the Hessian
    value: Floats  # (k,)
    gap: Floats  # (k,): about how far the value is above its minimum
    done: NDArray[np.bool_]  # (k,)


def principal_axes(vectors: Floats, *, intercept: bool) -> Axes:
    """Rotate a probe solver's vectors (n, d) to their principal axes, with a 1 appended where there is an intercept."""
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


def fit_classes_newton(
    axes: Axes, codes: Codes, c: float, *, intercept: bool, start: Floats | None = None
) -> LinearModel:
    """Solve a probe of classes by Newton's method, one class against the rest for each, starting from `start` (r, k)."""
    classes = np.unique(codes)
    signs = one_against_rest(codes, classes)  # (n, k)
    start = np.zeros((len(axes.spread), signs.shape[1])) if start is None else start
    minimum = minimize(axes, signs, c, start)
    weights = (axes.turn @ minimum.weights).T  # (k, d) or (k, d + 1)
    intercepts = weights[:, -1] if intercept else np.zeros(len(weights))
    return LinearModel(weights[:, :-1] if intercept else weights, intercepts, classes, bool(minimum.converged.all()))


def minimize(axes: Axes, signs: Floats, c: float, start: Floats) -> Minimum:
    """Solve by Newton's method for the least squared hinge loss of every column of signs (n, k), from `start` (r, k)."""
    width = max(1, BLOCK // len(signs))
    with _blas().limit(limits=1 if axes.rows.size < SMALL else None):
        parts = [
            _minimize_block(axes, signs[:, left : left + width], c, start[:, left : left + width])
            for left in range(0, signs.shape[1], width)
        ]
    return Minimum(np.hstack([part.weights for part in parts]), np.concatenate([part.converged for part in parts]))


def _minimize_block(axes: Axes, signs: Floats, c: float, start: Floats) -> Minimum:
    """Minimize the loss for as many columns as fit into memory; columns that converge are taken out."""
    weights, live = start.copy(), np.arange(signs.shape[1])
    converged = np.zeros(len(live), dtype=np.bool_)
    point = _Point(signs, weights, axes.rows @ weights)
    for _ in range(STEPS):
        slope = _compute_slope(axes, point, c)
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


def _columns(parts: tuple[NDArray[Any], ...], chosen: NDArray[np.bool_]) -> Iterator[NDArray[Any]]:
    """Select some columns of a point or slope."""
    return (np.ascontiguousarray(part[..., chosen]) for part in parts)


def _compute_slope(axes: Axes, point: _Point, c: float) -> _Slope:
    """Compute value, gradient and curvature of the loss, and which columns have converged."""
    active = point.signs * point.scores < np.abs(point.signs)  # (n, k)
    missing = np.where(active, point.signs - point.scores, 0.0)  # (n, k)
    gradient = point.weights - 2.0 * c * (axes.rows.T @ missing)  # (r, k)
    value = 0.5 * (point.weights**2).sum(axis=0) + c * (missing**2).sum(axis=0)  # (k,)
    # an estimate, as if the active papers were distributed like all papers
    curvature = 1.0 + 2.0 * c * axes.spread[:, None] * active.mean(axis=0)  # (r, k)
    gap = 0.5 * (gradient**2 / curvature).sum(axis=0)
    # the curvature is 1 at least in every direction: the value can fall by 1/2 |gradient|^2 at most
    steep = (gradient**2).sum(axis=0)
    noise = (2.0 * c * ROUNDING) ** 2 * axes.spread.max() * active.sum(axis=0)
    done = (0.5 * steep <= CLOSE * value) | (steep <= noise)
    return _Slope(active, gradient, curvature, value, gap, done)


def _direction(axes: Axes, slope: _Slope, c: float) -> Floats:
    """Compute Newton's step for every column, (r, k): inexact while far from the minimum, by the cheaper method."""
    accuracy = np.minimum(0.1, np.sqrt(slope.gap / slope.value))  # (k,)
    papers, axis_count = axes.rows.shape
    active = slope.active.sum(axis=0)  # (k,)
    smaller = np.minimum(active, axis_count)
    direct_cost = active * smaller * axis_count + smaller**3 / 3  # (k,): multiplications
    iterative_cost = _estimate_rounds(slope, active, accuracy) * 2 * papers * axis_count
    direct = direct_cost <= iterative_cost
    step = np.empty_like(slope.gradient)
    _solve_columns(step, axes, slope, np.flatnonzero(direct), c)
    if not direct.all():
        rest = _Slope(*_columns(slope, ~direct))
        step[:, ~direct] = _conjugate_gradients(axes, rest, c, accuracy[~direct])
    return step


def _estimate_rounds(slope: _Slope, active: NDArray[np.integer], accuracy: Floats) -> Floats:
    """Estimate the rounds of conjugate gradients that each column needs, (k,).

    The more free directions a weight vector has per active paper, the further the distribution of the active papers is
    from that of all: eigenvalues lie in (1 - sqrt(q))^2 .. (1 + sqrt(q))^2 with q free directions per paper (Marchenko and
    Pastur 1967), and conjugate gradients then gain a factor sqrt(q) per round.
    """
    free = (1.0 - 1.0 / slope.curvature).sum(axis=0)  # (k,): directions determined by the loss, not by 1/2 |w|^2
    share = np.clip(free / np.maximum(active, 1), 1e-12, 0.99)
    return np.asarray(np.ceil(2.0 * np.log(accuracy) / np.log(share)), dtype=np.float64)


def _solve_columns(step: Floats, axes: Axes, slope: _Slope, columns: NDArray[np.intp], c: float) -> None:
    """Solve Newton's equations for these columns directly, one column per thread: BLAS threads would not help."""

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
    """Solve (1 + 2 C rows' rows) z = right for z (r,), through the shorter side of rows (a, r)."""
    if len(rows) >= rows.shape[1]:
        return _solve_table(2.0 * c * (rows.T @ rows), right)
    inner = _solve_table(2.0 * c * (rows @ rows.T), rows @ right)  # (a,)
    return np.asarray(right - 2.0 * c * (rows.T @ inner))


def _solve_table(table: Floats, right: Floats) -> Floats:
    """Solve (1 + table) z = right by Cholesky factorization; changes the table."""
    # very long vectors make the 1 vanish; the diagonal gets back what rounding may take from it
    table.flat[:: len(table) + 1] += 1.0 + len(table) * np.finfo(np.float64).eps * table.max(initial=0.0)
    factor = cho_factor(table, overwrite_a=True, check_finite=False)
    return np.asarray(cho_solve(factor, right, check_finite=False))


def _conjugate_gradients(axes: Axes, slope: _Slope, c: float, accuracy: Floats) -> Floats:
    """Compute Newton's step (r, k) by conjugate gradients to an accuracy (k,), each axis scaled by its curvature."""
    active = slope.active.astype(np.float64)  # (n, k)
    step, rest = np.zeros_like(slope.gradient), -slope.gradient
    scaled = rest / slope.curvature
    direction, size = scaled, (rest * scaled).sum(axis=0)
    enough = size * accuracy**2
    for _ in range(ROUNDS):
        # (r, k): Hessian times direction
        bent = direction + 2.0 * c * (axes.rows.T @ (active * (axes.rows @ direction)))
        share = _ratio(size, (direction * bent).sum(axis=0))
        step += share * direction
        rest = rest - share * bent
        scaled = rest / slope.curvature
        before, size = size, (rest * scaled).sum(axis=0)
        if (size <= enough).all():
            break
        direction = scaled + _ratio(size, before) * direction
    return step


def _ratio(over: Floats, under: Floats) -> Floats:
    """Divide, with 0 for 0/0: a column that is solved exactly waits for the others."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _length(point: _Point, slope: _Slope, step: Floats, change: Floats, c: float) -> Floats:
    """Choose the length of Newton's step, (k,): halved from 1 until the value falls enough (Armijo's rule)."""
    length, open_columns = np.ones(len(slope.value)), np.arange(len(slope.value))
    expected = (slope.gradient * step).sum(axis=0)  # (k,), negative
    noise = 1e-14 * slope.value  # rounding of the value, which must not be taken for a rise
    for _ in range(60):
        signs, scores, moved = (part[:, open_columns] for part in (point.signs, point.scores, change))
        here = length[open_columns]
        loss = np.maximum(np.abs(signs) - signs * (scores + here * moved), 0.0)  # (n, open)
        weights = point.weights[:, open_columns] + here * step[:, open_columns]
        value = 0.5 * (weights**2).sum(axis=0) + c * (loss**2).sum(axis=0)
        limit = slope.value + noise + 1e-4 * length * expected
        high = value > limit[open_columns]
        if not high.any():
            break
        open_columns = open_columns[high]
        length[open_columns] *= 0.5
    return length


class Descent(NamedTuple):
    """Weights of lightning's coordinate descent, and whether it converged."""

    weights: Floats  # (d,)
    converged: bool


def fit_lightning(
    vectors: Floats, targets: NDArray[Any], c: float, rule: ProbeRule, random: np.random.RandomState
) -> LinearModel:
    """Solve a probe as lightning's LinearSVC, or as its LinearSVR where targets (n,) are floats.

    Classes are solved one after the other on one stream of random numbers; predicted numbers are `scores`, (m, 1).
    """
    if targets.dtype.kind == "f":
        classes, descents = NO_CLASSES, [descend_to_numbers(vectors, targets, c, rule, random)]
    else:
        classes = np.unique(targets)
        columns = np.ascontiguousarray(one_against_rest(targets, classes).T)  # (k, n)
        descents = [descend_to_separate(vectors, column, c, rule, random) for column in columns]
    weights = np.array([descent.weights for descent in descents])  # (k, d)
    return LinearModel(weights, np.zeros(len(weights)), classes, all(descent.converged for descent in descents))


def descend_to_separate(
    vectors: Floats, signs: Floats, c: float, rule: ProbeRule, random: np.random.RandomState
) -> Descent:
    """Solve a probe by coordinate descent: weights (d,) that separate +1 from -1; the loss is hinge or squared_hinge.

    Dual coordinate descent with shrinking: Hsieh et al., A dual coordinate descent method for large-scale linear SVM
    (ICML 2008), algorithm 3.
    """
    count = len(vectors)
    bound, ridge = (c, 0.0) if rule.loss == "hinge" else (_HUGE, 1.0 / (2.0 * c))
    weights, dual = np.zeros(vectors.shape[1]), np.zeros(count)  # (d,), (n,)
    curvature = np.einsum("ij,ij->i", vectors, vectors) + ridge  # (n,)
    curvature[curvature == 0.0] = np.inf  # hinge and a paper of zeros: lightning divides by 0; here it takes no step
    order = np.arange(count)  # (n,): the active papers first
    active, low, high = count, -_HUGE, _HUGE
    for _ in range(rule.passes):
        random.shuffle(order[:active])
        active, smallest, largest = _class_pass(
            vectors, signs, weights, dual, curvature, order, (active, bound, ridge, low, high)
        )
        if largest - smallest <= TOLERANCE:
            if active == count:
                return Descent(weights, True)
            active, low, high = count, -_HUGE, _HUGE  # once more with all papers
            continue
        low, high = (smallest if smallest < 0 else -_HUGE), (largest if largest > 0 else _HUGE)
    return Descent(weights, False)


def descend_to_numbers(
    vectors: Floats, targets: Floats, c: float, rule: ProbeRule, random: np.random.RandomState
) -> Descent:
    """Solve a probe by lightning's coordinate descent: weights (d,) that predict numbers.

    As there, epsilon is 0 and the variables are mixed up.
    """
    bound, ridge = (c, 0.0) if rule.loss == "epsilon_insensitive" else (_HUGE, 1.0 / (2.0 * c))
    weights, dual = np.zeros(vectors.shape[1]), np.zeros(2 * len(vectors))  # (d,), (2n,)
    curvature = np.einsum("ij,ij->i", vectors, vectors) + ridge  # (n,)
    curvature[curvature == 0.0] = np.inf
    order = np.arange(len(vectors))  # (n,)
    first = 0.0
    for step in range(rule.passes):
        random.shuffle(order)
        violation = _number_pass(vectors, targets, weights, dual, curvature, order, (bound, ridge))
        first = first if step else violation
        if violation <= first * TOLERANCE and (violation < first * TOLERANCE or first == 0.0):
            return Descent(weights, True)
    return Descent(weights, False)


@compiled()
def _class_pass(vectors, signs, weights, dual, curvature, order, state):  # type: ignore[no-untyped-def]
    """Do one pass over classes: changes weights, dual, order; returns active papers, extreme projected gradients."""
    active, bound, ridge, low, high = state
    smallest, largest = _HUGE, -_HUGE
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
        largest, smallest = max(largest, projected), min(smallest, projected)
        if abs(projected) > _STILL:
            new = min(max(old - gradient / curvature[i], 0.0), bound)
            dual[i] = new * sign
            move = (new - old) * sign
            for j in range(len(row)):
                weights[j] += move * row[j]
        s += 1
    return active, smallest, largest


@compiled()
def _number_pass(vectors, targets, weights, dual, curvature, order, state):  # type: ignore[no-untyped-def]
    """Do one pass over numbers: changes weights and dual; returns the sum of projected gradients."""
    bound, ridge = state
    violation = 0.0
    for s in range(len(dual)):
        i = order[s % len(order)]  # variable s belongs to another paper after each shuffle, as in lightning
        row, old = vectors[i], dual[s]
        side = 1.0 if s % 2 == 0 else -1.0
        prediction = 0.0
        for j in range(len(row)):
            prediction += weights[j] * row[j]
        gradient = side * (prediction - targets[i]) + ridge * old
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
