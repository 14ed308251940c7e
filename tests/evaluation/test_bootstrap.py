"""Metrics derived from rows: the same for the rows as for unit weights, and for a resample as for rows written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau
from sklearn.metrics import f1_score

from citeweave.evaluation import bootstrap


def row_of(rng: np.random.Generator, at: int) -> dict:
    labels = {"answer": int(rng.integers(3)), "told": int(rng.integers(3))}
    return {"m": rng.random(), "fold": at % 2, "weight": rng.random() + 0.1, **labels}


@pytest.mark.parametrize("way", ["mean", "folds", "weighted", "f1_macro", "f1_weighted", "accuracy", "kendalltau"])
def test_a_resample_is_the_rows_written_out(way):
    rng = np.random.default_rng(0)
    rows = {f"r{at}": row_of(rng, at) for at in range(40)}
    weights = bootstrap.draw_resamples(list(rows), 5, seed=3, purpose="test")
    found = bootstrap.derive_resamples(way, bootstrap.columns_of(way, rows, "m"), weights)
    for value, counts in zip(found, weights, strict=True):
        drawn = [row for row, count in zip(rows.values(), counts.tolist(), strict=True) for _ in range(count)]
        assert value == pytest.approx(bootstrap.derive_metric(way, {str(at): row for at, row in enumerate(drawn)}, "m"))


@pytest.mark.parametrize("distinct", [2, 5, 1000])
def test_tau_of_resamples_is_scipys_to_the_last_bit(distinct):
    rng = np.random.default_rng(distinct)
    answer, told = rng.integers(distinct, size=(2, 90)) / 7
    weights = rng.multinomial(90, np.full(90, 1 / 90), size=70)  # more than walk together
    found = bootstrap.derive_resamples("kendalltau", {"answer": answer, "told": told}, weights)
    expected = [kendalltau(np.repeat(answer, row), np.repeat(told, row)).statistic for row in weights]
    assert found.tolist() == expected


def test_tau_where_nothing_can_be_told():
    columns = {"answer": np.array([1.0, 1.0, 2.0]), "told": np.array([3.0, 4.0, 5.0])}
    weights = np.array([[1, 1, 0], [0, 0, 3], [0, 1, 1], [0, 0, 0]])
    assert bootstrap.derive_resamples("kendalltau", columns, weights).tolist() == [0.0, 0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="not finite"):
        bootstrap.derive_resamples("kendalltau", {**columns, "told": np.array([1.0, np.nan, 2.0])}, weights)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1, max_size=30))
def test_macro_f1_is_scikit_learns(pairs):
    rows = {str(at): {"answer": answer, "told": told} for at, (answer, told) in enumerate(pairs)}
    answers, told = zip(*pairs, strict=True)
    expected = f1_score(answers, told, average="macro", zero_division=0)
    assert bootstrap.derive_metric("f1_macro", rows, "f1") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answers", "told", "metrics"),
    [  # what was not predicted is wrong, and no class
        (["a", "a", "b"], ["a", None, "b"], {"f1_macro": (2 / 3 + 1) / 2, "accuracy": 2 / 3}),
        ([[1, 0], [1, 1]], [[1, 0], [0, 1]], {"f1_macro": (2 / 3 + 1) / 2, "accuracy": 0.5}),  # sets of labels
        ([1, 0, 0], [1, 1, 0], {"f1": 2 / 3}),  # of the class one
    ],
)
def test_metrics_of_classes(answers, told, metrics):
    rows = {str(at): {"answer": a, "told": b} for at, (a, b) in enumerate(zip(answers, told, strict=True))}
    assert {name: bootstrap.derive_metric(name, rows, name) for name in metrics} == pytest.approx(metrics)


def test_rows_of_one_paper_are_drawn_together():
    rows = {"p_method": {"map": 1.0, "paper": 7}, "p_result": {"map": 0.0, "paper": 7}, "q": {"map": 0.5, "paper": 8}}
    weights = bootstrap.draw_resamples(bootstrap.clusters_of(rows), 100, seed=0, purpose="x")
    assert (weights[:, 0] == weights[:, 1]).all()
    assert set(weights.sum(axis=1).tolist()) == {2, 3, 4}  # q twice, one of each, p twice


def test_a_seed_draws_the_same_rows_and_intervals_hold_the_value():
    assert sum(bootstrap.resample_blocks(10, 1234)) == 1234
    rows = {str(at): {"map": (at % 10) / 10, "answer": at % 3, "told": at % 2} for at in range(100)}
    outcome = bootstrap.Outcome("t", "x", {"map": "mean", "f1": "f1_macro"}, rows)
    first = bootstrap.resample_metric(outcome, "map", 300, seed=5)
    assert (first == bootstrap.resample_metric(outcome, "map", 300, seed=5)).all()
    assert (first != bootstrap.resample_metric(outcome, "map", 300, seed=6)).any()
    for name, (low, high) in bootstrap.intervals_of([outcome]).items():
        assert low < outcome.metrics[name.removeprefix("t.")] < high


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = 0
    for trial in range(200):
        rows = {str(at): {"map": float(value)} for at, value in enumerate(rng.random(80))}
        outcome = bootstrap.Outcome("t", "ranking", {"map": "mean"}, rows)
        low, high = bootstrap.percentile_interval(bootstrap.resample_metric(outcome, "map", 400, seed=trial))
        held += low <= 0.5 <= high
    assert 0.88 <= held / 200 <= 0.99


@pytest.mark.parametrize("way", ["mean", "folds", "f1_macro", "kendalltau"])
def test_systems_together_are_systems_one_by_one(way):
    rng = np.random.default_rng(4)
    names = [f"r{at}" for at in range(60)]
    answers = {name: {"answer": int(rng.integers(3))} for name in names}
    tables = [{name: row_of(rng, at) | answers[name] for at, name in enumerate(names)} for _ in range(7)]
    systems = [bootstrap.columns_of(way, rows, "m") for rows in [*tables, tables[0]]]
    weights = bootstrap.draw_resamples(names, 50, seed=3, purpose="test").astype(float)
    found = bootstrap.derive_resamples_of_systems(way, systems, weights)
    assert found == pytest.approx(
        np.stack([bootstrap.derive_resamples(way, own, weights) for own in systems]), abs=1e-12
    )
    assert (found[0] == found[-1]).all(), "who predicts alike must not differ"
