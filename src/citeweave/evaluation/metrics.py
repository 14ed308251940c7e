"""The metrics of the field by name: one name, one formula, in `evaluation/measuring/`.

trec_eval's names are plain, those of CSFCube and ASPIRE begin with `csfcube:` as their formulas differ:

    map  ndcg  Rprec  recip_rank  map_cut_10  ndcg_cut_10  P_5  P_cap_10  recall_5  success_1
    csfcube:ndcg  csfcube:ndcg@20  csfcube:ndcg%20  csfcube:av_precision  csfcube:reciprocal_rank
    csfcube:precision@20  csfcube:recall@20  csfcube:f1@20  csfcube:r_precision  csfcube:precision_at_last_relevant

    >>> scores, grades = np.array([3.0, 2, 1]), np.array([2, 0, 3])
    >>> ranked = rank_as_trec(scores, grades, np.array([0, 3]), ties=id_order(["a", "b", "c"]))
    >>> found = ranking_metrics(ranked, ["map", "ndcg", "csfcube:ndcg", "recall_1"])
    >>> {name: values.round(4).tolist() for name, values in found.items()}
    {'map': [0.8333], 'ndcg': [0.8212], 'csfcube:ndcg': [0.7786], 'recall_1': [0.5]}

Ranking metrics are one number a query, so that means, folds and resamples are the caller's; all are fractions. Other
answers have tables of their own: CLICK_METRICS, CLASSIFICATION_METRICS, REGRESSION_METRICS, LINK_METRICS (of
`evaluation/links.py`), and `map_quality` for pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np

from citeweave.errors import UserError, choose
from citeweave.evaluation.links import LinkScores
from citeweave.evaluation.measuring.classes import (
    CLASSIFICATION_METRICS,
    ClassCounts,
    classification_metrics,
    confusion,
    count_classes,
    count_label_sets,
    f1_macro,
    from_confusion,
)
from citeweave.evaluation.measuring.clicks import CLICK_METRICS, Clicks, click_metrics, click_parts, stand
from citeweave.evaluation.measuring.clusters import MapQuality, map_quality
from citeweave.evaluation.measuring.correlation import REGRESSION_METRICS, kendall_tau, pearson
from citeweave.evaluation.measuring.gain import csfcube_discount, ndcg, percent_cut
from citeweave.evaluation.measuring.ranking import IDEALS, Ranked, Values, id_order, rank_as_given, rank_as_trec
from citeweave.evaluation.measuring.relevance import (
    average_precision,
    capped_precision_at,
    f1_at,
    precision_at,
    precision_at_last_relevant,
    r_precision,
    recall_at,
    reciprocal_rank,
    success_at,
)

__all__ = [
    "CLASSIFICATION_METRICS",
    "CLICK_METRICS",
    "IDEALS",
    "LINK_METRICS",
    "RANKING_METRICS",
    "REGRESSION_METRICS",
    "ClassCounts",
    "Clicks",
    "Judging",
    "MapQuality",
    "Ranked",
    "Values",
    "check_names",
    "classification_metrics",
    "click_metrics",
    "click_parts",
    "confusion",
    "count_classes",
    "count_label_sets",
    "f1_macro",
    "from_confusion",
    "id_order",
    "kendall_tau",
    "map_quality",
    "pearson",
    "rank_as_given",
    "rank_as_trec",
    "ranking_metrics",
    "stand",
]

LINK_METRICS = tuple(field.name for field in fields(LinkScores) if field.name not in ("edges", "negatives"))
"""What `links.judge_links` measures."""


@dataclass(frozen=True, slots=True)
class Judging:
    """What the metrics of the `csfcube:` family may differ in; trec_eval's have no such choice."""

    threshold: int = 2
    """The least grade of a relevant paper: 2 for CSFCube and RELISH, 1 for TRECCOVID and SciDocs."""

    ideal: str = "judged"
    """`submitted`, the peers' way, takes the best ranking, the number of relevant papers and the length that a percent
    is of from the papers in the run: what is left out costs nothing."""

    def __post_init__(self) -> None:
        choose(self.ideal, IDEALS, "ideal")


RankingMetric = Callable[[Ranked, int, Judging], Values]

RANKING_METRICS: dict[str, RankingMetric] = {
    "map": lambda ranked, k, how: average_precision(ranked),
    "map_cut_k": lambda ranked, k, how: average_precision(ranked, cut=k),
    "ndcg": lambda ranked, k, how: ndcg(ranked),
    "ndcg_cut_k": lambda ranked, k, how: ndcg(ranked, cut=k),
    "Rprec": lambda ranked, k, how: r_precision(ranked),
    "recip_rank": lambda ranked, k, how: reciprocal_rank(ranked),
    "P_k": lambda ranked, k, how: precision_at(ranked, k),
    "P_cap_k": lambda ranked, k, how: capped_precision_at(ranked, k),
    "recall_k": lambda ranked, k, how: recall_at(ranked, k),
    "success_k": lambda ranked, k, how: success_at(ranked, k),
    "csfcube:ndcg": lambda ranked, k, how: ndcg(ranked, discount=csfcube_discount, ideal=how.ideal),
    "csfcube:ndcg@k": lambda ranked, k, how: ndcg(ranked, cut=k, discount=csfcube_discount, ideal=how.ideal),
    "csfcube:ndcg%k": lambda ranked, k, how: ndcg(
        ranked, cut=percent_cut(ranked, k, ideal=how.ideal), discount=csfcube_discount, ideal=how.ideal
    ),
    "csfcube:av_precision": lambda ranked, k, how: average_precision(ranked, threshold=how.threshold, ideal=how.ideal),
    "csfcube:reciprocal_rank": lambda ranked, k, how: reciprocal_rank(ranked, threshold=how.threshold),
    "csfcube:precision@k": lambda ranked, k, how: precision_at(ranked, k, threshold=how.threshold),
    "csfcube:recall@k": lambda ranked, k, how: recall_at(ranked, k, threshold=how.threshold, ideal=how.ideal),
    "csfcube:f1@k": lambda ranked, k, how: f1_at(ranked, k, threshold=how.threshold, ideal=how.ideal),
    "csfcube:r_precision": lambda ranked, k, how: r_precision(ranked, threshold=how.threshold, ideal=how.ideal),
    "csfcube:precision_at_last_relevant": lambda ranked, k, how: precision_at_last_relevant(
        ranked, threshold=how.threshold
    ),
}
"""Every ranking metric; the k at the end of a name stands for a number from 1, at most 100 after a %."""


def ranking_metrics(ranked: Ranked, names: Iterable[str], judging: Judging | None = None) -> dict[str, Values]:
    """The named metrics of every query, arrays of shape (queries,)."""
    judging = Judging() if judging is None else judging
    found = {}
    for name in names:
        family, number = _parse(name)
        found[name] = RANKING_METRICS[family](ranked, number, judging)
    return found


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that is no ranking metric, before any work is done.

    >>> check_names(["map", "recal_5"])
    Traceback (most recent call last):
    citeweave.errors.UserError: metric is 'recal_5'; it must be one of P_5, ..., success_5. Did you mean 'recall_5'?
    """
    for name in names:
        _parse(name)


def _parse(name: str) -> tuple[str, int]:
    """recall_5 -> (recall_k, 5)"""
    if name in RANKING_METRICS and not re.search(r"[_@%]k$", name):
        return name, 0
    match = re.fullmatch(r"(.*[_@%])(\d{1,9})", name)
    number = match[2] if match else "10"
    family = f"{match[1]}k" if match else ""
    if f"csfcube:{family or name}" in RANKING_METRICS:
        raise UserError(f"metric is {name!r}, which is CSFCube's alone; write 'csfcube:{name}'")
    if family not in RANKING_METRICS:
        choose(name, [re.sub(r"(?<=[_@%])k$", number, known) for known in RANKING_METRICS], "metric")
        raise AssertionError(f"{name!r} is known and is not")
    top = 100 if "%" in family else np.iinfo(np.int32).max
    if not 1 <= int(number) <= top:
        raise UserError(f"metric is {name!r}; the number at its end must be from 1 to {top}")
    return family, int(number)
