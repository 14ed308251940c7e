"""Evaluate probe tasks: fit a linear probe on a system's vectors and predict the labels of the test papers.

    outcome = run_probe(task, system, "wrong")

What a paper without a vector means, by `missing`:

    wrong   in training it is left out; in the test its prediction is wrong: no class, no label, the median number
    peers   SciDocs puts zeros in its place, in training and test; SciRepEval leaves it out of both

A probe that cannot be fitted, such as one whose papers with vectors are all of one class, is a `NoAnswerError`. Does not fit
probes: `probes.py` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.evaluation.metrics import Outcome, Rows, derive_metric
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
from citeweave.evaluation.systems import NoAnswerError, PaperVectors, System
from citeweave.evaluation.tasks import ProbeTask


def run_probe(task: ProbeTask, system: System, missing: str, *, intercept: bool = True) -> Outcome:
    """Evaluate a system by a linear probe: fit it on the training vectors, predict the labels of the test papers."""
    task = task if intercept else replace(task, rule=as_lightning(task.rule))
    vectors = system.vectors(task.texts)
    in_train, in_test = _participating(task, vectors, missing)
    train, test = vectors.matrix[task.train[in_train]], vectors.matrix[task.test[in_test]]  # (papers, dimension)
    present = [int(vectors.present[rows].sum()) for rows in (task.train, task.test)]
    if not all(present):
        raise NoAnswerError(
            f"{task.name}: {present[0]:,} training and {present[1]:,} test papers have vectors; "
            f"check that the ids of the vectors are the suite's ids, such as {task.texts.ids[int(task.test[0])]!r}"
        )
    coverage = _coverage(task, vectors)
    labels = task.train_labels[in_train]
    try:
        if task.shots is not None:
            return _run_few_shot(task, train, labels, test, in_test, coverage, missing)
        predictions = _fit(task, train, labels, test)
    except UserError as error:
        raise NoAnswerError(f"{task.name}: {error}") from None
    return Outcome(
        task.name,
        task.kind,
        dict(task.metrics),
        _rows(task, predictions.values, in_test, labels, missing),
        {**coverage, "probes that did not converge": predictions.unconverged},
        chosen={
            "C": _c_as_json(predictions.best_c),
            "intercept": task.rule.intercept,
            "solver": task.rule.chosen_solver,
        },
    )


def _c_as_json(best_c: float | Sequence[float]) -> Any:
    """Return one C, or one per label: None for a label that was not learned, since JSON has no NaN."""
    return best_c if isinstance(best_c, float) else [None if np.isnan(c) else c for c in best_c]


def _fit(
    task: ProbeTask, train: NDArray[Any], labels: NDArray[Any], test: NDArray[Any]
) -> Predictions | LabelPredictions:
    """Fit the probe of a task's kind: classes, labels or numbers."""
    if task.kind == "labels":
        return fit_labels(train, labels, test, task.rule)
    return (fit_numbers if task.kind == "numbers" else fit_classes)(train, labels, test, task.rule)


def _run_few_shot(
    task: ProbeTask,
    train: NDArray[Any],
    labels: NDArray[Any],
    test: NDArray[Any],
    in_test: NDArray[np.bool_],
    coverage: dict[str, int],
    missing: str,
) -> Outcome:
    """Evaluate few-shot probes, one row per fold; SciRepEval rounds each fold's score to two decimals of a percent."""
    assert task.shots is not None
    if task.kind == "numbers":
        raise UserError("few-shot probes predict classes or labels, not numbers; remove few_shot from the task")
    few_shot: Callable[..., Sequence[Predictions | LabelPredictions]] = (
        few_shot_labels if task.kind == "labels" else few_shot_classes
    )
    rows: dict[str, dict[str, Any]] = {}
    for number, predictions in enumerate(few_shot(train, labels, test, *task.shots, task.rule)):
        predicted = _rows(task, predictions.values, in_test, labels, missing)
        values = {name: derive_metric(metric, predicted, name) for name, metric in task.metrics.items()}
        rows[f"fold {number}"] = {
            name: round(100 * value, 2) / 100 if missing == "peers" else value for name, value in values.items()
        }
    coverage = {**coverage, "folds": len(rows)}
    derivations = dict.fromkeys(task.metrics, "mean")
    return Outcome(task.name, "few-shot", derivations, rows, coverage, chosen={"size": task.shots[0]})


def _participating(task: ProbeTask, vectors: PaperVectors, missing: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which training papers the probe learns from and which test papers it predicts."""
    if missing == "peers" and task.missing_as == "zeros":
        return np.ones(len(task.train), bool), np.ones(len(task.test), bool)
    return vectors.present[task.train], vectors.present[task.test]


def _rows(
    task: ProbeTask, predicted: NDArray[Any], in_test: NDArray[np.bool_], train_labels: NDArray[Any], missing: str
) -> Rows:
    """Return test paper -> its label ("answer") and prediction ("told"); by `wrong`, also of papers without a vector."""
    predictions = iter(predicted.tolist())
    default = _default_prediction(task, train_labels)
    seen: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    for row, label, is_predicted in zip(task.test.tolist(), task.test_labels.tolist(), in_test.tolist(), strict=True):
        paper = task.texts.ids[row]
        seen[paper] += 1
        name = paper if seen[paper] == 1 else f"{paper}#{seen[paper]}"
        if is_predicted:
            rows[name] = {"answer": label, "told": next(predictions)}
        elif missing == "wrong":
            rows[name] = {"answer": label, "told": default}
    return rows


def _default_prediction(task: ProbeTask, train_labels: NDArray[Any]) -> Any:
    """Return the prediction for a test paper without a vector: no class, no label, the median number."""
    if task.kind == "labels":
        return [0] * task.test_labels.shape[1]
    return float(np.median(train_labels)) if task.kind == "numbers" else None


def _coverage(task: ProbeTask, vectors: PaperVectors) -> dict[str, int]:
    """Count the training and test papers of a probe, and those without a vector or text."""
    return {
        "training papers": len(task.train),
        "training papers without vector": int((~vectors.present[task.train]).sum()),
        "test papers": len(task.test),
        "test papers without vector": int((~vectors.present[task.test]).sum()),
        "vectors of zeros": vectors.count_zeros(),
        "papers without text": task.texts.without_text,
    }
