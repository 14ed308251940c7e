"""ClickRanks, classes, numbers and maps: their metrics against brute force, scikit-learn and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.evaluation.clicks import CLICK_METRICS, ClickRanks, click_metrics, click_parts, rank_clicks
from citeweave.evaluation.metrics import (
    CLASSIFICATION_METRICS,
    classification_metrics,
    confusion,
    count_classes,
    count_label_sets,
    f1_macro,
    from_confusion,
    kendall_tau,
    map_quality,
    pearson,
)


@settings(max_examples=80)
@given(
    lists=st.lists(
        st.tuples(st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), min_size=1, max_size=6), st.integers(0, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_clicks_are_those_of_plain_python(lists):
    lists = [(scores, place % len(scores)) for scores, place in lists]
    chances = np.array([0.5, 0.3, 0.2, 0.1, 0.1, 0.05])
    clicks = rank_clicks(
        np.array([score for scores, _ in lists for score in scores]),
        np.cumsum([0, *(len(scores) for scores, _ in lists)]),
        np.array([place for _, place in lists]),
        chances,
    )
    sums = dict.fromkeys(CLICK_METRICS, 0.0)
    wholes = dict.fromkeys(CLICK_METRICS, 0.0)
    for scores, place in lists:
        numbers = [-1.0 if math.isnan(score) else score for score in scores]
        rivals = numbers[:place] + numbers[place + 1 :]
        above = sum(1 if rival > numbers[place] else 0.5 * (rival == numbers[place]) for rival in rivals)
        values = {"ndcg": 1 / math.log2(2 + above), "mrr": 1 / (1 + above), "P@1": float(above == 0)}
        for prefix, weight in (("", 1.0), ("adj-", chances.mean() / chances[place])):
            for name, value in values.items():
                sums[prefix + name] += weight * value
                wholes[prefix + name] += weight
            sums[f"{prefix}accuracy"] += weight * (len(rivals) - above)
            wholes[f"{prefix}accuracy"] += weight * len(rivals)
    found = click_metrics(clicks)
    for name in CLICK_METRICS:
        if wholes[name]:
            assert found[name] == pytest.approx(sums[name] / wholes[name])
        else:
            assert math.isnan(found[name])


def test_clicks_that_cannot_be_judged_are_refused():
    with pytest.raises(ValueError, match="inside it"):
        rank_clicks(np.zeros(2), np.array([0, 2]), np.array([2]))
    with pytest.raises(UserError, match="place 2 has no propensity: only 1"):
        rank_clicks(np.zeros(2), np.array([0, 2]), np.array([1]), np.array([0.5]))
    with pytest.raises(UserError, match="above 0"):
        rank_clicks(np.zeros(2), np.array([0, 2]), np.array([1]), np.array([0.5, 0.0]))
    with pytest.raises(UserError, match="one of P@1, accuracy, adj-P@1"):
        click_parts(ClickRanks(np.zeros(1), np.zeros(1), np.ones(1)), "adj-NDCG")


SKLEARN = {
    "f1_macro": ("f1_score", "macro"),
    "f1_micro": ("f1_score", "micro"),
    "f1_weighted": ("f1_score", "weighted"),
    "precision_macro": ("precision_score", "macro"),
    "recall_macro": ("recall_score", "macro"),
    "f1": ("f1_score", "binary"),
    "precision": ("precision_score", "binary"),
    "recall": ("recall_score", "binary"),
}


def sklearn_value(name: str, truth: np.ndarray, predicted: np.ndarray) -> float:
    metrics = pytest.importorskip("sklearn.metrics")
    if name == "accuracy":
        return float(metrics.accuracy_score(truth, predicted))
    function, average = SKLEARN[name]
    return float(getattr(metrics, function)(truth, predicted, average=average, zero_division=0))


@settings(max_examples=25)
@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_classes_are_those_of_sklearn(pairs):
    truth, predicted = np.array(pairs).T
    names = [name for name in CLASSIFICATION_METRICS if name not in ("f1", "precision", "recall")]
    found = classification_metrics(count_classes(truth, predicted), names)
    assert found == pytest.approx({name: sklearn_value(name, truth, predicted) for name in names})
    texts = [np.array([f"class {label}" for label in labels]) for labels in (truth, predicted)]
    assert classification_metrics(count_classes(*texts), names) == found


@settings(max_examples=25)
@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=20))
def test_yes_or_no_is_that_of_sklearn(pairs):
    truth, predicted = np.array(pairs).T
    found = classification_metrics(count_classes(truth, predicted), CLASSIFICATION_METRICS)
    assert found == pytest.approx({name: sklearn_value(name, truth, predicted) for name in CLASSIFICATION_METRICS})


@settings(max_examples=25)
@given(seed=st.integers(0, 9999), papers=st.integers(1, 20), labels=st.integers(1, 5))
def test_label_sets_are_those_of_sklearn(seed, papers, labels):
    truth, predicted = (np.random.default_rng(seed).random((2, papers, labels)) < 0.3).astype(int)
    if labels == 1:
        truth, predicted = (np.hstack([side, side]) for side in (truth, predicted))
    names = ["f1_macro", "f1_micro", "f1_weighted", "precision_macro", "recall_macro", "accuracy"]
    found = classification_metrics(count_label_sets(truth, predicted), names)
    assert found == pytest.approx({name: sklearn_value(name, truth, predicted) for name in names})


def test_a_bootstrap_is_one_call():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 300)
    predicted = np.where(rng.random(300) < 0.7, truth, rng.integers(0, 4, 300))
    resamples = rng.integers(0, 300, (50, 300))
    matrices = np.stack([confusion(truth[rows], predicted[rows], np.arange(4)) for rows in resamples])
    values = f1_macro(from_confusion(matrices))  # (50,)
    assert values == pytest.approx([sklearn_value("f1_macro", truth[rows], predicted[rows]) for rows in resamples])
    cells = confusion(truth, predicted)
    drawn = rng.multinomial(300, cells.ravel() / 300, size=4000).reshape(-1, 4, 4)
    many = f1_macro(from_confusion(drawn))
    assert many.mean() == pytest.approx(values.mean(), abs=0.02) and many.std() == pytest.approx(values.std(), rel=0.4)


def test_more_than_two_classes_need_an_average():
    with pytest.raises(UserError, match="use f1_macro"):
        classification_metrics(count_classes([0, 1, 2], [0, 1, 2]), ["f1"])
    with pytest.raises(UserError, match="Did you mean 'f1_macro'"):
        classification_metrics(count_classes([0, 1], [0, 1]), ["f1_marco"])
    assert classification_metrics(count_classes(["no", "yes"], ["yes", "yes"], positive="yes"), ["recall"]) == {
        "recall": 1
    }
    with pytest.raises(ValueError, match="1 true labels for 2 predicted"):
        count_classes([0], [0, 1])


def test_correlations_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for ties in (3, 1000):
        truth, predicted = rng.integers(0, ties, (2, 200)).astype(float)
        predicted += truth
        assert kendall_tau(truth, predicted) == pytest.approx(stats.kendalltau(truth, predicted).statistic)
        assert pearson(truth, predicted) == pytest.approx(stats.pearsonr(truth, predicted).statistic)
    assert (kendall_tau([1, 2], [3, 3]), pearson([1, 2], [3, 3]), pearson([1], [2]), kendall_tau([1], [2])) == (0,) * 4
    with pytest.raises(ValueError, match="not finite"):
        pearson([1, 2], [1, math.nan])
    with pytest.raises(ValueError, match="shape"):
        kendall_tau([1, 2], [1])


def test_a_map_that_shows_its_topics_is_told_from_one_that_does_not():
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 6, 600)
    centers = 10 * np.stack([np.arange(6) % 3, np.arange(6) // 3], axis=1)
    xy = centers[topics] + rng.normal(size=(600, 2))
    good = map_quality(xy, topics)
    assert good.homogeneity > 0.8 and good.completeness > 0.7 and 0 < good.noise < 0.3 and good.clusters >= 6
    bad = map_quality(xy, rng.permutation(topics))
    assert bad.homogeneity < 0.1
    stretched = map_quality(1000 * xy, topics)
    assert stretched.homogeneity == pytest.approx(good.homogeneity) and stretched.eps == pytest.approx(1000 * good.eps)
    one_spot = map_quality(np.zeros((20, 2)), topics[:20])
    assert (one_spot.clusters, one_spot.homogeneity, one_spot.completeness) == (1, 0, 1)
    with pytest.raises(UserError, match="the map has 3 points"):
        map_quality(np.zeros((3, 2)), [0, 1, 2])
    with pytest.raises(UserError, match="finite"):
        map_quality(np.full((30, 2), np.nan), np.zeros(30))
