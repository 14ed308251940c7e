"""What may be handed to a probe: finite vectors of one length, an answer for each.

>>> checked_vectors(np.ones((2, 3), dtype=np.float16), np.ones((1, 3))).train.dtype
dtype('float64')

Does not look at whether a fit is possible; the probes do.

scikit-learn's LinearSVC and LinearSVR, which call liblinear: the numbers recorded with scikit-learn.

Whether a fit ended at its tolerance is part of the answer instead of a warning on the terminal.

>>> model = fit_classes_liblinear(np.array([[2.0], [1.0], [-1.0]]), np.array([1, 1, 0]), 1.0, Way(), np.random.RandomState(42))
>>> model.converged, model.predict(np.array([[3.0], [-3.0]])).tolist()
(True, [1, 0])

Does not choose C.

Which papers a fold trains on and which it holds out: scikit-learn's splitters, without shuffling.

>>> [fold.held_out.tolist() for fold in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3)]
[[0, 3], [1, 4], [2, 5]]

Does not fit or score.

The search for C: every C on every fold, the best mean, and a last fit on all papers, as GridSearchCV goes about it.

    C        fold 1   fold 2   fold 3   mean
    0.01      0.90     0.80     0.85    0.85    <- the first of the best is taken
    0.1       0.85     0.85     0.85    0.85
    1         0.80     0.80     0.80    0.80

A fold that leaves one class to train on cannot be scored. Its score is NaN, and so are the means, and the first C is taken.

Does not know which solver fits.
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
from citeweave.evaluation import probe_solvers
from citeweave.evaluation.probe_solvers import (
    Codes,
    Floats,
    Linear,
    Way,
    one_against_rest,
    winners,
)


class Data(NamedTuple):
    train: Floats  # (n, d)
    test: Floats  # (m, d)


class Classes(NamedTuple):
    names: NDArray[Any]  # (classes,), sorted
    codes: Codes  # (n,): index into the names


def checked_vectors(train: ArrayLike, test: ArrayLike) -> Data:
    data = Data(_matrix(train, "training"), _matrix(test, "test"))
    if data.train.shape[1] != data.test.shape[1]:
        raise UserError(
            f"training vectors have {data.train.shape[1]} numbers and test vectors {data.test.shape[1]}; "
            "a probe needs vectors of one model"
        )
    return data


def checked_classes(labels: Sequence[Any] | NDArray[Any], papers: int) -> Classes:
    """Two classes at least."""
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
    return Classes(names, codes)


def checked_numbers(targets: ArrayLike, papers: int) -> Floats:
    array = _numbers(targets, "targets")
    _check_length(array, papers, "target", dimensions=1)
    if not np.isfinite(array).all():
        raise UserError(f"target {int(np.flatnonzero(~np.isfinite(array))[0])} is not finite; leave such papers out")
    if (array == array[0]).all():
        raise UserError(f"all {papers} targets are {array[0]:g}; what does not vary cannot be probed for")
    return array


def checked_labels(labels: ArrayLike, papers: int) -> Codes:
    """Multi-hot (n, labels), 0 and 1."""
    array = np.asarray(labels)
    _check_length(array, papers, "row of labels", dimensions=2)
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise UserError("labels of several kinds must be rows of 0 and 1, one column a label")
    if array.shape[1] == 0:
        raise UserError("the rows of labels are empty; a probe needs a label")
    return array.astype(np.int64)


def _matrix(values: ArrayLike, what: str) -> Floats:
    array = _numbers(values, f"{what} vectors")
    if array.ndim != 2 or 0 in array.shape:
        raise UserError(
            f"{what} vectors have the shape {array.shape}; a probe needs papers x numbers, at least one of each"
        )
    finite = np.isfinite(array).all(axis=1)  # (n,)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        raise UserError(
            f"{len(rows)} of {len(array)} {what} vectors hold a number that is not finite, such as row {rows[0]}; "
            "leave them out or make them zeros"
        )
    return array


def _numbers(values: ArrayLike, what: str) -> Floats:
    try:
        return np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"the {what} are not a table of numbers") from None


def _check_length(array: NDArray[Any], papers: int, what: str, *, dimensions: int) -> None:
    if array.ndim != dimensions or len(array) != papers:
        raise UserError(
            f"{papers} training papers and an array of shape {array.shape}; a probe needs one {what} a paper"
        )


# scikit-learn's LinearSVC and LinearSVR, which call liblinear: the numbers recorded with scikit-learn.


def fit_classes_liblinear(vectors: Floats, codes: Codes, c: float, way: Way, random: np.random.RandomState) -> Linear:
    """`random` gives liblinear its seed and is drawn from once."""
    model = LinearSVC(
        C=c, loss=way.loss, fit_intercept=way.intercept, max_iter=way.passes, dual="auto", random_state=random
    )
    return _fitted(model, vectors, codes, model_classes=np.unique(codes))


def fit_numbers_liblinear(
    vectors: Floats, targets: Floats, c: float, way: Way, random: np.random.RandomState
) -> Linear:
    """The answers are `scores`, (m, 1)."""
    model = LinearSVR(
        C=c, loss=way.loss, fit_intercept=way.intercept, max_iter=way.passes, dual="auto", random_state=random
    )
    return _fitted(model, vectors, targets, model_classes=np.empty(0, dtype=np.int64))


def _fitted(model: LinearSVC | LinearSVR, vectors: Floats, answers: Floats | Codes, model_classes: Codes) -> Linear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(vectors, answers)
    weights = np.atleast_2d(model.coef_)  # (k, d)
    intercepts = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), len(weights))
    return Linear(weights, intercepts, model_classes, bool(np.max(model.n_iter_) < model.max_iter))


# Which papers a fold trains on and which it holds out: scikit-learn's splitters, without shuffling.


class Fold(NamedTuple):
    train: NDArray[np.intp]
    held_out: NDArray[np.intp]


def stratified_folds(codes: Codes, count: int) -> list[Fold]:
    """Folds with about the same share of every class. A class with fewer papers than folds is missing from some."""
    largest = int(np.unique(codes, return_counts=True)[1].max())
    if largest < count:
        raise UserError(
            f"{count} folds need a class of at least {count} papers, and the largest has {largest}; give more papers"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class smaller than the folds
        return [Fold(*parts) for parts in StratifiedKFold(count).split(np.empty((len(codes), 1)), codes)]


def plain_folds(papers: int, count: int) -> list[Fold]:
    """Folds of neighboring papers; two at least in each, as one paper has no variance to explain."""
    if papers < 2 * count:
        raise UserError(f"{count} folds of numbers need at least {2 * count} papers; {papers} are given")
    return [Fold(*parts) for parts in KFold(count).split(np.empty((papers, 1)))]


# The search for C: every C on every fold, the best mean, and a last fit on all papers, as GridSearchCV goes about it.

Answers = NDArray[Any]
Fit = Callable[[Floats, Answers, float], Linear]


class ProbeSearch(NamedTuple):
    model: Linear
    best_c: float
    cv_scores: dict[float, float]
    unconverged: int


def search(vectors: Floats, answers: Answers, grid: Sequence[float], folds: Sequence[Fold], fit: Fit) -> ProbeSearch:
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
    return ProbeSearch(model, grid[best], cv_scores, unconverged + (not model.converged))


def search_at_once(
    axes: probe_solvers.Axes, codes: Codes, grid: Sequence[float], folds: Sequence[Fold], *, intercept: bool
) -> ProbeSearch:
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
        start, converged = probe_solvers.minimize(axes, signs, grid[row], start)
        weights[row] = start
        for number, fold in enumerate(folds):
            part = slice(number * width, (number + 1) * width)
            scores[row, number] = _held_out_accuracy(axes, codes, fold, start[:, part])
            unconverged += not converged[part].all()
    best, cv_scores = choose_c(grid, scores)
    start = weights[best].reshape(len(axes.spread), len(folds), width).mean(axis=1)  # (r, k)
    model = probe_solvers.fit_classes_newton(axes, codes, grid[best], intercept=intercept, start=start)
    return ProbeSearch(model, grid[best], cv_scores, unconverged + (not model.converged))


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


def _held_out_accuracy(axes: probe_solvers.Axes, codes: Codes, fold: Fold, weights: Floats) -> float:
    """A class that the fold does not train on is not predicted."""
    if one_class(codes[fold.train]):
        return float("nan")
    scores = axes.rows[fold.held_out] @ weights  # (m, k)
    if scores.shape[1] > 1:
        scores[:, np.isin(np.unique(codes), codes[fold.train], invert=True)] = -np.inf
    return float(np.mean(np.unique(codes)[winners(scores)] == codes[fold.held_out]))
