"""Probes as tasks: classes, labels, numbers and few shots, and the two ways with papers that have no vector."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.evaluation.bootstrap import Outcome
from citeweave.evaluation.precomputed import PrecomputedScores, VectorSystem
from citeweave.evaluation.probes import (
    SCIDOCS_CLASSES,
    SCIREPEVAL_CLASSES,
    SCIREPEVAL_LABELS,
    SCIREPEVAL_NUMBERS,
    few_shot_classes,
    fit_classes,
    fit_labels,
    fit_numbers,
    run_probe,
)
from citeweave.evaluation.run_tasks import run_task
from citeweave.evaluation.systems import NoAnswerError
from citeweave.evaluation.tasks import ProbeTask, Suite, TaskTexts

TRAIN, TEST = 30, 12
IDS = [f"p{number}" for number in range(TRAIN + TEST)]
TEXTS = TaskTexts(IDS, [f"Title {paper}" for paper in IDS], [""] * len(IDS))
CLASSES = np.array(["art", "law", "zoo"])[np.arange(len(IDS)) % 3]
LABELS = np.stack([np.arange(len(IDS)) % 2, np.arange(len(IDS)) % 3 == 0, np.zeros(len(IDS))], axis=1).astype(int)
NUMBERS = np.arange(len(IDS)) * 7 % 13 + 0.5
MATRIX = np.concatenate([np.eye(3)[np.arange(len(IDS)) % 3], LABELS[:, :1], NUMBERS[:, None] / 13], axis=1)
MATRIX = MATRIX + np.random.default_rng(3).normal(0, 0.35, MATRIX.shape)
RULES = {"classes": SCIREPEVAL_CLASSES, "labels": SCIREPEVAL_LABELS, "numbers": SCIREPEVAL_NUMBERS}
ANSWERS = {"classes": CLASSES, "labels": LABELS, "numbers": NUMBERS}
METRICS = {"classes": {"f1": "f1_macro"}, "labels": {"f1_macro": "f1_macro"}, "numbers": {"kendalltau": "kendalltau"}}


def task(kind: str = "classes", **changed: Any) -> ProbeTask:
    answers = ANSWERS[kind]
    made = ProbeTask(
        "topics",
        TEXTS,
        kind,
        train=np.arange(TRAIN),
        train_labels=answers[:TRAIN],
        test=np.arange(TRAIN, TRAIN + TEST),
        test_labels=answers[TRAIN:],
        rule=RULES[kind],
        metrics=METRICS[kind],
    )
    return replace(made, **changed)


def vectors(without: tuple[int, ...] = (), **changed: Any) -> VectorSystem:
    kept = [row for row in range(len(IDS)) if row not in without]
    matrix = MATRIX.copy()
    for paper, vector in changed.items():
        matrix[IDS.index(paper)] = vector
    return VectorSystem([IDS[row] for row in kept], matrix[kept], name="toy", revision="1")


def told(outcome: Outcome) -> list[Any]:
    return [row["told"] for row in outcome.rows.values()]


def test_classes() -> None:
    outcome = run_probe(task(), vectors(), "wrong")
    expected = fit_classes(MATRIX[:TRAIN], CLASSES[:TRAIN], MATRIX[TRAIN:], SCIREPEVAL_CLASSES)
    assert told(outcome) == expected.values.tolist()
    assert list(outcome.rows) == IDS[TRAIN:]
    assert [row["answer"] for row in outcome.rows.values()] == CLASSES[TRAIN:].tolist()
    assert outcome.kind == "classes" and outcome.how == {"f1": "f1_macro"}
    assert outcome.chosen == {"C": expected.best_c, "intercept": True, "solver": "newton"}
    assert outcome.coverage["training papers"] == TRAIN and outcome.coverage["test papers"] == TEST
    assert not any(number for what, number in outcome.coverage.items() if "without" in what or "zeros" in what)


def test_labels_and_a_label_that_nobody_has() -> None:
    outcome = run_probe(task("labels"), vectors(), "wrong")
    expected = fit_labels(MATRIX[:TRAIN], LABELS[:TRAIN], MATRIX[TRAIN:], SCIREPEVAL_LABELS)
    assert told(outcome) == expected.values.tolist()
    assert outcome.chosen["C"][2] is None and all(c > 0 for c in outcome.chosen["C"][:2])


def test_numbers() -> None:
    outcome = run_probe(task("numbers"), vectors(), "wrong")
    expected = fit_numbers(MATRIX[:TRAIN], NUMBERS[:TRAIN], MATRIX[TRAIN:], SCIREPEVAL_NUMBERS)
    assert told(outcome) == expected.values.tolist()
    assert outcome.metrics["kendalltau"] > 20  # of 12 papers: one pair that changes places is 3 of it


def test_without_intercept_the_peers_solver_is_followed() -> None:
    for kind in ("classes", "numbers"):
        plain, bare = (run_task(task(kind), vectors(), intercept=intercept) for intercept in (True, False))
        assert bare.chosen["solver"] == "lightning" and not bare.chosen["intercept"]
        assert plain.chosen["intercept"]


@pytest.mark.parametrize("kind", ["classes", "labels", "numbers"])
def test_a_missing_paper_is_a_wrong_answer(kind: str) -> None:
    gone = (2, 4, TRAIN, TRAIN + 5)
    outcome = run_probe(task(kind), vectors(gone), "wrong")
    nothing = {"classes": None, "labels": [0, 0, 0], "numbers": float(np.median(np.delete(NUMBERS[:TRAIN], [2, 4])))}
    assert len(outcome.rows) == TEST
    assert outcome.rows[IDS[TRAIN]]["told"] == outcome.rows[IDS[TRAIN + 5]]["told"] == nothing[kind]
    fit = {"classes": fit_classes, "labels": fit_labels, "numbers": fit_numbers}[kind]
    learned, asked = np.delete(np.arange(TRAIN), [2, 4]), np.delete(np.arange(TRAIN, TRAIN + TEST), [0, 5])
    expected = fit(MATRIX[learned], ANSWERS[kind][learned], MATRIX[asked], RULES[kind])
    assert [outcome.rows[IDS[row]]["told"] for row in asked] == expected.values.tolist()
    coverage = outcome.coverage
    assert (coverage["training papers without vector"], coverage["test papers without vector"]) == (2, 2)


def test_the_peers_take_zeros_or_leave_papers_out() -> None:
    gone = (2, TRAIN, TRAIN + 5)
    zeros = run_probe(task(missing_as="zeros", rule=SCIDOCS_CLASSES), vectors(gone), "peers")
    filled = MATRIX.copy()
    filled[list(gone)] = 0
    expected = fit_classes(filled[:TRAIN], CLASSES[:TRAIN], filled[TRAIN:], SCIDOCS_CLASSES)
    assert told(zeros) == expected.values.tolist() and len(zeros.rows) == TEST
    left_out = run_probe(task(missing_as="left out"), vectors(gone), "peers")
    assert set(left_out.rows) == set(IDS[TRAIN:]) - {IDS[TRAIN], IDS[TRAIN + 5]}
    assert left_out.coverage["test papers without vector"] == 2
    wrong = run_probe(task(), vectors(gone), "wrong")
    assert left_out.metrics["f1"] > wrong.metrics["f1"]


def test_vectors_of_zeros_and_papers_without_text_are_counted() -> None:
    texts = TaskTexts(IDS, ["", *TEXTS.titles[1:]], TEXTS.abstracts)
    outcome = run_probe(task(texts=texts), vectors(p1=np.zeros(5), p31=np.zeros(5)), "wrong")
    assert outcome.coverage["vectors of zeros"] == 2 and outcome.coverage["papers without text"] == 1


def test_a_paper_that_is_tested_twice_has_two_rows() -> None:
    test = np.array([TRAIN, TRAIN + 1, TRAIN])
    outcome = run_probe(task(test=test, test_labels=CLASSES[test]), vectors(), "wrong")
    assert list(outcome.rows) == ["p30", "p31", "p30#2"]


# --- few shots ---------------------------------------------------------------------------------------


def test_every_few_shot_setting_is_a_task_of_its_own() -> None:
    suite = Suite("toy", (task(few_shot=((6, 3), (10, 2))),)).choose(())
    assert [part.name for part in suite.tasks] == ["topics", "topics 6-shot", "topics 10-shot"]
    assert [part.shots for part in suite.tasks if isinstance(part, ProbeTask)] == [None, (6, 3), (10, 2)]
    assert [each.name for each in Suite("toy", suite.tasks).choose(["topics 6-shot"]).tasks] == ["topics 6-shot"]


@pytest.mark.parametrize("missing", ["wrong", "peers"])
def test_few_shot_classes_are_one_row_a_fold(missing: str) -> None:
    outcome = run_probe(task(shots=(6, 3)), vectors(), missing)
    folds = few_shot_classes(MATRIX[:TRAIN], CLASSES[:TRAIN], MATRIX[TRAIN:], 6, 3, SCIREPEVAL_CLASSES)
    assert outcome.kind == "few-shot" and list(outcome.rows) == ["fold 0", "fold 1", "fold 2"]
    from sklearn.metrics import f1_score

    each = [f1_score(CLASSES[TRAIN:], fold.values, average="macro") for fold in folds]
    if missing == "peers":  # who round every fold
        each = [round(100 * value, 2) / 100 for value in each]
    assert [row["f1"] for row in outcome.rows.values()] == pytest.approx(each, abs=1e-12)
    assert outcome.metrics["f1"] == pytest.approx(100 * np.mean(each))
    assert outcome.coverage["folds"] == 3 and outcome.chosen == {"size": 6}


def test_few_shot_counts_a_missing_paper_as_wrong() -> None:
    gone = tuple(range(TRAIN, TRAIN + 6))
    wrong, peers = (run_probe(task(shots=(6, 3)), vectors(gone), missing) for missing in ("wrong", "peers"))
    assert wrong.metrics["f1"] < peers.metrics["f1"]
    assert wrong.coverage["test papers without vector"] == peers.coverage["test papers without vector"] == 6


def test_few_shot_labels() -> None:
    outcome = run_probe(
        task("labels", train_labels=LABELS[:TRAIN, :2], test_labels=LABELS[TRAIN:, :2], shots=(5, 2)),
        vectors(),
        "wrong",
    )
    assert list(outcome.rows) == ["fold 0", "fold 1"] and 0 < outcome.metrics["f1_macro"] <= 100


# --- what cannot be fitted ---------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["wrong", "peers"])
@pytest.mark.parametrize("missing_as", ["zeros", "left out"])
def test_ids_that_do_not_match_are_told(missing: str, missing_as: str) -> None:
    with pytest.raises(NoAnswerError, match="0 training and 0 test papers have vectors; .* such as 'p30'"):
        run_probe(task(missing_as=missing_as), VectorSystem(["x"], np.ones((1, 5)), name="x"), missing)
    with pytest.raises(NoAnswerError, match="30 training and 0 test papers"):
        run_probe(task(missing_as=missing_as), vectors(tuple(range(TRAIN, TRAIN + TEST))), missing)


def test_probes_that_cannot_be_fitted_say_which_task() -> None:
    one_class = tuple(row for row in range(TRAIN) if row % 3)
    with pytest.raises(NoAnswerError, match="topics: all 10 training papers are of class art"):
        run_probe(task(), vectors(one_class), "wrong")
    with pytest.raises(NoAnswerError, match="topics: few-shot probes of 40 papers need more than 40"):
        run_probe(task(shots=(40, 1)), vectors(), "wrong")
    with pytest.raises(NoAnswerError, match="topics: few-shot probes predict classes or labels, not numbers"):
        run_probe(task("numbers", shots=(5, 1)), vectors(), "wrong")
    with pytest.raises(UserError, match="run holds scores, not vectors"):
        run_probe(task(), PrecomputedScores({}, name="run"), "wrong")
