"""Newton's method: at the minimum by a gradient added up paper by paper, whichever way its steps are found."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.evaluation import probe_solvers


def papers(count: int, *, dimension: int = 12, classes: int = 4, noise: float = 2.0, seed: int = 0):
    """Vectors with a common offset around a center for each class, and the classes."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(count) % classes)
    centers = rng.normal(size=(classes, dimension))
    return centers[codes] + noise * rng.normal(size=(count, dimension)) + 1.0, codes


@given(
    count=st.integers(2, 20),
    dimension=st.integers(1, 25),
    exponent=st.floats(-4, 2),
    intercept=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_newton_reaches_the_minimum(count, dimension, exponent, intercept, seed):
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
