"""Tall dense matrices, row block by row block, in place: Gram matrix, change of basis, evening out.

    >>> matrix = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float32)
    >>> rescale(matrix, 1.0)          # every direction the same weight; the strongest first
    array([9., 1.])
    >>> np.abs(matrix).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]

A matrix of a million rows needs no copy of itself, and may be a memory map. BLAS uses the threads it is told to use.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
"""Rows at a time."""

NEGLIGIBLE = 1e-6
"""A direction with less than this share of the strongest one's squared length drowns in rounding: it becomes 0."""

Matrix = NDArray[np.float32]


def gram(matrix: Matrix) -> NDArray[np.float64]:
    """The inner products of all columns, (columns, columns); blocks in single precision, their sum in double."""
    total = np.zeros((matrix.shape[1],) * 2)
    for rows in _blocks(matrix):
        total += rows.T @ rows
    return total


def rescale(matrix: Matrix, power: float) -> NDArray[np.float64]:
    """Turn X = U S V' into U S^(1 - power) in place, and return the squares of S: 0 keeps lengths, 1 evens them out.

    By the eigenvectors of the Gram matrix, so the columns come out by falling strength.
    """
    basis, values = evening_basis(gram(matrix), power)
    for rows in _blocks(matrix):
        rows[:] = rows @ basis
    return values


def evening_basis(total: NDArray[np.float64], power: float) -> tuple[Matrix, NDArray[np.float64]]:
    """What X is multiplied by to become U S^(1 - power), (columns, columns), and the squares of S; from X' X."""
    values, vectors = np.linalg.eigh(total)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > NEGLIGIBLE * values[0]
    factors = np.where(kept, np.where(kept, values, 1.0) ** (-power / 2), 0.0)
    return (vectors * factors).astype(np.float32), np.where(kept, values, 0.0)


def in_order(work: Callable[[Matrix], Matrix], blocks: Iterable[Matrix], workers: int = 0) -> Iterator[Matrix]:
    """The results of all blocks in their order, made on threads; few blocks are in memory at a time.

    >>> [int(block[0]) for block in in_order(np.negative, (np.array([i]) for i in range(5)), workers=2)]
    [0, -1, -2, -3, -4]
    """
    workers = workers or os.cpu_count() or 1
    waiting: deque[Future[Matrix]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _blocks(matrix: Matrix) -> Iterator[Matrix]:
    for start in range(0, len(matrix), BLOCK):
        yield matrix[start : start + BLOCK]
