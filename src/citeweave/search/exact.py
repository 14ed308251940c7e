"""The nearest papers of an index in one of its spaces: exact, every paper is compared.

    nearest_papers(index, query, 10)                          the encoder's space
    nearest_papers(index, query, 10, "method", itself=7)      the space of methods, row 7 left out
    nearest_papers(index, query, 10, "all")                   all aspects side by side

Scores are cosines; equal ones stand by row. Vectors are read through the memory map, `all` in blocks of rows.
Does not encode anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.search.index import Index
from citeweave.similarity.nearest import Neighbours, nearest

MOST = 10_000
"""Papers that may be asked for at once."""

_BLOCK = 65_536
"""Rows that are compared at a time where more than the memory map is needed."""


def check_count(count: int) -> None:
    if not 1 <= count <= MOST:
        raise UserError(f"--count is {count}; it must be from 1 to {MOST:,} papers")


def nearest_papers(
    index: Index, query: NDArray[np.float32], count: int, aspect: str = "", *, itself: int = -1, block: int = _BLOCK
) -> Neighbours:
    """The nearest rows to one vector (dimension of the space,), one line; fewer where the index has fewer."""
    check_count(count)
    parts = index.space(aspect)
    queries, own = np.asarray(query, np.float32)[None], np.array([itself])  # (1, dimension), (1,)
    count = min(count, len(index))
    if len(parts) == 1:
        return _known(nearest(parts[0], queries, count, itself=own))
    found: list[Neighbours] = []
    for start in range(0, len(index), block):
        pool = np.concatenate([part[start : start + block] for part in parts], axis=1)  # (block, dimension)
        inside = own - start if start <= itself < start + block else np.array([-1])
        near = _known(nearest(pool, queries, min(count, len(pool)), itself=inside))
        found.append(Neighbours(near.rows + np.int32(start), near.scores))
    return _best(found, count)


def _best(found: list[Neighbours], count: int) -> Neighbours:
    """The best of several lists, the highest score first, then by row."""
    rows = np.concatenate([near.rows[0] for near in found])
    scores = np.concatenate([near.scores[0] for near in found])
    order = np.lexsort((rows, -scores))[:count]
    return Neighbours(rows[order][None], scores[order][None])


def _known(near: Neighbours) -> Neighbours:
    known = near.rows[0] >= 0
    return Neighbours(near.rows[:, known], near.scores[:, known])


def cosines(matrix: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosine of every row (rows, dimension) with one vector (dimension,), (rows,); 0 where either is all zeros.

    >>> cosines(np.array([[3, 4], [0, 0]], np.float16), np.array([2, 0], np.float32)).tolist()
    [0.6000000238418579, 0.0]
    """
    found = np.empty(len(matrix), np.float32)
    length = float(np.linalg.norm(query))
    for start in range(0, len(matrix), _BLOCK):
        rows = np.asarray(matrix[start : start + _BLOCK], np.float32)  # (block, dimension)
        lengths = np.linalg.norm(rows, axis=1) * length
        found[start : start + _BLOCK] = rows @ query / np.maximum(lengths, 1e-30)
    return found
