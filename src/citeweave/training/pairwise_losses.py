"""Losses on distances and pairs: triplet margin, CoSENT, AnglE, imitating a teacher, masked words, sentence scores.

CoSENT and AnglE order labeled pairs: a pair with a higher label should be more similar. They are one log-sum-exp over
the batch, not a mean, so their value grows with the batch. Pairs with equal labels are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from citeweave.core.errors import UserError, choose
from citeweave.training.contrastive_losses import (
    check_scale,
    check_temperature,
    cosines,
    full_mask,
    masked_mean,
    pair_cosines,
    pairs_in_batch,
    products,
    unit,
    widen,
)


def weighted_sum(terms: Mapping[str, tuple[float, Tensor]]) -> Tensor:
    """Sum pairwise losses and other terms by their weights; a term of weight 0 is left out, even if it is NaN.

    >>> terms = {"triplet": (1.0, torch.tensor(0.5)), "student_teacher": (2.0, torch.tensor(0.25))}
    >>> weighted_sum(terms).item()
    1.0
    """
    parts = [weight * loss for weight, loss in terms.values() if weight]
    if not parts:
        raise UserError(
            f"the losses {', '.join(terms) or 'are none'}: no weight is greater than 0; give one of them a weight"
        )
    return torch.stack(parts).sum()


# Margin losses

DISTANCES = ("l2", "cosine")
REDUCTIONS = ("mean", "sum")

_LEAST = -1e9
"""Logit of a paper that has no part in a softmax; a finite one, so that a row without any other is no NaN."""


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
    """Compute the triplet loss max(d(a, p) - d(a, n) + margin, 0); Schroff et al. 2015, by default as in SPECTER.

    (B, d) each, or shapes that broadcast, such as (G, 1, d), (G, 1, d), (G, n, d) for groups with the mask (G, n).
    `distance`: l2, or cosine for 1 - cosine; SPECTER (Cohan et al. 2020) has l2 and margin 1. `epsilon` is added to every coordinate difference of l2:
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
    counted = full_mask(mask, losses).expand_as(losses)
    return masked_mean(losses, counted) if reduction == "mean" else torch.where(counted, losses, 0).sum()


def distance_margin(near: Tensor, far: Tensor, *, margin: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the triplet loss of precomputed pairwise distances; Mysore et al. 2022 (ASPIRE), section 3.1.

    near and far (B,), mask (B,); infinite distances, of papers without sentences, must be masked.

    >>> distance_margin(torch.tensor([5.0, 2.0]), torch.tensor([5.5, 9.0])).item()  # mean of 0.5 and 0
    0.25
    """
    counted = full_mask(mask, near)
    near, far = (torch.where(counted, values, 0) for values in (near, far))  # masked distances may be infinite
    return masked_mean(torch.relu(near - far + margin), counted)


def _l2(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    # unlike the square root of a sum of squares, vector_norm has gradient 0 at 0
    lengths: Tensor = torch.linalg.vector_norm(widen(x) - widen(y) + epsilon, dim=-1)  # (B,)
    return lengths


def _cosine_distance(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    return 1 - pair_cosines(x, y)


# Losses on the order of labeled pairs


class LabeledPairs(NamedTuple):
    """Pairs of text vectors with labels of their similarity, for pairwise losses."""

    x: Tensor
    """(P, d)"""

    y: Tensor
    """(P, d)"""

    labels: Tensor
    """(P,) similarity; only its order matters."""


def triplets_as_pairs(anchors: Tensor, positives: Tensor, negatives: Tensor) -> LabeledPairs:
    """Turn triplets (B, d) into 2B pairs for pairwise losses: (anchor, positive) labeled 1, then (anchor, negative) 0.

    >>> x = torch.eye(2)
    >>> triplets_as_pairs(x, x, x).labels.tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    labels = torch.arange(2, device=anchors.device).flip(0).repeat_interleave(len(anchors))  # (2B,)
    return LabeledPairs(torch.cat([anchors, anchors]), torch.cat([positives, negatives]), labels.float())


def cosent(x: Tensor, y: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """Compute the pairwise CoSENT, log(1 + sum over pairs i above k of e^(scale (cos_k - cos_i))); Huang et al. 2024.

    x and y (P, d), labels (P,).

    >>> x, y = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> round(cosent(x, y, torch.tensor([1.0, 0.0]), scale=1.0).item(), 4)  # log(1 + 1 / e)
    0.3133
    >>> round(cosent(x, y, torch.tensor([0.0, 1.0]), scale=1.0).item(), 4)  # log(1 + e)
    1.3133
    """
    check_scale(scale)
    return _order_loss(pair_cosines(x, y) * scale, labels)


def angle(x: Tensor, y: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """Compute the pairwise loss AnglE: `cosent` with `_angle_similarity` in place of the cosine; Li & Li 2023.

    >>> x, y = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> round(angle(x, y, torch.tensor([1.0, 0.0]), scale=1.0).item(), 4)  # similarity 1 and 1.4: log(1 + e^0.4)
    0.913
    """
    check_scale(scale)
    return _order_loss(_angle_similarity(x, y) * scale, labels)


def _angle_similarity(x: Tensor, y: Tensor) -> Tensor:
    """Return AnglE's similarity, |sum of the real and imaginary parts of x / y|, (P, d) each -> (P,); Li & Li 2023.

    As in the released code: the first half of a unit vector is real, the second imaginary; an odd dimension gets a zero.

    >>> similarity = _angle_similarity(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.6, 0.8]]))  # i / (0.6 + 0.8i) = 0.8 + 0.6i
    >>> round(similarity.item(), 4)
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
    """Compute AnglE's full pairwise loss, w1 cosent + w2 pairs_in_batch + w3 angle; Li & Li 2023, equation 7.

    `weights` and `scales` in this order; a term of weight 0 is left out. `allowed` (2P, 2P) is for the in-batch
    term: pairs made of triplets contain each anchor twice, which must not be contrasted with itself.

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


def _order_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return log(1 + sum over label_i > label_k of e^(score_k - score_i)), (P,) each -> scalar."""
    above = labels[:, None] > labels  # (P, P)
    excess = (scores - scores[:, None]).masked_fill(~above, -torch.inf)  # (P, P)
    return torch.cat([scores.new_zeros(1), excess.flatten()]).logsumexp(0)


# Imitating a teacher, and predicting masked words


def student_teacher(student: Tensor, teacher: Tensor, *, known: Tensor | None = None) -> Tensor:
    """Compute the mean of (student cosine - teacher cosine)^2 over all pairs of the batch; Ostendorff et al. 2022, F.9.

    student (B, d), teacher (B, k) of any dimension; `known` (B,) is False at papers without a teacher's vector.
    The pair of a paper with itself counts, and gives 0.

    >>> student_teacher(torch.eye(2), torch.ones(2, 4)).item()  # the teacher's cosines are 1: two of four differ
    0.5
    """
    errors = (cosines(student, student) - cosines(teacher, teacher).to(widen(student).dtype)) ** 2  # (B, B)
    both = full_mask(known, errors[:, 0])  # (B,)
    return masked_mean(errors, both[:, None] & both)


def similarity(
    student: Tensor,
    teacher: Tensor,
    *,
    temperature: float = 0.05,
    teacher_temperature: float = 0.05,
    known: Tensor | None = None,
) -> Tensor:
    """Compute how far the student's neighbors in the batch are from the teacher's; Hinton et al. 2015, on cosines.

    The mean over papers of KL(t, s): t and s are softmaxes of a paper's cosines with all others of the batch, divided by
    the teacher's and by the student's temperature. student (B, d), teacher (B, k) of any dimension; `known` (B,) is False
    at papers without a teacher's vector, which have no part in it.

    >>> x = torch.eye(3)
    >>> similarity(x, 2 * x).item(), similarity(x, torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).item() > 0.1
    (0.0, True)
    """
    check_temperature(temperature)
    check_temperature(teacher_temperature)
    own = cosines(student, student) / temperature  # (B, B)
    taught = cosines(teacher, teacher).to(own.dtype) / teacher_temperature  # (B, B)
    there = full_mask(known, own[:, 0])  # (B,)
    others = there[:, None] & there & ~torch.eye(len(own), dtype=torch.bool, device=own.device)  # (B, B)
    own, taught = (scores.masked_fill(~others, _LEAST).log_softmax(-1) for scores in (own, taught))
    terms = torch.where(others, taught.exp() * (taught - own), 0).sum(-1)  # (B,)
    return masked_mean(terms, others.any(-1))


def masked_language(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the masked-language loss, the mean over masked tokens of -log softmax; Devlin et al. 2019 (BERT).

    logits (T, V) of the masked tokens only, targets (T,); 0 where T is 0.

    >>> round(masked_language(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).item(), 4)  # log 2
    0.6931
    """
    losses = torch.nn.functional.cross_entropy(widen(logits), targets, reduction="none")  # (T,)
    return losses.sum() / max(len(losses), 1)


# Scores of papers by their sentences

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
    """Compute pairwise scores of all queries with all candidates by cosines of their sentences, (A, C).

    queries (A, n, d) and candidates (C, m, d) with masks (A, n) and (C, m), True at a sentence; every paper must have one.
    mean_best: mean over the query's sentences of the best match, ColBERT's late interaction on sentences
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
