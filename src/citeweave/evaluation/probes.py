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

Judge a probe: how well a linear model on the vectors tells classes, labels or numbers of papers it has not seen.

What happens to a paper without vector, by `missing`:

    wrong   in training it is left out; in the test nothing is told of it: a wrong class, no label, the median number
    peers   SciDocs puts zeros in its place, in training and test; SciRepEval leaves it out of both

What cannot be fitted, such as papers with vectors that are all of one class, is a `NoAnswerError`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.core.errors import UserError, choose
from citeweave.evaluation import probe_search, probe_solvers
from citeweave.evaluation.bootstrap import Outcome, Rows, derive
from citeweave.evaluation.probe_search import (
    Answers,
    ProbeSearch,
    checked_classes,
    checked_labels,
    checked_numbers,
    checked_vectors,
    one_class,
    plain_folds,
    search,
    search_at_once,
    stratified_folds,
)
from citeweave.evaluation.probe_solvers import Codes, Floats, Linear, Way
from citeweave.evaluation.systems import Judged, NoAnswerError, PaperVectors
from citeweave.evaluation.tasks import ProbeTask

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
    solve = probe_solvers.fit_numbers if rule.chosen_solver == "lightning" else probe_search.fit_numbers_liblinear

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


def _axes(train: Floats, rule: ProbeRule) -> probe_solvers.Axes | None:
    return probe_solvers.principal_axes(train, intercept=rule.intercept) if rule.chosen_solver == "newton" else None


def _search_classes(
    train: Floats, axes: probe_solvers.Axes | None, codes: Codes, rule: ProbeRule, random: Random
) -> ProbeSearch:
    folds = stratified_folds(codes, rule.folds)
    if axes is not None:
        return search_at_once(axes, codes, rule.grid, folds, intercept=rule.intercept)

    def fit(vectors: Floats, answers: Answers, c: float) -> Linear:
        return _fit_classes(vectors, answers, c, rule, random())

    return search(train, codes, rule.grid, folds, fit)


def _fit_classes(vectors: Floats, codes: Codes, c: float, rule: ProbeRule, random: np.random.RandomState) -> Linear:
    if rule.chosen_solver == "newton":
        axes = probe_solvers.principal_axes(vectors, intercept=rule.intercept)
        return probe_solvers.fit_classes_newton(axes, codes, c, intercept=rule.intercept)
    solve = probe_solvers.fit_classes if rule.chosen_solver == "lightning" else probe_search.fit_classes_liblinear
    return solve(vectors, codes, c, rule.way, random)


# Judge a probe: how well a linear model on the vectors tells classes, labels or numbers of papers it has not seen.


def run_probe(task: ProbeTask, judged: Judged, missing: str, *, intercept: bool = True) -> Outcome:
    """Learn from the training papers, tell the test papers."""
    task = task if intercept else replace(task, rule=as_lightning(task.rule))
    vectors = judged.vectors(task.texts)
    learned, asked = _taking_part(task, vectors, missing)
    train, test = vectors.matrix[task.train[learned]], vectors.matrix[task.test[asked]]  # (papers, dimension)
    present = [int(vectors.present[rows].sum()) for rows in (task.train, task.test)]
    if not all(present):
        raise NoAnswerError(
            f"{task.name}: {present[0]:,} training and {present[1]:,} test papers have vectors; "
            f"check that the ids of the vectors are the suite's ids, such as {task.texts.ids[int(task.test[0])]!r}"
        )
    coverage = _coverage(task, vectors)
    answers = task.train_answers[learned]
    try:
        if task.shots is not None:
            return _run_few_shot(task, train, answers, test, asked, coverage, missing)
        predictions = _fit(task, train, answers, test)
    except UserError as error:
        raise NoAnswerError(f"{task.name}: {error}") from None
    return Outcome(
        task.name,
        task.kind,
        dict(task.metrics),
        _rows(task, predictions.values, asked, answers, missing),
        {**coverage, "probes that did not converge": predictions.unconverged},
        chosen={"C": _plain(predictions.best_c), "intercept": task.rule.intercept, "solver": task.rule.chosen_solver},
    )


def _plain(best_c: float | Sequence[float]) -> Any:
    """One C, or one a label: None for a label that was not learned, since JSON has no NaN."""
    return best_c if isinstance(best_c, float) else [None if np.isnan(c) else c for c in best_c]


def _fit(
    task: ProbeTask, train: NDArray[Any], answers: NDArray[Any], test: NDArray[Any]
) -> Predictions | LabelPredictions:
    if task.kind == "labels":
        return fit_labels(train, answers, test, task.rule)
    return (fit_numbers if task.kind == "numbers" else fit_classes)(train, answers, test, task.rule)


def _run_few_shot(
    task: ProbeTask,
    train: NDArray[Any],
    answers: NDArray[Any],
    test: NDArray[Any],
    asked: NDArray[np.bool_],
    coverage: dict[str, int],
    missing: str,
) -> Outcome:
    """One row a fold; the peers round each fold's score to two decimals of a percent."""
    assert task.shots is not None
    if task.kind == "numbers":
        raise UserError("few-shot probes tell classes or labels, not numbers; take few_shot out of the task")
    few_shot: Callable[..., Sequence[Predictions | LabelPredictions]] = (
        few_shot_labels if task.kind == "labels" else few_shot_classes
    )
    rows: dict[str, dict[str, Any]] = {}
    for number, predictions in enumerate(few_shot(train, answers, test, *task.shots, task.rule)):
        told = _rows(task, predictions.values, asked, answers, missing)
        values = {name: derive(way, told, name) for name, way in task.metrics.items()}
        rows[f"fold {number}"] = {
            name: round(100 * value, 2) / 100 if missing == "peers" else value for name, value in values.items()
        }
    how = dict.fromkeys(task.metrics, "mean")
    return Outcome(task.name, "few-shot", how, rows, {**coverage, "folds": len(rows)}, chosen={"size": task.shots[0]})


def _taking_part(task: ProbeTask, vectors: PaperVectors, missing: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which training papers are learned from and which test papers are told by the probe."""
    if missing == "peers" and task.missing_as == "zeros":
        return np.ones(len(task.train), bool), np.ones(len(task.test), bool)
    return vectors.present[task.train], vectors.present[task.test]


def _rows(task: ProbeTask, told: NDArray[Any], asked: NDArray[np.bool_], learned: NDArray[Any], missing: str) -> Rows:
    """Paper -> its answer and what was told; by `wrong`, also of those of which nothing could be told."""
    guesses = iter(told.tolist())
    nothing = _nothing(task, learned)
    seen: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    for row, answer, has_vector in zip(task.test.tolist(), task.test_answers.tolist(), asked.tolist(), strict=True):
        paper = task.texts.ids[row]
        seen[paper] += 1
        name = paper if seen[paper] == 1 else f"{paper}#{seen[paper]}"
        if has_vector:
            rows[name] = {"answer": answer, "told": next(guesses)}
        elif missing == "wrong":
            rows[name] = {"answer": answer, "told": nothing}
    return rows


def _nothing(task: ProbeTask, learned: NDArray[Any]) -> Any:
    if task.kind == "labels":
        return [0] * task.test_answers.shape[1]
    return float(np.median(learned)) if task.kind == "numbers" else None


def _coverage(task: ProbeTask, vectors: PaperVectors) -> dict[str, int]:
    return {
        "training papers": len(task.train),
        "training papers without vector": int((~vectors.present[task.train]).sum()),
        "test papers": len(task.test),
        "test papers without vector": int((~vectors.present[task.test]).sum()),
        "vectors of zeros": vectors.count_zeros(),
        "papers without text": task.texts.without_text,
    }
