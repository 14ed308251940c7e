"""The best match between the sentences of one text and those of another.

>>> best_match(np.array([[1.0, 0], [0, 1]]), np.array([[0, 0.5], [0, 2]]))
Match(sentence=1, other=1, similarity=2.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Match:
    """Two sentences and how similar they are."""

    sentence: int
    other: int
    similarity: float


def best_match(sentences: Floats, others: Floats) -> Match | None:
    """argmax over i, k of R_p R_E^T (Mysore et al., NAACL 2022, equation 3); shapes (n, dimension), (m, dimension).

    Of equals the lowest sentence counts, then the lowest of the others. A vector of zeros, or one that is not finite,
    stands for a text that could not be read and matches nothing; None where nothing is left.
    """
    usable = _is_vector(sentences)[:, None] & _is_vector(others)[None, :]  # (n, m)
    if not usable.any():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        products = np.where(usable, sentences @ others.T, -np.inf)  # (n, m)
    row, column = divmod(int(np.argmax(products)), products.shape[1])
    # equal vectors are equal matches, also where their products were rounded in another order
    first, second = _first_equal(sentences, row), _first_equal(others, column)
    return Match(first, second, float(products[row, column]))


def _is_vector(matrix: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(matrix).all(axis=1) & (matrix != 0).any(axis=1))


def _first_equal(matrix: Floats, row: int) -> int:
    return int(np.argmax((matrix == matrix[row]).all(axis=1)))
