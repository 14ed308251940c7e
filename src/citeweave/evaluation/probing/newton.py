"""The linear SVM with squared hinge loss, solved to its optimum for many classes at once.

One column of weights w a class and a set of papers; x is a paper's vector, y is +1, -1, or 0 where the paper is left out:

    value(w) = 1/2 |w|^2 + C * sum over papers of |y| max(0, 1 - y x.w)^2

That is what liblinear minimises (an intercept is one more number, 1, at the end of every vector, and its weight is kept
small like the others). The value is strictly convex and its minimum unique, so any solver that gets there gives the same
predictions. Liblinear goes one class at a time over sparse nodes; here all classes and all folds share each product of
matrices, and each C starts from the weights of the C before it.

Newton's method with the papers of positive loss as active set: Keerthi and DeCoste, A modified finite Newton method for fast
solution of large scale linear SVMs (JMLR 6, 2005). A step is found by conjugate gradients along the principal axes of the
vectors, or, where few papers are active and conjugate gradients would be slow, by solving the equations outright.

Does not choose C or make folds. All numbers are float64 at every size.

>>> axes = principal_axes(np.array([[2.0], [1.0], [-1.0]]), intercept=False)
>>> found = minimise(axes, np.array([[1.0], [1.0], [-1.0]]), 1.0, np.zeros((1, 1)))
>>> bool(found.converged[0]), (axes.turn @ found.weights).round(4).tolist()  # w = 2 * 2 (1 - w)
(True, [[0.8]])
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

from citeweave.evaluation.probing.linear import Codes, Floats, Linear, one_against_rest

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


def fit_classes(axes: Axes, codes: Codes, c: float, *, intercept: bool, start: Floats | None = None) -> Linear:
    """One class against the rest for every class, (k, d), looked for from `start` (r, k)."""
    classes = np.unique(codes)
    signs = one_against_rest(codes, classes)  # (n, k)
    start = np.zeros((len(axes.spread), signs.shape[1])) if start is None else start
    found = minimise(axes, signs, c, start)
    weights = (axes.turn @ found.weights).T  # (k, d) or (k, d + 1)
    intercepts = weights[:, -1] if intercept else np.zeros(len(weights))
    return Linear(weights[:, :-1] if intercept else weights, intercepts, classes, bool(found.converged.all()))


def minimise(axes: Axes, signs: Floats, c: float, start: Floats) -> Minimum:
    """The weights (r, k) of least value for every column of signs (n, k), looked for from `start` (r, k)."""
    width = max(1, BLOCK // len(signs))
    with _blas().limit(limits=1 if axes.rows.size < SMALL else None):
        parts = [
            _minimise_block(axes, signs[:, left : left + width], c, start[:, left : left + width])
            for left in range(0, signs.shape[1], width)
        ]
    return Minimum(np.hstack([part.weights for part in parts]), np.concatenate([part.converged for part in parts]))


def _minimise_block(axes: Axes, signs: Floats, c: float, start: Floats) -> Minimum:
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
