"""What every solver gives back: one row of weights a class, and the class that it predicts.

>>> model = Linear(np.array([[1.0, 0.0]]), np.array([-0.5]), np.array([0, 3]), converged=True)
>>> model.predict(np.array([[1.0, 9.0], [0.0, 9.0]])).tolist()
[3, 0]

Does not fit anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]


class Way(NamedTuple):
    """What all fits of a search share."""

    loss: str = "squared_hinge"
    intercept: bool = True
    passes: int = 1000


class Linear(NamedTuple):
    """Two classes have one row of weights, for the second of them; more classes have one row each."""

    weights: Floats  # (k, d)
    intercepts: Floats  # (k,)
    classes: Codes  # (k,), (2,) where k is 1, (0,) where numbers are predicted
    converged: bool

    def scores(self, vectors: Floats) -> Floats:
        """How much a paper belongs to a class, (m, k)."""
        return np.asarray(vectors @ self.weights.T + self.intercepts)

    def predict(self, vectors: Floats) -> Codes:
        """The class of each paper, (m,)."""
        return np.asarray(self.classes[winners(self.scores(vectors))])


def winners(scores: Floats) -> Codes:
    """Which class wins by scores (m, k), the first of equals; one column stands for two classes.

    >>> winners(np.array([[0.1], [0.0]])).tolist(), winners(np.array([[1.0, 2.0, 2.0]])).tolist()
    ([1, 0], [1])
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(scores.argmax(axis=1))


def one_against_rest(codes: Codes, classes: Codes) -> Floats:
    """+1 for the papers of a class, -1 for the others, (n, k); two classes give one column, the second's.

    >>> one_against_rest(np.array([0, 2, 1]), np.array([0, 1, 2])).tolist()
    [[1.0, -1.0, -1.0], [-1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]
    """
    columns = classes[1:] if len(classes) == 2 else classes
    return np.where(codes[:, None] == columns, 1.0, -1.0)
