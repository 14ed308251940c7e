"""Metrics of ranked lists in which a candidate is relevant or not: its grade reaches a threshold, or does not.

One query, grades 0 1 0 1 by rank, and one relevant paper that is not in the run:

    >>> ranked = rank_as_given(np.array([4.0, 3, 2, 1, np.nan]), np.array([0, 1, 0, 1, 1]), np.array([0, 5]))
    >>> average_precision(ranked).round(4).tolist(), average_precision(ranked, ideal="submitted").tolist()
    ([0.3333], [0.5])

`ideal` says what counts as missed: every relevant paper that is judged, or those alone that are in the run (the way of
CSFCube and ASPIRE, in which a paper that is left out costs nothing). A query with nothing relevant gets 0.
Does not know the names of the metrics: those are in `evaluation/metrics.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import choose
from citeweave.evaluation.measuring.ranking import IDEALS, Cut, Ranked, Values, rank_as_given, share


def precision_at(ranked: Ranked, cut: int, *, threshold: int = 1) -> Values:
    """Share of relevant ones among the first `cut`; divided by `cut` even where the list is shorter.

    trec_eval's P_k. CSFCube's script stops at a list that is shorter than `cut`.

    >>> precision_at(_example([0, 1, 0, 1]), 2).tolist(), precision_at(_example([1]), 5).tolist()
    ([0.5], [0.2])
    """
    return ranked.total(_hits(ranked, cut, threshold)) / cut


def capped_precision_at(ranked: Ranked, cut: int, *, threshold: int = 1) -> Values:
    """Share of relevant ones among the first `cut`, or among the first R where there are only R of them.

    P_k where k papers are relevant; a perfect ranking of fewer has 1 too.

    >>> capped_precision_at(_example([1, 0, 1]), 10).tolist(), capped_precision_at(_example([1, 0, 1]), 1).tolist()
    ([0.5], [1.0])
    """
    cuts = np.minimum(_relevant(ranked, threshold, "judged").astype(np.int64), cut)  # (queries,)
    return share(ranked.total(_hits(ranked, cuts, threshold)), cuts.astype(np.float64))


def recall_at(ranked: Ranked, cut: int, *, threshold: int = 1, ideal: str = "judged") -> Values:
    """Share of the relevant ones that are among the first `cut`: trec_eval's recall_k.

    >>> recall_at(_example([0, 1, 0, 1]), 2).tolist()
    [0.5]
    """
    return share(ranked.total(_hits(ranked, cut, threshold)), _relevant(ranked, threshold, ideal))


def f1_at(ranked: Ranked, cut: int, *, threshold: int = 1, ideal: str = "judged") -> Values:
    """Harmonic mean of precision and recall among the first `cut`: ASPIRE, evaluation/utils/metrics.py.

    >>> f1_at(_example([0, 1, 0, 0]), 2).round(4).tolist()
    [0.6667]
    """
    precision = precision_at(ranked, cut, threshold=threshold)
    recall = recall_at(ranked, cut, threshold=threshold, ideal=ideal)
    return share(2 * precision * recall, precision + recall)


def success_at(ranked: Ranked, cut: int, *, threshold: int = 1) -> Values:
    """1 where a relevant one is among the first `cut`, else 0: trec_eval's success_k.

    >>> success_at(_example([0, 1, 0]), 1).tolist(), success_at(_example([0, 1, 0]), 2).tolist()
    ([0.0], [1.0])
    """
    return (ranked.total(_hits(ranked, cut, threshold)) > 0).astype(np.float64)


def average_precision(ranked: Ranked, *, cut: Cut = None, threshold: int = 1, ideal: str = "judged") -> Values:
    """Mean over the relevant ones of the precision at their rank, 0 for those that are not found: trec_eval's map.

    >>> average_precision(_example([1, 0, 1])).round(4).tolist()  # (1/1 + 2/3) / 2
    [0.8333]
    """
    hits = _hits(ranked, cut, threshold)
    return share(ranked.total(hits * ranked.running(hits) / ranked.place), _relevant(ranked, threshold, ideal))


def chance_of_average_precision(relevant: NDArray[np.int64], sizes: NDArray[np.int64]) -> Values:
    """Average precision of a random order, as expected over all orders: Bestgen, PBML 103, 2015.

    A place holds a relevant one with probability R / n, and before it stand (R - 1) / (n - 1) of them a place.

    >>> chance_of_average_precision(np.array([1]), np.array([2])).tolist()  # first or second: (1 + 1/2) / 2
    [0.75]
    """
    places = np.arange(1, int(sizes.max(initial=1)) + 1)
    harmonic = np.cumsum(1 / places)[sizes - 1]  # (queries,)
    beside = (relevant - 1) / np.maximum(sizes - 1, 1)
    found: Values = np.where(relevant > 0, (harmonic + beside * (sizes - harmonic)) / sizes, 0.0)
    return found


def reciprocal_rank(ranked: Ranked, *, threshold: int = 1) -> Values:
    """1 / rank of the first relevant one: trec_eval's recip_rank.

    >>> reciprocal_rank(_example([0, 0, 1, 1])).round(4).tolist()
    [0.3333]
    """
    hits = _hits(ranked, None, threshold)
    return ranked.total((hits & (ranked.running(hits) == 1)) / ranked.place)


def r_precision(ranked: Ranked, *, threshold: int = 1, ideal: str = "judged") -> Values:
    """Precision among the first R, with R the number of relevant ones: trec_eval's Rprec.

    >>> r_precision(_example([0, 0, 1])).tolist(), r_precision(_example([1, 0, 1])).tolist()
    ([0.0], [0.5])
    """
    relevant = _relevant(ranked, threshold, ideal)  # (queries,)
    return share(ranked.total(_hits(ranked, relevant.astype(np.int64), threshold)), relevant)


def precision_at_last_relevant(ranked: Ranked, *, threshold: int = 1) -> Values:
    """Precision at the rank of the last relevant one of the run: what CSFCube and ASPIRE call R-precision.

    >>> precision_at_last_relevant(_example([0, 0, 1])).round(4).tolist()
    [0.3333]
    """
    hits = _hits(ranked, None, threshold)
    counts = ranked.total(hits)  # (queries,)
    last = hits & (ranked.running(hits) == counts[ranked.query])
    return ranked.total(last * counts[ranked.query] / ranked.place)


def _hits(ranked: Ranked, cut: Cut, threshold: int) -> NDArray[np.bool_]:
    """Which places hold a relevant candidate, (pairs,)."""
    return ranked.found & ranked.early(cut) & (ranked.grades >= threshold)


def _relevant(ranked: Ranked, threshold: int, ideal: str) -> Values:
    """How many relevant ones there are to find, (queries,)."""
    relevant = ranked.grades >= threshold
    return ranked.total(relevant if choose(ideal, IDEALS, "ideal") == "judged" else relevant & ranked.found)


def _example(grades: list[int]) -> Ranked:
    """One query with these grades by rank, for the examples above."""
    return rank_as_given(-np.arange(len(grades)), np.array(grades), np.array([0, len(grades)]))
