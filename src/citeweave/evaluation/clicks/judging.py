"""Where the clicked paper lands when the papers of a click log are ordered by score: one row a click.

    scores of the clicked paper 0.7, of the others 0.9, 0.7, 0.2      ->      above = 1 + 1/2, as a tie counts half
    ndcg 1 / log2(2 + 1.5) = 0.55, mrr 1 / (1 + 1.5) = 0.4, p@1 0 (only if nothing is above and nothing ties)

`adj-` metrics weigh every click by 1 / propensity of the place it was clicked at: a click far down counts for more.
The formulas are those of `measuring.clicks`; here is what only a log knows: papers shown twice, clicks deeper than the
propensities, clicks that could not be judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.evaluation.clicks.reading import Clicks, propensity_of
from citeweave.evaluation.measuring import clicks as measuring

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


METRICS = {
    "accuracy": "accuracy",
    "ndcg": "ndcg",
    "mrr": "mrr",
    "p@1": "P@1",
    "adj-accuracy": "adj-accuracy",
    "adj-NDCG": "adj-ndcg",
    "adj-MRR": "adj-mrr",
    "adj-P@1": "adj-P@1",
}
"""What reports call them -> their names in `measuring.clicks`. SciDocs reports adj-NDCG and adj-P@1."""


@dataclass(frozen=True)
class JudgedClicks:
    """A click a row; every mean is derived from these."""

    queries: Sequence[str]
    clicked: Sequence[str]
    places: Longs
    """(clicks,) where the clicked paper was shown, the first is 0."""

    above: Doubles
    """(clicks,) other papers that score higher, ties counting half."""

    others: Longs
    """(clicks,) papers of the list that the clicked one was compared with."""

    weights: Doubles
    """(clicks,) 1 / propensity of the place."""

    answered: NDArray[np.bool_]
    """(clicks,) False where the click was counted as lost because a vector is missing."""

    scores: Doubles
    """(shown,) of every shown paper, one list after the other as in the click log."""

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def standing(self) -> measuring.Clicks:
        """What the metrics are made of."""
        return measuring.Clicks(self.above, self.others - self.above, self.weights)

    def metrics(self) -> dict[str, float]:
        """SciDocs' eight numbers as fractions; accuracies are NaN where no list holds a second paper."""
        found = measuring.click_metrics(self.standing)
        return {name: found[metric] for name, metric in METRICS.items()}

    def names(self) -> list[str]:
        """One name a click: the query's id, with a number where it comes again, such as `q`, `q#2`."""
        seen, names = Counter[str](), []
        for query in self.queries:
            seen[query] += 1
            names.append(query if seen[query] == 1 else f"{query}#{seen[query]}")
        return names

    def rows(self) -> dict[str, dict[str, Any]]:
        """Name of the click -> its values, for reports."""
        clicks = self.standing
        columns = {
            "ndcg": measuring.click_ndcg(clicks),
            "mrr": measuring.click_reciprocal_rank(clicks),
            "p@1": measuring.click_hit(clicks),
            "above": self.above,
            "others": self.others,
            "weight": self.weights,
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            name: {"clicked": clicked, **dict(zip(columns, row, strict=True))}
            for name, clicked, row in zip(self.names(), self.clicked, values, strict=True)
        }


def judge_clicks(
    clicks: Clicks,
    scores: NDArray[Any],
    propensities: Doubles,
    answered: NDArray[np.bool_] | None = None,
) -> JudgedClicks:
    """Judge the scores (shown,) of all shown papers, by propensities of mean 1.

    A click that is not answered counts as wrong: all other papers are above the clicked one. A further copy of the
    clicked paper in its list is not compared with it; copies of others count each.

    >>> clicks = Clicks.of([("q", "b", ["a", "b", "c", "d"])])
    >>> judge_clicks(clicks, np.array([0.9, 0.7, 0.7, 0.2]), np.ones(4)).above.tolist()
    [1.5]
    """
    values = np.asarray(scores, np.float64)  # (shown,)
    if values.shape != (len(clicks.shown),) or np.isnan(values).any():
        raise UserError(
            f"{len(clicks.shown):,} shown papers need a score each that is not NaN; there are {values.size:,} scores, "
            f"{int(np.isnan(values).sum()):,} of them NaN"
        )
    owners, is_other = clicks.owners, clicks.is_other()
    true = values[clicks.at][owners]  # (shown,) the clicked paper's score, beside each paper of its list
    others = np.bincount(owners[is_other], minlength=len(clicks))
    halves = np.where(values > true, 1.0, np.where(values == true, 0.5, 0.0))
    above = np.bincount(owners[is_other], weights=halves[is_other], minlength=len(clicks))
    is_answered = np.ones(len(clicks), bool) if answered is None else answered
    return JudgedClicks(
        queries=clicks.queries,
        clicked=clicks.clicked,
        places=clicks.places,
        above=np.where(is_answered, above, others),
        others=others,
        weights=1 / propensity_of(clicks.places, propensities),
        answered=is_answered,
        scores=values,
    )
