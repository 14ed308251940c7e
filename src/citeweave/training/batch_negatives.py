"""Which papers of a batch are negatives of which anchors, as plain masks: needs numpy alone.

candidates = candidates_of(batch)                       every positive and negative of the batch
opposed(batch, owner, candidates, relatives)            (owner, candidates), True at a negative of the group
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.training.batches import Batch, are_pairs
from citeweave.training.data import Lists, Numbers

Mask = NDArray[np.bool_]


def allowed_pairs(left: Numbers, right: Numbers, relatives: Lists | None) -> Mask:
    """Which papers may be negatives of each other: not a paper of itself, not known relatives; (left, right), bool.

    >>> from citeweave.training.data import lists_of
    >>> allowed_pairs(np.array([0, 2]), np.array([0, 1, 2]), lists_of([[1], [], []])).tolist()
    [[False, False, True], [True, True, False]]
    """
    allowed: Mask = left[:, None] != right  # (left, right)
    if relatives is not None:
        known = relatives.take(left)
        owner = np.repeat(np.arange(len(left)), known.counts())  # (relatives of all,)
        order = np.argsort(right, kind="stable")
        first, last = (np.searchsorted(right[order], known.papers, side) for side in ("left", "right"))
        counts = last - first  # a paper may stand on the right several times
        places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        allowed[np.repeat(owner, counts), order[places]] = False
    return allowed


def candidates_of(batch: Batch) -> Numbers:
    """Places of every paper that is a positive or a negative of some group, ascending."""
    found = np.unique(np.concatenate([batch.positives.ravel(), batch.negatives.ravel()]))
    return found[found >= 0]


def opposed(batch: Batch, owner: Numbers, candidates: Numbers, relatives: Lists | None) -> Mask:
    """Which of the batch's candidates are negatives of the groups `owner`, (owner, candidates), bool."""
    anchors = batch.anchors[owner]
    allowed = allowed_pairs(batch.papers[anchors], batch.papers[candidates], relatives)
    allowed &= ~are_pairs(batch, anchors, candidates)  # positives of any group of the anchor are none
    allowed |= named_by(batch.negatives, candidates, len(batch.papers))[owner]  # those it was given always are
    return allowed


def named_by(lists: Numbers, candidates: Numbers, papers: int) -> Mask:
    """Which candidates a list names, (lists, candidates), bool."""
    named: Mask = np.zeros((len(lists), papers + 1), bool)  # the last column takes the -1
    np.put_along_axis(named, lists, True, axis=1)
    return named[:, candidates]
