"""The nearest vectors of one query in a small pool by NumPy, with the bits of the compiled search.

A command that asks one question would spend more time on loading compiled code than on comparing some ten thousand vectors.
Products are summed in float64 in the order of `kernels.exact_score`: four sums of every fourth number, then these.

>>> pool = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, 3.0], [3.0, 4.0]], np.float32)
>>> near = nearest_in_small_pool(pool, pool[:1], 3, None, np.array([0]))
>>> near.rows.tolist(), near.scores.tolist()
([[3, 2, 1]], [[1.0, 0.9599999785423279, 0.0]])

Once numba is loaded, the compiled search is faster. Several queries, other metrics, and whatever is refused, such as numbers
that are not finite, are left to `engine.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import numba_is_loaded
from citeweave.vectors.topk.kernels import Doubles
from citeweave.vectors.topk.request import Neighbors

SMALL = 1 << 24
"""Numbers of a pool up to which NumPy takes less time than loading numba: 43,690 vectors of 384."""

_BLOCK = 4096
"""Rows that are widened to float64 at a time."""


def is_small_search(pool: NDArray[Any], queries: NDArray[Any], k: int) -> bool:
    """Return whether a search is small enough for `nearest_in_small_pool`, and nothing about it would be refused."""
    if numba_is_loaded() or pool.ndim != 2 or queries.ndim != 2 or len(queries) != 1 or pool.size > SMALL:
        return False
    kinds = (np.float16, np.float32)
    fits = pool.dtype in kinds and queries.dtype in kinds and pool.shape[1] == queries.shape[1]
    return bool(fits) and 1 <= k <= len(pool) and bool(np.isfinite(queries).all())


def nearest_in_small_pool(
    pool: NDArray[Any], queries: NDArray[Any], k: int, allowed: NDArray[np.bool_] | None, itself: NDArray[Any] | None
) -> Neighbors | None:
    """Return the k nearest rows of one query, (1, dimension), by their cosines; None where a number is not finite.

    `allowed`, (rows,), masks the rows that count; `itself`, (1,), is the query's own row, or -1.
    """
    rows = np.arange(len(pool)) if allowed is None else np.flatnonzero(allowed)  # (candidates,)
    if itself is not None:
        rows = rows[rows != int(np.asarray(itself)[0])]
    query = queries.astype(np.float64)  # (1, dimension)
    length, scores = float(_lengths(query)[0]), np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        wide = np.asarray(pool[rows[part]], np.float64)  # (block, dimension)
        lengths = _lengths(wide) * length
        if not np.isfinite(lengths).all():
            return None
        totals = _sums(wide * query)
        scores[part] = np.divide(totals, lengths, out=np.zeros(len(wide)), where=lengths > 0)
    scores += 0  # -0 becomes 0
    best = np.lexsort((rows, -scores))[:k]
    neighbors = Neighbors.empty(1, k)
    neighbors.rows[0, : len(best)], neighbors.scores[0, : len(best)] = rows[best], scores[best]
    return neighbors


def _lengths(vectors: Doubles) -> Doubles:
    lengths: Doubles = np.sqrt(_sums(vectors * vectors))
    return lengths


def _sums(products: Doubles) -> Doubles:
    """Sum products (rows, dimension) row by row, in the order of `kernels.exact_score`."""
    sums = np.zeros((len(products), 4))
    whole = products.shape[1] - products.shape[1] % 4
    for at in range(0, whole, 4):
        sums += products[:, at : at + 4]
    for at in range(whole, products.shape[1]):
        sums[:, 0] += products[:, at]
    total: Doubles = (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])
    return total
