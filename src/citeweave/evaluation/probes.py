"""Probes: how well a linear model that sees only the vectors predicts classes, labels or numbers of papers.

The protocols are the field's own: one rule for each, C searched by cross-validation on the training papers alone.

    SCIDOCS_CLASSES      squared hinge, C 1e-4 .. 1e2, 3 folds    SciDocs MAG and MeSH
    SCIREPEVAL_CLASSES   squared hinge, C 1e-2 .. 1e2, 3 folds    SciRepEval classification
    SCIREPEVAL_LABELS    hinge, C 1e-2 .. 1e2, 3 folds            SciRepEval with several labels a paper
    SCIREPEVAL_NUMBERS   absolute error, C 1e-4 .. 1e2, 3 folds   SciRepEval regression

>>> papers = np.array([[0.0, 1], [0, 2], [0, 3], [1, 0], [2, 0], [3, 0]])
>>> found = fit_classes(papers, ["a", "a", "a", "b", "b", "b"], [[0.1, 5]], SCIREPEVAL_CLASSES)
>>> found.values.tolist(), found.best_c, found.unconverged
(['a'], 0.01, 0)

Which solver answers is a matter of the rule, never of the size of the data:

    loss                  intercept   solver      what it is
    squared hinge         yes or no   newton      the optimum, all classes at once; scikit-learn's numbers
    hinge, absolute       yes         sklearn     liblinear through scikit-learn
    hinge, absolute       no          lightning   sklearn-contrib-lightning step by step

Published numbers were made with sklearn-contrib-lightning, which has no intercept and stops early; `as_lightning(rule)` gives
its answers digit for digit, slowly. Kendall tau differs by 7 to 8 points between the two libraries: say which was used.

Does not compute metrics, read files or scale vectors, and does not decide what a missing vector is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.errors import UserError, choose
from citeweave.evaluation.probing import coordinate, liblinear, newton
from citeweave.evaluation.probing.checking import checked_classes, checked_labels, checked_numbers, checked_vectors
from citeweave.evaluation.probing.folds import plain_folds, stratified_folds
from citeweave.evaluation.probing.linear import Codes, Floats, Linear, Way
from citeweave.evaluation.probing.searching import Answers, Found, one_class, search, search_at_once

CLASS_LOSSES = ("squared_hinge", "hinge")
NUMBER_LOSSES = ("epsilon_insensitive", "squared_epsilon_insensitive")
SOLVERS = ("auto", "newton", "sklearn", "lightning")
FEW_SHOT_C = 1.0
"""The peers do not search with a handful of papers."""

Random = Callable[[], np.random.RandomState]


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """How a probe is fitted and its C chosen."""

    grid: tuple[float, ...]
    """The values of C, tried in this order; of equally good ones the first is taken."""

    loss: str = "squared_hinge"
    """squared_hinge | hinge for classes and labels, epsilon_insensitive | squared_epsilon_insensitive for numbers."""

    folds: int = 3
    """Parts of the training papers, each held out once; not shuffled."""

    intercept: bool = True
    seed: int = 42
    passes: int = 1000
    """Most passes over the papers, for sklearn and lightning."""

    solver: str = "auto"
    """auto | newton | sklearn | lightning; auto goes by loss and intercept, see the table above."""

    def __post_init__(self) -> None:
        choose(self.loss, CLASS_LOSSES + NUMBER_LOSSES, "loss")
        choose(self.solver, SOLVERS, "solver")
        if not self.grid or not all(math.isfinite(c) and c > 0 for c in self.grid):
            raise UserError(f"grid is {self.grid}; it must hold values of C above 0")
        if self.folds < 2 or self.passes < 1:
            raise UserError(
                f"folds is {self.folds} and passes {self.passes}; there must be 2 folds and 1 pass at least"
            )
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed is {self.seed}; it must be from 0 to {2**31 - 1}")
        if self.solver == "newton" and self.loss != "squared_hinge":
            raise UserError(f"the solver newton has no loss {self.loss}; take squared_hinge, or another solver")
        if self.solver == "lightning" and self.intercept:
            raise UserError("the solver lightning has no intercept; set intercept to False, or take another solver")

    @property
    def chosen_solver(self) -> str:
        if self.solver != "auto":
            return self.solver
        if self.loss == "squared_hinge":
            return "newton"
        return "sklearn" if self.intercept else "lightning"

    @property
    def way(self) -> Way:
        return Way(self.loss, self.intercept, self.passes)


SCIDOCS_CLASSES = ProbeRule(tuple(np.logspace(-4, 2, 7).tolist()))
SCIREPEVAL_CLASSES = ProbeRule(tuple(np.logspace(-2, 2, 5).tolist()))
SCIREPEVAL_LABELS = ProbeRule(tuple(np.logspace(-2, 2, 5).tolist()), loss="hinge", passes=10_000)
SCIREPEVAL_NUMBERS = ProbeRule(tuple(np.logspace(-4, 2, 7).tolist()), loss="epsilon_insensitive")


def as_lightning(rule: ProbeRule) -> ProbeRule:
    """The same rule solved as sklearn-contrib-lightning would: without intercept, stopping where it stops."""
    return replace(rule, intercept=False, solver="lightning")


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a probe says of the test papers."""

    values: NDArray[Any]
    """(m,): a class in the form it was given, or a number."""

    best_c: float
    cv_scores: dict[float, float]
    """Mean accuracy (classes) or r2 (numbers) over the folds, for each C; empty where there was no search."""

    unconverged: int
    """Fits, of those of the search and the last one, that ended before their tolerance."""


@dataclass(frozen=True, slots=True)
class LabelPredictions:
    """What a probe for each label says of the test papers."""

    values: NDArray[np.int64]
    """(m, labels): 0 or 1."""

    best_c: tuple[float, ...]
    """One a label; NaN for a label that all training papers have, or none: it is predicted as it is."""

    cv_scores: tuple[dict[float, float], ...]
    unconverged: int


def fit_classes(
    train: ArrayLike, labels: Sequence[Any] | NDArray[Any], test: ArrayLike, rule: ProbeRule
) -> Predictions:
    """Predict one class for each test paper: vectors (n, d), one label each, and test vectors (m, d)."""
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for classes")
    data = checked_vectors(train, test)
    names, codes = checked_classes(labels, len(data.train))
    found = _search_classes(data.train, _axes(data.train, rule), codes, rule, lambda: np.random.RandomState(rule.seed))
    values = names[found.model.predict(data.test)]
    return Predictions(values, found.best_c, found.cv_scores, found.unconverged)


def fit_numbers(train: ArrayLike, targets: ArrayLike, test: ArrayLike, rule: ProbeRule) -> Predictions:
    """Predict a number for each test paper; C is chosen by r2."""
    choose(rule.loss, NUMBER_LOSSES, "loss of a probe for numbers")
    data = checked_vectors(train, test)
    numbers = checked_numbers(targets, len(data.train))
    solve = coordinate.fit_numbers if rule.chosen_solver == "lightning" else liblinear.fit_numbers

    def fit(vectors: Floats, answers: Answers, c: float) -> Linear:
        return solve(vectors, answers, c, rule.way, np.random.RandomState(rule.seed))

    found = search(data.train, numbers, rule.grid, plain_folds(len(numbers), rule.folds), fit)
    return Predictions(found.model.scores(data.test)[:, 0], found.best_c, found.cv_scores, found.unconverged)


def fit_labels(train: ArrayLike, labels: ArrayLike, test: ArrayLike, rule: ProbeRule) -> LabelPredictions:
    """Predict several labels a paper, each by a probe with a C of its own; labels are multi-hot (n, labels).

    The peers' solvers draw from numpy's global generator here; one stream of `rule.seed` stands for it.
    """
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for labels")
    data = checked_vectors(train, test)
    marks = checked_labels(labels, len(data.train))
    return _fit_labels(data.train, marks, data.test, rule, np.random.RandomState(rule.seed))


def few_shot_classes(
    train: ArrayLike, labels: Sequence[Any] | NDArray[Any], test: ArrayLike, size: int, iterations: int, rule: ProbeRule
) -> list[Predictions]:
    """Predict from about `size` papers: the training papers are cut into folds of that size and each trains a probe alone.

    No search, C is 1. At most `iterations` folds are used, fewer where there are fewer; folds are not shuffled.
    """
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for classes")
    data = checked_vectors(train, test)
    names, codes = checked_classes(labels, len(data.train))
    _check_few_shot(size, iterations)
    if size >= len(codes):
        raise UserError(
            f"few-shot probes of {size} papers need more than {size} training papers; {len(codes)} are given"
        )
    predictions = []
    for number, fold in enumerate(stratified_folds(codes, math.ceil(len(codes) / size))[:iterations]):
        vectors, answers = data.train[fold.held_out], codes[fold.held_out]
        if one_class(answers):
            raise UserError(
                f"few-shot fold {number} of {size} papers holds class {names[answers[0]]!s} alone; take a larger size"
            )
        model = _fit_classes(vectors, answers, FEW_SHOT_C, rule, np.random.RandomState(rule.seed))
        predictions.append(Predictions(names[model.predict(data.test)], FEW_SHOT_C, {}, int(not model.converged)))
    return predictions


def few_shot_labels(
    train: ArrayLike, labels: ArrayLike, test: ArrayLike, size: int, iterations: int, rule: ProbeRule
) -> list[LabelPredictions]:
    """Predict several labels from `size` papers of each, drawn anew in each iteration, with search."""
    choose(rule.loss, CLASS_LOSSES, "loss of a probe for labels")
    data = checked_vectors(train, test)
    marks = checked_labels(labels, len(data.train))
    predictions = []
    for iteration in range(_check_few_shot(size, iterations)):
        random = np.random.RandomState(rule.seed + iteration)
        rows = draw_rows(marks, size, random)
        predictions.append(_fit_labels(data.train[rows], marks[rows], data.test, rule, random))
    return predictions


def draw_rows(marks: Codes, size: int, random: np.random.RandomState) -> list[int]:
    """Rows of multi-hot labels (n, labels): `size` with each label, a row once, in the order of a Python set as the peers'.

    >>> draw_rows(np.array([[1, 0], [1, 1], [0, 1]]), 1, np.random.RandomState(42))
    [1]
    """
    rows: set[int] = set()
    for label, column in enumerate(marks.T):
        having = np.flatnonzero(column)
        if len(having) < size:
            raise UserError(f"label {label} has {len(having)} training papers; few-shot probes of {size} need {size}")
        rows.update(random.choice(having, size, replace=False).tolist())
    return list(rows)


def _check_few_shot(size: int, iterations: int) -> int:
    if size < 1 or iterations < 1:
        raise UserError(f"few-shot size is {size} and iterations {iterations}; both must be at least 1")
    return iterations


def _fit_labels(
    train: Floats, marks: Codes, test: Floats, rule: ProbeRule, random: np.random.RandomState
) -> LabelPredictions:
    axes = _axes(train, rule)
    values = np.empty((len(test), marks.shape[1]), dtype=np.int64)  # (m, labels)
    best_c: list[float] = []
    cv_scores: list[dict[float, float]] = []
    unconverged = 0
    for label, column in enumerate(marks.T):
        if one_class(column):
            values[:, label] = column[0]
            best_c.append(math.nan)
            cv_scores.append({})
            continue
        found = _search_classes(train, axes, column, rule, lambda: random)
        values[:, label] = found.model.predict(test)
        best_c.append(found.best_c)
        cv_scores.append(found.cv_scores)
        unconverged += found.unconverged
    return LabelPredictions(values, tuple(best_c), tuple(cv_scores), unconverged)


def _axes(train: Floats, rule: ProbeRule) -> newton.Axes | None:
    return newton.principal_axes(train, intercept=rule.intercept) if rule.chosen_solver == "newton" else None


def _search_classes(train: Floats, axes: newton.Axes | None, codes: Codes, rule: ProbeRule, random: Random) -> Found:
    folds = stratified_folds(codes, rule.folds)
    if axes is not None:
        return search_at_once(axes, codes, rule.grid, folds, intercept=rule.intercept)

    def fit(vectors: Floats, answers: Answers, c: float) -> Linear:
        return _fit_classes(vectors, answers, c, rule, random())

    return search(train, codes, rule.grid, folds, fit)


def _fit_classes(vectors: Floats, codes: Codes, c: float, rule: ProbeRule, random: np.random.RandomState) -> Linear:
    if rule.chosen_solver == "newton":
        axes = newton.principal_axes(vectors, intercept=rule.intercept)
        return newton.fit_classes(axes, codes, c, intercept=rule.intercept)
    solve = coordinate.fit_classes if rule.chosen_solver == "lightning" else liblinear.fit_classes
    return solve(vectors, codes, c, rule.way, random)
