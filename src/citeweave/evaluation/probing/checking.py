"""What may be handed to a probe: finite vectors of one length, an answer for each.

>>> checked_vectors(np.ones((2, 3), dtype=np.float16), np.ones((1, 3))).train.dtype
dtype('float64')

Does not look at whether a fit is possible; the probes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.errors import UserError
from citeweave.evaluation.probing.linear import Codes, Floats


class Data(NamedTuple):
    train: Floats  # (n, d)
    test: Floats  # (m, d)


class Classes(NamedTuple):
    names: NDArray[Any]  # (classes,), sorted
    codes: Codes  # (n,): index into the names


def checked_vectors(train: ArrayLike, test: ArrayLike) -> Data:
    data = Data(_matrix(train, "training"), _matrix(test, "test"))
    if data.train.shape[1] != data.test.shape[1]:
        raise UserError(
            f"training vectors have {data.train.shape[1]} numbers and test vectors {data.test.shape[1]}; "
            "a probe needs vectors of one model"
        )
    return data


def checked_classes(labels: Sequence[Any] | NDArray[Any], papers: int) -> Classes:
    """Two classes at least."""
    array = np.asarray(labels)
    _check_length(array, papers, "label", dimensions=1)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError("a label is not a number; leave papers without a label out")
    try:
        names, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise UserError(
            f"labels of different kinds cannot be sorted ({error}); give all as text or all as numbers"
        ) from None
    if len(names) < 2:
        raise UserError(f"all {papers} training papers are of class {names[0]!s}; a probe needs two classes")
    return Classes(names, codes)


def checked_numbers(targets: ArrayLike, papers: int) -> Floats:
    array = _numbers(targets, "targets")
    _check_length(array, papers, "target", dimensions=1)
    if not np.isfinite(array).all():
        raise UserError(f"target {int(np.flatnonzero(~np.isfinite(array))[0])} is not finite; leave such papers out")
    if (array == array[0]).all():
        raise UserError(f"all {papers} targets are {array[0]:g}; what does not vary cannot be probed for")
    return array


def checked_labels(labels: ArrayLike, papers: int) -> Codes:
    """Multi-hot (n, labels), 0 and 1."""
    array = np.asarray(labels)
    _check_length(array, papers, "row of labels", dimensions=2)
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise UserError("labels of several kinds must be rows of 0 and 1, one column a label")
    if array.shape[1] == 0:
        raise UserError("the rows of labels are empty; a probe needs a label")
    return array.astype(np.int64)


def _matrix(values: ArrayLike, what: str) -> Floats:
    array = _numbers(values, f"{what} vectors")
    if array.ndim != 2 or 0 in array.shape:
        raise UserError(
            f"{what} vectors have the shape {array.shape}; a probe needs papers x numbers, at least one of each"
        )
    finite = np.isfinite(array).all(axis=1)  # (n,)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        raise UserError(
            f"{len(rows)} of {len(array)} {what} vectors hold a number that is not finite, such as row {rows[0]}; "
            "leave them out or make them zeros"
        )
    return array


def _numbers(values: ArrayLike, what: str) -> Floats:
    try:
        return np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"the {what} are not a table of numbers") from None


def _check_length(array: NDArray[Any], papers: int, what: str, *, dimensions: int) -> None:
    if array.ndim != dimensions or len(array) != papers:
        raise UserError(
            f"{papers} training papers and an array of shape {array.shape}; a probe needs one {what} a paper"
        )
