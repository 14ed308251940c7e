"""Probes: the predictions of scikit-learn, the solvers, and inputs that cannot be probed."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR

from citeweave.evaluation import probe_solvers, probes
from citeweave.evaluation.tasks import SCIDOCS_CLASSES, SCIREPEVAL_CLASSES, ProbeRule
from citeweave.evaluation.tasks import SCIREPEVAL_LABELS as LABELS
from citeweave.evaluation.tasks import SCIREPEVAL_NUMBERS as NUMBERS

from .conftest import refused

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
    one = probes.fit_classes(vectors[:80], codes[:80], vectors[80:], rule)
    other = probes.fit_classes(vectors[:80] * scale, codes[:80], vectors[80:] * scale, scaled)
    assert one.values.tolist() == other.values.tolist()
    assert list(one.cv_scores.values()) == list(other.cv_scores.values())
    peers = replace(SCIDOCS_CLASSES, intercept=scale > 1)
    far = probes.fit_classes(vectors[:80] * scale, codes[:80], vectors[80:], peers)
    assert one.unconverged == other.unconverged == far.unconverged == 0
    vectors, codes = papers(60, dimension=3, classes=2)  # too long for float64
    vectors[30:] = vectors[:30]
    found = probes.fit_classes(vectors * 1e10, codes, vectors, replace(SCIREPEVAL_CLASSES, grid=(100.0,)))
    assert found.unconverged > 0 and len(found.values) == 60


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("count", "dimension", "classes"), [(240, 40, 2), (150, 12, 5), (1500, 20, 5), (90, 200, 4)])
def test_the_fast_solver_predicts_as_scikit_learn(count, dimension, classes, intercept):
    vectors, codes = papers(count * 2, dimension=dimension, classes=classes, noise=1.6)
    train, test, known = vectors[:count], vectors[count:], codes[count:]
    rule = replace(SCIDOCS_CLASSES, intercept=intercept)
    ours = probes.fit_classes(train, codes[:count], test, rule)
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
    ours = probes.fit_classes(vectors[:120], codes[:120], vectors[120:], BY_SKLEARN)
    assert ours.values.tolist() == peer.predict(vectors[120:]).tolist()
    assert list(ours.cv_scores.values()) == peer.cv_results_["mean_test_score"].tolist()
    assert ours.best_c == peer.best_params_["C"]
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(120, 6)) + 1
    targets = vectors @ rng.normal(size=6) + 4 + rng.normal(size=120)
    rule = replace(NUMBERS, grid=(0.01, 0.1, 1.0), passes=5000)
    peer = GridSearchCV(LinearSVR(random_state=42, max_iter=5000), {"C": rule.grid}, cv=3)
    peer.fit(vectors[:90], targets[:90])
    ours = probes.fit_numbers(vectors[:90], targets[:90], vectors[90:], rule)
    assert np.allclose(ours.values, peer.predict(vectors[90:])) and ours.best_c == peer.best_params_["C"]
    assert np.allclose(list(ours.cv_scores.values()), peer.cv_results_["mean_test_score"])


def test_labels_are_one_search_each_on_one_stream_of_random_numbers():
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(150, 8)) + 0.5
    marks = (vectors[:, :3] + rng.normal(size=(150, 3)) > 0.5).astype(int)
    rule = replace(LABELS, grid=(0.1, 1.0))
    ours = probes.fit_labels(vectors[:100], marks[:100], vectors[100:], rule)
    state = np.random.get_state()
    np.random.seed(rule.seed)
    search = GridSearchCV(LinearSVC(loss="hinge", max_iter=10_000), {"C": rule.grid}, cv=3)
    peer = OneVsRestClassifier(search).fit(vectors[:100], marks[:100])
    np.random.set_state(state)
    assert ours.values.tolist() == peer.predict(vectors[100:]).tolist()
    assert list(ours.best_c) == [estimator.best_params_["C"] for estimator in peer.estimators_]


def test_lightning_answers_without_intercept_and_repeatably():
    vectors, rule = np.random.default_rng(5).normal(size=(80, 5)), probes.as_lightning(NUMBERS)
    targets = vectors @ np.arange(5.0)
    one, other = (probes.fit_numbers(vectors, targets, vectors[:9], rule) for _ in range(2))
    assert one.values.tolist() == other.values.tolist()
    assert probes.fit_numbers(vectors, targets, np.zeros((1, 5)), rule).values.tolist() == [0.0]
    assert np.corrcoef(one.values, targets[:9])[0, 1] > 0.99
    assert rule.chosen_solver == "lightning" and not rule.intercept


def test_few_shot_trains_on_one_fold_at_a_time():
    vectors, codes = papers(130, classes=2, noise=0.8)
    names = np.array(["no", "yes"])[codes]
    found = probes.few_shot_classes(vectors[:100], names[:100], vectors[100:], 16, 50, BY_SKLEARN)
    assert len(found) == math.ceil(100 / 16)
    assert len(probes.few_shot_classes(vectors[:100], names[:100], vectors[100:], 16, 3, BY_SKLEARN)) == 3
    for (_, rows), ours in zip(StratifiedKFold(7).split(vectors[:100], codes[:100]), found, strict=True):
        peer = LinearSVC(random_state=42).fit(vectors[rows], names[rows])
        assert ours.values.tolist() == peer.predict(vectors[100:]).tolist()
        assert ours.best_c == 1.0 and ours.cv_scores == {}
    fast = probes.few_shot_classes(vectors[:100], names[:100], vectors[100:], 16, 50, SCIREPEVAL_CLASSES)
    assert [one.values.tolist() for one in fast] == [one.values.tolist() for one in found]


@given(labels=st.integers(1, 4), size=st.integers(1, 3), seed=st.integers(0, 50))
def test_drawn_rows_hold_enough_of_every_label(labels, size, seed):
    marks = np.random.default_rng(seed).integers(0, 2, size=(20, labels))
    marks[:3] = 1
    rows, again = (probes.draw_rows(marks, size, np.random.RandomState(seed)) for _ in range(2))
    assert rows == again and len(set(rows)) == len(rows) <= labels * size and (marks[rows].sum(axis=0) >= size).all()


def test_few_shot_labels_search_on_what_was_drawn():
    vectors = np.random.default_rng(6).normal(size=(120, 6))
    marks = (vectors[:, :2] > 0).astype(int)
    found = probes.few_shot_labels(vectors[:90], marks[:90], vectors[90:], 12, 3, LABELS)
    rows = probes.draw_rows(marks[:90], 12, np.random.RandomState(43))
    again = probes.fit_labels(vectors[rows], marks[rows], vectors[90:], replace(LABELS, seed=1))
    assert len(found) == 3 and np.mean(found[1].values == again.values) > 0.9
    assert all(f1_score(marks[90:], one.values, average="macro") > 0.7 for one in found)


@pytest.mark.parametrize("rule", [SCIREPEVAL_CLASSES, BY_SKLEARN, probes.as_lightning(SCIREPEVAL_CLASSES)])
def test_every_solver_finds_labels_and_skips_classes_that_a_fold_does_not_train_on(rule):
    vectors, codes = papers(160, classes=3, noise=0.3)
    marks = (codes[:, None] == np.arange(3)).astype(bool)
    found = probes.fit_labels(vectors[:100], marks[:100], vectors[100:], rule)
    assert f1_score(marks[100:], found.values, average="macro") > 0.95
    assert len(found.best_c) == len(found.cv_scores) == 3
    vectors, codes = papers(60, classes=3, noise=0.5)
    codes[7] = 9
    found = probes.fit_classes(vectors, codes, vectors, rule)
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
        found = probes.fit_classes(vectors, codes, vectors, rule)
        assert found.best_c == rule.grid[0] and all(math.isnan(score) for score in found.cv_scores.values())
        assert len(found.values) == 30
    vectors, codes = papers(40, classes=2, noise=0.3)
    marks = np.stack([np.ones(40), codes, np.zeros(40)], axis=1)  # predicted as they are
    found = probes.fit_labels(vectors, marks, vectors, LABELS)
    assert found.values[:, 0].all() and not found.values[:, 2].any()
    assert math.isnan(found.best_c[0]) and math.isnan(found.best_c[2]) and found.cv_scores[0] == {}
    assert np.mean(found.values[:, 1] == codes) > 0.9


@pytest.mark.parametrize("rule", [SCIREPEVAL_CLASSES, BY_SKLEARN, replace(SCIREPEVAL_CLASSES, intercept=False)])
def test_vectors_of_zeros_are_papers_like_others(rule):
    vectors, codes = papers(90, classes=3, noise=0.4)
    vectors[::10] = 0.0
    some = probes.fit_classes(vectors, codes, vectors, rule)
    assert f1_score(codes, some.values, average="macro") > 0.8
    nothing = probes.fit_classes(np.zeros((90, 4)), codes % 2, np.zeros((5, 4)), rule)
    assert len(set(nothing.values.tolist())) == 1 and nothing.unconverged == 0
    still = probes.as_lightning(replace(LABELS, grid=(1.0, 10.0)))  # coordinate descent takes no step
    found = probes.fit_labels(np.zeros((12, 3)), np.array([[0], [1]] * 6), np.zeros((2, 3)), still)
    assert found.values.tolist() == [[0], [0]]


def test_what_did_not_converge_is_counted_and_not_warned_of():
    vectors, codes = papers(200, classes=2, noise=3.0)
    marks = (codes[:, None] == np.arange(2)).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = probes.fit_labels(vectors, marks, vectors[:3], replace(LABELS, passes=1))
        numbers = probes.fit_numbers(vectors, vectors[:, 0] * 9, vectors[:3], replace(NUMBERS, passes=1))
        rule = replace(probes.as_lightning(SCIREPEVAL_CLASSES), passes=1)
        early = probes.fit_classes(vectors, codes, vectors[:3], rule)
    assert (labels.unconverged, early.unconverged) == (2 * (5 * 3 + 1), 5 * 3 + 1) and numbers.unconverged > 0


def test_the_types_of_vectors_and_labels_and_the_order_of_the_grid_do_not_matter():
    vectors, codes = papers(90)
    half = vectors.astype(np.float16)
    rule = replace(SCIDOCS_CLASSES, grid=SCIDOCS_CLASSES.grid[::-1])
    one, lists = (probes.fit_classes(given, codes, half, SCIDOCS_CLASSES) for given in (half, half.tolist()))
    other = probes.fit_classes(half.astype(float), codes, half, rule)
    assert one.values.tolist() == lists.values.tolist()
    assert one.cv_scores == other.cv_scores and list(other.cv_scores) == list(rule.grid)
    vectors, codes = papers(60, classes=2, noise=0.2)
    for kind in (str, int, float, bool):
        labels = [kind(code) for code in codes]
        found = probes.fit_classes(vectors, labels, vectors, SCIREPEVAL_CLASSES).values.tolist()
        assert {type(value) for value in found} == {kind} and np.mean(np.array(found) == np.array(labels)) > 0.9


WRONG_RULES = [
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
]


@pytest.mark.parametrize(("changes", "message"), WRONG_RULES)
def test_a_rule_that_cannot_be_followed_is_refused(changes, message):
    refused(message, ProbeRule, **{"grid": (1.0,), **changes})


GOOD = np.arange(24.0).reshape(12, 2)
CODES = np.arange(12) % 2
BAD = GOOD.copy()
BAD[3, 1] = np.nan


CANNOT_BE_CLASSES = [
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
]


CANNOT_BE_PROBED = [
    *((probes.fit_classes, (*papers, SCIREPEVAL_CLASSES), message) for *papers, message in CANNOT_BE_CLASSES),
    (probes.fit_numbers, (GOOD, np.full(12, 3.5), GOOD, NUMBERS), "all 12 targets are 3.5"),
    (probes.fit_numbers, (GOOD, [1.0, math.inf] * 6, GOOD, NUMBERS), "target 1 is not finite"),
    (probes.fit_numbers, (GOOD, np.arange(11), GOOD, NUMBERS), "one target per paper"),
    (probes.fit_numbers, (GOOD, ["a"] * 12, GOOD, NUMBERS), "not a table of numbers"),
    (probes.fit_numbers, (GOOD[:5], np.arange(5), GOOD, NUMBERS), "at least 6 papers; there are 5"),
    (probes.fit_numbers, (GOOD, np.arange(12), GOOD, SCIREPEVAL_CLASSES), "loss of a probe for numbers"),
    (probes.fit_classes, (GOOD, CODES, GOOD, NUMBERS), "loss of a probe for classes"),
    (probes.fit_labels, (GOOD, np.full((12, 2), 2), GOOD, LABELS), "rows of 0 and 1"),
    (probes.fit_labels, (GOOD, np.empty((12, 0)), GOOD, LABELS), "needs a label"),
    (probes.few_shot_labels, (GOOD, np.eye(12, 2)[:, [0, 0]] * [1, 0], GOOD, 1, 1, LABELS), "label 1 has 0 training papers"),
    (probes.few_shot_classes, (GOOD, CODES, GOOD, 12, 5, SCIREPEVAL_CLASSES), "need more than 12 training papers; there are 12"),
    (probes.few_shot_classes, (GOOD, CODES, GOOD, 6, 0, SCIREPEVAL_CLASSES), "iterations 0"),
    (probes.few_shot_classes, (GOOD, [1] + [0] * 11, GOOD, 6, 5, SCIREPEVAL_CLASSES), "fold 1 of 6 papers holds only class 0"),
]  # fmt: skip


@pytest.mark.parametrize(("fit", "arguments", "message"), CANNOT_BE_PROBED)
def test_what_cannot_be_probed_is_an_error(fit, arguments, message):
    refused(message, fit, *arguments)


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


def test_both_ways_to_a_newton_step_and_blocks_of_columns_agree(monkeypatch):
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
    vectors, codes = papers(300, dimension=130, classes=3)  # wide vectors, in threads
    axes = probe_solvers.principal_axes(vectors, intercept=True)
    whole = probe_solvers.fit_classes_newton(axes, codes, 10.0, intercept=True)
    monkeypatch.setattr(probe_solvers, "BLOCK", 300 * 2)
    monkeypatch.setattr(probe_solvers, "SMALL", 0)
    parts = probe_solvers.fit_classes_newton(axes, codes, 10.0, intercept=True)
    assert whole.converged and parts.converged and np.allclose(whole.weights, parts.weights, atol=1e-4)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_coordinate_descent_comes_near_the_optimum_where_it_converges(loss):
    rng = np.random.default_rng(0)
    signs = np.where(np.arange(200) % 2, 1.0, -1.0)
    vectors = np.outer(signs, rng.normal(size=12)) + 2.0 * rng.normal(size=(200, 12)) + 1.0
    how = ProbeRule((1.0,), loss, intercept=False), np.random.RandomState(42)
    found = probe_solvers.descend_to_separate(vectors, signs, 0.05, *how)
    peer = LinearSVC(C=0.05, loss=loss, fit_intercept=False, random_state=0, tol=1e-9, max_iter=10**6, dual=True)
    assert found.converged and np.allclose(found.weights, peer.fit(vectors, signs).coef_[0], atol=2e-3)


def test_coordinate_descent_for_numbers_without_permuted_variables():
    """One paper a shuffle cannot mix up: the prediction is the exact one, w = min(C x, y / x)."""

    def descend(vectors, targets, c):
        how = ProbeRule((1.0,), "epsilon_insensitive"), np.random.RandomState(0)
        return probe_solvers.descend_to_numbers(np.array(vectors), np.array(targets), c, *how)

    found = descend([[2.0]], [3.0], 100.0)
    assert found.converged and found.weights.round(6).tolist() == [1.5]
    assert descend([[2.0]], [3.0], 0.25).weights.tolist() == [0.5]
    assert descend(np.zeros((3, 2)), [1.0, 2.0, 3.0], 1.0).weights.tolist() == [0.0, 0.0]
