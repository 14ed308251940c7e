"""Probes give the numbers that the reference code of SciDocs and SciRepEval gave, with scikit-learn and with lightning."""

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr
from sklearn.metrics import f1_score

from citeweave.evaluation import probes, tasks

LIBRARIES = {
    "newton": ("sklearn", lambda rule: rule),
    "sklearn": ("sklearn", lambda rule: replace(rule, solver="sklearn")),
    "lightning": ("sklearn_contrib_lightning", probes.as_lightning),
}
TYPES = {"float16_path": np.float16, "float32_dict": np.float32}

each_library = pytest.mark.parametrize("library", LIBRARIES)
each_type = pytest.mark.parametrize("kind", TYPES)


def setting(library: str, rule: tasks.ProbeRule) -> tuple[str, tasks.ProbeRule]:
    recorded_with, change = LIBRARIES[library]
    return recorded_with, change(rule)


@cache
def expected(folder: Path) -> dict:
    return json.loads((folder / "expected.json").read_text())


@cache
def vectors_of(path: Path, key: str) -> dict[str, list[float]]:
    """The last line of an id wins."""
    return {record[key]: record["embedding"] for record in map(json.loads, path.read_text().splitlines())}


def scidocs(folder: Path, task: str, split: str) -> tuple[np.ndarray, list[int]]:
    """A paper without a vector is a vector of zeros."""
    vectors = vectors_of(folder / "cls.jsonl", "paper_id")
    rows = list(csv.DictReader((folder / task / f"{split}.csv").open()))
    zeros = [0.0] * len(next(iter(vectors.values())))
    return np.array([vectors.get(row["pid"]) or zeros for row in rows]), [int(row["class_label"]) for row in rows]


def scirepeval(folder: Path, task: str, split: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A paper without a vector is left out."""
    vectors = vectors_of(folder / "embeddings.jsonl", "doc_id")
    if task == "clf_multilabel":
        rows = [json.loads(line) for line in (folder / task / f"{split}.jsonl").read_text().splitlines()]
    else:
        rows = list(csv.DictReader((folder / task / f"{split}.csv").open()))
    rows = [row for row in rows if row["paper_id"] in vectors]
    return np.array([vectors[row["paper_id"]] for row in rows], dtype=TYPES[kind]), np.array(
        [row["label"] for row in rows]
    ).astype(float if task == "regression" else int)


@each_library
@pytest.mark.parametrize("task", ["mag", "mesh"])
@pytest.mark.parametrize("split", ["test", "val"])
def test_scidocs_classes(shared, library, task, split):
    folder = shared / "fixtures/scidocs_cls"
    recorded_with, rule = setting(library, tasks.SCIDOCS_CLASSES)
    truth = expected(folder)[recorded_with]
    test, known = scidocs(folder, task, split)
    found = probes.fit_classes(*scidocs(folder, task, "train"), test, rule)
    f1 = 100 * f1_score(known, found.values, average="macro")
    assert f1 == pytest.approx(truth[f"{split}_unrounded"][f"{task}.f1"], abs=1e-6)
    assert found.best_c == pytest.approx(truth["detail"][task]["best_C"])
    if split == "test":
        assert found.values.tolist() == truth["detail"][task]["test_predictions"]
    # liblinear does not converge for mag at C = 100: there the optimum has other scores, 2 of 110 papers
    count = 6 if (library, task) == ("newton", "mag") else 7
    scores = list(truth["detail"][task]["cv_mean_accuracy"].values())
    assert list(found.cv_scores.values())[:count] == pytest.approx(scores[:count], abs=1e-9)
    assert list(found.cv_scores.values()) == pytest.approx(scores, abs=0.02)


@each_library
@each_type
@pytest.mark.parametrize(
    ("task", "average", "metric"), [("clf_binary", "binary", "f1"), ("clf_multiclass", "macro", "f1_macro")]
)
def test_scirepeval_classes(shared, library, kind, task, average, metric):
    folder = shared / "fixtures/scirepeval"
    recorded_with, rule = setting(library, tasks.SCIREPEVAL_CLASSES)
    truth = expected(folder)[task][recorded_with][kind]
    test, known = scirepeval(folder, task, "test", kind)
    found = probes.fit_classes(*scirepeval(folder, task, "train", kind), test, rule)
    assert 100 * f1_score(known, found.values, average=average) == pytest.approx(truth["unrounded"][metric], abs=1e-6)
    assert found.best_c == pytest.approx(truth["best_C"][0])


@each_library
@each_type
@pytest.mark.parametrize(
    ("task", "size", "iterations"),
    [("clf_binary", 16, 100), ("clf_binary", 16, 3), ("clf_binary", 64, 50), ("clf_multiclass", 24, 100)],
)
def test_scirepeval_few_shot(shared, library, kind, task, size, iterations):
    folder = shared / "fixtures/scirepeval"
    recorded_with, rule = setting(library, tasks.SCIREPEVAL_CLASSES)
    truth = expected(folder)[f"{task}_fewshot_{size}x{iterations}"][recorded_with][kind]["unrounded"]
    test, known = scirepeval(folder, task, "test", kind)
    train = scirepeval(folder, task, "train", kind)
    average = "binary" if task == "clf_binary" else "macro"
    folds = probes.few_shot_classes(*train, test, size, iterations, rule)
    scores = [100 * f1_score(known, fold.values, average=average) for fold in folds]
    assert np.mean(scores) == pytest.approx(next(iter(truth.values())), abs=1e-6)


@each_type
@pytest.mark.parametrize("library", ["sklearn", "lightning"])
def test_scirepeval_numbers(shared, library, kind):
    folder = shared / "fixtures/scirepeval"
    recorded_with, rule = setting(library, tasks.SCIREPEVAL_NUMBERS)
    truth = expected(folder)["regression"][recorded_with][kind]
    test, known = scirepeval(folder, "regression", "test", kind)
    found = probes.fit_numbers(*scirepeval(folder, "regression", "train", kind), test, rule)
    assert 100 * kendalltau(known, found.values).statistic == pytest.approx(truth["unrounded"]["kendalltau"], abs=1e-3)
    assert 100 * pearsonr(known, found.values).statistic == pytest.approx(truth["unrounded"]["pearsonr"], abs=1e-3)
    assert found.best_c == pytest.approx(truth["best_C"][0])


@each_type
@pytest.mark.parametrize("library", ["sklearn", "lightning"])
def test_scirepeval_labels(shared, library, kind):
    folder = shared / "fixtures/scirepeval"
    recorded_with, rule = setting(library, tasks.SCIREPEVAL_LABELS)
    truth = expected(folder)["clf_multilabel"][recorded_with][kind]["unrounded"]
    few_truth = expected(folder)["clf_multilabel_fewshot_10x5"][recorded_with][kind]["unrounded"]
    train = scirepeval(folder, "clf_multilabel", "train", kind)
    test, known = scirepeval(folder, "clf_multilabel", "test", kind)
    found = probes.fit_labels(*train, test, rule)
    # scikit-learn's seed is numpy's global one in the reference, lightning's is none at all
    close = 1e-6 if library == "sklearn" else 1.0
    assert 100 * f1_score(known, found.values, average="macro") == pytest.approx(truth["f1_macro"], abs=close)
    few = probes.few_shot_labels(*train, test, 10, 5, rule)
    scores = [100 * f1_score(known, one.values, average="macro") for one in few]
    assert np.mean(scores) == pytest.approx(few_truth["f1_macro"], abs=close)


def test_scirepeval_few_shot_rows(shared):
    folder = shared / "fixtures/scirepeval"
    _, marks = scirepeval(folder, "clf_multilabel", "train", "float16_path")
    rows = [probes.draw_rows(marks, 10, np.random.RandomState(42 + number)) for number in range(5)]
    assert rows == expected(folder)["clf_multilabel_fewshot_10x5"]["training_rows_in_order"]


def test_the_optimum_without_intercept_is_where_lightning_is_heading(shared):
    """Equal on whole training sets; one few-shot fold of eight has a paper on the edge in float16."""
    folder = shared / "fixtures/scirepeval"
    rule = replace(tasks.SCIREPEVAL_CLASSES, intercept=False)
    for kind, close in (("float16_path", 0.4), ("float32_dict", 1e-6)):
        truth = expected(folder)["clf_binary_fewshot_16x100"]["sklearn_contrib_lightning"][kind]["unrounded"]["f1"]
        test, known = scirepeval(folder, "clf_binary", "test", kind)
        folds = probes.few_shot_classes(*scirepeval(folder, "clf_binary", "train", kind), test, 16, 100, rule)
        assert np.mean([100 * f1_score(known, fold.values) for fold in folds]) == pytest.approx(truth, abs=close)
