"""scikit-learn's LinearSVC and LinearSVR, which call liblinear: the numbers recorded with scikit-learn.

Whether a fit ended at its tolerance is part of the answer instead of a warning on the terminal.

>>> model = fit_classes(np.array([[2.0], [1.0], [-1.0]]), np.array([1, 1, 0]), 1.0, Way(), np.random.RandomState(42))
>>> model.converged, model.predict(np.array([[3.0], [-3.0]])).tolist()
(True, [1, 0])

Does not choose C.
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC, LinearSVR

from citeweave.evaluation.probing.linear import Codes, Floats, Linear, Way


def fit_classes(vectors: Floats, codes: Codes, c: float, way: Way, random: np.random.RandomState) -> Linear:
    """`random` gives liblinear its seed and is drawn from once."""
    model = LinearSVC(
        C=c, loss=way.loss, fit_intercept=way.intercept, max_iter=way.passes, dual="auto", random_state=random
    )
    return _fitted(model, vectors, codes, model_classes=np.unique(codes))


def fit_numbers(vectors: Floats, targets: Floats, c: float, way: Way, random: np.random.RandomState) -> Linear:
    """The answers are `scores`, (m, 1)."""
    model = LinearSVR(
        C=c, loss=way.loss, fit_intercept=way.intercept, max_iter=way.passes, dual="auto", random_state=random
    )
    return _fitted(model, vectors, targets, model_classes=np.empty(0, dtype=np.int64))


def _fitted(model: LinearSVC | LinearSVR, vectors: Floats, answers: Floats | Codes, model_classes: Codes) -> Linear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(vectors, answers)
    weights = np.atleast_2d(model.coef_)  # (k, d)
    intercepts = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), len(weights))
    return Linear(weights, intercepts, model_classes, bool(np.max(model.n_iter_) < model.max_iter))
