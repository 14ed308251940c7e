"""Linear probes: how well a linear model on the vectors alone predicts classes, labels or numbers of papers.

The protocols are the field's own, one rule each; C is searched by cross-validation on the training papers alone.

    SCIDOCS_CLASSES      squared hinge, C 1e-4 .. 1e2, 3 folds    SciDocs MAG and MeSH
    SCIREPEVAL_CLASSES   squared hinge, C 1e-2 .. 1e2, 3 folds    SciRepEval classification
    SCIREPEVAL_LABELS    hinge, C 1e-2 .. 1e2, 3 folds            SciRepEval with several labels per paper
    SCIREPEVAL_NUMBERS   absolute error, C 1e-4 .. 1e2, 3 folds   SciRepEval regression

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

Does not compute metrics, read files or scale vectors; `probe_tasks.py` evaluates systems by probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.core.errors import UserError, choose
from citeweave.evaluation.probe_search import (
    ProbeSearch,
    Targets,
    check_classes,
    check_labels,
    check_numbers,
    check_vectors,
    contiguous_folds,
    fit_classes_liblinear,
    fit_numbers_liblinear,
    has_one_class,
    search_c,
    search_c_jointly,
    stratified_folds,
)
from citeweave.evaluation.probe_solvers import (
    Axes,
    Codes,
    FitOptions,
    Floats,
    LinearModel,
    fit_classes_lightning,
    fit_classes_newton,
    fit_numbers_lightning,
    principal_axes,
)

CLASS_LOSSES = ("squared_hinge", "hinge")
NUMBER_LOSSES = ("epsilon_insensitive", "squared_epsilon_insensitive")
SOLVERS = ("auto", "newton", "sklearn", "lightning")
FEW_SHOT_C = 1.0
"""C of few-shot probes, which SciRepEval does not search with a handful of papers."""

Random = Callable[[], np.random.RandomState]
"""Returns the random numbers of a fit."""


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """Protocol of a linear probe: loss, solver, and how its C is chosen."""

    grid: tuple[float, ...]
    """The values of C, tried in this order; of equally good ones the first is taken."""

    loss: str = "squared_hinge"
    """squared_hinge | hinge for classes and labels, epsilon_insensitive | squared_epsilon_insensitive for numbers."""

    folds: int = 3
    """Number of folds of the training papers, each held out once; not shuffled."""

    intercept: bool = True
    seed: int = 42
    passes: int = 1000
    """Maximum number of passes over the papers, for sklearn and lightning."""

    solver: str = "auto"
    """auto | newton | sklearn | lightning; auto depends on loss and intercept, see the table above."""

    def __post_init__(self) -> None:
        choose(self.loss, CLASS_LOSSES + NUMBER_LOSSES, "loss")
        choose(self.solver, SOLVERS, "solver")
        if not self.grid or not all(math.isfinite(c) and c > 0 for c in self.grid):
            raise UserError(f"grid is {self.grid}; it must hold values of C above 0")
        if self.folds < 2 or self.passes < 1:
            raise UserError(
                f"folds is {self.folds} and passes {self.passes}; there must be at least 2 folds and 1 pass"
            )
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed is {self.seed}; it must be from 0 to {2**31 - 1}")
        if self.solver == "newton" and self.loss != "squared_hinge":
            raise UserError(f"the solver newton has no loss {self.loss}; use squared_hinge, or another solver")
        if self.solver == "lightning" and self.intercept:
            raise UserError("the solver lightning has no intercept; set intercept to False, or use another solver")

    @property
    def chosen_solver(self) -> str:
        """Which solver the linear probes of this rule use, `auto` resolved by loss and intercept."""
        if self.solver != "auto":
            return self.solver
        if self.loss == "squared_hinge":
            return "newton"
        return "sklearn" if self.intercept else "lightning"

    @property
    def fit_options(self) -> FitOptions:
        """The options that all fits of the probe share."""
        return FitOptions(self.loss, self.intercept, self.passes)


SCIDOCS_CLASSES = ProbeRule(tuple(np.logspace(-4, 2, 7).tolist()))
SCIREPEVAL_CLASSES = ProbeRule(tuple(np.logspace(-2, 2, 5).tolist()))
SCIREPEVAL_LABELS = ProbeRule(tuple(np.logspace(-2, 2, 5).tolist()), loss="hinge", passes=10_000)
SCIREPEVAL_NUMBERS = ProbeRule(tuple(np.logspace(-4, 2, 7).tolist()), loss="epsilon_insensitive")


def as_lightning(rule: ProbeRule) -> ProbeRule:
    """Return a probe rule that is solved as sklearn-contrib-lightning does: without intercept, stopping where it stops."""
    return replace(rule, intercept=False, solver="lightning")


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a linear probe for the test papers: one class or number each."""

    values: NDArray[Any]
    """(m,): a class, as in the training labels, or a number."""

    best_c: float
    cv_scores: dict[float, float]
    """C -> mean accuracy (classes) or r2 (numbers) over the folds; empty without a search."""

    unconverged: int
    """Number of fits, in the search and after it, that stopped before their tolerance."""


@dataclass(frozen=True, slots=True)
class LabelPredictions:
    """Predictions of linear probes, one for each label: the labels of every test paper."""

    values: NDArray[np.int64]
    """(m, labels): 0 or 1."""

    best_c: tuple[float, ...]
    """One C per label; NaN for a label that all training papers have, or none: every paper gets the same prediction."""

    cv_scores: tuple[dict[float, float], ...]
    unconverged: int


def fit_classes(
    train: ArrayLike, labels: Sequence[Any] | NDArray[Any], test: ArrayLike, rule: ProbeRule
) -> Predictions:
    """Linear probe for classes: fit on vectors (n, d) with one class each, and predict the classes of test vectors (m, d)."""
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for classes")
    data = check_vectors(train, test)
    names, codes = check_classes(labels, len(data.train))
    best = _search_classes(data.train, _axes(data.train, rule), codes, rule, lambda: np.random.RandomState(rule.seed))
    values = names[best.model.predict(data.test)]
    return Predictions(values, best.best_c, best.cv_scores, best.unconverged)


def fit_numbers(train: ArrayLike, targets: ArrayLike, test: ArrayLike, rule: ProbeRule) -> Predictions:
    """Linear probe for numbers: fit on vectors with one number each, predict those of test vectors; C is chosen by r2."""
    choose(rule.loss, NUMBER_LOSSES, "loss of a probe for numbers")
    data = check_vectors(train, test)
    numbers = check_numbers(targets, len(data.train))
    solve = fit_numbers_lightning if rule.chosen_solver == "lightning" else fit_numbers_liblinear

    def fit(vectors: Floats, values: Targets, c: float) -> LinearModel:
        return solve(vectors, values, c, rule.fit_options, np.random.RandomState(rule.seed))

    best = search_c(data.train, numbers, rule.grid, contiguous_folds(len(numbers), rule.folds), fit)
    return Predictions(best.model.scores(data.test)[:, 0], best.best_c, best.cv_scores, best.unconverged)


def fit_labels(train: ArrayLike, labels: ArrayLike, test: ArrayLike, rule: ProbeRule) -> LabelPredictions:
    """Linear probes for labels: fit one per label, each with its own C, predict multi-hot labels (n, labels).

    SciRepEval's solvers draw from numpy's global generator here; one stream of `rule.seed` replaces it.
    """
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for labels")
    data = check_vectors(train, test)
    marks = check_labels(labels, len(data.train))
    return _fit_labels(data.train, marks, data.test, rule, np.random.RandomState(rule.seed))


def few_shot_classes(
    train: ArrayLike, labels: Sequence[Any] | NDArray[Any], test: ArrayLike, size: int, iterations: int, rule: ProbeRule
) -> list[Predictions]:
    """Few-shot linear probes for classes: training papers are split into folds of `size`, and each trains one probe.

    C is 1, without a search. At most `iterations` folds are used; folds are not shuffled.
    """
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for classes")
    data = check_vectors(train, test)
    names, codes = check_classes(labels, len(data.train))
    _check_few_shot(size, iterations)
    if size >= len(codes):
        raise UserError(
            f"few-shot probes of {size} papers need more than {size} training papers; there are {len(codes)}"
        )
    predictions = []
    for number, fold in enumerate(stratified_folds(codes, math.ceil(len(codes) / size))[:iterations]):
        vectors, targets = data.train[fold.held_out], codes[fold.held_out]
        if has_one_class(targets):
            raise UserError(
                f"few-shot fold {number} of {size} papers holds only class {names[targets[0]]!s}; use a larger size"
            )
        model = _fit_classes(vectors, targets, FEW_SHOT_C, rule, np.random.RandomState(rule.seed))
        predictions.append(Predictions(names[model.predict(data.test)], FEW_SHOT_C, {}, int(not model.converged)))
    return predictions


def few_shot_labels(
    train: ArrayLike, labels: ArrayLike, test: ArrayLike, size: int, iterations: int, rule: ProbeRule
) -> list[LabelPredictions]:
    """Few-shot linear probes for labels, on `size` papers of each, drawn anew in each iteration, with a search for C."""
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for labels")
    data = check_vectors(train, test)
    marks = check_labels(labels, len(data.train))
    predictions = []
    for iteration in range(_check_few_shot(size, iterations)):
        random = np.random.RandomState(rule.seed + iteration)
        rows = draw_rows(marks, size, random)
        predictions.append(_fit_labels(data.train[rows], marks[rows], data.test, rule, random))
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
) -> LabelPredictions:
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
    return LabelPredictions(values, tuple(best_c), tuple(cv_scores), unconverged)


def _axes(train: Floats, rule: ProbeRule) -> Axes | None:
    """Return the principal axes of the training vectors, which only Newton's method needs."""
    return principal_axes(train, intercept=rule.intercept) if rule.chosen_solver == "newton" else None


def _search_classes(train: Floats, axes: Axes | None, codes: Codes, rule: ProbeRule, random: Random) -> ProbeSearch:
    """Search for the C of a probe for classes with the rule's solver."""
    folds = stratified_folds(codes, rule.folds)
    if axes is not None:
        return search_c_jointly(axes, codes, rule.grid, folds, intercept=rule.intercept)

    def fit(vectors: Floats, targets: Targets, c: float) -> LinearModel:
        return _fit_classes(vectors, targets, c, rule, random())

    return search_c(train, codes, rule.grid, folds, fit)


def _fit_classes(
    vectors: Floats, codes: Codes, c: float, rule: ProbeRule, random: np.random.RandomState
) -> LinearModel:
    """Fit a probe for classes with one C by the rule's solver."""
    if rule.chosen_solver == "newton":
        axes = principal_axes(vectors, intercept=rule.intercept)
        return fit_classes_newton(axes, codes, c, intercept=rule.intercept)
    solve = fit_classes_lightning if rule.chosen_solver == "lightning" else fit_classes_liblinear
    return solve(vectors, codes, c, rule.fit_options, random)
