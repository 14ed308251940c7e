"""Which papers a fold trains on and which it holds out: scikit-learn's splitters, without shuffling.

>>> [fold.held_out.tolist() for fold in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3)]
[[0, 3], [1, 4], [2, 5]]

Does not fit or score.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

from citeweave.errors import UserError
from citeweave.evaluation.probing.linear import Codes


class Fold(NamedTuple):
    train: NDArray[np.intp]
    held_out: NDArray[np.intp]


def stratified_folds(codes: Codes, count: int) -> list[Fold]:
    """Folds with about the same share of every class. A class with fewer papers than folds is missing from some."""
    largest = int(np.unique(codes, return_counts=True)[1].max())
    if largest < count:
        raise UserError(
            f"{count} folds need a class of at least {count} papers, and the largest has {largest}; give more papers"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class smaller than the folds
        return [Fold(*parts) for parts in StratifiedKFold(count).split(np.empty((len(codes), 1)), codes)]


def plain_folds(papers: int, count: int) -> list[Fold]:
    """Folds of neighbouring papers; two at least in each, as one paper has no variance to explain."""
    if papers < 2 * count:
        raise UserError(f"{count} folds of numbers need at least {2 * count} papers; {papers} are given")
    return [Fold(*parts) for parts in KFold(count).split(np.empty((papers, 1)))]
