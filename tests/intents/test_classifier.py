"""Calibration and decisions of a classifier; a folder is untrusted input, refused before anything is computed."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import ArtifactError
from citeweave.corpus.paper import Intent
from citeweave.intents import classifier
from citeweave.intents.classifier import ClassifierConfig, decide, intent_bits, negative_log_likelihood, softmax

from ..conftest import refused

SOUND = {
    **{"task": "scicite", "labels": {"scicite": ["result", "background", "method"]}, "pooling": "mean"},
    **{"temperature": 1.5, "thresholds": [0.5, 0.5, 0.5], "marking_version": 1},
}
DAMAGE = [
    *({"pooling": value} for value in ("max", 5, None)),
    *({"temperature": value} for value in (0, 1e-320, float("nan"))),
    *({"thresholds": [0.5]}, {"labels": 3}, {"task": "other"}, {"more": 1}),
    {"labels": {"scicite": []}, "thresholds": []},
    {"labels": {"scicite": ["method", "method", "result"]}},
    {"labels": {"a.b": ["x", "y", "z"]}, "task": "a.b"},
]


@pytest.mark.parametrize("change", DAMAGE, ids=str)
def test_a_config_that_cannot_be_right_is_refused(change, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SOUND))
    assert ClassifierConfig.read(path).labels == {"scicite": ("result", "background", "method")}
    path.write_text(json.dumps({**SOUND, **change}))
    refused("does not describe a classifier", ClassifierConfig.read, path, error=ArtifactError)


def drawn(count, seed):
    """Logits and labels that agree with them."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (count, 3))
    chances = softmax(logits)
    return logits, (random.random((count, 1)) > chances.cumsum(axis=1)).sum(axis=1).clip(0, 2)


@pytest.mark.parametrize("planted", [0.3, 1.0, 4.0])
def test_the_planted_temperature_is_found(planted):
    logits, labels = drawn(4_000, 1)
    found = classifier.fit_temperature(logits * planted, labels)
    assert found == pytest.approx(planted, rel=0.1)
    best = negative_log_likelihood(logits * planted, labels, found)
    assert best <= negative_log_likelihood(logits * planted, labels)
    grid = [negative_log_likelihood(logits * planted, labels, t) for t in np.geomspace(0.05, 20, 60)]
    assert best <= min(grid) + 1e-6


def test_calibration_lowers_the_error():
    logits, labels = drawn(4_000, 2)
    before = classifier.expected_calibration_error(softmax(5 * logits), labels)
    after = classifier.expected_calibration_error(classifier.cross_fit_probabilities(5 * logits, labels), labels)
    assert before > 0.1 and after < 0.03


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 99))
def test_calibration_error_by_hand(count, seed):
    logits, labels = drawn(count, seed)
    probabilities = softmax(logits)
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    total = 0.0
    for low in range(15):
        inside = (top * 15 >= low) & ((top * 15 < low + 1) | (low == 14))
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - top[inside].mean())
    assert classifier.expected_calibration_error(probabilities, labels) == pytest.approx(total, abs=1e-6)


def test_decisions():
    rows = np.array([[0.8, 0.1, 0.1], [0.45, 0.45, 0.1], [0.4, 0.3, 0.3]])
    assert decide(rows).tolist() == [1, 0, 0]
    assert decide(rows, threshold=(0.4, 0.4, 0.3)).tolist() == [1, 3, 5]
    assert decide(rows[:0]).tolist() == []
    assert intent_bits(("uses", "compareorcontrast")).tolist() == [Intent.USES, Intent.COMPARES]
    refused("the threshold of an intent is 0; it must be greater than 0", decide, rows, threshold=0)
    refused("the label 'none' is not an intent", intent_bits, ("background", "none"))


def test_thresholds_are_the_best_of_all():
    logits, labels = drawn(500, 3)
    probabilities = softmax(logits)
    for label, found in enumerate(classifier.fit_thresholds(probabilities, labels)):
        assert 0.25 <= found <= 0.5

        def f1(threshold, label=label):
            said, true = probabilities[:, label] >= threshold, labels == label
            return float(2 * (said & true).sum() / max(1, said.sum() + true.sum()))

        assert f1(found) == pytest.approx(max(f1(threshold) for threshold in np.arange(0.25, 0.5001, 0.01)), abs=1e-9)


def test_measures_against_sklearn():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    predicted, labels = random.integers(3, size=(2, 200))
    found = classifier.measure_predictions(predicted, labels, ("a", "b", "c"))
    assert found["macro_f1"] == pytest.approx(100 * metrics.f1_score(labels, predicted, average="macro"), abs=0.006)
    assert found["accuracy"] == pytest.approx(100 * metrics.accuracy_score(labels, predicted), abs=0.006)
    assert found["confusion"] == metrics.confusion_matrix(labels, predicted).tolist()
    precision = metrics.precision_score(labels, predicted, average=None)
    assert found["labels"]["b"]["precision"] == pytest.approx(100 * precision[1], abs=0.006)
