"""Coordinate descent: near the optimum where it converges, and exact where there is nothing to mix up."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from citeweave.evaluation import probe_solvers
from citeweave.evaluation.probe_solvers import FitOptions


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
    """One paper a shuffle cannot mix up: the answer is the exact one, w = min(C x, y / x)."""
    vectors, targets = np.array([[2.0]]), np.array([3.0])
    random = np.random.RandomState(0)
    found = probe_solvers.descend_to_numbers(vectors, targets, 100.0, FitOptions("epsilon_insensitive"), random)
    assert found.converged and found.weights.round(6).tolist() == [1.5]
    bound = probe_solvers.descend_to_numbers(vectors, targets, 0.25, FitOptions("epsilon_insensitive"), random)
    assert bound.weights.tolist() == [0.5]
    still = probe_solvers.descend_to_numbers(
        np.zeros((3, 2)), np.array([1.0, 2.0, 3.0]), 1.0, FitOptions("epsilon_insensitive"), random
    )
    assert still.weights.tolist() == [0.0, 0.0]
