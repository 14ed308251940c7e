"""Search for the C of a linear probe by cross-validation, with checks of its input, folds and liblinear fits.

Every C is fitted on every fold, the best mean is taken, and a last fit uses all papers, as in GridSearchCV:

    C        fold 1   fold 2   fold 3   mean
    0.01      0.90     0.80     0.85    0.85    <- the first of the best is taken
    0.1       0.85     0.85     0.85    0.85
    1         0.80     0.80     0.80    0.80

A fold with a single class to train on cannot be scored: its score is NaN, and so are the means, and the first C is taken.
Folds are scikit-learn's, without shuffling:

>>> [fold.held_out.tolist() for fold in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3)]
[[0, 3], [1, 4], [2, 5]]

Fits by scikit-learn's LinearSVC and LinearSVR call liblinear; whether a fit converged is part of the model instead of a
warning on the terminal.

>>> signs, random = np.array([1, 1, 0]), np.random.RandomState(42)
>>> model = fit_classes_liblinear(np.array([[2.0], [1.0], [-1.0]]), signs, 1.0, FitOptions(), random)
>>> model.converged, model.predict(np.array([[3.0], [-3.0]])).tolist()
(True, [1, 0])

Does not hold the other solvers (`probe_solvers.py`) or the published rules (`probes.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.svm import LinearSVC, LinearSVR

from citeweave.core.errors import UserError
from citeweave.evaluation.probe_solvers import (
    Axes,
    Codes,
    FitOptions,
    Floats,
    LinearModel,
    best_columns,
    fit_classes_newton,
    minimize,
    one_against_rest,
)

Targets = NDArray[Any]
"""Class codes or numbers, (n,)."""

Fit = Callable[[Floats, Targets, float], LinearModel]
"""Vectors, targets and C -> fitted probe."""


class ProbeSearch(NamedTuple):
    """Result of the search for a probe's C: the probe fitted with the best C, the mean scores, unconverged fits."""

    model: LinearModel
    best_c: float
    cv_scores: dict[float, float]
    unconverged: int


def search_c(vectors: Floats, targets: Targets, grid: Sequence[float], folds: Sequence[Fold], fit: Fit) -> ProbeSearch:
    """Search for a probe's C, one fit after the other: codes (n,) are scored by accuracy, float targets (n,) by r2."""
    classes = targets.dtype.kind != "f"
    scores, unconverged = np.full((len(grid), len(folds)), np.nan), 0
    for row, c in enumerate(grid):
        for column, fold in enumerate(folds):
            if classes and has_one_class(targets[fold.train]):
                continue
            model = fit(vectors[fold.train], targets[fold.train], c)
            score = accuracy if classes else r2
            scores[row, column] = score(model, vectors[fold.held_out], targets[fold.held_out])
            unconverged += not model.converged
    best, cv_scores = _choose_c(grid, scores)
    model = fit(vectors, targets, grid[best])
    return ProbeSearch(model, grid[best], cv_scores, unconverged + (not model.converged))


def search_c_jointly(
    axes: Axes, codes: Codes, grid: Sequence[float], folds: Sequence[Fold], *, intercept: bool
) -> ProbeSearch:
    """Search for a probe's C by Newton's method with all folds and classes together, from small to large C."""
    classes = np.unique(codes)
    signs = np.tile(one_against_rest(codes, classes), len(folds))  # (n, folds * k)
    width = signs.shape[1] // len(folds)
    for number, fold in enumerate(folds):
        signs[fold.held_out, number * width : (number + 1) * width] = 0.0
    weights = np.zeros((len(grid), len(axes.spread), signs.shape[1]))  # (grid, r, folds * k)
    scores, unconverged = np.full((len(grid), len(folds)), np.nan), 0
    start = weights[0]
    for row in np.argsort(grid, kind="stable"):
        start, converged = minimize(axes, signs, grid[row], start)
        weights[row] = start
        for number, fold in enumerate(folds):
            part = slice(number * width, (number + 1) * width)
            scores[row, number] = _held_out_accuracy(axes, codes, fold, start[:, part])
            unconverged += not converged[part].all()
    best, cv_scores = _choose_c(grid, scores)
    start = weights[best].reshape(len(axes.spread), len(folds), width).mean(axis=1)  # (r, k)
    model = fit_classes_newton(axes, codes, grid[best], intercept=intercept, start=start)
    return ProbeSearch(model, grid[best], cv_scores, unconverged + (not model.converged))


def _choose_c(grid: Sequence[float], scores: Floats) -> tuple[int, dict[float, float]]:
    """Choose the C with the best mean of its scores (grid, folds), and return its index and all means.

    >>> _choose_c([0.01, 0.1], np.array([[0.5, 0.7], [0.7, 0.7]]))
    (1, {0.01: 0.6, 0.1: 0.7})
    """
    means = scores.mean(axis=1)  # (grid,)
    return int(np.argmax(means)), dict(zip(grid, means.tolist(), strict=True))


def accuracy(model: LinearModel, vectors: Floats, codes: Codes) -> float:
    """Return the share of held-out papers whose class a probe predicts right."""
    return float(np.mean(model.predict(vectors) == codes))


def r2(model: LinearModel, vectors: Floats, targets: Floats) -> float:
    """Return the share of the held-out papers' variance that a probe explains."""
    return float(r2_score(targets, model.scores(vectors)[:, 0]))


def has_one_class(codes: Codes) -> bool:
    """Tell whether all papers have the same class."""
    return bool((codes == codes[0]).all())


def _held_out_accuracy(axes: Axes, codes: Codes, fold: Fold, weights: Floats) -> float:
    """Compute the accuracy on a fold's held-out papers; a class that the fold does not train on is not predicted."""
    if has_one_class(codes[fold.train]):
        return float("nan")
    scores = axes.rows[fold.held_out] @ weights  # (m, k)
    if scores.shape[1] > 1:
        scores[:, np.isin(np.unique(codes), codes[fold.train], invert=True)] = -np.inf
    return float(np.mean(np.unique(codes)[best_columns(scores)] == codes[fold.held_out]))


class Fold(NamedTuple):
    """Rows of the papers that a fold of the cross-validation trains on, and of those it holds out."""

    train: NDArray[np.intp]
    held_out: NDArray[np.intp]


def stratified_folds(codes: Codes, count: int) -> list[Fold]:
    """Split papers into folds to search for a probe's C, with about equal shares of classes; some lack a small one."""
    largest = int(np.unique(codes, return_counts=True)[1].max())
    if largest < count:
        raise UserError(
            f"{count} folds need a class of at least {count} papers, and the largest has {largest}; give more papers"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class smaller than the folds
        return [Fold(*parts) for parts in StratifiedKFold(count).split(np.empty((len(codes), 1)), codes)]


def contiguous_folds(papers: int, count: int) -> list[Fold]:
    """Split papers into folds of neighboring rows, at least two in each, as one paper has no variance to explain."""
    if papers < 2 * count:
        raise UserError(f"{count} folds of numbers need at least {2 * count} papers; there are {papers}")
    return [Fold(*parts) for parts in KFold(count).split(np.empty((papers, 1)))]


def fit_classes_liblinear(
    vectors: Floats, codes: Codes, c: float, options: FitOptions, random: np.random.RandomState
) -> LinearModel:
    """Fit classes for one C of a probe search by LinearSVC; `random` gives liblinear its seed and is drawn from once."""
    model = LinearSVC(
        C=c,
        loss=options.loss,
        fit_intercept=options.intercept,
        max_iter=options.passes,
        dual="auto",
        random_state=random,
    )
    return _fit_sklearn(model, vectors, codes, model_classes=np.unique(codes))


def fit_numbers_liblinear(
    vectors: Floats, targets: Floats, c: float, options: FitOptions, random: np.random.RandomState
) -> LinearModel:
    """Fit numbers for one C of a probe search by LinearSVR (liblinear); its predictions are `scores`, (m, 1)."""
    model = LinearSVR(
        C=c,
        loss=options.loss,
        fit_intercept=options.intercept,
        max_iter=options.passes,
        dual="auto",
        random_state=random,
    )
    return _fit_sklearn(model, vectors, targets, model_classes=np.empty(0, dtype=np.int64))


def _fit_sklearn(
    model: LinearSVC | LinearSVR, vectors: Floats, targets: Floats | Codes, model_classes: Codes
) -> LinearModel:
    """Fit a scikit-learn model without convergence warnings and return its weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(vectors, targets)
    weights = np.atleast_2d(model.coef_)  # (k, d)
    intercepts = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), len(weights))
    return LinearModel(weights, intercepts, model_classes, bool(np.max(model.n_iter_) < model.max_iter))


class ProbeVectors(NamedTuple):
    """Checked vectors of the training and test papers of a probe."""

    train: Floats  # (n, d)
    test: Floats  # (m, d)


class ClassCodes(NamedTuple):
    """Names of the classes of a probe, and the class of each training paper."""

    names: NDArray[Any]  # (classes,), sorted
    codes: Codes  # (n,): index into the names


def check_vectors(train: ArrayLike, test: ArrayLike) -> ProbeVectors:
    """Check the input of a probe's search for C: vectors that are finite and of one length; UserError otherwise.

    >>> check_vectors(np.ones((2, 3), dtype=np.float16), np.ones((1, 3))).train.dtype
    dtype('float64')
    """
    data = ProbeVectors(_matrix(train, "training"), _matrix(test, "test"))
    if data.train.shape[1] != data.test.shape[1]:
        raise UserError(
            f"training vectors have {data.train.shape[1]} numbers and test vectors {data.test.shape[1]}; "
            "a probe needs vectors of one model"
        )
    return data


def check_classes(labels: Sequence[Any] | NDArray[Any], papers: int) -> ClassCodes:
    """Check the input of a probe's search for C: one class per training paper, at least two in all; return codes."""
    array = np.asarray(labels)
    _check_length(array, papers, "label", dimensions=1)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError("a label is not a number; leave papers without a label out")
    try:
        names, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise UserError(
            f"labels of different kinds cannot be sorted ({error}); give all as text or all as numbers"
        ) from None
    if len(names) < 2:
        raise UserError(f"all {papers} training papers are of class {names[0]!s}; a probe needs two classes")
    return ClassCodes(names, codes)


def check_numbers(targets: ArrayLike, papers: int) -> Floats:
    """Check the input of a probe's search for C: one number per training paper, finite and not all equal."""
    array = _numbers(targets, "targets")
    _check_length(array, papers, "target", dimensions=1)
    if not np.isfinite(array).all():
        raise UserError(f"target {int(np.flatnonzero(~np.isfinite(array))[0])} is not finite; leave such papers out")
    if (array == array[0]).all():
        raise UserError(f"all {papers} targets are {array[0]:g}; a probe needs targets that vary")
    return array


def check_labels(labels: ArrayLike, papers: int) -> Codes:
    """Check the input of a probe's search for C: multi-hot labels of the training papers, (n, labels) of 0 and 1."""
    array = np.asarray(labels)
    _check_length(array, papers, "row of labels", dimensions=2)
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise UserError("multi-hot labels must be rows of 0 and 1, one column per label")
    if array.shape[1] == 0:
        raise UserError("the rows of labels are empty; a probe needs a label")
    return array.astype(np.int64)


def _matrix(values: ArrayLike, split: str) -> Floats:
    """Return the vectors of a split as a finite matrix; UserError otherwise."""
    array = _numbers(values, f"{split} vectors")
    if array.ndim != 2 or 0 in array.shape:
        raise UserError(
            f"{split} vectors have the shape {array.shape}; a probe needs papers x numbers, at least one of each"
        )
    finite = np.isfinite(array).all(axis=1)  # (n,)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        raise UserError(
            f"{len(rows)} of {len(array)} {split} vectors hold a number that is not finite, such as row {rows[0]}; "
            "leave them out or set them to zeros"
        )
    return array


def _numbers(values: ArrayLike, name: str) -> Floats:
    """Return values as a float64 array; UserError where they are not numbers."""
    try:
        return np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"the {name} are not a table of numbers") from None


def _check_length(array: NDArray[Any], papers: int, name: str, *, dimensions: int) -> None:
    """Raise UserError unless there is one label or target per training paper."""
    if array.ndim != dimensions or len(array) != papers:
        raise UserError(
            f"{papers} training papers and an array of shape {array.shape}; a probe needs one {name} per paper"
        )
