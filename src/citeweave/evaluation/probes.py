"""Linear probes: how well a linear model on the vectors alone predicts classes, labels or numbers of papers.

The protocols are the field's own, one rule each; C is searched by cross-validation on the training papers alone.

    SCIDOCS_CLASSES      squared hinge, C 1e-4 .. 1e2, 3 folds    SciDocs MAG and MeSH
    SCIREPEVAL_CLASSES   squared hinge, C 1e-2 .. 1e2, 3 folds    SciRepEval classification
    SCIREPEVAL_LABELS    hinge, C 1e-2 .. 1e2, 3 folds            SciRepEval with several labels per paper
    SCIREPEVAL_NUMBERS   absolute error, C 1e-4 .. 1e2, 3 folds   SciRepEval regression

>>> from citeweave.evaluation.tasks import SCIREPEVAL_CLASSES
>>> papers = np.array([[0.0, 1], [0, 2], [0, 3], [1, 0], [2, 0], [3, 0]])
>>> predictions = fit_classes(papers, ["a", "a", "a", "b", "b", "b"], [[0.1, 5]], SCIREPEVAL_CLASSES)
>>> predictions.values.tolist(), predictions.best_c, predictions.unconverged
(['a'], 0.01, 0)

The solver depends on the rule, never on the size of the data:

    loss                  intercept   solver      what it is
    squared hinge         yes or no   newton      the optimum, all classes at once; scikit-learn's numbers
    hinge, absolute       yes         sklearn     liblinear through scikit-learn
    hinge, absolute       no          lightning   sklearn-contrib-lightning step by step

Published numbers were made with sklearn-contrib-lightning, which has no intercept and stops early; `as_lightning(rule)`
gives its predictions digit for digit, slowly. Kendall tau differs by 7 to 8 points between the two libraries: say which
was used.

Every C is fitted on every fold, the best mean is taken, and a last fit uses all papers, as in GridSearchCV:

    C        fold 1   fold 2   fold 3   mean
    0.01      0.90     0.80     0.85    0.85    <- the first of the best is taken
    0.1       0.85     0.85     0.85    0.85
    1         0.80     0.80     0.80    0.80

A fold with a single class to train on cannot be scored: its score is NaN, and so are the means, and the first C is taken.

Does not compute metrics, read files or scale vectors; `run_tasks.py` evaluates systems by probes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.svm import LinearSVC, LinearSVR

from citeweave.core.errors import UserError, choose
from citeweave.evaluation.probe_solvers import (
    NO_CLASSES,
    Axes,
    Codes,
    Floats,
    LinearModel,
    best_columns,
    fit_classes_newton,
    fit_lightning,
    minimize,
    one_against_rest,
    principal_axes,
)
from citeweave.evaluation.tasks import CLASS_LOSSES, NUMBER_LOSSES, ProbeRule

FEW_SHOT_C = 1.0
"""C of few-shot probes, which SciRepEval does not search with a handful of papers."""

Targets = NDArray[Any]
"""Class codes or numbers, (n,)."""

Fit = Callable[[Floats, Targets, float], LinearModel]
"""Vectors, targets and C -> fitted probe."""

Random = Callable[[], np.random.RandomState]
"""Returns the random numbers of a fit."""


def as_lightning(rule: ProbeRule) -> ProbeRule:
    """Return a probe rule that is solved as sklearn-contrib-lightning does: without intercept, stopping where it stops."""
    return replace(rule, intercept=False, solver="lightning")


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a linear probe for the test papers: one class or number each, or of one probe for every label."""

    values: NDArray[Any]
    """(m,): a class, as in the training labels, or a number; for labels (m, labels) of 0 and 1."""

    best_c: Any
    """The chosen C; for labels a tuple with one each, NaN for a label that all training papers have, or none: every
    paper gets the same prediction."""

    cv_scores: Any
    """C -> mean accuracy (classes) or r2 (numbers) over the folds; for labels a tuple of these; empty without a search."""

    unconverged: int
    """Number of fits, in the search and after it, that stopped before their tolerance."""


def fit_classes(
    train: ArrayLike, labels: Sequence[Any] | NDArray[Any], test: ArrayLike, rule: ProbeRule
) -> Predictions:
    """Linear probe for classes: fit on vectors (n, d) with one class each, and predict the classes of test vectors (m, d)."""
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for classes")
    train, test = check_vectors(train, test)
    names, codes = check_classes(labels, len(train))
    best = _search_classes(train, _axes(train, rule), codes, rule, lambda: np.random.RandomState(rule.seed))
    values = names[best.model.predict(test)]
    return Predictions(values, best.best_c, best.cv_scores, best.unconverged)


def fit_numbers(train: ArrayLike, targets: ArrayLike, test: ArrayLike, rule: ProbeRule) -> Predictions:
    """Linear probe for numbers: fit on vectors with one number each, predict those of test vectors; C is chosen by r2."""
    choose(rule.loss, NUMBER_LOSSES, "loss of a probe for numbers")
    train, test = check_vectors(train, test)
    numbers = check_numbers(targets, len(train))

    def fit(vectors: Floats, values: Targets, c: float) -> LinearModel:
        return _fit(vectors, values, c, rule, np.random.RandomState(rule.seed))

    best = search_c(train, numbers, rule.grid, contiguous_folds(len(numbers), rule.folds), fit)
    return Predictions(best.model.scores(test)[:, 0], best.best_c, best.cv_scores, best.unconverged)


def fit_labels(train: ArrayLike, labels: ArrayLike, test: ArrayLike, rule: ProbeRule) -> Predictions:
    """Linear probes for labels: fit one per label, each with its own C, predict multi-hot labels (n, labels).

    SciRepEval's solvers draw from numpy's global generator here; one stream of `rule.seed` replaces it.
    """
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for labels")
    train, test = check_vectors(train, test)
    marks = check_labels(labels, len(train))
    return _fit_labels(train, marks, test, rule, np.random.RandomState(rule.seed))


def few_shot_classes(
    train: ArrayLike, labels: Sequence[Any] | NDArray[Any], test: ArrayLike, size: int, iterations: int, rule: ProbeRule
) -> list[Predictions]:
    """Few-shot linear probes for classes: training papers are split into folds of `size`, and each trains one probe.

    C is 1, without a search. At most `iterations` folds are used; folds are not shuffled.
    """
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for classes")
    train, test = check_vectors(train, test)
    names, codes = check_classes(labels, len(train))
    _check_few_shot(size, iterations)
    if size >= len(codes):
        raise UserError(
            f"few-shot probes of {size} papers need more than {size} training papers; there are {len(codes)}"
        )
    predictions = []
    for number, fold in enumerate(stratified_folds(codes, math.ceil(len(codes) / size))[:iterations]):
        vectors, targets = train[fold.held_out], codes[fold.held_out]
        if has_one_class(targets):
            raise UserError(
                f"few-shot fold {number} of {size} papers holds only class {names[targets[0]]!s}; use a larger size"
            )
        model = _fit(vectors, targets, FEW_SHOT_C, rule, np.random.RandomState(rule.seed))
        predictions.append(Predictions(names[model.predict(test)], FEW_SHOT_C, {}, int(not model.converged)))
    return predictions


def few_shot_labels(
    train: ArrayLike, labels: ArrayLike, test: ArrayLike, size: int, iterations: int, rule: ProbeRule
) -> list[Predictions]:
    """Few-shot linear probes for labels, on `size` papers of each, drawn anew in each iteration, with a search for C."""
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for labels")
    train, test = check_vectors(train, test)
    marks = check_labels(labels, len(train))
    predictions = []
    for iteration in range(_check_few_shot(size, iterations)):
        random = np.random.RandomState(rule.seed + iteration)
        rows = draw_rows(marks, size, random)
        predictions.append(_fit_labels(train[rows], marks[rows], test, rule, random))
    return predictions


def draw_rows(marks: Codes, size: int, random: np.random.RandomState) -> list[int]:
    """Draw the training rows of few-shot probes, `size` with each label, in a Python set's order as SciRepEval does.

    >>> draw_rows(np.array([[1, 0], [1, 1], [0, 1]]), 1, np.random.RandomState(42))
    [1]
    """
    rows: set[int] = set()
    for label, column in enumerate(marks.T):
        labeled = np.flatnonzero(column)
        if len(labeled) < size:
            raise UserError(f"label {label} has {len(labeled)} training papers; few-shot probes of {size} need {size}")
        rows.update(random.choice(labeled, size, replace=False).tolist())
    return list(rows)


def _check_few_shot(size: int, iterations: int) -> int:
    """Raise UserError unless the size and iterations of few-shot probes are at least 1; return the iterations."""
    if size < 1 or iterations < 1:
        raise UserError(f"few-shot size is {size} and iterations {iterations}; both must be at least 1")
    return iterations


def _fit_labels(
    train: Floats, marks: Codes, test: Floats, rule: ProbeRule, random: np.random.RandomState
) -> Predictions:
    """Fit one probe per label on checked data; a label that all or no papers have is predicted as it is."""
    axes = _axes(train, rule)
    values = np.empty((len(test), marks.shape[1]), dtype=np.int64)  # (m, labels)
    best_c: list[float] = []
    cv_scores: list[dict[float, float]] = []
    unconverged = 0
    for label, column in enumerate(marks.T):
        if has_one_class(column):
            values[:, label] = column[0]
            best_c.append(math.nan)
            cv_scores.append({})
            continue
        best = _search_classes(train, axes, column, rule, lambda: random)
        values[:, label] = best.model.predict(test)
        best_c.append(best.best_c)
        cv_scores.append(best.cv_scores)
        unconverged += best.unconverged
    return Predictions(values, tuple(best_c), tuple(cv_scores), unconverged)


def _axes(train: Floats, rule: ProbeRule) -> Axes | None:
    """Return the principal axes of the training vectors, which only Newton's method needs."""
    return principal_axes(train, intercept=rule.intercept) if rule.chosen_solver == "newton" else None


def _search_classes(train: Floats, axes: Axes | None, codes: Codes, rule: ProbeRule, random: Random) -> ProbeSearch:
    """Search for the C of a probe for classes with the rule's solver."""
    folds = stratified_folds(codes, rule.folds)
    if axes is not None:
        return search_c_jointly(axes, codes, rule.grid, folds, intercept=rule.intercept)

    def fit(vectors: Floats, targets: Targets, c: float) -> LinearModel:
        return _fit(vectors, targets, c, rule, random())

    return search_c(train, codes, rule.grid, folds, fit)


def _fit(vectors: Floats, targets: Targets, c: float, rule: ProbeRule, random: np.random.RandomState) -> LinearModel:
    """Fit a probe for classes or numbers with one C by the rule's solver."""
    if rule.chosen_solver == "newton":
        axes = principal_axes(vectors, intercept=rule.intercept)
        return fit_classes_newton(axes, targets, c, intercept=rule.intercept)
    solve = fit_lightning if rule.chosen_solver == "lightning" else fit_liblinear
    return solve(vectors, targets, c, rule, random)


def fit_liblinear(
    vectors: Floats, targets: NDArray[Any], c: float, rule: ProbeRule, random: np.random.RandomState
) -> LinearModel:
    """Solve a probe by scikit-learn's LinearSVC, or its LinearSVR where targets (n,) are floats; both call liblinear.

    `random` gives liblinear its seed and is drawn from once. Whether the fit converged is part of the model instead of
    a warning on the terminal.

    >>> signs, random = np.array([1, 1, 0]), np.random.RandomState(42)
    >>> model = fit_liblinear(np.array([[2.0], [1.0], [-1.0]]), signs, 1.0, ProbeRule((1.0,)), random)
    >>> model.converged, model.predict(np.array([[3.0], [-3.0]])).tolist()
    (True, [1, 0])
    """
    predicts_numbers = targets.dtype.kind == "f"
    model = (LinearSVR if predicts_numbers else LinearSVC)(
        C=c, loss=rule.loss, fit_intercept=rule.intercept, max_iter=rule.passes, dual="auto", random_state=random
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(vectors, targets)
    weights = np.atleast_2d(model.coef_)  # (k, d)
    intercepts = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), len(weights))
    classes = NO_CLASSES if predicts_numbers else np.unique(targets)
    return LinearModel(weights, intercepts, classes, bool(np.max(model.n_iter_) < model.max_iter))


# --- the search for C ------------------------------------------------------------------------------------


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
            held_out, truth = vectors[fold.held_out], targets[fold.held_out]
            right = (
                np.mean(model.predict(held_out) == truth) if classes else r2_score(truth, model.scores(held_out)[:, 0])
            )
            scores[row, column] = right
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
    """Split papers into folds to search for a probe's C, with about equal shares of classes; some lack a small one.

    >>> [fold.held_out.tolist() for fold in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3)]
    [[0, 3], [1, 4], [2, 5]]
    """
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


# --- checks ----------------------------------------------------------------------------------------------


def check_vectors(train: ArrayLike, test: ArrayLike) -> tuple[Floats, Floats]:
    """Check the input of a probe's search for C: vectors that are finite and of one length; UserError otherwise.

    >>> check_vectors(np.ones((2, 3), dtype=np.float16), np.ones((1, 3)))[0].dtype
    dtype('float64')
    """
    left, right = _matrix(train, "training"), _matrix(test, "test")
    if left.shape[1] != right.shape[1]:
        raise UserError(
            f"training vectors have {left.shape[1]} numbers and test vectors {right.shape[1]}; "
            "a probe needs vectors of one model"
        )
    return left, right


def check_classes(labels: Sequence[Any] | NDArray[Any], papers: int) -> tuple[NDArray[Any], Codes]:
    """Check the input of a probe's search for C: one class per training paper, at least two in all.

    Returns the names of the classes, sorted, and the place of each paper's class among them.
    """
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
    return names, codes


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
