"""Scores of chosen pairs of vectors: each query with its own candidates, by cosine, dot product or L2 distance.

    >>> pool = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    >>> offsets, candidates = np.array([0, 2, 4]), np.array([1, 0, 2, -1])
    >>> pair_scores(pool[[0, 1]], pool, offsets, candidates, "cosine").tolist()
    [0.8, 1.0, 0.0, nan]
    >>> pair_scores(pool[[0, 1]], pool, offsets, candidates, "l2")[2]
    np.float64(-2.0)

Numbers are widened to float64 before they are multiplied or subtracted, and a distance is computed from the differences,
never from lengths and products. Does not search: for the nearest vectors of a pool see `topk`.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.vectors.topk.kernels import COSINE, DOT, L2

PAIR_METRICS = {"cosine": COSINE, "dot": DOT, "l2": L2}

BLOCK = 8192
"""Pairs scored at a time by one thread."""


def pair_scores(
    queries: NDArray[Any],
    pool: NDArray[Any],
    offsets: NDArray[np.integer[Any]],
    candidates: NDArray[np.integer[Any]],
    metric: str,
) -> NDArray[np.float64]:
    """Score chosen pairs: query i (a row of `queries`) with the rows candidates[offsets[i]:offsets[i + 1]] of `pool`.

    One number per pair, higher is nearer: the cosine, 0 where a vector is all zeros; the inner product; or minus the L2
    distance. NaN where the candidate is -1, a paper without vector. Memory-mapped matrices are read in blocks.
    """
    code = PAIR_METRICS[choose(metric, PAIR_METRICS, "metric")]
    if queries.ndim != 2 or pool.ndim != 2 or queries.shape[1] != pool.shape[1]:
        raise UserError(
            f"queries of shape {queries.shape} cannot be scored with candidates of shape {pool.shape}; "
            "both must come from one model"
        )
    pairs = len(candidates)
    assert len(offsets) == len(queries) + 1 and offsets[0] == 0 and offsets[-1] == pairs
    if pairs and not (candidates.min() >= -1 and candidates.max() < len(pool)):
        raise IndexError(f"candidates are rows {candidates.min()} to {candidates.max()} of {len(pool)}")
    owners = np.repeat(np.arange(len(queries)), np.diff(offsets))  # (pairs,)
    rows = np.ascontiguousarray(candidates, np.int64)
    wide = _widened(queries)
    scores = np.empty(pairs)

    def work(start: int) -> None:
        part = slice(start, min(start + BLOCK, pairs))
        if pool.dtype in (np.float32, np.float64):
            _score(wide, np.asarray(pool), owners[part], rows[part], code, scores[part])
        else:
            vectors = _widened(pool[np.maximum(rows[part], 0)])  # (pairs of the block, dimension)
            places = np.where(rows[part] < 0, -1, np.arange(len(vectors)))
            _score(wide, vectors, owners[part], places, code, scores[part])

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(work, range(0, pairs, BLOCK)))
    return scores


def _widened(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix as float32 or float64 without loss, so that the compiled pair scores can read it."""
    if matrix.dtype in (np.float32, np.float64):
        return np.asarray(matrix)
    return matrix.astype(np.float32 if matrix.dtype == np.float16 else np.float64)


@njit(cache=True, nogil=True)
def _score(
    queries: NDArray[Any],
    pool: NDArray[Any],
    owners: NDArray[np.int64],
    rows: NDArray[np.int64],
    metric: int,
    out: NDArray[np.float64],
) -> None:
    last, length = -1, 0.0
    for pair in range(len(rows)):
        if rows[pair] < 0:
            out[pair] = np.nan
            continue
        query, vector = queries[owners[pair]], pool[rows[pair]]
        if metric == L2:
            out[pair] = -math.sqrt(_squared_distance(query, vector))
        elif metric == DOT:
            out[pair] = _product(query, vector)
        else:
            if owners[pair] != last:
                last, length = owners[pair], math.sqrt(_product(query, query))
            # two roots: the product of two squares may be more than a float64 holds
            lengths = length * math.sqrt(_product(vector, vector))
            out[pair] = _product(query, vector) / lengths if lengths > 0 else 0.0


# "reassoc" lets the compiler sum in several registers at once; the order is the same for every pair


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _product(one: NDArray[Any], other: NDArray[Any]) -> float:
    total = 0.0
    for at in range(len(one)):
        total += np.float64(one[at]) * np.float64(other[at])
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squared_distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    total = 0.0
    for at in range(len(one)):
        difference = np.float64(one[at]) - np.float64(other[at])
        total += difference * difference
    return total
