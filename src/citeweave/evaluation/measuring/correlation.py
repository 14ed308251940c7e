"""Regression: do predicted numbers rise with the true ones? Of six pairs below five are in order: tau is (5 - 1) / 6.

    >>> round(kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]), 4), round(pearson([1, 2, 3], [1, 2, 4]), 4)
    (0.6667, 0.982)

A prediction that is the same for every paper says nothing: it gets 0, where SciPy gives nan.
Does not measure how far off the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[Any]


def kendall_tau(truth: Numbers, predicted: Numbers) -> float:
    """Kendall's tau-b, which allows for ties, -1 to 1: Kendall, Biometrika 1945, by SciPy.

    >>> kendall_tau([1, 2, 3], [5, 5, 5])
    0.0
    """
    from scipy.stats import kendalltau

    _check(truth, predicted)
    tau = float(kendalltau(truth, predicted).statistic) if len(truth) > 1 else 0.0
    return 0.0 if np.isnan(tau) else tau


def pearson(truth: Numbers, predicted: Numbers) -> float:
    """Pearson's correlation, -1 to 1.

    >>> pearson([1, 2, 3], [30, 20, 10])
    -1.0
    """
    first, second = _check(truth, predicted)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


REGRESSION_METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {"kendalltau": kendall_tau, "pearsonr": pearson}
"""By the names of SciRepEval."""


def _check(truth: Numbers, predicted: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = np.asarray(truth, np.float64), np.asarray(predicted, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"true numbers of shape {first.shape} and predicted ones of shape {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("a number to be compared is not finite")
    return first, second
