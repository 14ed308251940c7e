"""Negatives from the batch: which papers of a batch may be negatives of which, as masks.

    candidates = batch_candidates(batch)                              positions of all positives and negatives
    mark_negatives(batch, owner, candidates, related)                 (owner, candidates), bool

A paper is not a negative of itself, of its positives, or of a related paper; mined negatives always are.
Needs only numpy. Computes no loss: `objective.py` does.
"""

from __future__ import annotations

import numpy as np

from citeweave.core.ragged import spans
from citeweave.training.data import Batch, Mask, Numbers, PaperLists


def allowed_pairs(left: Numbers, right: Numbers, related: PaperLists | None) -> Mask:
    """Mark which papers of a batch may be negatives of each other: not itself, not a related paper; (left, right).

    >>> from citeweave.training.data import make_lists
    >>> allowed_pairs(np.array([0, 2]), np.array([0, 1, 2]), make_lists([[1], [], []])).tolist()
    [[False, False, True], [True, True, False]]
    """
    allowed: Mask = left[:, None] != right  # (left, right)
    if related is not None:
        lists = related.take(left)
        order = np.argsort(right, kind="stable")
        first, last = (np.searchsorted(right[order], lists.papers, side) for side in ("left", "right"))
        counts = last - first  # a paper may occur several times on the right
        allowed[np.repeat(lists.owners(), counts), order[spans(first, counts)]] = False
    return allowed


def batch_candidates(batch: Batch) -> Numbers:
    """Return the positions of all positives and negatives of a batch, ascending."""
    places = np.unique(np.concatenate([batch.positives.ravel(), batch.negatives.ravel()]))
    return places[places >= 0]


def mark_negatives(batch: Batch, owner: Numbers, candidates: Numbers, related: PaperLists | None) -> Mask:
    """Mark which candidates of a training batch are negatives of the groups `owner`, (owner, candidates), bool."""
    anchors = batch.anchors[owner]
    allowed = allowed_pairs(batch.papers[anchors], batch.papers[candidates], related)
    allowed &= ~mark_positives(batch, anchors, candidates)  # positives of any group of the anchor are not negatives
    allowed |= mark_listed(batch.negatives, candidates, len(batch.papers))[owner]  # its own negatives always are
    return allowed


def mark_listed(lists: Numbers, candidates: Numbers, papers: int) -> Mask:
    """Mark which candidates each padded list contains, (lists, candidates), bool."""
    listed: Mask = np.zeros((len(lists), papers + 1), bool)  # the last column takes the -1
    np.put_along_axis(listed, lists, True, axis=1)
    return listed[:, candidates]


def mark_positives(batch: Batch, anchors: Numbers, candidates: Numbers) -> Mask:
    """Mark which candidates of a training batch are positives of which anchors in any group, (anchors, candidates).

    >>> from citeweave.training.data import build_batch, make_groups
    >>> batch = build_batch(make_groups([5, 5], positives=[[7], [8]], negatives=[[], []]))
    >>> mark_positives(batch, np.array([0]), np.array([0, 1, 2])).tolist()  # 5 with 5, 7 and 8
    [[False, True, True]]
    """
    pairs: Mask = np.zeros((len(batch.papers), len(batch.papers) + 1), bool)  # the last takes the -1
    pairs[batch.anchors[:, None], batch.positives] = True
    return pairs[anchors[:, None], candidates]
