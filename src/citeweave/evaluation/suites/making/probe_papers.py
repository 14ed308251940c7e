"""Papers whose field, year or citations a probe learns and tells, by rows of the corpus.

    field       classes: the first field of each paper; 70 of 100 papers of every class to learn from, 30 to tell
    year        numbers: the year of publication; 60 of 100 to learn from
    citations   numbers: log(1 + citations), as the source counts them, else as the corpus does

Papers are the first of `Material.order`, so that they are those of other tasks. Does not know vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.layout import UNKNOWN_COUNT
from citeweave.evaluation.suites.making.material import CannotAskError, Material, Rows

FEWEST, MOST_CLASSES = 30, 20
"""A class has at least so many papers; only the largest count."""

CLASS_SHARE, NUMBER_SHARE = 0.7, 0.6
"""Papers to learn from."""

FEWEST_NUMBERS = 50


@dataclass(frozen=True)
class RowProbe:
    """Papers by rows of the corpus, with their answers."""

    kind: str
    train: Rows
    train_answers: NDArray[Any]
    test: Rows
    test_answers: NDArray[Any]
    counts: Mapping[str, int]

    def papers(self) -> Rows:
        """Every paper that occurs."""
        return np.union1d(self.train, self.test)


def make_field(material: Material) -> RowProbe:
    names, codes = material.fields
    rows = material.order[codes[material.order] >= 0][: material.options.field_papers]
    if not len(rows):
        raise CannotAskError("no field labels")
    sizes = np.bincount(codes[rows], minlength=len(names))
    largest = np.argsort(-sizes, kind="stable")[:MOST_CLASSES]
    kept = largest[sizes[largest] >= FEWEST]
    if len(kept) < 2:
        raise CannotAskError(f"{len(kept)} fields have {FEWEST} papers or more with a title; a probe needs two")
    rows = rows[np.isin(codes[rows], kept)]
    place = _place_in_class(codes[rows])
    learned = place < CLASS_SHARE * sizes[codes[rows]]
    answers = np.array(names)[codes[rows]]
    counts = {"classes": len(kept), "training papers": int(learned.sum()), "test papers": int((~learned).sum())}
    return RowProbe("classes", rows[learned], answers[learned], rows[~learned], answers[~learned], counts)


def make_year(material: Material) -> RowProbe:
    years = material.corpus.years
    return _numbers(material, years > 0, years.astype(np.float64), "years")


def make_citations(material: Material) -> RowProbe:
    """Counts of the source where most papers with a title have one: a mixture would not be one scale."""
    corpus = material.corpus
    counts: NDArray[np.integer[Any]] = corpus.citation_counts
    is_known = counts != UNKNOWN_COUNT
    if 2 * int((is_known & material.readable).sum()) < len(material.order) or not len(material.order):
        if not len(corpus.citing):
            raise CannotAskError("no citation counts and no citations to count")
        counts, is_known = np.bincount(corpus.cited, minlength=len(corpus)), np.ones(len(corpus), bool)
    return _numbers(material, is_known, np.log1p(np.maximum(counts, 0).astype(np.float64)), "citation counts")


def _numbers(material: Material, is_known: NDArray[np.bool_], values: NDArray[np.float64], what: str) -> RowProbe:
    rows = material.order[is_known[material.order]][: material.options.number_papers]
    if not len(rows):
        raise CannotAskError(f"no {what}")
    if len(rows) < FEWEST_NUMBERS or len(np.unique(values[rows])) < 2:
        raise CannotAskError(
            f"{len(rows)} papers have {what}, {len(np.unique(values[rows]))} of them different; "
            f"a probe needs {FEWEST_NUMBERS} and two"
        )
    cut = int(NUMBER_SHARE * len(rows))
    train, test = rows[:cut], rows[cut:]
    counts = {"training papers": len(train), "test papers": len(test)}
    return RowProbe("numbers", train, values[train], test, values[test], counts)


def _place_in_class(codes: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """How many of the same class came before.

    >>> _place_in_class(np.array([5, 2, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(codes, kind="stable")
    places = np.empty(len(codes), np.int64)
    places[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order])
    return places
