"""From the network's numbers to probabilities that mean what they say, and from these to intents.

    temperature = fit_temperature(logits, labels)           on sentences that were not trained on
    probabilities = softmax(logits / temperature)
    decide(probabilities, ("background", "method", "result"), least=(0.4, 0.35, 0.3))

Several intents pass where several reach their threshold; none passes where the classifier is unsure: 0, unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.paper import Intent, parse_intents
from citeweave.errors import UserError

Matrix = NDArray[np.floating]
_LOWEST, _HIGHEST = 0.25, 0.5
"""Range of fitted thresholds: a label with half of the probability always passes."""

_BINS = 15


def softmax(logits: Matrix, temperature: float = 1.0) -> NDArray[np.float32]:
    """(texts, labels) -> probabilities, rows sum to 1."""
    scaled = np.asarray(logits, np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))  # (texts, labels)
    found: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def negative_log_likelihood(logits: Matrix, labels: NDArray[np.int64], temperature: float = 1.0) -> float:
    """Mean over the texts of -log p(label)."""
    chosen = softmax(logits, temperature)[np.arange(len(labels)), labels]  # (texts,)
    return float(-np.log(np.maximum(chosen.astype(np.float64), 1e-12)).mean())


def fit_temperature(logits: Matrix, labels: NDArray[np.int64]) -> float:
    """The temperature of the lowest log-likelihood loss (Guo et al. 2017, On Calibration of Modern Neural Networks, 4.2).

    The loss has one minimum over log T, found by golden-section search; at most a factor 20 either way.
    """
    if not len(labels):
        return 1.0
    ratio = (np.sqrt(5.0) - 1) / 2
    low, high = np.log(0.05), np.log(20.0)
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if negative_log_likelihood(logits, labels, float(np.exp(left))) < negative_log_likelihood(
            logits, labels, float(np.exp(right))
        ):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def expected_calibration_error(probabilities: Matrix, labels: NDArray[np.int64], bins: int = _BINS) -> float:
    """Mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017, equation 3).

    >>> expected_calibration_error(np.array([[0.75, 0.25]] * 4), np.array([0, 0, 0, 1]))
    0.0
    """
    if not len(labels):
        return 0.0
    confidence = probabilities.max(axis=1).astype(np.float64)  # (texts,)
    right = probabilities.argmax(axis=1) == labels  # (texts,)
    which = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(which, confidence - right, bins)  # (bins,) sums of confidence - accuracy
    return float(np.abs(gaps).sum() / len(labels))


def cross_fitted(logits: Matrix, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Probabilities where the temperature of either half comes from the other: what calibration is worth on new texts."""
    half = np.arange(len(labels)) % 2 == 0  # (texts,)
    found = np.zeros(logits.shape, np.float32)
    for own in (half, ~half):
        if own.any():
            found[own] = softmax(logits[own], fit_temperature(logits[~own], labels[~own]))
    return found


def fit_thresholds(probabilities: Matrix, labels: NDArray[np.int64]) -> tuple[float, ...]:
    """Of every label the threshold with the highest F1 against the rest, the highest of equals, 0.25 to 0.5."""
    grid = np.arange(_LOWEST, _HIGHEST + 1e-9, 0.01)
    found = []
    for label in range(probabilities.shape[1]):
        truth = labels == label  # (texts,)
        passed = probabilities[:, label][:, None] >= grid  # (texts, thresholds)
        hits = (passed & truth[:, None]).sum(axis=0)  # (thresholds,)
        f1 = 2 * hits / np.maximum(passed.sum(axis=0) + truth.sum(), 1)
        best = len(grid) - 1 - int(np.argmax(f1[::-1]))
        found.append(round(float(grid[best]), 2))
    return tuple(found)


def intent_bits(labels: Sequence[str]) -> NDArray[np.uint8]:
    """The bit of every label's intent, (labels,).

    >>> intent_bits(("background", "method", "result")).tolist()
    [1, 2, 4]
    """
    bits = [parse_intents(label) for label in labels]
    if Intent.UNKNOWN in bits:
        raise UserError(f"the label {labels[bits.index(Intent.UNKNOWN)]!r} is no intent; train on intents to annotate")
    return np.array(bits, np.uint8)


def decide(
    probabilities: Matrix,
    labels: Sequence[str] = ("background", "method", "result"),
    least: float | Sequence[float] = 0.5,
) -> NDArray[np.uint8]:
    """Bits of `Intent` of every row, (texts,): the labels that reach `least`, one threshold for all or one for each.

    >>> decide(np.array([[0.9, 0.05, 0.05], [0.45, 0.45, 0.1], [0.34, 0.33, 0.33]]), least=0.4).tolist()
    [1, 3, 0]
    """
    thresholds = np.broadcast_to(np.asarray(least, np.float64), (len(labels),))  # (labels,)
    if not ((thresholds > 0) & (thresholds <= 1)).all():
        raise UserError(f"the least probability of an intent is {least}; it must be above 0 and at most 1")
    passed = probabilities >= thresholds  # (texts, labels)
    bits: NDArray[np.uint8] = np.bitwise_or.reduce(np.where(passed, intent_bits(labels), np.uint8(0)), axis=1)
    return bits
