"""Losses as pure functions of vectors, never of models; each returns a differentiable scalar.

    triplet           margin between two distances                        one triplet per row
    distance_margin   the same of precomputed distances                   one triplet per row
    n_pairs           one positive against the negatives of its anchor    one anchor per row
    info_nce          every positive alone against the negatives          a group: an anchor, its positives and negatives
    supcon            every positive against all the anchor's candidates  a group
    supcon_in_batch   the same, against every candidate of the batch      anchors, and the candidates of all
    in_batch          one target against every candidate of the batch     anchors, and the candidates of all
    scores_in_batch   the same of precomputed scores                      scores of anchors with candidates
    match_scores      such scores, from the sentences of papers           (a score, not a loss)
    gte               a pair against all texts, in both directions        pairs, negatives if any
    cosent, angle     pairs of pairs in the order of their labels         labeled pairs
    angle_sum         cosent + in-batch + angle                           labeled pairs
    student_teacher   the student's cosines follow the teacher's          one paper per row
    masked_language   the masked tokens                                   one masked token per row
    weighted_sum      the sum of several losses

Groups are padded: (G, m, d) with a mask (G, m), True where there is a paper. Padding may hold any finite numbers and
never changes a value or a gradient. Rows without a positive or without a negative are left out of the mean; where
nothing is left, the loss and its gradient are 0. Half precision is widened to float32 first, also under autocast;
float32 and float64 stay as they are.
"""

from __future__ import annotations

from citeweave.training.losses.contrastive import (
    cosines,
    gte,
    in_batch,
    info_nce,
    n_pairs,
    pairs_in_batch,
    scores_in_batch,
    supcon,
    supcon_in_batch,
)
from citeweave.training.losses.pairwise import (
    LabeledPairs,
    angle,
    angle_sum,
    cosent,
    distance_margin,
    masked_language,
    match_scores,
    student_teacher,
    triplet,
    triplets_as_pairs,
    weighted_sum,
)

__all__ = [
    "LabeledPairs",
    "angle",
    "angle_sum",
    "cosent",
    "cosines",
    "distance_margin",
    "gte",
    "in_batch",
    "info_nce",
    "masked_language",
    "match_scores",
    "n_pairs",
    "pairs_in_batch",
    "scores_in_batch",
    "student_teacher",
    "supcon",
    "supcon_in_batch",
    "triplet",
    "triplets_as_pairs",
    "weighted_sum",
]
