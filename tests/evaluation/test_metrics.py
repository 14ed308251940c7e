"""Metrics derived from rows: the same for the rows as for unit weights, and for a resample as for rows written out."""

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, pearsonr

from citeweave.core.errors import UserError
from citeweave.evaluation import compare, metrics

from .conftest import refused


def row_of(rng: np.random.Generator, at: int) -> dict:
    labels = {"label": int(rng.integers(3)), "predicted": int(rng.integers(3))}
    return {"m": rng.random(), "fold": at % 2, "weight": rng.random() + 0.1, **labels}


@pytest.mark.parametrize("way", ["mean", "folds", "weighted", "f1_macro", "f1_weighted", "accuracy", "kendalltau"])
def test_a_resample_is_the_rows_written_out(way):
    rng = np.random.default_rng(0)
    rows = {f"r{at}": row_of(rng, at) for at in range(40)}
    weights = compare.draw_resamples(list(rows), 5, seed=3, purpose="test")
    found = metrics.derive_resamples(way, metrics.columns_of(way, rows, "m"), weights)
    for value, counts in zip(found, weights, strict=True):
        drawn = [row for row, count in zip(rows.values(), counts.tolist(), strict=True) for _ in range(count)]
        assert value == pytest.approx(metrics.derive_metric(way, {str(at): row for at, row in enumerate(drawn)}, "m"))


@pytest.mark.parametrize("distinct", [2, 5, 1000])
def test_tau_of_resamples_is_scipys_to_the_last_bit(distinct):
    rng = np.random.default_rng(distinct)
    answer, told = rng.integers(distinct, size=(2, 90)) / 7
    weights = rng.multinomial(90, np.full(90, 1 / 90), size=70)  # more than walk together
    found = metrics.derive_resamples("kendalltau", {"label": answer, "predicted": told}, weights)
    expected = [kendalltau(np.repeat(answer, row), np.repeat(told, row)).statistic for row in weights]
    assert found.tolist() == expected


def test_tau_where_nothing_can_be_told():
    columns = {"label": np.array([1.0, 1.0, 2.0]), "predicted": np.array([3.0, 4.0, 5.0])}
    weights = np.array([[1, 1, 0], [0, 0, 3], [0, 1, 1], [0, 0, 0]])
    assert metrics.derive_resamples("kendalltau", columns, weights).tolist() == [0.0, 0.0, 1.0, 0.0]
    for way in ("kendalltau", "pearsonr"):
        with pytest.raises(ValueError, match="not finite"):
            metrics.derive_resamples(way, {**columns, "predicted": np.array([1.0, np.nan, 2.0])}, weights)


def test_correlations_are_those_of_scipy_and_0_where_nothing_varies():
    rng = np.random.default_rng(0)
    for ties in (3, 1000):
        truth, predicted = rng.integers(0, ties, (2, 200)).astype(float)
        found = derived(["kendalltau", "pearsonr"], truth, truth + predicted)
        expected = [correlation(truth, truth + predicted).statistic for correlation in (kendalltau, pearsonr)]
        assert list(found.values()) == pytest.approx(expected)
    for truth, predicted in (([1, 2], [3, 3]), ([1], [2])):
        assert set(derived(["kendalltau", "pearsonr"], np.array(truth), np.array(predicted)).values()) == {0}


def test_metrics_that_cannot_be_derived_are_refused():
    three = np.arange(3)
    refused("use f1_macro", derived, ["f1"], three, three, error=UserError)
    refused("Did you mean 'f1_macro'", derived, ["f1_marco"], three, three, error=UserError)


SKLEARN = {
    **{f"f1_{average}": ("f1_score", average) for average in ("macro", "micro", "weighted")},
    "precision_macro": ("precision_score", "macro"),
    "recall_macro": ("recall_score", "macro"),
    **{name: (f"{name}_score", "binary") for name in ("f1", "precision", "recall")},
}


def derived(names, truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    pairs = zip(truth.tolist(), predicted.tolist(), strict=True)
    rows = {str(at): {"label": answer, "predicted": told} for at, (answer, told) in enumerate(pairs)}
    return {name: metrics.derive_metric(name, rows, name) for name in names}


def sklearn_value(name: str, truth: np.ndarray, predicted: np.ndarray) -> float:
    if name == "accuracy":
        return float(sklearn.metrics.accuracy_score(truth, predicted))
    function, average = SKLEARN[name]
    return float(getattr(sklearn.metrics, function)(truth, predicted, average=average, zero_division=0))


BINARY = ("f1", "precision", "recall")


@settings(max_examples=50)
@given(classes=st.sampled_from([1, 4]), data=st.data())
def test_classes_are_those_of_sklearn(classes, data):
    label = st.integers(0, classes)
    truth, predicted = np.array(data.draw(st.lists(st.tuples(label, label), min_size=1, max_size=40))).T
    names = [name for name in metrics.CLASSIFICATION_METRICS if classes == 1 or name not in BINARY]
    found = derived(names, truth, predicted)
    assert found == pytest.approx({name: sklearn_value(name, truth, predicted) for name in names})
    if classes > 1:
        texts = [np.array([f"class {label}" for label in labels]) for labels in (truth, predicted)]
        assert derived(names, *texts) == found


@settings(max_examples=25)
@given(seed=st.integers(0, 9999), papers=st.integers(1, 20), labels=st.integers(1, 5))
def test_label_sets_are_those_of_sklearn(seed, papers, labels):
    truth, predicted = (np.random.default_rng(seed).random((2, papers, labels)) < 0.3).astype(int)
    if labels == 1:
        truth, predicted = (np.hstack([side, side]) for side in (truth, predicted))
    names = ["f1_macro", "f1_micro", "f1_weighted", "precision_macro", "recall_macro", "accuracy"]
    expected = {name: sklearn_value(name, truth, predicted) for name in names}
    assert derived(names, truth, predicted) == pytest.approx(expected)


CLASSES = [  # what was not predicted is wrong, and no class
    (["a", "a", "b"], ["a", None, "b"], {"f1_macro": (2 / 3 + 1) / 2, "accuracy": 2 / 3}),
    ([[1, 0], [1, 1]], [[1, 0], [0, 1]], {"f1_macro": (2 / 3 + 1) / 2, "accuracy": 0.5}),  # sets of labels
    ([1, 0, 0], [1, 1, 0], {"f1": 2 / 3}),  # of the class one
    (["no", "yes"], ["yes", "yes"], {"recall": 1}),  # of the last class
]


@pytest.mark.parametrize(("answers", "told", "expected"), CLASSES)
def test_metrics_of_classes(answers, told, expected):
    rows = {str(at): {"label": a, "predicted": b} for at, (a, b) in enumerate(zip(answers, told, strict=True))}
    assert {name: metrics.derive_metric(name, rows, name) for name in expected} == pytest.approx(expected)


def test_rows_of_one_paper_are_drawn_together():
    rows = {"p_method": {"map": 1.0, "paper": 7}, "p_result": {"map": 0.0, "paper": 7}, "q": {"map": 0.5, "paper": 8}}
    weights = compare.draw_resamples(compare.clusters_of(rows), 100, seed=0, purpose="x")
    assert (weights[:, 0] == weights[:, 1]).all()
    assert set(weights.sum(axis=1).tolist()) == {2, 3, 4}  # q twice, one of each, p twice


def test_a_seed_draws_the_same_rows_and_intervals_hold_the_value():
    assert sum(compare.resample_blocks(10, 1234)) == 1234
    rows = {str(at): {"map": (at % 10) / 10, "label": at % 3, "predicted": at % 2} for at in range(100)}
    outcome = metrics.Outcome("t", "x", {"map": "mean", "f1": "f1_macro"}, rows)
    first = compare.resample_together([outcome], "map", 300, seed=5)[0]
    assert (first == compare.resample_together([outcome], "map", 300, seed=5)[0]).all()
    assert (first != compare.resample_together([outcome], "map", 300, seed=6)[0]).any()
    for name, (low, high) in compare.intervals_of([outcome]).items():
        assert low < outcome.metrics[name.removeprefix("t.")] < high


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = 0
    for trial in range(200):
        rows = {str(at): {"map": float(value)} for at, value in enumerate(rng.random(80))}
        outcome = metrics.Outcome("t", "ranking", {"map": "mean"}, rows)
        low, high = compare.percentile_interval(compare.resample_together([outcome], "map", 400, seed=trial)[0])
        held += low <= 0.5 <= high
    assert 0.88 <= held / 200 <= 0.99


@pytest.mark.parametrize("way", ["mean", "folds", "f1_macro", "kendalltau"])
def test_systems_together_are_systems_one_by_one(way):
    rng = np.random.default_rng(4)
    names = [f"r{at}" for at in range(60)]
    answers = {name: {"label": int(rng.integers(3))} for name in names}
    tables = [{name: row_of(rng, at) | answers[name] for at, name in enumerate(names)} for _ in range(7)]
    systems = [metrics.columns_of(way, rows, "m") for rows in [*tables, tables[0]]]
    weights = compare.draw_resamples(names, 50, seed=3, purpose="test").astype(float)
    found = metrics.derive_resamples_of_systems(way, systems, weights)
    assert found == pytest.approx(np.stack([metrics.derive_resamples(way, own, weights) for own in systems]), abs=1e-12)
    assert (found[0] == found[-1]).all(), "who predicts alike must not differ"
