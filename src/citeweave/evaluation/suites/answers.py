"""What probes learn and tell: class labels, multi-hot labels or numbers, from the cells of a benchmark's files.

>>> as_classes(["0", "2"], "train.csv").tolist(), as_classes(["cat", "2"], "train.csv").tolist()
([0, 2], ['cat', '2'])
>>> guess_kind(["0.5", "2"]), guess_kind([0, 1, 1]), guess_kind([[0, 1], [1, 1]])
('numbers', 'classes', 'labels')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import InputError

KINDS = ("classes", "labels", "numbers")
MANY = 30
"""More whole numbers than this are taken for numbers, such as years, not for classes; SciDocs has 19 classes."""


def guess_kind(cells: Sequence[Any]) -> str:
    """What answers look like: lists are `labels`, fractions or many whole numbers are `numbers`, else `classes`."""
    if any(isinstance(cell, list) for cell in cells):
        return "labels"
    numbers = [_number(cell) for cell in cells]
    if any(number is None for number in numbers):
        return "classes"
    fractions = any(number is not None and number % 1 for number in numbers)
    return "numbers" if fractions or len(set(numbers)) > MANY else "classes"


def as_answers(kind: str, cells: Sequence[Any], where: str) -> NDArray[Any]:
    """The answers of one kind; `where` names the file for errors."""
    makers = {"classes": as_classes, "labels": as_labels, "numbers": as_numbers}
    return makers[kind](cells, where)


def as_classes(cells: Sequence[Any], where: str) -> NDArray[Any]:
    """Whole numbers where all are that 64 bits can hold, else texts."""
    for place, cell in enumerate(cells):
        if isinstance(cell, bool) or not isinstance(cell, str | int) or cell == "":
            raise InputError(f"{where} record {place + 1} has the label {cell!r}; a class is a text or a whole number")
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        return np.array([str(cell) for cell in cells])


def as_labels(cells: Sequence[Any], where: str) -> NDArray[np.int64]:
    """(papers, labels) of 0 and 1."""
    width = len(cells[0]) if cells and isinstance(cells[0], list) else 0
    for place, cell in enumerate(cells):
        if not isinstance(cell, list) or len(cell) != width or not width or not set(cell) <= {0, 1}:
            raise InputError(
                f"{where} record {place + 1} has the label {str(cell)[:60]}; several labels are a list of 0 and 1, "
                f"as long as the first one's ({width}); such lists stand in JSON lines, not in CSV"
            )
    return np.array(cells, np.int64)


def as_numbers(cells: Sequence[Any], where: str) -> NDArray[np.float64]:
    numbers = [_number(cell) for cell in cells]
    for place, number in enumerate(numbers):
        if number is None:
            raise InputError(f"{where} record {place + 1} has the label {cells[place]!r}; it must be a number")
    return np.array(numbers, np.float64)


def _number(cell: Any) -> float | None:
    """A finite number, also from text; None for anything else."""
    try:
        number = float(cell) if isinstance(cell, int | float | str) and not isinstance(cell, bool) else float("nan")
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None
