"""Probes: the predictions of scikit-learn, the solvers, probes as tasks, and inputs that cannot be probed."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR

from citeweave.core.errors import UserError
from citeweave.evaluation import probe_solvers
from citeweave.evaluation.bootstrap import Outcome
from citeweave.evaluation.precomputed import PrecomputedScores, VectorSystem
from citeweave.evaluation.probe_solvers import FitOptions
from citeweave.evaluation.probe_tasks import run_probe
from citeweave.evaluation.probes import (
    SCIDOCS_CLASSES,
    SCIREPEVAL_CLASSES,
    SCIREPEVAL_LABELS,
    SCIREPEVAL_NUMBERS,
    ProbeRule,
    as_lightning,
    draw_rows,
    few_shot_classes,
    few_shot_labels,
    fit_classes,
    fit_labels,
    fit_numbers,
)
from citeweave.evaluation.run_tasks import run_task
from citeweave.evaluation.systems import NoAnswerError
from citeweave.evaluation.tasks import ProbeTask, Suite, TaskTexts

BY_SKLEARN = replace(SCIREPEVAL_CLASSES, solver="sklearn")


def papers(count: int, *, dimension: int = 12, classes: int = 4, noise: float = 2.0, seed: int = 0):
    """Vectors with a common offset around a center for each class, and the classes."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(count) % classes)
    centers = rng.normal(size=(classes, dimension))
    return centers[codes] + noise * rng.normal(size=(count, dimension)) + 1.0, codes


@pytest.mark.parametrize("scale", [1e-7, 1e6])
def test_longer_vectors_are_a_smaller_c(scale):
    vectors, codes = papers(120, classes=3, noise=1.0)
    rule = replace(SCIREPEVAL_CLASSES, intercept=False)
    scaled = replace(rule, grid=tuple(c / scale**2 for c in rule.grid))
    one = fit_classes(vectors[:80], codes[:80], vectors[80:], rule)
    other = fit_classes(vectors[:80] * scale, codes[:80], vectors[80:] * scale, scaled)
    assert one.values.tolist() == other.values.tolist() and one.unconverged == other.unconverged == 0
    assert list(one.cv_scores.values()) == list(other.cv_scores.values())
    far = fit_classes(vectors[:80] * scale, codes[:80], vectors[80:], replace(SCIDOCS_CLASSES, intercept=scale > 1))
    assert far.unconverged == 0
    vectors, codes = papers(60, dimension=3, classes=2)  # too long for float64
    vectors[30:] = vectors[:30]
    found = fit_classes(vectors * 1e10, codes, vectors, replace(SCIREPEVAL_CLASSES, grid=(100.0,)))
    assert found.unconverged > 0 and len(found.values) == 60


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("count", "dimension", "classes"), [(240, 40, 2), (150, 12, 5), (1500, 20, 5), (90, 200, 4)])
def test_the_fast_solver_predicts_as_scikit_learn(count, dimension, classes, intercept):
    vectors, codes = papers(count * 2, dimension=dimension, classes=classes, noise=1.6)
    train, test, known = vectors[:count], vectors[count:], codes[count:]
    rule = replace(SCIDOCS_CLASSES, intercept=intercept)
    ours = fit_classes(train, codes[:count], test, rule)
    svc = LinearSVC(fit_intercept=intercept, random_state=42, tol=1e-8, max_iter=100_000)
    peer = GridSearchCV(svc, {"C": rule.grid[:5]}, cv=3).fit(train, codes[:count])
    assert ours.unconverged == 0
    assert np.allclose(list(ours.cv_scores.values())[:5], peer.cv_results_["mean_test_score"], atol=2.5 / count)
    theirs = peer.estimator.set_params(C=ours.best_c).fit(train, codes[:count]).predict(test)
    assert np.mean(ours.values == theirs) >= 0.999
    assert abs(f1_score(known, ours.values, average="macro") - f1_score(known, theirs, average="macro")) <= 0.001


def test_classes_and_numbers_by_sklearn_are_grid_search():
    vectors, codes = papers(200)
    peer = GridSearchCV(LinearSVC(random_state=42), {"C": BY_SKLEARN.grid}, cv=3).fit(vectors[:120], codes[:120])
    ours = fit_classes(vectors[:120], codes[:120], vectors[120:], BY_SKLEARN)
    assert ours.values.tolist() == peer.predict(vectors[120:]).tolist()
    assert list(ours.cv_scores.values()) == peer.cv_results_["mean_test_score"].tolist()
    assert ours.best_c == peer.best_params_["C"]
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(120, 6)) + 1
    targets = vectors @ rng.normal(size=6) + 4 + rng.normal(size=120)
    rule = replace(SCIREPEVAL_NUMBERS, grid=(0.01, 0.1, 1.0), passes=5000)
    peer = GridSearchCV(LinearSVR(random_state=42, max_iter=5000), {"C": rule.grid}, cv=3)
    peer.fit(vectors[:90], targets[:90])
    ours = fit_numbers(vectors[:90], targets[:90], vectors[90:], rule)
    assert np.allclose(ours.values, peer.predict(vectors[90:])) and ours.best_c == peer.best_params_["C"]
    assert np.allclose(list(ours.cv_scores.values()), peer.cv_results_["mean_test_score"])


def test_labels_are_one_search_each_on_one_stream_of_random_numbers():
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(150, 8)) + 0.5
    marks = (vectors[:, :3] + rng.normal(size=(150, 3)) > 0.5).astype(int)
    rule = replace(SCIREPEVAL_LABELS, grid=(0.1, 1.0))
    ours = fit_labels(vectors[:100], marks[:100], vectors[100:], rule)
    state = np.random.get_state()
    np.random.seed(rule.seed)
    search = GridSearchCV(LinearSVC(loss="hinge", max_iter=10_000), {"C": rule.grid}, cv=3)
    peer = OneVsRestClassifier(search).fit(vectors[:100], marks[:100])
    np.random.set_state(state)
    assert ours.values.tolist() == peer.predict(vectors[100:]).tolist()
    assert list(ours.best_c) == [estimator.best_params_["C"] for estimator in peer.estimators_]


def test_lightning_answers_without_intercept_and_repeatably():
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(80, 5))
    targets = vectors @ np.arange(5.0)
    rule = as_lightning(SCIREPEVAL_NUMBERS)
    one, other = (fit_numbers(vectors, targets, vectors[:9], rule) for _ in range(2))
    assert one.values.tolist() == other.values.tolist()
    assert fit_numbers(vectors, targets, np.zeros((1, 5)), rule).values.tolist() == [0.0]
    assert np.corrcoef(one.values, targets[:9])[0, 1] > 0.99
    assert rule.chosen_solver == "lightning" and not rule.intercept


def test_few_shot_trains_on_one_fold_at_a_time():
    vectors, codes = papers(130, classes=2, noise=0.8)
    names = np.array(["no", "yes"])[codes]
    found = few_shot_classes(vectors[:100], names[:100], vectors[100:], 16, 50, BY_SKLEARN)
    assert len(found) == math.ceil(100 / 16)
    assert len(few_shot_classes(vectors[:100], names[:100], vectors[100:], 16, 3, BY_SKLEARN)) == 3
    for (_, rows), ours in zip(StratifiedKFold(7).split(vectors[:100], codes[:100]), found, strict=True):
        peer = LinearSVC(random_state=42).fit(vectors[rows], names[rows])
        assert ours.values.tolist() == peer.predict(vectors[100:]).tolist()
        assert ours.best_c == 1.0 and ours.cv_scores == {}
    fast = few_shot_classes(vectors[:100], names[:100], vectors[100:], 16, 50, SCIREPEVAL_CLASSES)
    assert [one.values.tolist() for one in fast] == [one.values.tolist() for one in found]


@given(labels=st.integers(1, 4), size=st.integers(1, 3), seed=st.integers(0, 50))
def test_drawn_rows_hold_enough_of_every_label(labels, size, seed):
    marks = np.random.default_rng(seed).integers(0, 2, size=(20, labels))
    marks[:3] = 1
    rows = draw_rows(marks, size, np.random.RandomState(seed))
    assert len(set(rows)) == len(rows) <= labels * size
    assert (marks[rows].sum(axis=0) >= size).all()
    assert rows == draw_rows(marks, size, np.random.RandomState(seed))


def test_few_shot_labels_search_on_what_was_drawn():
    rng = np.random.default_rng(6)
    vectors = rng.normal(size=(120, 6))
    marks = (vectors[:, :2] > 0).astype(int)
    found = few_shot_labels(vectors[:90], marks[:90], vectors[90:], 12, 3, SCIREPEVAL_LABELS)
    assert len(found) == 3
    rows = draw_rows(marks[:90], 12, np.random.RandomState(43))
    again = fit_labels(vectors[rows], marks[rows], vectors[90:], replace(SCIREPEVAL_LABELS, seed=1))
    assert np.mean(found[1].values == again.values) > 0.9
    assert all(f1_score(marks[90:], one.values, average="macro") > 0.7 for one in found)


@pytest.mark.parametrize("rule", [SCIREPEVAL_CLASSES, BY_SKLEARN, as_lightning(SCIREPEVAL_CLASSES)])
def test_every_solver_finds_labels_and_skips_classes_that_a_fold_does_not_train_on(rule):
    vectors, codes = papers(160, classes=3, noise=0.3)
    marks = (codes[:, None] == np.arange(3)).astype(bool)
    found = fit_labels(vectors[:100], marks[:100], vectors[100:], rule)
    assert f1_score(marks[100:], found.values, average="macro") > 0.95
    assert len(found.best_c) == len(found.cv_scores) == 3
    vectors, codes = papers(60, classes=3, noise=0.5)
    codes[7] = 9
    found = fit_classes(vectors, codes, vectors, rule)
    peer = GridSearchCV(LinearSVC(random_state=42, fit_intercept=rule.intercept), {"C": rule.grid}, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(vectors, codes)
    assert np.allclose(list(found.cv_scores.values()), peer.cv_results_["mean_test_score"], atol=0.04)
    assert found.cv_scores[rule.grid[0]] == pytest.approx(peer.cv_results_["mean_test_score"][0])


def test_folds_with_one_class_and_labels_of_all_or_none():
    for rule in (SCIREPEVAL_CLASSES, BY_SKLEARN):  # no score: the first C is taken
        vectors, codes = papers(30, classes=2)
        codes[:] = 0
        codes[4] = 1
        found = fit_classes(vectors, codes, vectors, rule)
        assert found.best_c == rule.grid[0] and all(math.isnan(score) for score in found.cv_scores.values())
        assert len(found.values) == 30
    vectors, codes = papers(40, classes=2, noise=0.3)
    marks = np.stack([np.ones(40), codes, np.zeros(40)], axis=1)  # predicted as they are
    found = fit_labels(vectors, marks, vectors, SCIREPEVAL_LABELS)
    assert found.values[:, 0].all() and not found.values[:, 2].any()
    assert math.isnan(found.best_c[0]) and math.isnan(found.best_c[2]) and found.cv_scores[0] == {}
    assert np.mean(found.values[:, 1] == codes) > 0.9


@pytest.mark.parametrize("rule", [SCIREPEVAL_CLASSES, BY_SKLEARN, replace(SCIREPEVAL_CLASSES, intercept=False)])
def test_vectors_of_zeros_are_papers_like_others(rule):
    vectors, codes = papers(90, classes=3, noise=0.4)
    vectors[::10] = 0.0
    some = fit_classes(vectors, codes, vectors, rule)
    assert f1_score(codes, some.values, average="macro") > 0.8
    nothing = fit_classes(np.zeros((90, 4)), codes % 2, np.zeros((5, 4)), rule)
    assert len(set(nothing.values.tolist())) == 1 and nothing.unconverged == 0
    still = as_lightning(replace(SCIREPEVAL_LABELS, grid=(1.0, 10.0)))  # coordinate descent takes no step
    found = fit_labels(np.zeros((12, 3)), np.array([[0], [1]] * 6), np.zeros((2, 3)), still)
    assert found.values.tolist() == [[0], [0]]


def test_what_did_not_converge_is_counted_and_not_warned_of():
    vectors, codes = papers(200, classes=2, noise=3.0)
    marks = (codes[:, None] == np.arange(2)).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = fit_labels(vectors, marks, vectors[:3], replace(SCIREPEVAL_LABELS, passes=1))
        numbers = fit_numbers(vectors, vectors[:, 0] * 9, vectors[:3], replace(SCIREPEVAL_NUMBERS, passes=1))
        early = fit_classes(vectors, codes, vectors[:3], replace(as_lightning(SCIREPEVAL_CLASSES), passes=1))
    assert labels.unconverged == 2 * (5 * 3 + 1)
    assert numbers.unconverged > 0
    assert early.unconverged == 5 * 3 + 1


def test_the_types_of_vectors_and_labels_and_the_order_of_the_grid_do_not_matter():
    vectors, codes = papers(90)
    half = vectors.astype(np.float16)
    rule = replace(SCIDOCS_CLASSES, grid=SCIDOCS_CLASSES.grid[::-1])
    one, other = fit_classes(half, codes, half, SCIDOCS_CLASSES), fit_classes(half.astype(float), codes, half, rule)
    lists = fit_classes(half.astype(np.float32).tolist(), codes, half, SCIDOCS_CLASSES)
    assert one.values.tolist() == lists.values.tolist()
    assert one.cv_scores == other.cv_scores and list(other.cv_scores) == list(rule.grid)
    vectors, codes = papers(60, classes=2, noise=0.2)
    for kind in (str, int, float, bool):
        labels = [kind(code) for code in codes]
        found = fit_classes(vectors, labels, vectors, SCIREPEVAL_CLASSES).values.tolist()
        assert {type(value) for value in found} == {kind} and np.mean(np.array(found) == np.array(labels)) > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": ()}, "grid is"),
        ({"grid": (1.0, -1.0)}, "above 0"),
        ({"grid": (math.nan,)}, "above 0"),
        ({"folds": 1}, "2 folds"),
        ({"passes": 0}, "1 pass"),
        ({"seed": -1}, "seed is -1"),
        ({"loss": "hing"}, "Did you mean 'hinge'"),
        ({"solver": "liblinear"}, "solver is 'liblinear'"),
        ({"solver": "newton", "loss": "hinge"}, "newton has no loss hinge"),
        ({"solver": "lightning"}, "no intercept"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        ProbeRule(**{"grid": (1.0,), **changes})


GOOD = np.arange(24.0).reshape(12, 2)
CODES = np.arange(12) % 2
BAD = GOOD.copy()
BAD[3, 1] = np.nan


@pytest.mark.parametrize(
    ("train", "labels", "test", "message"),
    [
        (GOOD, CODES * 0, GOOD, "all 12 training papers are of class 0"),
        (GOOD, CODES[:5], GOOD, r"12 training papers and an array of shape \(5,\)"),
        (GOOD, [None, "a"] * 6, GOOD, "labels of different kinds"),
        (GOOD, [math.nan, 1.0] * 6, GOOD, "not a number"),
        (BAD, CODES, GOOD, "1 of 12 training vectors hold a number that is not finite, such as row 3"),
        (GOOD, CODES, BAD, "1 of 12 test vectors"),
        (GOOD[:0], [], GOOD, r"training vectors have the shape \(0, 2\)"),
        (GOOD, CODES, GOOD[:0], r"test vectors have the shape \(0, 2\)"),
        (GOOD, CODES, GOOD[:, :1], "training vectors have 2 numbers and test vectors 1"),
        (GOOD[0], CODES, GOOD, r"the shape \(2,\)"),
        ([["x"]], ["a"], GOOD, "not a table of numbers"),
        (GOOD[:4], CODES[:4], GOOD, "3 folds need a class of at least 3 papers, and the largest has 2"),
    ],
)
def test_classes_that_cannot_be_probed_are_an_error(train, labels, test, message):
    with pytest.raises(UserError, match=message):
        fit_classes(train, labels, test, SCIREPEVAL_CLASSES)


NUMBERS, LABELS = SCIREPEVAL_NUMBERS, SCIREPEVAL_LABELS


@pytest.mark.parametrize(
    ("fit", "arguments", "message"),
    [
        (fit_numbers, (GOOD, np.full(12, 3.5), GOOD, NUMBERS), "all 12 targets are 3.5"),
        (fit_numbers, (GOOD, [1.0, math.inf] * 6, GOOD, NUMBERS), "target 1 is not finite"),
        (fit_numbers, (GOOD, np.arange(11), GOOD, NUMBERS), "one target per paper"),
        (fit_numbers, (GOOD, ["a"] * 12, GOOD, NUMBERS), "not a table of numbers"),
        (fit_numbers, (GOOD[:5], np.arange(5), GOOD, NUMBERS), "at least 6 papers; there are 5"),
        (fit_numbers, (GOOD, np.arange(12), GOOD, SCIREPEVAL_CLASSES), "loss of a probe for numbers"),
        (fit_classes, (GOOD, CODES, GOOD, NUMBERS), "loss of a probe for classes"),
        (fit_labels, (GOOD, np.full((12, 2), 2), GOOD, LABELS), "rows of 0 and 1"),
        (fit_labels, (GOOD, np.empty((12, 0)), GOOD, LABELS), "needs a label"),
        (few_shot_labels, (GOOD, np.eye(12, 2)[:, [0, 0]] * [1, 0], GOOD, 1, 1, LABELS), "label 1 has 0 training papers"),
        (few_shot_classes, (GOOD, CODES, GOOD, 12, 5, SCIREPEVAL_CLASSES), "need more than 12 training papers; there are 12"),
        (few_shot_classes, (GOOD, CODES, GOOD, 6, 0, SCIREPEVAL_CLASSES), "iterations 0"),
        (few_shot_classes, (GOOD, [1] + [0] * 11, GOOD, 6, 5, SCIREPEVAL_CLASSES), "fold 1 of 6 papers holds only class 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_probed_is_an_error(fit, arguments, message):
    with pytest.raises(UserError, match=message):
        fit(*arguments)


COUNTS = {"count": st.integers(2, 20), "dimension": st.integers(1, 25), "seed": st.integers(0, 99)}


@given(**COUNTS, exponent=st.floats(-4, 2), intercept=st.booleans())
@settings(max_examples=25)
def test_newton_reaches_the_minimum(count, dimension, exponent, intercept, seed):
    """By a gradient added up paper by paper."""
    rng, c = np.random.default_rng(seed), 10.0**exponent
    vectors = rng.normal(size=(count, dimension)) * rng.lognormal(size=dimension) + rng.normal()
    signs = np.where(rng.random((count, 3)) < 0.4, 1.0, -1.0) * (rng.random((count, 3)) < 0.8)
    axes = probe_solvers.principal_axes(vectors, intercept=intercept)
    found = probe_solvers.minimize(axes, signs, c, rng.normal(size=(len(axes.spread), 3)))
    assert found.converged.all()
    whole = np.hstack([vectors, np.ones((count, 1))]) if intercept else vectors
    for column in range(3):
        weights = axes.turn @ found.weights[:, column]
        value, gradient = 0.5 * weights @ weights, weights.copy()
        for row, sign in zip(whole, signs[:, column], strict=True):
            loss = max(0.0, 1 - sign * (row @ weights)) if sign else 0.0
            value += c * loss**2
            gradient -= 2 * c * loss * sign * row
        # a function that curves by 1 at least cannot be more than this above its minimum
        assert 0.5 * gradient @ gradient <= 1e-8 * value


def test_both_ways_to_a_newton_step_agree():
    vectors, codes = papers(300, dimension=20, classes=3)
    axes = probe_solvers.principal_axes(vectors, intercept=True)
    signs = np.where(codes[:, None] == np.arange(3), 1.0, -1.0)
    weights = 0.1 * np.random.default_rng(1).normal(size=(21, 3))
    slope = probe_solvers._compute_slope(axes, probe_solvers._Point(signs, weights, axes.rows @ weights), 0.5)
    outright = np.zeros_like(weights)
    probe_solvers._solve_columns(outright, axes, slope, np.arange(3), 0.5)
    in_rounds = probe_solvers._conjugate_gradients(axes, slope, 0.5, np.full(3, 1e-9))
    assert np.allclose(outright, in_rounds, rtol=1e-5, atol=1e-7)
    few = axes.rows[:7]
    expected = np.linalg.solve(np.eye(21) + 3.0 * few.T @ few, weights[:, 0])
    assert np.allclose(probe_solvers._solve(few, weights[:, 0], 1.5), expected)


def test_wide_vectors_in_threads_and_blocks_of_columns_change_nothing(monkeypatch):
    vectors, codes = papers(300, dimension=130, classes=3)
    axes = probe_solvers.principal_axes(vectors, intercept=True)
    whole = probe_solvers.fit_classes_newton(axes, codes, 10.0, intercept=True)
    monkeypatch.setattr(probe_solvers, "BLOCK", 300 * 2)
    monkeypatch.setattr(probe_solvers, "SMALL", 0)
    parts = probe_solvers.fit_classes_newton(axes, codes, 10.0, intercept=True)
    assert whole.converged and parts.converged
    assert np.allclose(whole.weights, parts.weights, atol=1e-4)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_coordinate_descent_comes_near_the_optimum_where_it_converges(loss):
    rng = np.random.default_rng(0)
    signs = np.where(np.arange(200) % 2, 1.0, -1.0)
    vectors = np.outer(signs, rng.normal(size=12)) + 2.0 * rng.normal(size=(200, 12)) + 1.0
    found = probe_solvers.descend_to_separate(
        vectors, signs, 0.05, FitOptions(loss, intercept=False), np.random.RandomState(42)
    )
    peer = LinearSVC(C=0.05, loss=loss, fit_intercept=False, random_state=0, tol=1e-9, max_iter=10**6, dual=True)
    assert found.converged
    assert np.allclose(found.weights, peer.fit(vectors, signs).coef_[0], atol=2e-3)


def test_coordinate_descent_for_numbers_without_permuted_variables():
    """One paper a shuffle cannot mix up: the prediction is the exact one, w = min(C x, y / x)."""

    def descend(vectors, targets, c):
        how = FitOptions("epsilon_insensitive"), np.random.RandomState(0)
        return probe_solvers.descend_to_numbers(np.array(vectors), np.array(targets), c, *how)

    found = descend([[2.0]], [3.0], 100.0)
    assert found.converged and found.weights.round(6).tolist() == [1.5]
    assert descend([[2.0]], [3.0], 0.25).weights.tolist() == [0.5]
    assert descend(np.zeros((3, 2)), [1.0, 2.0, 3.0], 1.0).weights.tolist() == [0.0, 0.0]


TRAIN, TEST = 30, 12
IDS = [f"p{number}" for number in range(TRAIN + TEST)]
TEXTS = TaskTexts(IDS, [f"Title {paper}" for paper in IDS], [""] * len(IDS))
CLASSES = np.array(["art", "law", "zoo"])[np.arange(len(IDS)) % 3]
MARKS = np.stack([np.arange(len(IDS)) % 2, np.arange(len(IDS)) % 3 == 0, np.zeros(len(IDS))], axis=1).astype(int)
TARGETS = np.arange(len(IDS)) * 7 % 13 + 0.5
MATRIX = np.concatenate([np.eye(3)[np.arange(len(IDS)) % 3], MARKS[:, :1], TARGETS[:, None] / 13], axis=1)
MATRIX = MATRIX + np.random.default_rng(3).normal(0, 0.35, MATRIX.shape)
RULES = {"classes": SCIREPEVAL_CLASSES, "labels": SCIREPEVAL_LABELS, "numbers": SCIREPEVAL_NUMBERS}
ANSWERS = {"classes": CLASSES, "labels": MARKS, "numbers": TARGETS}
METRICS = {"classes": {"f1": "f1_macro"}, "labels": {"f1_macro": "f1_macro"}, "numbers": {"kendalltau": "kendalltau"}}


def task(kind: str = "classes", **changed: Any) -> ProbeTask:
    labels, train, test = ANSWERS[kind], np.arange(TRAIN), np.arange(TRAIN, TRAIN + TEST)
    made = {"train": train, "train_labels": labels[train], "test": test, "test_labels": labels[test]}
    made |= {"rule": RULES[kind], "metrics": METRICS[kind]}
    return replace(ProbeTask("topics", TEXTS, kind, **made), **changed)


def system(without: tuple[int, ...] = (), **changed: Any) -> VectorSystem:
    kept = [row for row in range(len(IDS)) if row not in without]
    matrix = MATRIX.copy()
    for paper, vector in changed.items():
        matrix[IDS.index(paper)] = vector
    return VectorSystem([IDS[row] for row in kept], matrix[kept], name="toy", revision="1")


FITS = {"classes": fit_classes, "labels": fit_labels, "numbers": fit_numbers}


def told(outcome: Outcome) -> list[Any]:
    return [row["told"] for row in outcome.rows.values()]


@pytest.mark.parametrize("kind", RULES)
def test_a_task_is_one_fit(kind):
    outcome = run_probe(task(kind), system(), "wrong")
    expected = FITS[kind](MATRIX[:TRAIN], ANSWERS[kind][:TRAIN], MATRIX[TRAIN:], RULES[kind])
    assert told(outcome) == expected.values.tolist() and list(outcome.rows) == IDS[TRAIN:]
    assert [row["answer"] for row in outcome.rows.values()] == ANSWERS[kind][TRAIN:].tolist()
    assert outcome.kind == kind and outcome.how == METRICS[kind]
    assert outcome.coverage["training papers"] == TRAIN and outcome.coverage["test papers"] == TEST
    assert not any(number for what, number in outcome.coverage.items() if "without" in what or "zeros" in what)
    if kind == "classes":
        assert outcome.chosen == {"C": expected.best_c, "intercept": True, "solver": "newton"}
    elif kind == "labels":  # nobody has the third
        assert outcome.chosen["C"][2] is None and all(c > 0 for c in outcome.chosen["C"][:2])
    else:
        assert outcome.metrics["kendalltau"] > 20  # of 12 papers: one pair that changes places is 3 of it
    if kind != "labels":  # without intercept the peers' solver is followed
        plain, bare = (run_task(task(kind), system(), intercept=intercept) for intercept in (True, False))
        assert bare.chosen["solver"] == "lightning" and not bare.chosen["intercept"] and plain.chosen["intercept"]


@pytest.mark.parametrize("kind", RULES)
def test_a_missing_paper_is_a_wrong_prediction(kind):
    outcome = run_probe(task(kind), system((2, 4, TRAIN, TRAIN + 5)), "wrong")
    nothing = {"classes": None, "labels": [0, 0, 0], "numbers": float(np.median(np.delete(TARGETS[:TRAIN], [2, 4])))}
    assert len(outcome.rows) == TEST
    assert outcome.rows[IDS[TRAIN]]["told"] == outcome.rows[IDS[TRAIN + 5]]["told"] == nothing[kind]
    learned, asked = np.delete(np.arange(TRAIN), [2, 4]), np.delete(np.arange(TRAIN, TRAIN + TEST), [0, 5])
    expected = FITS[kind](MATRIX[learned], ANSWERS[kind][learned], MATRIX[asked], RULES[kind])
    assert [outcome.rows[IDS[row]]["told"] for row in asked] == expected.values.tolist()
    counts = {"training papers without vector": 2, "test papers without vector": 2}
    assert outcome.coverage.items() >= counts.items()


def test_the_peers_take_zeros_or_leave_papers_out():
    gone = (2, TRAIN, TRAIN + 5)
    zeros = run_probe(task(missing_as="zeros", rule=SCIDOCS_CLASSES), system(gone), "peers")
    filled = MATRIX.copy()
    filled[list(gone)] = 0
    expected = fit_classes(filled[:TRAIN], CLASSES[:TRAIN], filled[TRAIN:], SCIDOCS_CLASSES)
    assert told(zeros) == expected.values.tolist() and len(zeros.rows) == TEST
    left_out = run_probe(task(missing_as="left out"), system(gone), "peers")
    assert set(left_out.rows) == set(IDS[TRAIN:]) - {IDS[TRAIN], IDS[TRAIN + 5]}
    assert left_out.coverage["test papers without vector"] == 2
    wrong = run_probe(task(), system(gone), "wrong")
    assert left_out.metrics["f1"] > wrong.metrics["f1"]


def test_zeros_papers_without_text_and_papers_that_are_tested_twice():
    texts = TaskTexts(IDS, ["", *TEXTS.titles[1:]], TEXTS.abstracts)
    outcome = run_probe(task(texts=texts), system(p1=np.zeros(5), p31=np.zeros(5)), "wrong")
    assert outcome.coverage["vectors of zeros"] == 2 and outcome.coverage["papers without text"] == 1
    test = np.array([TRAIN, TRAIN + 1, TRAIN])
    outcome = run_probe(task(test=test, test_labels=CLASSES[test]), system(), "wrong")
    assert list(outcome.rows) == ["p30", "p31", "p30#2"]


@pytest.mark.parametrize("missing", ["wrong", "peers"])
def test_few_shots_are_one_row_per_fold(missing):
    outcome = run_probe(task(shots=(6, 3)), system(), missing)
    folds = few_shot_classes(MATRIX[:TRAIN], CLASSES[:TRAIN], MATRIX[TRAIN:], 6, 3, SCIREPEVAL_CLASSES)
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
    suite = Suite("toy", (task(few_shot=((6, 3), (10, 2))),)).choose(())
    assert [part.name for part in suite.tasks] == ["topics", "topics 6-shot", "topics 10-shot"]
    assert [part.shots for part in suite.tasks if isinstance(part, ProbeTask)] == [None, (6, 3), (10, 2)]
    assert [each.name for each in Suite("toy", suite.tasks).choose(["topics 6-shot"]).tasks] == ["topics 6-shot"]


@pytest.mark.parametrize("missing", ["wrong", "peers"])
@pytest.mark.parametrize("missing_as", ["zeros", "left out"])
def test_ids_that_do_not_match_are_told(missing, missing_as):
    with pytest.raises(NoAnswerError, match="0 training and 0 test papers have vectors; .* such as 'p30'"):
        run_probe(task(missing_as=missing_as), VectorSystem(["x"], np.ones((1, 5)), name="x"), missing)
    with pytest.raises(NoAnswerError, match="30 training and 0 test papers"):
        run_probe(task(missing_as=missing_as), system(tuple(range(TRAIN, TRAIN + TEST))), missing)


def test_probes_that_cannot_be_fitted_say_which_task():
    one_class = tuple(row for row in range(TRAIN) if row % 3)
    with pytest.raises(NoAnswerError, match="topics: all 10 training papers are of class art"):
        run_probe(task(), system(one_class), "wrong")
    with pytest.raises(NoAnswerError, match="topics: few-shot probes of 40 papers need more than 40"):
        run_probe(task(shots=(40, 1)), system(), "wrong")
    with pytest.raises(NoAnswerError, match="topics: few-shot probes predict classes or labels, not numbers"):
        run_probe(task("numbers", shots=(5, 1)), system(), "wrong")
    with pytest.raises(UserError, match="run holds scores, not vectors"):
        run_probe(task(), PrecomputedScores({}, name="run"), "wrong")
