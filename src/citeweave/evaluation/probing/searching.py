"""The search for C: every C on every fold, the best mean, and a last fit on all papers, as GridSearchCV goes about it.

    C        fold 1   fold 2   fold 3   mean
    0.01      0.90     0.80     0.85    0.85    <- the first of the best is taken
    0.1       0.85     0.85     0.85    0.85
    1         0.80     0.80     0.80    0.80

A fold that leaves one class to train on cannot be scored. Its score is NaN, and so are the means, and the first C is taken.

Does not know which solver fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from citeweave.evaluation.probing import newton
from citeweave.evaluation.probing.folds import Fold
from citeweave.evaluation.probing.linear import Codes, Floats, Linear, one_against_rest, winners

Answers = NDArray[Any]
Fit = Callable[[Floats, Answers, float], Linear]


class Found(NamedTuple):
    model: Linear
    best_c: float
    cv_scores: dict[float, float]
    unconverged: int


def search(vectors: Floats, answers: Answers, grid: Sequence[float], folds: Sequence[Fold], fit: Fit) -> Found:
    """One fit after the other: codes (n,) are scored by accuracy, float targets (n,) by r2."""
    classes = answers.dtype.kind != "f"
    scores, unconverged = np.full((len(grid), len(folds)), np.nan), 0
    for row, c in enumerate(grid):
        for column, fold in enumerate(folds):
            if classes and one_class(answers[fold.train]):
                continue
            model = fit(vectors[fold.train], answers[fold.train], c)
            judge = accuracy if classes else explained
            scores[row, column] = judge(model, vectors[fold.held_out], answers[fold.held_out])
            unconverged += not model.converged
    best, cv_scores = choose_c(grid, scores)
    model = fit(vectors, answers, grid[best])
    return Found(model, grid[best], cv_scores, unconverged + (not model.converged))


def search_at_once(
    axes: newton.Axes, codes: Codes, grid: Sequence[float], folds: Sequence[Fold], *, intercept: bool
) -> Found:
    """All folds and classes together by Newton's method, from small to large C."""
    classes = np.unique(codes)
    signs = np.tile(one_against_rest(codes, classes), len(folds))  # (n, folds * k)
    width = signs.shape[1] // len(folds)
    for number, fold in enumerate(folds):
        signs[fold.held_out, number * width : (number + 1) * width] = 0.0
    weights = np.zeros((len(grid), len(axes.spread), signs.shape[1]))  # (grid, r, folds * k)
    scores, unconverged = np.full((len(grid), len(folds)), np.nan), 0
    start = weights[0]
    for row in np.argsort(grid, kind="stable"):
        start, converged = newton.minimise(axes, signs, grid[row], start)
        weights[row] = start
        for number, fold in enumerate(folds):
            part = slice(number * width, (number + 1) * width)
            scores[row, number] = _held_out_accuracy(axes, codes, fold, start[:, part])
            unconverged += not converged[part].all()
    best, cv_scores = choose_c(grid, scores)
    start = weights[best].reshape(len(axes.spread), len(folds), width).mean(axis=1)  # (r, k)
    model = newton.fit_classes(axes, codes, grid[best], intercept=intercept, start=start)
    return Found(model, grid[best], cv_scores, unconverged + (not model.converged))


def choose_c(grid: Sequence[float], scores: Floats) -> tuple[int, dict[float, float]]:
    """Which C has the best mean over its folds, of scores (grid, folds), and the means.

    >>> choose_c([0.01, 0.1], np.array([[0.5, 0.7], [0.7, 0.7]]))
    (1, {0.01: 0.6, 0.1: 0.7})
    """
    means = scores.mean(axis=1)  # (grid,)
    return int(np.argmax(means)), dict(zip(grid, means.tolist(), strict=True))


def accuracy(model: Linear, vectors: Floats, codes: Codes) -> float:
    """Share of papers given their own class."""
    return float(np.mean(model.predict(vectors) == codes))


def explained(model: Linear, vectors: Floats, targets: Floats) -> float:
    """Share of the variance that is explained, r2."""
    return float(r2_score(targets, model.scores(vectors)[:, 0]))


def one_class(codes: Codes) -> bool:
    return bool((codes == codes[0]).all())


def _held_out_accuracy(axes: newton.Axes, codes: Codes, fold: Fold, weights: Floats) -> float:
    """A class that the fold does not train on is not predicted."""
    if one_class(codes[fold.train]):
        return float("nan")
    scores = axes.rows[fold.held_out] @ weights  # (m, k)
    if scores.shape[1] > 1:
        scores[:, np.isin(np.unique(codes), codes[fold.train], invert=True)] = -np.inf
    return float(np.mean(np.unique(codes)[winners(scores)] == codes[fold.held_out]))
