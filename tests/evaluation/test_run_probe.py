"""Probes as tasks: one fit each, what is missing, few-shot folds, and probes that cannot be fitted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from citeweave.evaluation import probes, tasks
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.run_tasks import run_probe, run_task
from citeweave.evaluation.systems import NoAnswerError, PrecomputedScores, VectorSystem

from .conftest import refused

TRAIN, TEST = 30, 12
IDS = [f"p{number}" for number in range(TRAIN + TEST)]
TEXTS = tasks.TaskTexts(IDS, [f"Title {paper}" for paper in IDS], [""] * len(IDS))
CLASSES = np.array(["art", "law", "zoo"])[np.arange(len(IDS)) % 3]
MARKS = np.stack([np.arange(len(IDS)) % 2, np.arange(len(IDS)) % 3 == 0, np.zeros(len(IDS))], axis=1).astype(int)
TARGETS = np.arange(len(IDS)) * 7 % 13 + 0.5
MATRIX = np.concatenate([np.eye(3)[np.arange(len(IDS)) % 3], MARKS[:, :1], TARGETS[:, None] / 13], axis=1)
MATRIX = MATRIX + np.random.default_rng(3).normal(0, 0.35, MATRIX.shape)
RULES = {"classes": tasks.SCIREPEVAL_CLASSES, "labels": tasks.SCIREPEVAL_LABELS, "numbers": tasks.SCIREPEVAL_NUMBERS}
ANSWERS = {"classes": CLASSES, "labels": MARKS, "numbers": TARGETS}
METRICS = {"classes": {"f1": "f1_macro"}, "labels": {"f1_macro": "f1_macro"}, "numbers": {"kendalltau": "kendalltau"}}


def task(kind: str = "classes", **changed: Any) -> tasks.ProbeTask:
    labels, train, test = ANSWERS[kind], np.arange(TRAIN), np.arange(TRAIN, TRAIN + TEST)
    made = {"train": train, "train_labels": labels[train], "test": test, "test_labels": labels[test]}
    made |= {"rule": RULES[kind], "metrics": METRICS[kind]}
    return replace(tasks.ProbeTask("topics", TEXTS, kind, **made), **changed)


def system(without: tuple[int, ...] = (), **changed: Any) -> VectorSystem:
    kept = [row for row in range(len(IDS)) if row not in without]
    matrix = MATRIX.copy()
    for paper, vector in changed.items():
        matrix[IDS.index(paper)] = vector
    return VectorSystem([IDS[row] for row in kept], matrix[kept], name="toy", revision="1")


FITS = {"classes": probes.fit_classes, "labels": probes.fit_labels, "numbers": probes.fit_numbers}


def told(outcome: Outcome) -> list[Any]:
    return [row["predicted"] for row in outcome.rows.values()]


@pytest.mark.parametrize("kind", RULES)
def test_a_task_is_one_fit(kind):
    outcome = run_probe(task(kind), system(), "wrong")
    expected = FITS[kind](MATRIX[:TRAIN], ANSWERS[kind][:TRAIN], MATRIX[TRAIN:], RULES[kind])
    assert told(outcome) == expected.values.tolist() and list(outcome.rows) == IDS[TRAIN:]
    assert [row["label"] for row in outcome.rows.values()] == ANSWERS[kind][TRAIN:].tolist()
    assert outcome.kind == kind and outcome.how == METRICS[kind]
    assert outcome.coverage["training papers"] == TRAIN and outcome.coverage["test papers"] == TEST
    assert not any(number for what, number in outcome.coverage.items() if "without" in what or "zeros" in what)
    if kind == "labels":  # nobody has the third
        assert outcome.chosen["C"][2] is None and all(c > 0 for c in outcome.chosen["C"][:2])
        return
    if kind == "classes":
        assert outcome.chosen == {"C": expected.best_c, "intercept": True, "solver": "newton"}
    else:
        assert outcome.metrics["kendalltau"] > 20  # of 12 papers: one pair that changes places is 3 of it
    plain, bare = (run_task(task(kind), system(), intercept=intercept) for intercept in (True, False))
    assert plain.chosen["intercept"], "without intercept the peers' solver is followed"
    assert bare.chosen["solver"] == "lightning" and not bare.chosen["intercept"]


@pytest.mark.parametrize("kind", RULES)
def test_a_missing_paper_is_a_wrong_prediction(kind):
    outcome = run_probe(task(kind), system((2, 4, TRAIN, TRAIN + 5)), "wrong")
    nothing = {"classes": None, "labels": [0, 0, 0], "numbers": float(np.median(np.delete(TARGETS[:TRAIN], [2, 4])))}
    assert len(outcome.rows) == TEST
    assert outcome.rows[IDS[TRAIN]]["predicted"] == outcome.rows[IDS[TRAIN + 5]]["predicted"] == nothing[kind]
    learned, asked = np.delete(np.arange(TRAIN), [2, 4]), np.delete(np.arange(TRAIN, TRAIN + TEST), [0, 5])
    expected = FITS[kind](MATRIX[learned], ANSWERS[kind][learned], MATRIX[asked], RULES[kind])
    assert [outcome.rows[IDS[row]]["predicted"] for row in asked] == expected.values.tolist()
    counts = {"training papers without vector": 2, "test papers without vector": 2}
    assert outcome.coverage.items() >= counts.items()


def test_the_peers_take_zeros_or_leave_papers_out():
    gone = (2, TRAIN, TRAIN + 5)
    zeros = run_probe(task(missing_as="zeros", rule=tasks.SCIDOCS_CLASSES), system(gone), "peers")
    filled = MATRIX.copy()
    filled[list(gone)] = 0
    expected = probes.fit_classes(filled[:TRAIN], CLASSES[:TRAIN], filled[TRAIN:], tasks.SCIDOCS_CLASSES)
    assert told(zeros) == expected.values.tolist() and len(zeros.rows) == TEST
    left_out = run_probe(task(missing_as="left out"), system(gone), "peers")
    assert set(left_out.rows) == set(IDS[TRAIN:]) - {IDS[TRAIN], IDS[TRAIN + 5]}
    assert left_out.coverage["test papers without vector"] == 2
    wrong = run_probe(task(), system(gone), "wrong")
    assert left_out.metrics["f1"] > wrong.metrics["f1"]


def test_zeros_papers_without_text_and_papers_that_are_tested_twice():
    texts, test = tasks.TaskTexts(IDS, ["", *TEXTS.titles[1:]], TEXTS.abstracts), np.array([TRAIN, TRAIN + 1, TRAIN])
    asked = task(texts=texts, test=test, test_labels=CLASSES[test])
    outcome = run_probe(asked, system(p1=np.zeros(5), p31=np.zeros(5)), "wrong")
    assert outcome.coverage["vectors of zeros"] == 2 and outcome.coverage["papers without text"] == 1
    assert list(outcome.rows) == ["p30", "p31", "p30#2"]


@pytest.mark.parametrize("missing", ["wrong", "peers"])
def test_few_shots_are_one_row_per_fold(missing):
    outcome = run_probe(task(shots=(6, 3)), system(), missing)
    folds = probes.few_shot_classes(MATRIX[:TRAIN], CLASSES[:TRAIN], MATRIX[TRAIN:], 6, 3, tasks.SCIREPEVAL_CLASSES)
    assert outcome.kind == "few-shot" and list(outcome.rows) == ["fold 0", "fold 1", "fold 2"]
    each = [f1_score(CLASSES[TRAIN:], fold.values, average="macro") for fold in folds]
    if missing == "peers":  # who round every fold
        each = [round(100 * value, 2) / 100 for value in each]
    assert [row["f1"] for row in outcome.rows.values()] == pytest.approx(each, abs=1e-12)
    assert outcome.metrics["f1"] == pytest.approx(100 * np.mean(each))
    assert outcome.coverage["folds"] == 3 and outcome.chosen == {"size": 6}
    two = {"train_labels": MARKS[:TRAIN, :2], "test_labels": MARKS[TRAIN:, :2]}
    outcome = run_probe(task("labels", **two, shots=(5, 2)), system(), missing)
    assert list(outcome.rows) == ["fold 0", "fold 1"] and 0 < outcome.metrics["f1_macro"] <= 100


def test_few_shots_count_a_missing_paper_as_wrong_and_every_setting_is_a_task():
    gone = tuple(range(TRAIN, TRAIN + 6))
    wrong, peers = (run_probe(task(shots=(6, 3)), system(gone), missing) for missing in ("wrong", "peers"))
    assert wrong.metrics["f1"] < peers.metrics["f1"]
    assert wrong.coverage["test papers without vector"] == peers.coverage["test papers without vector"] == 6
    suite = tasks.Suite("toy", (task(few_shot=((6, 3), (10, 2))),)).choose(())
    assert [part.name for part in suite.tasks] == ["topics", "topics 6-shot", "topics 10-shot"]
    assert [part.shots for part in suite.tasks if isinstance(part, tasks.ProbeTask)] == [None, (6, 3), (10, 2)]
    assert [each.name for each in tasks.Suite("toy", suite.tasks).choose(["topics 6-shot"]).tasks] == ["topics 6-shot"]


CANNOT_BE_FITTED = [
    (task(missing_as="zeros"), range(len(IDS)), "0 training and 0 test papers have vectors; .* such as 'p30'"),
    (task(missing_as="left out"), range(TRAIN, len(IDS)), "30 training and 0 test papers"),
    (task(missing_as="left out"), range(len(IDS)), "0 training and 0 test papers"),
    (task(missing_as="zeros"), range(TRAIN, len(IDS)), "30 training and 0 test papers"),
    (
        task(missing_as="left out"),
        np.delete(np.arange(TRAIN), np.s_[::3]),
        "topics: all 10 training papers are of class art",
    ),
    (task(shots=(40, 1)), (), "topics: few-shot probes of 40 papers need more than 40"),
    (task("numbers", shots=(5, 1)), (), "topics: few-shot probes predict classes or labels, not numbers"),
]


@pytest.mark.parametrize("missing", ["wrong", "peers"])
@pytest.mark.parametrize(("probe", "without", "message"), CANNOT_BE_FITTED)
def test_probes_that_cannot_be_fitted_say_why(probe, without, message, missing):
    refused(message, run_probe, probe, system(tuple(without)), missing, error=NoAnswerError)
    refused("run holds scores, not vectors", run_probe, task(), PrecomputedScores({}, name="run"), missing)
