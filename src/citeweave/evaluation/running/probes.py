"""Judge a probe: how well a linear model on the vectors tells classes, labels or numbers of papers it has not seen.

What happens to a paper without vector, by `missing`:

    wrong   in training it is left out; in the test nothing is told of it: a wrong class, no label, the median number
    peers   SciDocs puts zeros in its place, in training and test; SciRepEval leaves it out of both

What cannot be fitted, such as papers with vectors that are all of one class, is a `NoAnswerError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.evaluation.deriving import derive
from citeweave.evaluation.judged import Judged, NoAnswerError, PaperVectors
from citeweave.evaluation.outcomes import Outcome, Rows
from citeweave.evaluation.probes import (
    LabelPredictions,
    Predictions,
    as_lightning,
    few_shot_classes,
    few_shot_labels,
    fit_classes,
    fit_labels,
    fit_numbers,
)
from citeweave.evaluation.tasks import ProbeTask


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
