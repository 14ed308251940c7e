"""Ranking metrics by name, for many queries at once: average precision, NDCG, recall, reciprocal rank.

trec_eval's names are plain; those of CSFCube and ASPIRE begin with `csfcube:`, as their formulas differ:

    map  ndcg  Rprec  recip_rank  map_cut_10  ndcg_cut_10  P_5  P_cap_10  recall_5  success_1
    csfcube:ndcg  csfcube:ndcg@20  csfcube:ndcg%20  csfcube:av_precision  csfcube:reciprocal_rank
    csfcube:precision@20  csfcube:recall@20  csfcube:f1@20  csfcube:r_precision  csfcube:precision_at_last_relevant

Queries lie one after the other in flat arrays; query i owns the pairs offsets[i] to offsets[i + 1].

    scores    [0.2, 0.9, nan | 0.5, 0.5]     better when higher; nan: judged, but not in the run; -inf: in the run, last
    grades    [  1,   0,   2 |   0,   1]     relevance of each candidate
    offsets   [0, 3, 5]
    ranked    [  0,   1, (2) |   1,   0]     grades, best first; those that are not in the run come last

    >>> scores, grades = np.array([0.2, 0.9, np.nan, 0.5, 0.5]), np.array([1, 0, 2, 0, 1])
    >>> ranked = rank_as_trec(scores, grades, np.array([0, 3, 5]), ties=id_order(["a", "b", "c", "a", "b"]))
    >>> ranked.grades.tolist(), ranked.submitted.tolist(), ranked.order.tolist()
    ([0, 1, 2, 1, 0], [2, 2], [1, 0, 2, 4, 3])
    >>> {name: values.round(4).tolist() for name, values in ranking_metrics(ranked, ["map", "recall_1"]).items()}
    {'map': [0.25, 1.0], 'recall_1': [0.0, 1.0]}

A candidate is relevant where its grade reaches a threshold. `ideal` says what counts as missed: every relevant paper that
is judged, or those alone that are in the run (as in CSFCube and ASPIRE, where a paper that is left out costs nothing).

    >>> ranked = rank_as_given(np.array([4.0, 3, 2, 1, np.nan]), np.array([0, 1, 0, 1, 1]), np.array([0, 5]))
    >>> average_precision(ranked).round(4).tolist(), average_precision(ranked, ideal="submitted").tolist()
    ([0.3333], [0.5])

NDCG has two forms. Both take the grade itself as the gain (a negative grade gains nothing) and divide by the gain of the
ideal ranking; they differ in how much a rank is worth. Gains of 2^grade - 1 are in no protocol here.

    rank              1     2     3     4     5
    _trec_discount     1  0.63  0.50  0.43  0.39     1 / log2(rank + 1)
    csfcube_discount  1     1  0.63  0.50  0.43     1 / log2(rank), and 1 for the first

A metric is one fraction per query; a query without candidates, or with nothing relevant, gets 0 and is never left out.
Means, folds and resamples are the business of `metrics.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.ragged import Ragged, owners_of, to_offsets

Values = NDArray[np.float64]
"""(queries,) one value per query."""

Cut = int | NDArray[np.int64] | None
"""How many of the first candidates count: as many for every query, (queries,) numbers, or all."""

IDEALS = ("judged", "submitted")
"""What the ideal ranking is made of: all judged papers, or those alone that are in the run."""


@dataclass(frozen=True)
class RankedCandidates(Ragged):
    """Rankings to compute metrics of: all queries' candidates by score, made by `rank_as_trec` or `rank_as_given`."""

    order: NDArray[np.int64]
    """The input pair at each place, (pairs,)."""

    grades: NDArray[np.int64]
    """In ranked order; those of candidates that are not in the run end each query, (pairs,)."""

    submitted: NDArray[np.int64]
    """How many candidates of each query are in the run, (queries,)."""

    @cached_property
    def judged(self) -> NDArray[np.int64]:
        """Number of candidates of each query, in the run or not, (queries,)."""
        return self.lengths()

    @cached_property
    def query(self) -> NDArray[np.int64]:
        """The query of each place, (pairs,)."""
        return self.owners()

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """The rank of each place in its query, from 1, (pairs,)."""
        return np.arange(1, len(self.grades) + 1) - self.offsets[self.query]

    @cached_property
    def in_run(self) -> NDArray[np.bool_]:
        """Whether the place is in the run, (pairs,)."""
        return self.place <= self.submitted[self.query]

    def length(self, ideal: str) -> NDArray[np.int64]:
        """Return the number of candidates in each query's ideal ranking, (queries,)."""
        return self.judged if ideal == "judged" else self.submitted

    def early(self, cut: Cut) -> NDArray[np.bool_]:
        """Tell which places are among the first `cut` of their query, (pairs,)."""
        if cut is None:
            return np.ones(len(self.place), bool)
        return self.place <= (cut if isinstance(cut, int) else cut[self.query])

    def total(self, values: NDArray[Any]) -> Values:
        """Sum the values of a ranking metric over the places of each query, (queries,)."""
        sums = np.zeros(len(self))
        filled = np.flatnonzero(self.judged)  # reduceat gives an empty query the value after it
        if len(filled):
            sums[filled] = np.add.reduceat(values, self.offsets[filled], dtype=np.float64)
        return sums

    def running(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the flags from the query's first place up to each place, (pairs,)."""
        sums = to_offsets(flags)
        running: NDArray[np.int64] = sums[1:] - sums[self.offsets[self.query]]
        return running

    def best_gains(self, ideal: str) -> NDArray[np.int64]:
        """Return the gains of the ideal ranking at each place, (pairs,)."""
        return self._best_judged if ideal == "judged" else self._best_submitted

    @cached_property
    def _best_judged(self) -> NDArray[np.int64]:
        return self._sorted_gains(self.grades)

    @cached_property
    def _best_submitted(self) -> NDArray[np.int64]:
        return self._sorted_gains(np.where(self.in_run, self.grades, 0))

    def _sorted_gains(self, grades: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sort the gains of each query in descending order, (pairs,)."""
        gains = np.maximum(grades, 0)
        top = int(gains.max(initial=0))
        first = self.query * (top + 1)
        # sorting values is faster than argsort, and every query keeps its places
        keys = np.sort(first + (top - gains), kind="stable")
        best: NDArray[np.int64] = first + top - keys
        return best


def rank_as_trec(
    scores: NDArray[Any], grades: NDArray[Any], offsets: NDArray[np.integer[Any]], ties: NDArray[np.integer[Any]]
) -> RankedCandidates:
    """Rank candidates for metrics as trec_eval does: scores in single precision, equal ones by DESCENDING id.

    `ties` (pairs,) is the place of each candidate's id in ascending order (`id_order`). So 1.0 and 1.0 + 1e-9 are a
    tie, which "b" wins against "a". trec_eval 9.0, form_res_rels.c.

    >>> rank_as_trec(np.array([1.0, 1.0 + 1e-9]), np.array([1, 0]), np.array([0, 2]), np.array([1, 0])).order.tolist()
    [0, 1]
    """
    scores, grades, offsets, query = _check_pairs(scores, grades, offsets)
    if len(ties) != len(scores):
        raise ValueError(f"{len(ties)} places of ids for {len(scores)} pairs")
    # two stable sorts of keys that hold the query too: the pairs lie query by query already, so both are short
    first = np.argsort((query << 32) - np.asarray(ties, np.int64), kind="stable")
    order = first[np.argsort(((query << 32) - _sortable(scores))[first], kind="stable")]
    return _ranked(scores, grades, offsets, order)


def rank_as_given(scores: NDArray[Any], grades: NDArray[Any], offsets: NDArray[np.integer[Any]]) -> RankedCandidates:
    """Rank candidates for metrics by scores in full precision; equal ones stay in the order of the input.

    CSFCube's and ASPIRE's ranked lists are made this way: Python's sort is stable.

    >>> rank_as_given(np.array([1.0, 1.0 + 1e-9, 1.0]), np.array([1, 0, 2]), np.array([0, 3])).order.tolist()
    [1, 0, 2]
    """
    scores, grades, offsets, query = _check_pairs(scores, grades, offsets)
    return _ranked(scores, grades, offsets, np.lexsort((-scores, query)))  # nan sorts last


def id_order(ids: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of every id in ascending order, by which ranking metrics break ties; equal ids share one.

    >>> id_order(["p9", "p10", "q1", "p9"]).tolist()
    [1, 0, 2, 1]
    """
    places = {name: place for place, name in enumerate(sorted(set(ids)))}
    return np.array([places[name] for name in ids], np.int64)


def share(part: NDArray[Any], whole: NDArray[Any]) -> Values:
    """Divide part by whole; 0 where the whole is 0, as metrics without any relevant paper are."""
    values = np.zeros(np.broadcast_shapes(np.shape(part), np.shape(whole)))
    np.divide(part, whole, out=values, where=np.asarray(whole) > 0)
    return values


def _check_pairs(
    scores: NDArray[Any], grades: NDArray[Any], offsets: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return scores, grades and offsets of a ranking as arrays, and the query of each pair; ValueError if they misfit."""
    numbers, levels = np.asarray(scores, np.float64), np.asarray(grades, np.int64)
    bounds = np.asarray(offsets, np.int64)
    if not np.array_equal(levels, grades):
        raise ValueError("grades must be whole numbers")
    if len(levels) != len(numbers):
        raise ValueError(f"{len(levels)} grades for {len(numbers)} scores")
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(numbers) or (np.diff(bounds) < 0).any():
        raise ValueError(f"offsets must grow from 0 to the number of pairs, {len(numbers)}")
    return numbers, levels, bounds, owners_of(bounds)


def _sortable(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Map scores to integers below 2^32 that sort like them in single precision; -1 for nan."""
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
    bits = single.view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.int64)
    return np.where(np.isnan(single), -1, keys)


def _ranked(
    scores: Values, grades: NDArray[np.int64], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> RankedCandidates:
    """Put the grades into ranked order and count the candidates in the run."""
    return RankedCandidates(offsets, order, grades[order], np.diff(to_offsets(~np.isnan(scores))[offsets]))


def precision_at(ranked: RankedCandidates, cut: int, *, threshold: int = 1) -> Values:
    """Compute a ranking's precision at k: the share of relevant papers among the first `cut`, even of a shorter list.

    trec_eval's P_k. CSFCube's script stops at a list that is shorter than `cut`.

    >>> precision_at(_example([0, 1, 0, 1]), 2).tolist(), precision_at(_example([1]), 5).tolist()
    ([0.5], [0.2])
    """
    return ranked.total(_hits(ranked, cut, threshold)) / cut


def capped_precision_at(ranked: RankedCandidates, cut: int, *, threshold: int = 1) -> Values:
    """Compute a ranking's precision at k, or at R where only R papers are relevant, so that a perfect ranking has 1.

    >>> capped_precision_at(_example([1, 0, 1]), 10).tolist(), capped_precision_at(_example([1, 0, 1]), 1).tolist()
    ([0.5], [1.0])
    """
    cuts = np.minimum(_relevant(ranked, threshold, "judged").astype(np.int64), cut)  # (queries,)
    return share(ranked.total(_hits(ranked, cuts, threshold)), cuts.astype(np.float64))


def recall_at(ranked: RankedCandidates, cut: int, *, threshold: int = 1, ideal: str = "judged") -> Values:
    """Compute a ranking's recall at k, the share of relevant papers among the first `cut`: trec_eval's recall_k.

    >>> recall_at(_example([0, 1, 0, 1]), 2).tolist()
    [0.5]
    """
    return share(ranked.total(_hits(ranked, cut, threshold)), _relevant(ranked, threshold, ideal))


def f1_at(ranked: RankedCandidates, cut: int, *, threshold: int = 1, ideal: str = "judged") -> Values:
    """Compute a ranking's F1 at k of precision and recall among the first `cut`: ASPIRE, evaluation/utils/metrics.py.

    >>> f1_at(_example([0, 1, 0, 0]), 2).round(4).tolist()
    [0.6667]
    """
    precision = precision_at(ranked, cut, threshold=threshold)
    recall = recall_at(ranked, cut, threshold=threshold, ideal=ideal)
    return share(2 * precision * recall, precision + recall)


def success_at(ranked: RankedCandidates, cut: int, *, threshold: int = 1) -> Values:
    """Compute the ranking metric success: 1 where a relevant paper is among the first `cut`, else 0 (success_k).

    >>> success_at(_example([0, 1, 0]), 1).tolist(), success_at(_example([0, 1, 0]), 2).tolist()
    ([0.0], [1.0])
    """
    return (ranked.total(_hits(ranked, cut, threshold)) > 0).astype(np.float64)


def average_precision(
    ranked: RankedCandidates, *, cut: Cut = None, threshold: int = 1, ideal: str = "judged"
) -> Values:
    """Compute the ranking metric average precision, the mean of precision at each relevant rank: trec_eval's map.

    >>> average_precision(_example([1, 0, 1])).round(4).tolist()  # (1/1 + 2/3) / 2
    [0.8333]
    """
    hits = _hits(ranked, cut, threshold)
    return share(ranked.total(hits * ranked.running(hits) / ranked.place), _relevant(ranked, threshold, ideal))


def chance_of_average_precision(relevant: NDArray[np.int64], sizes: NDArray[np.int64]) -> Values:
    """Compute the expected average precision of a random ranking: Bestgen, PBML 103, 2015.

    A place holds a relevant paper with probability R / n, and each place before it with (R - 1) / (n - 1).

    >>> chance_of_average_precision(np.array([1]), np.array([2])).tolist()  # first or second: (1 + 1/2) / 2
    [0.75]
    """
    places = np.arange(1, int(sizes.max(initial=1)) + 1)
    harmonic = np.cumsum(1 / places)[sizes - 1]  # (queries,)
    beside = (relevant - 1) / np.maximum(sizes - 1, 1)
    expected: Values = np.where(relevant > 0, (harmonic + beside * (sizes - harmonic)) / sizes, 0.0)
    return expected


def reciprocal_rank(ranked: RankedCandidates, *, threshold: int = 1) -> Values:
    """Compute the ranking metric reciprocal rank, 1 / rank of the first relevant paper: trec_eval's recip_rank.

    >>> reciprocal_rank(_example([0, 0, 1, 1])).round(4).tolist()
    [0.3333]
    """
    hits = _hits(ranked, None, threshold)
    return ranked.total((hits & (ranked.running(hits) == 1)) / ranked.place)


def r_precision(ranked: RankedCandidates, *, threshold: int = 1, ideal: str = "judged") -> Values:
    """Compute a ranking's R-precision, the precision among the first R of R relevant papers: trec_eval's Rprec.

    >>> r_precision(_example([0, 0, 1])).tolist(), r_precision(_example([1, 0, 1])).tolist()
    ([0.0], [0.5])
    """
    relevant = _relevant(ranked, threshold, ideal)  # (queries,)
    return share(ranked.total(_hits(ranked, relevant.astype(np.int64), threshold)), relevant)


def precision_at_last_relevant(ranked: RankedCandidates, *, threshold: int = 1) -> Values:
    """Compute a ranking's precision at the last relevant paper of the run: CSFCube's and ASPIRE's R-precision.

    >>> precision_at_last_relevant(_example([0, 0, 1])).round(4).tolist()
    [0.3333]
    """
    hits = _hits(ranked, None, threshold)
    counts = ranked.total(hits)  # (queries,)
    last = hits & (ranked.running(hits) == counts[ranked.query])
    return ranked.total(last * counts[ranked.query] / ranked.place)


def _hits(ranked: RankedCandidates, cut: Cut, threshold: int) -> NDArray[np.bool_]:
    """Tell which places of the ranking hold a relevant candidate, (pairs,)."""
    return ranked.in_run & ranked.early(cut) & (ranked.grades >= threshold)


def _relevant(ranked: RankedCandidates, threshold: int, ideal: str) -> Values:
    """Count the relevant papers that each query's ideal ranking has, (queries,)."""
    relevant = ranked.grades >= threshold
    return ranked.total(relevant if ideal == "judged" else relevant & ranked.in_run)


def _example(grades: list[int]) -> RankedCandidates:
    """Rank one query with these grades by rank, for the examples above."""
    return rank_as_given(-np.arange(len(grades)), np.array(grades), np.array([0, len(grades)]))


Discount = Callable[[NDArray[np.int64]], Values]
"""Rank -> what a gain at it is worth."""


def _trec_discount(place: NDArray[np.int64]) -> Values:
    """Return the NDCG discount of trec_eval 9.0, m_ndcg.c: 1 / log2(rank + 1).

    >>> _trec_discount(np.array([1, 3])).tolist()
    [1.0, 0.5]
    """
    worth: Values = 1 / np.log2(place + 1.0)
    return worth


def csfcube_discount(place: NDArray[np.int64]) -> Values:
    """Return the discount in the ranking metric NDCG as CSFCube's script (`method=0`): 1 / log2(rank), 1 for the first.

    Järvelin and Kekäläinen, TOIS 2002, with base 2.

    >>> csfcube_discount(np.array([1, 2, 4])).tolist()
    [1.0, 1.0, 0.5]
    """
    return 1 / np.maximum(1.0, np.log2(place))


def ndcg(
    ranked: RankedCandidates, *, cut: Cut = None, discount: Discount = _trec_discount, ideal: str = "judged"
) -> Values:
    """Compute the ranking metric NDCG: the discounted gain of the first `cut` as a share of the ideal ranking's.

    The ideal ranking is made of all judged papers, or of those alone that are in the run (`ideal="submitted"`).

    >>> ranked = rank_as_given(np.array([3.0, 2, 1]), np.array([2, 0, 3]), np.array([0, 3]))
    >>> ndcg(ranked).round(4).tolist()  # (2 + 3/2) / (3 + 2/log2(3))
    [0.8212]
    >>> ndcg(ranked, discount=csfcube_discount).round(4).tolist()  # (2 + 3/log2(3)) / (3 + 2)
    [0.7786]
    """
    worth = np.where(ranked.early(cut), discount(ranked.place), 0)  # (pairs,)
    gained = ranked.total(worth * np.maximum(ranked.grades, 0) * ranked.in_run)
    return share(gained, ranked.total(worth * ranked.best_gains(ideal)))


def percent_cut(ranked: RankedCandidates, percent: int, *, ideal: str = "judged") -> NDArray[Any]:
    """Return the cut of a ranking metric at `percent` of each list, rounded down, (queries,): CSFCube's NDCG%20.

    >>> percent_cut(rank_as_given(np.zeros(14), np.zeros(14), np.array([0, 14])), 20).tolist()
    [2]
    """
    return (percent / 100 * ranked.length(ideal)).astype(np.int64)


# --- metrics by name -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RelevanceRule:
    """Rule for `csfcube:` metrics: which papers are relevant, which ranking is ideal; trec_eval's have no such choice."""

    threshold: int = 2
    """Lowest grade of a relevant paper: 2 for CSFCube and RELISH, 1 for TRECCOVID and SciDocs."""

    ideal: str = "judged"
    """`submitted`, as in CSFCube's scripts, takes the ideal ranking, the number of relevant papers and the length that a
    percentage is of from the papers in the run: what is left out costs nothing."""

    def __post_init__(self) -> None:
        choose(self.ideal, IDEALS, "ideal")


RankingMetric = Callable[[RankedCandidates, int, RelevanceRule], Values]

RANKING_METRICS: dict[str, RankingMetric] = {
    "map": lambda ranked, k, rule: average_precision(ranked),
    "map_cut_k": lambda ranked, k, rule: average_precision(ranked, cut=k),
    "ndcg": lambda ranked, k, rule: ndcg(ranked),
    "ndcg_cut_k": lambda ranked, k, rule: ndcg(ranked, cut=k),
    "Rprec": lambda ranked, k, rule: r_precision(ranked),
    "recip_rank": lambda ranked, k, rule: reciprocal_rank(ranked),
    "P_k": lambda ranked, k, rule: precision_at(ranked, k),
    "P_cap_k": lambda ranked, k, rule: capped_precision_at(ranked, k),
    "recall_k": lambda ranked, k, rule: recall_at(ranked, k),
    "success_k": lambda ranked, k, rule: success_at(ranked, k),
    "csfcube:ndcg": lambda ranked, k, rule: ndcg(ranked, discount=csfcube_discount, ideal=rule.ideal),
    "csfcube:ndcg@k": lambda ranked, k, rule: ndcg(ranked, cut=k, discount=csfcube_discount, ideal=rule.ideal),
    "csfcube:ndcg%k": lambda ranked, k, rule: ndcg(
        ranked, cut=percent_cut(ranked, k, ideal=rule.ideal), discount=csfcube_discount, ideal=rule.ideal
    ),
    "csfcube:av_precision": lambda ranked, k, rule: average_precision(
        ranked, threshold=rule.threshold, ideal=rule.ideal
    ),
    "csfcube:reciprocal_rank": lambda ranked, k, rule: reciprocal_rank(ranked, threshold=rule.threshold),
    "csfcube:precision@k": lambda ranked, k, rule: precision_at(ranked, k, threshold=rule.threshold),
    "csfcube:recall@k": lambda ranked, k, rule: recall_at(ranked, k, threshold=rule.threshold, ideal=rule.ideal),
    "csfcube:f1@k": lambda ranked, k, rule: f1_at(ranked, k, threshold=rule.threshold, ideal=rule.ideal),
    "csfcube:r_precision": lambda ranked, k, rule: r_precision(ranked, threshold=rule.threshold, ideal=rule.ideal),
    "csfcube:precision_at_last_relevant": lambda ranked, k, rule: precision_at_last_relevant(
        ranked, threshold=rule.threshold
    ),
}
"""Every ranking metric; the k at the end of a name stands for a number from 1, at most 100 after a %."""


def ranking_metrics(
    ranked: RankedCandidates, names: Iterable[str], rule: RelevanceRule | None = None
) -> dict[str, Values]:
    """Compute metrics by their names, such as `map` and `ndcg`, for every query of a ranking, (queries,) each.

    >>> ranking_metrics(_example([1, 0]), ["recal_5"])
    Traceback (most recent call last):
    citeweave.core.errors.UserError: metric is 'recal_5'; it must be one of P_5, ..., success_5. Did you mean 'recall_5'?
    """
    rule = RelevanceRule() if rule is None else rule
    values = {}
    for name in names:
        family, number = _parse_metric(name)
        values[name] = RANKING_METRICS[family](ranked, number, rule)
    return values


def _parse_metric(name: str) -> tuple[str, int]:
    """Split the name of a ranking metric into its family and number: recall_5 -> (recall_k, 5)."""
    if name in RANKING_METRICS and not re.search(r"[_@%]k$", name):
        return name, 0
    match = re.fullmatch(r"(.*[_@%])(\d{1,9})", name)
    number = match[2] if match else "10"
    family = f"{match[1]}k" if match else ""
    if f"csfcube:{family or name}" in RANKING_METRICS:
        raise UserError(f"metric is {name!r}, which only CSFCube has; write 'csfcube:{name}'")
    if family not in RANKING_METRICS:
        choose(name, [re.sub(r"(?<=[_@%])k$", number, known) for known in RANKING_METRICS], "metric")
        raise AssertionError(f"{name!r} was accepted and is no metric")
    top = 100 if "%" in family else np.iinfo(np.int32).max
    if not 1 <= int(number) <= top:
        raise UserError(f"metric is {name!r}; the number at its end must be from 1 to {top}")
    return family, int(number)
