"""Several liked and disliked papers as one vector to search with.

    >>> liked, disliked = np.array([[2.0, 0.0], [0.0, 1.0]], np.float32), np.array([[0.0, 3.0]], np.float32)
    >>> rocchio(liked, disliked).tolist()
    [0.5, 0.0]

Papers count alike, however long their vectors are. Does not look papers up and does not leave them out of the answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError

DISLIKED = 0.5
"""Weight of the disliked papers beside 1 of the liked ones. Text books take 0.15 beside 0.75 for papers of which nobody
said that they are bad; here somebody did."""


def rocchio(liked: NDArray[np.float32], disliked: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean of the liked papers' unit vectors (n, dimension) less DISLIKED times that of the disliked ones, (dimension,).

    Rocchio, "Relevance feedback in information retrieval", 1971, without an original query; see also Manning, Raghavan
    and Schütze, "Introduction to Information Retrieval", 2008, section 9.1.1.
    """
    found = _unit(liked).mean(axis=0)  # (dimension,)
    if len(disliked):
        found = found - np.float32(DISLIKED) * _unit(disliked).mean(axis=0)
    if float(np.linalg.norm(found)) < 1e-6:
        raise UserError(
            "the liked and disliked papers cancel each other out: nothing is left to search by; give others"
        )
    return np.asarray(found, np.float32)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (n, 1)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
