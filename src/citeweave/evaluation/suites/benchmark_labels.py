"""A benchmark's labels and grades as arrays: classes, multi-hot labels, numbers, graded candidates.

    >>> as_classes(["0", "2"], "train.csv").tolist(), as_classes(["cat", "2"], "train.csv").tolist()
    ([0, 2], ['cat', '2'])
    >>> guess_kind(["0.5", "2"]), guess_kind([0, 1, 1]), guess_kind([[0, 1], [1, 1]])
    ('numbers', 'classes', 'labels')
    >>> graded = clean_queries([GradedQuery("q", "q", ["b", "q", "a"], [2, 3, 0])], relevant=2)
    >>> graded.queries[0].candidates, graded.notes()
    (['a', 'b'], ('candidates left out, since they are the query itself: 1',))

Does not read files: see `benchmark_files.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.evaluation.tasks import Pools, TaskTexts

MAX_GUESSED_CLASSES = 30
"""More distinct integers than this are taken for numbers, such as years, not for classes; SciDocs has 19 classes."""

REPEATED = "papers given twice, of which the last line counts"
UNKNOWN = "papers without text, which only the pools name"


# --- labels of probes ------------------------------------------------------------------------------------


def guess_kind(cells: Sequence[Any]) -> str:
    """Guess the kind of a benchmark's labels: lists are `labels`, fractions or many integers `numbers`, else `classes`."""
    if any(isinstance(cell, list) for cell in cells):
        return "labels"
    numbers = [_number(cell) for cell in cells]
    if any(number is None for number in numbers):
        return "classes"
    fractions = any(number is not None and number % 1 for number in numbers)
    return "numbers" if fractions or len(set(numbers)) > MAX_GUESSED_CLASSES else "classes"


def as_probe_labels(kind: str, cells: Sequence[Any], where: str) -> NDArray[Any]:
    """Return a probe's labels of one kind as an array; `where` names the file in errors."""
    converters = {"classes": as_classes, "labels": as_labels, "numbers": as_numbers}
    return converters[kind](cells, where)


def as_classes(cells: Sequence[Any], where: str) -> NDArray[Any]:
    """Return a benchmark's class labels as integers where all of them fit into 64 bits, else as strings."""
    for place, cell in enumerate(cells):
        if isinstance(cell, bool) or not isinstance(cell, str | int) or cell == "":
            raise InputError(f"{where} record {place + 1} has the label {cell!r}; a class is a string or an integer")
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        return np.array([str(cell) for cell in cells])


def as_labels(cells: Sequence[Any], where: str) -> NDArray[np.int64]:
    """Return a benchmark's lists of labels as a multi-hot array, (papers, labels) of 0 and 1."""
    width = len(cells[0]) if cells and isinstance(cells[0], list) else 0
    for place, cell in enumerate(cells):
        if not isinstance(cell, list) or len(cell) != width or not width or not set(cell) <= {0, 1}:
            raise InputError(
                f"{where} record {place + 1} has the label {str(cell)[:60]}; multi-hot labels are a list of 0 and 1, "
                f"as long as the first one ({width}); JSON lines can hold such lists, CSV cannot"
            )
    return np.array(cells, np.int64)


def as_numbers(cells: Sequence[Any], where: str) -> NDArray[np.float64]:
    """Return a benchmark's labels for a regression probe as finite numbers."""
    numbers = [_number(cell) for cell in cells]
    for place, number in enumerate(numbers):
        if number is None:
            raise InputError(f"{where} record {place + 1} has the label {cells[place]!r}; it must be a number")
    return np.array(numbers, np.float64)


def _number(cell: Any) -> float | None:
    """Return a label as a finite number, also from text; None for anything else."""
    try:
        number = float(cell) if isinstance(cell, int | float | str) and not isinstance(cell, bool) else float("nan")
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


# --- queries with graded candidates ----------------------------------------------------------------------


@dataclass(frozen=True)
class GradedQuery:
    """Labels of a benchmark's query paper: its candidates and their relevance grades."""

    name: str
    """The name of the query in reports."""

    paper: str
    candidates: Sequence[str]
    grades: Sequence[int]
    group: str = ""
    sentences: NDArray[np.int64] | None = None
    """Which sentences of the query paper count, None = all."""


@dataclass
class GradedQueries:
    """A benchmark's cleaned labels: queries with graded candidates; `counts` words the changes for the suite's notes."""

    queries: list[GradedQuery]
    counts: Counter[str]

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{what}: {number:,}" for what, number in self.counts.items() if number)


def clean_queries(queries: Iterable[GradedQuery], *, relevant: int) -> GradedQueries:
    """Clean a benchmark's labels, the graded candidates: remove each query from its own, and repeats; sort them by id.

    The order matters: ASPIRE's files list relevant papers first, so a model that scores all candidates the same would
    be right by the order alone.
    """
    counts: Counter[str] = Counter()
    cleaned = []
    for query in queries:
        grades = dict(zip(query.candidates, query.grades, strict=True))
        counts["candidates named twice, of which the last grade counts"] += len(query.candidates) - len(grades)
        if query.paper in grades:
            del grades[query.paper]
            counts["candidates left out, since they are the query itself"] += 1
        counts["queries left out, since they have no candidates"] += not grades
        if grades:
            counts["queries without relevant papers, which count as 0"] += max(grades.values()) < relevant
            names = sorted(grades)
            cleaned.append(replace(query, candidates=names, grades=[grades[name] for name in names]))
    return GradedQueries(cleaned, counts)


def add_unknown_papers(texts: TaskTexts, queries: Sequence[GradedQuery]) -> tuple[TaskTexts, int]:
    """Return the texts with an empty row for each paper that only a benchmark's labels name, and how many those are."""
    named: set[str] = {query.paper for query in queries}
    for query in queries:
        named.update(query.candidates)
    unknown = sorted(named.difference(texts.ids))
    if not unknown:
        return texts, 0
    blank: list[list[str]] = [[] for _ in unknown]
    more = TaskTexts(
        ids=[*texts.ids, *unknown],
        titles=[*texts.titles, *([""] * len(unknown))],
        abstracts=[*texts.abstracts, *([""] * len(unknown))],
        sentences=None if texts.sentences is None else [*texts.sentences, *blank],
        labels=None if texts.labels is None else [*texts.labels, *blank],
        lacking=texts.lacking,
    )
    return more, len(unknown)


def make_pools(texts: TaskTexts, queries: Sequence[GradedQuery]) -> Pools:
    """Turn a benchmark's labels into pools: queries and graded candidates as rows of the texts, which have them all."""
    if not queries:
        raise EmptyResultError("no query is left to evaluate; check the split and the folder")
    candidates = np.concatenate([texts.rows(query.candidates) for query in queries])
    rows = texts.rows([query.paper for query in queries])
    assert (candidates >= 0).all() and (rows >= 0).all(), "add_unknown_papers gives every paper a row"
    grouped, aspects = any(query.group for query in queries), any(query.sentences is not None for query in queries)
    return Pools(
        queries=rows,
        offsets=np.concatenate([[0], np.cumsum([len(query.candidates) for query in queries])]).astype(np.int64),
        candidates=candidates,
        grades=np.concatenate([np.array(query.grades, np.int64) for query in queries]),
        names=[query.name for query in queries],
        sentences=[query.sentences for query in queries] if aspects else None,
        groups=[query.group for query in queries] if grouped else None,
    )
