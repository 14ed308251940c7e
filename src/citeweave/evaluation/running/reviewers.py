"""Reviewer matching: how well a person's papers fit a submission.

Allen AI's way: the mean of the three best scores over the person's papers, of all where there are fewer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.judged import Judged
from citeweave.evaluation.tasks import Pools, Reviewers
from citeweave.evaluation.texts import Texts


def score_reviewers(
    judged: Judged, texts: Texts, pools: Pools, reviewers: Reviewers, distance: str
) -> NDArray[np.float64]:
    """(pairs,) scores of (submission, person); NaN where no paper of the person has an answer."""
    sizes = reviewers.offsets[pools.candidates + 1] - reviewers.offsets[pools.candidates]  # (pairs,)
    ends = np.concatenate([[0], np.cumsum(sizes)])  # (pairs + 1,)
    papers = np.concatenate(
        [
            reviewers.papers[reviewers.offsets[person] : reviewers.offsets[person + 1]]
            for person in pools.candidates.tolist()
        ]
        or [np.zeros(0, np.int64)]
    )
    expanded = Pools(pools.queries, ends[pools.offsets], papers, np.zeros(len(papers), np.int64), pools.names)
    scores = judged.scores(texts, expanded, distance)
    means = np.array([best_mean(scores[ends[at] : ends[at + 1]], reviewers.top) for at in range(len(sizes))])
    if judged.distances:
        return means
    own = judged.scores(texts, pools, distance)  # (pairs,) a file of scores may know the people themselves
    return np.where(np.isnan(own), means, own)


def best_mean(scores: NDArray[np.float64], top: int) -> float:
    """Mean of the `top` best answers.

    >>> best_mean(np.array([0.25, 1.0, np.nan, 0.5, 0.75]), 3)
    0.75
    """
    best = np.sort(scores[~np.isnan(scores)])[::-1][:top]
    return float(best.mean()) if len(best) else float("nan")
