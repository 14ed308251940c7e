"""Several losses as one.

The margin between an anchor's two distances.

Losses over the order of labeled pairs: a pair with a higher label should be more alike.

One log-sum-exp over the batch, not a mean: the value grows with the batch. Pairs with equal labels are not compared.

Losses that imitate something given: another model's likeness of papers, or the words of a text.

How well the sentences of an anchor match those of every candidate of a batch, as scores that losses can contrast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from citeweave.core.errors import UserError, choose
from citeweave.training.losses.contrastive import (
    check_scale,
    check_temperature,
    cosines,
    everywhere,
    mean_of,
    pair_cosines,
    pairs_in_batch,
    products,
    unit,
    wide,
)


def weighted_sum(terms: Mapping[str, tuple[float, Tensor]]) -> Tensor:
    """The sum of weight x loss; a term of weight 0 is left out, so that not even its NaN can be felt.

    >>> terms = {"triplet": (1.0, torch.tensor(0.5)), "student_teacher": (2.0, torch.tensor(0.25))}
    >>> weighted_sum(terms).item()
    1.0
    """
    parts = [weight * loss for weight, loss in terms.values() if weight]
    if not parts:
        raise UserError(f"the losses {', '.join(terms) or 'are none'}: no weight is above 0; give one of them a weight")
    return torch.stack(parts).sum()


# The margin between an anchor's two distances.

DISTANCES = ("l2", "cosine")
REDUCTIONS = ("mean", "sum")


def triplet(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    margin: float = 1.0,
    distance: str = "l2",
    epsilon: float = 0.0,
    reduction: str = "mean",
    mask: Tensor | None = None,
) -> Tensor:
    """max(d(a, p) - d(a, n) + margin, 0); Schroff et al. 2015, with L2 and margin 1 as in SPECTER (Cohan et al. 2020).

    (B, d) each, or shapes that broadcast, such as (G, 1, d), (G, 1, d), (G, n, d) for groups with the mask (G, n).
    `distance`: l2, or cosine for 1 - cosine. `epsilon` is added to every coordinate difference of l2:
    torch's TripletMarginLoss has 1e-6, sentence-transformers 0. Where two papers coincide the gradient is 0.

    >>> anchor, positive = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> triplet(anchor, positive, torch.tensor([[0.0, 5.5]])).item()  # 5 - 5.5 + 1
    0.5
    >>> triplet(anchor, positive, torch.tensor([[0.0, 6.5]])).item()
    0.0
    """
    choose(distance, DISTANCES, "distance of the triplet loss")
    choose(reduction, REDUCTIONS, "reduction of the triplet loss")
    between = _l2 if distance == "l2" else _cosine_distance
    near, far = between(anchors, positives, epsilon), between(anchors, negatives, epsilon)  # (B,) each
    losses = torch.relu(near - far + margin)  # (B,)
    counted = everywhere(mask, losses).expand_as(losses)
    return mean_of(losses, counted) if reduction == "mean" else torch.where(counted, losses, 0).sum()


def distance_margin(near: Tensor, far: Tensor, *, margin: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """`triplet` of distances that are not those of single vectors; Mysore et al. 2022 (ASPIRE), section 3.1.

    near and far (B,), mask (B,); one that is infinite, of a paper without sentences, must be masked.

    >>> distance_margin(torch.tensor([5.0, 2.0]), torch.tensor([5.5, 9.0])).item()  # mean of 0.5 and 0
    0.25
    """
    counted = everywhere(mask, near)
    near, far = (torch.where(counted, values, 0) for values in (near, far))  # what is masked may be infinite
    return mean_of(torch.relu(near - far + margin), counted)


def _l2(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    # vector_norm has gradient 0 at 0, which the root of a sum of squares has not
    lengths: Tensor = torch.linalg.vector_norm(wide(x) - wide(y) + epsilon, dim=-1)  # (B,)
    return lengths


def _cosine_distance(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    return 1 - pair_cosines(x, y)


# Losses over the order of labeled pairs: a pair with a higher label should be more alike.


class LabeledPairs(NamedTuple):
    """Labeled pairs of texts."""

    x: Tensor
    """(P, d)"""

    y: Tensor
    """(P, d)"""

    labels: Tensor
    """(P,) how alike; only their order matters."""


def triplets_as_pairs(anchors: Tensor, positives: Tensor, negatives: Tensor) -> LabeledPairs:
    """(anchor, positive) labeled 1, then (anchor, negative) labeled 0: (B, d) each -> 2B pairs; as in the loss study.

    >>> x = torch.eye(2)
    >>> triplets_as_pairs(x, x, x).labels.tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    labels = torch.arange(2, device=anchors.device).flip(0).repeat_interleave(len(anchors))  # (2B,)
    return LabeledPairs(torch.cat([anchors, anchors]), torch.cat([positives, negatives]), labels.float())


def cosent(x: Tensor, y: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """log(1 + sum over pairs i above pairs k of e^(scale (cos_k - cos_i))); Huang et al. 2024 (CoSENT).

    x and y (P, d), labels (P,).

    >>> x, y = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> round(cosent(x, y, torch.tensor([1.0, 0.0]), scale=1.0).item(), 4)  # log(1 + 1 / e)
    0.3133
    >>> round(cosent(x, y, torch.tensor([0.0, 1.0]), scale=1.0).item(), 4)  # log(1 + e)
    1.3133
    """
    check_scale(scale)
    return _out_of_order(pair_cosines(x, y) * scale, labels)


def angle(x: Tensor, y: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """`cosent` with the likeness of `angle_likeness` in place of the cosine; Li & Li 2023 (AnglE).

    >>> x, y = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> round(angle(x, y, torch.tensor([1.0, 0.0]), scale=1.0).item(), 4)  # likeness 1 and 1.4: log(1 + e^0.4)
    0.913
    """
    check_scale(scale)
    return _out_of_order(angle_likeness(x, y) * scale, labels)


def angle_likeness(x: Tensor, y: Tensor) -> Tensor:
    """|sum of the real and imaginary parts of x / y|, (P, d) each -> (P,); Li & Li 2023, as in the released code.

    The first half of a vector is real, the second imaginary, both on unit vectors; an odd dimension gets one zero.

    >>> likeness = angle_likeness(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.6, 0.8]]))  # i / (0.6 + 0.8i) = 0.8 + 0.6i
    >>> round(likeness.item(), 4)
    1.4
    """
    if x.shape[-1] % 2:
        x, y = torch.nn.functional.pad(x, (0, 1)), torch.nn.functional.pad(y, (0, 1))
    (a, b), (c, d) = unit(x).chunk(2, -1), unit(y).chunk(2, -1)  # (P, d/2) each: x = a + bi, y = c + di
    return (a * c + b * d + b * c - a * d).sum(-1).abs()


def angle_sum(
    x: Tensor,
    y: Tensor,
    labels: Tensor,
    *,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
    scales: tuple[float, float, float] = (20.0, 20.0, 20.0),
    allowed: Tensor | None = None,
) -> Tensor:
    """w1 cosent + w2 pairs_in_batch + w3 angle; Li & Li 2023, equation 7.

    `weights` and `scales` in this order; a term of weight 0 is left out. `allowed` (2P, 2P) is of the in-batch
    term: pairs made of triplets hold each anchor twice, which must not be contrasted with itself.

    >>> x, y = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> labels = torch.tensor([1.0, 0.0])
    >>> angle_sum(x, y, labels, weights=(0.0, 0.0, 2.0)).item() == 2 * angle(x, y, labels).item()
    True
    """
    by_cosine = cosent(x, y, labels, scale=scales[0])
    by_batch = pairs_in_batch(x, y, labels, scale=scales[1], allowed=allowed)
    by_angle = angle(x, y, labels, scale=scales[2])
    terms = zip(("cosine", "in-batch", "angle"), weights, (by_cosine, by_batch, by_angle), strict=True)
    return weighted_sum({f"{name} term of angle_sum": (weight, loss) for name, weight, loss in terms})


def _out_of_order(scores: Tensor, labels: Tensor) -> Tensor:
    """log(1 + sum over label_i > label_k of e^(score_k - score_i)), (P,) each -> scalar."""
    above = labels[:, None] > labels  # (P, P)
    excess = (scores - scores[:, None]).masked_fill(~above, -torch.inf)  # (P, P)
    return torch.cat([scores.new_zeros(1), excess.flatten()]).logsumexp(0)


# Losses that imitate something given: another model's likeness of papers, or the words of a text.


def student_teacher(student: Tensor, teacher: Tensor, *, known: Tensor | None = None) -> Tensor:
    """Mean of (cos of the student - cos of the teacher)^2 over all pairs of the batch; Ostendorff et al. 2022, F.9.

    student (B, d), teacher (B, k) of any dimension; `known` (B,) is False at papers the teacher has no vector of.
    The pair of a paper with itself counts, and gives 0. Sums with the triplet loss are `weighted_sum`'s.

    >>> student_teacher(torch.eye(2), torch.ones(2, 4)).item()  # the teacher's cosines are 1: two of four are missed
    0.5
    """
    missed = (cosines(student, student) - cosines(teacher, teacher).to(wide(student).dtype)) ** 2  # (B, B)
    both = everywhere(known, missed[:, 0])  # (B,)
    return mean_of(missed, both[:, None] & both)


def masked_language(logits: Tensor, targets: Tensor) -> Tensor:
    """-log softmax of the hidden token, mean over the masked places; Devlin et al. 2019 (BERT).

    logits (T, V) at the masked places only, targets (T,); 0 where T is 0.

    >>> round(masked_language(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).item(), 4)  # log 2
    0.6931
    """
    losses = torch.nn.functional.cross_entropy(wide(logits), targets, reduction="none")  # (T,)
    return losses.sum() / max(len(losses), 1)


# How well the sentences of an anchor match those of every candidate of a batch, as scores that losses can contrast.

MATCHES = ("mean_best", "single", "attention")


def match_scores(
    queries: Tensor,
    candidates: Tensor,
    query_mask: Tensor,
    candidate_mask: Tensor,
    *,
    match: str = "mean_best",
    sharpness: float = 0.05,
) -> Tensor:
    """Scores (A, C) of all queries with all candidates, from cosines of their sentences.

    queries (A, n, d) and candidates (C, m, d) with masks (A, n) and (C, m), True at a sentence; every paper has one.
    mean_best: mean over the query's sentences of the best match, ColBERT's late interaction with sentences for words
    (Khattab and Zaharia 2020); single: the best pair; attention: the mean of all pairs by softmax(cosine / sharpness),
    Mysore et al. 2022, section 5 (att).

    >>> x, y = torch.eye(2)[None], torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    >>> full = torch.ones(1, 2, dtype=torch.bool)
    >>> [match_scores(x, y, full, full, match=name).item() for name in ("mean_best", "single")]
    [0.5, 1.0]
    """
    choose(match, MATCHES, "match of the sentence_in_batch loss")
    check_temperature(sharpness)
    (a, n, _), (c, m, _) = queries.shape, candidates.shape
    cosines = products(unit(queries).flatten(0, 1), unit(candidates).flatten(0, 1)).view(a, n, c, m)
    if match == "attention":
        inside = query_mask[:, :, None, None] & candidate_mask  # (A, n, C, m)
        cosines, inside = (part.transpose(1, 2).flatten(2) for part in (cosines, inside))  # (A, C, n * m)
        weights = (cosines / sharpness).masked_fill(~inside, -torch.inf).softmax(2)
        return (weights * cosines).sum(2)
    best = cosines.masked_fill(~candidate_mask, -torch.inf).amax(3)  # (A, n, C)
    if match == "single":
        return best.masked_fill(~query_mask[:, :, None], -torch.inf).amax(1)
    return torch.where(query_mask[:, :, None], best, 0).sum(1) / query_mask.sum(1, keepdim=True)
