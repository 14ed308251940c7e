"""Classification: F1, precision, recall and accuracy from counts, for one label a paper or for several.

    truth      a a b c        class   hits  predicted  actual   F1 = 2 hits / (predicted + actual)
    predicted  a b b b        a       1     1          2        2/3
                              b       1     3          1        1/2
                              c       0     0          1        0         macro F1 = their mean

    >>> counts = count_classes(["a", "a", "b", "c"], ["a", "b", "b", "b"])
    >>> f1(counts).round(4).tolist(), round(float(f1_macro(counts)), 4)
    ([0.6667, 0.5, 0.0], 0.3889)

The values are scikit-learn's (0 where it divides by 0). Everything is computed from counts over the last axis, so a
whole bootstrap is one call: a resample of n papers is a multinomial draw of n over the cells of the confusion matrix,
`from_confusion(rng.multinomial(n, cells / n, size=10_000).reshape(-1, k, k))`. Does not train anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.evaluation.ranking_metrics import Values, share

Labels = Sequence[Any] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """How often each class was right, predicted and true; arrays of shape (..., classes)."""

    hits: NDArray[Any]
    predicted: NDArray[Any]
    actual: NDArray[Any]
    exact: NDArray[Any]
    """Share of papers whose label, or whole set of labels, is right, (...)."""

    counted: NDArray[np.bool_]
    """Which classes a macro mean is over: those seen in truth or prediction, or all where a paper has several."""

    positive: int | None
    """The class that precision, recall and F1 of a yes-or-no question are about; None where there are more than two."""


def confusion(truth: Labels, predicted: Labels, classes: Labels | None = None) -> NDArray[np.int64]:
    """Number of papers by true class (row) and predicted class (column), (classes, classes).

    >>> confusion([0, 0, 1], [0, 1, 1]).tolist()
    [[1, 1], [0, 1]]
    """
    names = np.unique(np.concatenate([np.asarray(truth), np.asarray(predicted)])) if classes is None else classes
    rows, columns = (np.searchsorted(names, np.asarray(labels)) for labels in (truth, predicted))
    if len(rows) != len(columns):
        raise ValueError(f"{len(rows)} true labels for {len(columns)} predicted ones")
    size = len(names)
    return np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)


def from_confusion(matrix: NDArray[Any], *, positive: int | None = None) -> ClassCounts:
    """Counts of confusion matrices of shape (..., classes, classes); `positive` is the row of the class asked for."""
    hits = np.diagonal(matrix, axis1=-2, axis2=-1)  # (..., classes)
    actual, predicted = matrix.sum(axis=-1), matrix.sum(axis=-2)
    exact = share(hits.sum(axis=-1), actual.sum(axis=-1))
    return ClassCounts(hits, predicted, actual, exact, actual + predicted > 0, positive)


def count_classes(truth: Labels, predicted: Labels, *, positive: Any = 1) -> ClassCounts:
    """Counts of papers with one label each. `positive` matters for `f1`, `precision` and `recall` of two classes."""
    names = np.unique(np.concatenate([np.asarray(truth), np.asarray(predicted)]))
    found = np.flatnonzero(names == positive)
    # a lone class that is not the positive one: nothing positive is there, and F1 is 0
    if len(names) == 1 and not len(found):
        names, found = np.append(names, names), np.array([1])
    matrix = confusion(truth, predicted, names)
    return from_confusion(matrix, positive=int(found[0]) if len(names) <= 2 and len(found) else None)


def count_label_sets(truth: NDArray[Any], predicted: NDArray[Any]) -> ClassCounts:
    """Counts of papers with several labels each, given as 0 or 1 in arrays of shape (papers, labels).

    >>> counts = count_label_sets(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]))
    >>> f1(counts).round(4).tolist(), float(accuracy(counts))
    ([0.6667, 1.0], 0.5)
    """
    true, guess = np.asarray(truth, bool), np.asarray(predicted, bool)
    if true.shape != guess.shape or true.ndim != 2:
        raise ValueError(f"labels of shape {true.shape} and {guess.shape}: both must be (papers, labels)")
    exact = (true == guess).all(axis=1).mean() if len(true) else np.float64(0)
    hits, predictions, actual = (flags.sum(axis=0) for flags in (true & guess, guess, true))  # (labels,) each
    return ClassCounts(hits, predictions, actual, np.asarray(exact), np.ones(true.shape[1], bool), None)


def precision(counts: ClassCounts) -> Values:
    """Of the papers predicted to be of a class, the share that is, (..., classes).

    >>> precision(count_classes([0, 0, 1], [0, 1, 1])).tolist()
    [1.0, 0.5]
    """
    return share(counts.hits, counts.predicted)


def recall(counts: ClassCounts) -> Values:
    """Of the papers of a class, the share that is predicted to be, (..., classes).

    >>> recall(count_classes([0, 0, 1], [0, 1, 1])).tolist()
    [0.5, 1.0]
    """
    return share(counts.hits, counts.actual)


def f1(counts: ClassCounts) -> Values:
    """Harmonic mean of precision and recall of every class, (..., classes): van Rijsbergen, 1979.

    >>> f1(count_classes([0, 0, 1], [0, 1, 1])).round(4).tolist()
    [0.6667, 0.6667]
    """
    return share(2 * counts.hits, counts.predicted + counts.actual)


def macro(values: Values, counts: ClassCounts) -> Values:
    """Plain mean over the classes, (...).

    >>> float(macro(np.array([1.0, 0.5]), count_classes([0, 0, 1], [0, 1, 1])))
    0.75
    """
    return share((values * counts.counted).sum(axis=-1), counts.counted.sum(axis=-1))


def weighted(values: Values, counts: ClassCounts) -> Values:
    """Mean over the classes, each weighted by its number of papers, (...).

    >>> round(float(weighted(np.array([1.0, 0.5]), count_classes([0, 0, 1], [0, 1, 1]))), 4)
    0.8333
    """
    return share((values * counts.actual).sum(axis=-1), counts.actual.sum(axis=-1))


def f1_macro(counts: ClassCounts) -> Values:
    """Mean of the classes' F1."""
    return macro(f1(counts), counts)


def f1_micro(counts: ClassCounts) -> Values:
    """F1 of all decisions pooled; with one label a paper it is the accuracy.

    >>> round(float(f1_micro(count_classes([0, 0, 1], [0, 1, 1]))), 4)
    0.6667
    """
    return share(2 * counts.hits.sum(axis=-1), (counts.predicted + counts.actual).sum(axis=-1))


def accuracy(counts: ClassCounts) -> Values:
    """Share of papers that are right in all of their labels."""
    return np.asarray(counts.exact, np.float64)


def of_positive(formula: Callable[[ClassCounts], Values], counts: ClassCounts) -> Values:
    """The value of the positive class of a yes-or-no question, (...).

    >>> round(float(of_positive(recall, count_classes([0, 1, 1, 1], [0, 1, 1, 0]))), 4)
    0.6667
    """
    if counts.positive is None:
        raise UserError(
            "f1, precision and recall without an average are for two classes, one of which is the positive one; "
            "use f1_macro, precision_macro or recall_macro, or say which label is positive"
        )
    return np.asarray(formula(counts)[..., counts.positive])


CLASSIFICATION_METRICS: dict[str, Callable[[ClassCounts], Values]] = {
    "f1": lambda counts: of_positive(f1, counts),
    "precision": lambda counts: of_positive(precision, counts),
    "recall": lambda counts: of_positive(recall, counts),
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "f1_weighted": lambda counts: weighted(f1(counts), counts),
    "precision_macro": lambda counts: macro(precision(counts), counts),
    "recall_macro": lambda counts: macro(recall(counts), counts),
    "accuracy": accuracy,
}
"""By the names of scikit-learn and SciRepEval; all but the first three are for any number of classes."""


def classification_metrics(counts: ClassCounts, names: Iterable[str]) -> dict[str, Values]:
    """The named metrics, arrays of shape (...): of no dimension where the counts are of one set of papers.

    >>> found = classification_metrics(count_classes([0, 0, 1], [0, 1, 1]), ["f1_macro", "accuracy"])
    >>> {name: round(float(value), 4) for name, value in found.items()}
    {'f1_macro': 0.6667, 'accuracy': 0.6667}
    """
    return {name: CLASSIFICATION_METRICS[choose(name, CLASSIFICATION_METRICS, "metric")](counts) for name in names}
