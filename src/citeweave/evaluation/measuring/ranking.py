"""Ranked candidates of many queries at once: what every ranking metric reads.

Queries lie one after the other in flat arrays; query i owns the pairs offsets[i] to offsets[i + 1].

    scores    [0.2, 0.9, nan | 0.5, 0.5]     better when higher; nan: judged, but not in the run; -inf: in the run, last
    grades    [  1,   0,   2 |   0,   1]     how well the candidate answers the query
    offsets   [0, 3, 5]
    ranked    [  0,   1, (2) |   1,   0]     grades, best first; those that are not in the run come last

    >>> scores, grades = np.array([0.2, 0.9, np.nan, 0.5, 0.5]), np.array([1, 0, 2, 0, 1])
    >>> ranked = rank_as_trec(scores, grades, np.array([0, 3, 5]), ties=id_order(["a", "b", "c", "a", "b"]))
    >>> ranked.grades.tolist(), ranked.submitted.tolist(), ranked.order.tolist()
    ([0, 1, 2, 1, 0], [2, 2], [1, 0, 2, 4, 3])

Does not compute scores, and does not leave queries out: a query without candidates gets 0 from every metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import choose

Values = NDArray[np.float64]
"""One number a query."""

Cut = int | NDArray[np.int64] | None
"""How many of the first candidates count: as many for every query, (queries,) numbers, or all."""

IDEALS = ("judged", "submitted")
"""What a ranking could have reached at best: with all judged papers, or with those alone that are in the run."""


@dataclass(frozen=True)
class Ranked:
    """Candidates in the order of their scores; made by `rank_as_trec` or `rank_as_given`."""

    offsets: NDArray[np.int64]
    """Where the pairs of each query begin and end, (queries + 1,)."""

    order: NDArray[np.int64]
    """The pair of the input at each place, (pairs,)."""

    grades: NDArray[np.int64]
    """In ranked order; those of candidates that are not in the run end each query, (pairs,)."""

    submitted: NDArray[np.int64]
    """How many candidates of each query are in the run, (queries,)."""

    def __len__(self) -> int:
        return len(self.submitted)

    @cached_property
    def judged(self) -> NDArray[np.int64]:
        """How many candidates each query has, in the run or not, (queries,)."""
        return np.diff(self.offsets)

    @cached_property
    def query(self) -> NDArray[np.int64]:
        """The query of each place, (pairs,)."""
        return np.repeat(np.arange(len(self)), self.judged)

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """The rank of each place in its query, from 1, (pairs,)."""
        return np.arange(1, len(self.grades) + 1) - self.offsets[self.query]

    @cached_property
    def found(self) -> NDArray[np.bool_]:
        """Whether the place is in the run, (pairs,)."""
        return self.place <= self.submitted[self.query]

    def length(self, ideal: str) -> NDArray[np.int64]:
        """How many candidates a query has by this notion of the best ranking, (queries,)."""
        return self.judged if choose(ideal, IDEALS, "ideal") == "judged" else self.submitted

    def early(self, cut: Cut) -> NDArray[np.bool_]:
        """Which places are among the first `cut` of their query, (pairs,)."""
        if cut is None:
            return np.ones(len(self.place), bool)
        return self.place <= (cut if isinstance(cut, int) else cut[self.query])

    def total(self, values: NDArray[Any]) -> Values:
        """Sum over the places of each query, (queries,)."""
        sums = np.zeros(len(self))
        filled = np.flatnonzero(self.judged)  # reduceat gives an empty query the value after it
        if len(filled):
            sums[filled] = np.add.reduceat(values, self.offsets[filled], dtype=np.float64)
        return sums

    def running(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many flags are set from the query's first place up to each place, (pairs,)."""
        sums = np.zeros(len(flags) + 1, np.int64)
        np.cumsum(flags, out=sums[1:])
        running: NDArray[np.int64] = sums[1:] - sums[self.offsets[self.query]]
        return running

    def best_gains(self, ideal: str) -> NDArray[np.int64]:
        """The gains of the best ranking, place by place, (pairs,)."""
        return self._best_judged if choose(ideal, IDEALS, "ideal") == "judged" else self._best_submitted

    @cached_property
    def _best_judged(self) -> NDArray[np.int64]:
        return self._sorted_gains(self.grades)

    @cached_property
    def _best_submitted(self) -> NDArray[np.int64]:
        return self._sorted_gains(np.where(self.found, self.grades, 0))

    def _sorted_gains(self, grades: NDArray[np.int64]) -> NDArray[np.int64]:
        gains = np.maximum(grades, 0)
        top = int(gains.max(initial=0))
        first = self.query * (top + 1)
        # sorting values is faster than finding an order, and every query keeps its places
        keys = np.sort(first + (top - gains), kind="stable")
        best: NDArray[np.int64] = first + top - keys
        return best


def rank_as_trec(
    scores: NDArray[Any], grades: NDArray[Any], offsets: NDArray[np.integer[Any]], ties: NDArray[np.integer[Any]]
) -> Ranked:
    """Rank as trec_eval does: scores are compared in single precision, equal ones by DESCENDING id.

    `ties` (pairs,) is the place of each candidate's id in ascending order (`id_order`). So 1.0 and 1.0 + 1e-9 are a
    tie, which "b" wins against "a". trec_eval 9.0, form_res_rels.c.

    >>> rank_as_trec(np.array([1.0, 1.0 + 1e-9]), np.array([1, 0]), np.array([0, 2]), np.array([1, 0])).order.tolist()
    [0, 1]
    """
    scores, grades, offsets, query = _check(scores, grades, offsets)
    if len(ties) != len(scores):
        raise ValueError(f"{len(ties)} places of ids for {len(scores)} pairs")
    # two stable sorts of keys that hold the query too: the pairs lie query by query already, so both are short
    first = np.argsort((query << 32) - np.asarray(ties, np.int64), kind="stable")
    order = first[np.argsort(((query << 32) - _sortable(scores))[first], kind="stable")]
    return _ranked(scores, grades, offsets, order)


def rank_as_given(scores: NDArray[Any], grades: NDArray[Any], offsets: NDArray[np.integer[Any]]) -> Ranked:
    """Rank by scores in full precision; equal ones stay in the order in which they were given.

    So are CSFCube's and ASPIRE's ranked lists made: Python's sort is stable.

    >>> rank_as_given(np.array([1.0, 1.0 + 1e-9, 1.0]), np.array([1, 0, 2]), np.array([0, 3])).order.tolist()
    [1, 0, 2]
    """
    scores, grades, offsets, query = _check(scores, grades, offsets)
    return _ranked(scores, grades, offsets, np.lexsort((-scores, query)))  # nan sorts last


def id_order(ids: Sequence[str]) -> NDArray[np.int64]:
    """The place of every id among all ids in ascending order; equal ids share one.

    >>> id_order(["p9", "p10", "q1", "p9"]).tolist()
    [1, 0, 2, 1]
    """
    places = {name: place for place, name in enumerate(sorted(set(ids)))}
    return np.array([places[name] for name in ids], np.int64)


def share(part: NDArray[Any], whole: NDArray[Any]) -> Values:
    """part / whole, 0 where there is no whole."""
    values = np.zeros(np.broadcast_shapes(np.shape(part), np.shape(whole)))
    np.divide(part, whole, out=values, where=np.asarray(whole) > 0)
    return values


def _check(
    scores: NDArray[Any], grades: NDArray[Any], offsets: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    numbers, whole, bounds = np.asarray(scores, np.float64), np.asarray(grades, np.int64), np.asarray(offsets, np.int64)
    if not np.array_equal(whole, grades):
        raise ValueError("grades must be whole numbers")
    if len(whole) != len(numbers):
        raise ValueError(f"{len(whole)} grades for {len(numbers)} scores")
    sizes = np.diff(bounds)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(numbers) or (sizes < 0).any():
        raise ValueError(f"offsets must grow from 0 to the number of pairs, {len(numbers)}")
    query: NDArray[np.int64] = np.repeat(np.arange(len(sizes)), sizes)
    return numbers, whole, bounds, query


def _sortable(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers below 2^32 in the order of the scores in single precision; -1 for nan."""
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
    bits = single.view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.int64)
    return np.where(np.isnan(single), -1, keys)


def _ranked(
    scores: NDArray[np.float64],
    grades: NDArray[np.int64],
    offsets: NDArray[np.int64],
    order: NDArray[np.int64],
) -> Ranked:
    present = np.zeros(len(scores) + 1, np.int64)
    np.cumsum(~np.isnan(scores), out=present[1:])
    return Ranked(offsets, order, grades[order], np.diff(present[offsets]))
