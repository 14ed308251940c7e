"""Contrastive softmax losses: a positive against the negatives of its anchor, or against the complete batch.

Losses are pure functions of vectors, never of models; each returns a differentiable scalar. Those marked with a star
are in `pairwise_losses.py`.

  * triplet           margin between two distances                        one triplet per row
  * distance_margin   the same of precomputed distances                   one triplet per row
    n_pairs           one positive against the negatives of its anchor    one anchor per row
    info_nce          every positive alone against the negatives          a group: an anchor, its positives and negatives
    supcon            every positive against all the anchor's candidates  a group
    supcon_in_batch   the same, against every candidate of the batch      anchors, and the candidates of all
    in_batch          one target against every candidate of the batch     anchors, and the candidates of all
    scores_in_batch   the same of precomputed scores                      scores of anchors with candidates
  * match_scores      such scores, from the sentences of papers           (a score, not a loss)
    gte               a pair against all texts, in both directions        pairs, negatives if any
  * cosent, angle     pairs of pairs in the order of their labels         labeled pairs
  * angle_sum         cosent + in-batch + angle                           labeled pairs
  * student_teacher   the student's cosines follow the teacher's          one paper per row
  * similarity        the student's neighbors follow the teacher's        one paper per row
  * masked_language   the masked tokens                                   one masked token per row
  * weighted_sum      the sum of several losses

Groups are padded: (G, m, d) with a mask (G, m), True where there is a paper. Padding may hold any finite numbers and
never changes a value or a gradient. Rows without a positive or without a negative are left out of the mean; where
nothing is left, the loss and its gradient are 0. Half precision is widened to float32 first, also under autocast;
float32 and float64 stay as they are.

With one positive per anchor and the same candidates, all of them are equal:

>>> import math
>>> anchor, positive = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]]])
>>> negatives = torch.tensor([[[0.0, 1.0], [0.0, -1.0]]])
>>> loss = supcon(anchor, positive, negatives, temperature=1.0)  # log(1 + 2 / e)
>>> round(loss.item(), 4), round(math.log(1 + 2 / math.e), 4)
(0.5514, 0.5514)
>>> round(info_nce(anchor, positive, negatives, temperature=1.0).item(), 4)
0.5514
>>> round(n_pairs(anchor, positive[:, 0], negatives, temperature=1.0).item(), 4)
0.5514

Symmetric in-batch losses (`gte`, `pairs_in_batch`) contrast both sides of a pair. Their `allowed` is about all texts of
the batch: first the left sides, then the right sides of the pairs, then the negatives. It is False where two texts must
not be contrasted: the same paper, or related papers.

All losses share cosines in full precision and masked means:

>>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [-3.0, -4.0], [0.0, 0.0]])).tolist()
[[1.0, -1.0, 0.0]]
>>> masked_mean(torch.tensor([2.0, 4.0, 9.0]), torch.tensor([True, True, False])).item()
3.0
"""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.core.errors import UserError, choose


def widen(x: Tensor) -> Tensor:
    """Convert half precision to float32, and leave other precisions as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unit(x: Tensor) -> Tensor:
    """Normalize vectors to length 1, (..., d); zeros stay zeros, with a bounded gradient."""
    x = widen(x)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    return x / torch.where(length > 0, length, 1)


def products(x: Tensor, y: Tensor) -> Tensor:
    """Compute inner products of all rows, (..., a, d) and (..., b, d) -> (..., a, b), never in half precision."""
    # autocast would use half precision, whose error a temperature of 0.05 would magnify
    with torch.autocast(x.device.type, enabled=False):
        return widen(x) @ widen(y).transpose(-1, -2)


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Compute cosines of all rows with all rows, (..., a, d) and (..., b, d) -> (..., a, b); 0 for zeros."""
    return products(unit(x), unit(y))


def _own_cosines(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Compute cosines of each anchor with its own candidates, (G, d) and (G, n, d) -> (G, n)."""
    return cosines(anchors[:, None], candidates)[:, 0]


def pair_cosines(x: Tensor, y: Tensor) -> Tensor:
    """Compute cosines of row i with row i, (..., d) each -> (...)."""
    return (unit(x) * unit(y)).sum(-1)


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of the counted values, 0 where there is none; the others get no gradient."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)


def _masked_logsumexp(scores: Tensor, counted: Tensor) -> Tensor:
    """Return log-sum-exp of the counted scores, (..., n) -> (...); -inf where there is none."""
    return scores.masked_fill(~counted, -torch.inf).logsumexp(-1)


def full_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    """Return the mask of a loss, or all True in the shape of `like` where there is none."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature is {temperature}; it must be greater than 0 and finite, such as 0.05")


def check_scale(scale: float) -> None:
    if not 0 < scale < float("inf"):
        raise UserError(f"scale is {scale}; it must be greater than 0 and finite, such as 20")


# Losses of one positive against candidates

SIMILARITIES = ("cosine", "product")


def n_pairs(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    negative_mask: Tensor | None = None,
    temperature: float = 0.05,
    similarity: str = "cosine",
) -> Tensor:
    """Compute the contrastive N-pair loss log(1 + sum over n of exp((s(a, n) - s(a, p)) / t)); Sohn 2016, equation 6.

    Mean over the anchors. anchors and positives (G, d), negatives (G, n, d); by default the positives of other anchors
    (Sohn's N-pair-mc, equation 7), and negative_mask is (G, G). The cosine with a temperature is the form in the
    SPECTER-CL paper; Sohn's own is similarity="product", temperature=1.

    >>> x = torch.eye(3)
    >>> round(n_pairs(x, x, temperature=1.0).item(), 4)  # the negatives are the two other rows
    0.5514
    """
    check_temperature(temperature)
    choose(similarity, SIMILARITIES, "similarity of the n_pairs loss")
    similarities = cosines if similarity == "cosine" else products
    positive = similarities(anchors[:, None], positives[:, None])[:, 0] / temperature  # (G, 1)
    if negatives is None:
        negative = similarities(anchors, positives) / temperature  # (G, G)
        own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
        counted = full_mask(negative_mask, negative) & ~own  # (G, G)
    else:
        negative = similarities(anchors[:, None], negatives)[:, 0] / temperature  # (G, n)
        counted = full_mask(negative_mask, negative)
    return masked_mean(_softplus_excess(positive, negative, counted), counted.any(1, keepdim=True))


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    positive_mask: Tensor | None = None,
    negative_mask: Tensor | None = None,
    temperature: float = 0.1,
) -> Tensor:
    """Compute InfoNCE, -log(e^(s(a, p)/t) / (e^(s(a, p)/t) + sum over n of e^(s(a, n)/t))); van den Oord et al. 2018.

    Mean over the positives. anchors (G, d), positives (G, d) or (G, m, d), negatives (G, n, d): blocks of triplets that share their anchor, in
    which each positive meets all the negatives of the block and no other positive.

    >>> anchor, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]]])
    >>> positives = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> round(info_nce(anchor, positives, negatives, temperature=1.0).item(), 4)  # mean of log 2 and log(1 + e)
    1.0032
    """
    check_temperature(temperature)
    positives = positives[:, None] if positives.dim() == 2 else positives
    positive = _own_cosines(anchors, positives) / temperature  # (G, m)
    negative = _own_cosines(anchors, negatives) / temperature  # (G, n)
    opposed = full_mask(negative_mask, negative)  # (G, n)
    counted = full_mask(positive_mask, positive) & opposed.any(1, keepdim=True)  # (G, m)
    return masked_mean(_softplus_excess(positive, negative, opposed), counted)


def supcon(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    positive_mask: Tensor | None = None,
    negative_mask: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """Compute SupCon, the mean over p of -log(e^(s(a, p)/t) / sum over candidates c of e^(s(a, c)/t)); Khosla et al. 2020.

    L_out: anchors (G, d), positives (G, m, d), negatives (G, n, d); candidates are the anchor's own, positives included.
    Mean over the positives of an anchor, then over the anchors that have a positive and a negative.

    >>> anchor, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]]])
    >>> positives = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> round(supcon(anchor, positives, negatives, temperature=1.0).item(), 4)  # log(2e + 1) - (1 + 0) / 2
    1.362
    """
    check_temperature(temperature)
    positive = _own_cosines(anchors, positives)  # (G, m)
    negative = _own_cosines(anchors, negatives)  # (G, n)
    wanted, opposed = full_mask(positive_mask, positive), full_mask(negative_mask, negative)
    scores = torch.cat([positive, negative], 1) / temperature  # (G, m + n)
    targets = torch.cat([wanted, torch.zeros_like(opposed)], 1)  # (G, m + n)
    return _mean_over_targets(scores, targets, torch.cat([wanted, opposed], 1))


def supcon_in_batch(
    anchors: Tensor,
    candidates: Tensor,
    targets: Tensor,
    *,
    allowed: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """Compute SupCon with every candidate of the batch in the denominator; Khosla et al. 2020, L_out.

    anchors (G, d), candidates (C, d), targets (G, C) True at the anchor's positives. `allowed` (G, C) is False at
    related papers, which must not be negatives, and at the anchor itself; targets always count.

    >>> x, targets = torch.eye(3), torch.eye(3, dtype=torch.bool)
    >>> round(supcon_in_batch(x, x, targets, temperature=1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    return scores_in_batch(cosines(anchors, candidates), targets, allowed=allowed, temperature=temperature)


def scores_in_batch(
    scores: Tensor, targets: Tensor, *, allowed: Tensor | None = None, temperature: float = 0.05
) -> Tensor:
    """Compute the contrastive `supcon_in_batch` from precomputed scores such as `match_scores`; (G, C) each.

    >>> scores, targets = torch.eye(3), torch.eye(3, dtype=torch.bool)
    >>> round(scores_in_batch(scores, targets, temperature=1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    check_temperature(temperature)
    return _mean_over_targets(scores / temperature, targets, full_mask(allowed, scores) | targets)


def in_batch(
    anchors: Tensor,
    candidates: Tensor,
    target: Tensor,
    *,
    allowed: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """Compute the contrastive in-batch softmax, -log softmax of the target among the batch; Henderson et al. 2017.

    Mean over the anchors. anchors (G, d), candidates (C, d), target (G,) the index of the anchor's positive, -1 for
    none. `allowed` (G, C) is False at related papers (cited, co-cited, duplicates, other positives of the anchor, the
    anchor itself), which are not negatives; the target always counts. 1 / temperature is sentence-transformers' scale.

    >>> x = torch.eye(3)
    >>> round(in_batch(x, x, torch.arange(3), temperature=1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    >>> allowed = torch.tensor([[True, True, False]]).expand(3, 3)
    >>> round(in_batch(x, x, torch.tensor([0, -1, -1]), allowed=allowed, temperature=1.0).item(), 4)  # log(1 + 1 / e)
    0.3133
    """
    places = torch.arange(len(candidates), device=target.device)  # (C,)
    targets = target[:, None] == places  # (G, C)
    return supcon_in_batch(anchors, candidates, targets, allowed=allowed, temperature=temperature)


def _softplus_excess(positive: Tensor, negative: Tensor, opposed: Tensor) -> Tensor:
    """Return log(1 + sum over n of exp(negative - positive)), (G, m) and (G, n) -> (G, m)."""
    excess = _masked_logsumexp(negative, opposed)[:, None] - positive  # (G, m)
    return torch.logaddexp(excess, torch.zeros_like(excess))


def _mean_over_targets(scores: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Return the mean over rows of the mean over targets of -log softmax among the counted, (G, C) each."""
    total = _masked_logsumexp(scores, counted)  # (G,)
    hits = torch.where(targets, scores, 0).sum(1) / targets.sum(1).clamp(min=1)  # (G,)
    contrasted = targets.any(1) & (counted & ~targets).any(1)  # (G,)
    return masked_mean(total - hits, contrasted)


# Symmetric in-batch losses


def gte(
    anchors: Tensor,
    positives: Tensor,
    *,
    negatives: Tensor | None = None,
    negative_mask: Tensor | None = None,
    allowed: Tensor | None = None,
    temperature: float = 0.01,
) -> Tensor:
    """Compute GTE's contrastive loss, the mean over pairs of -log(e^(s(q_i, d_i)/t) / Z_i); Li et al. 2023.

    Z_i is the sum of e^(s/t) over

        (q_i, d_j) all j      (q_i, q_j) j != i      (q_j, d_i) all j      (d_j, d_i) j != i

    anchors q and positives d (B, d); (q_i, d_i) occurs in Z_i twice, as in the paper. `negatives` (B, n, d) are further
    d_j, those of pair i not against d_i. `allowed` (2B, 2B + Bn) holds for anchors, positives, negatives in this
    order; the pair itself always counts. 0.01 is the paper's temperature.

    >>> x = torch.eye(2)
    >>> round(gte(x, x, temperature=1.0).item(), 4)  # log((2e + 4) / e): own pair twice, four zeros
    1.2446
    """
    check_temperature(temperature)
    count = len(anchors)
    texts, real = torch.cat([anchors, positives]), anchors.new_ones(2 * count, dtype=torch.bool)  # (2B, d), (2B,)
    candidates = texts
    if negatives is not None:
        candidates = torch.cat([texts, negatives.flatten(0, 1)])  # (2B + Bn, d)
        real = torch.cat([real, full_mask(negative_mask, negatives[..., 0]).flatten()])  # (2B + Bn,)
    scores = cosines(texts, candidates) / temperature  # (2B, 2B + Bn)
    pair, others = _pair_masks(count, 0 if negatives is None else negatives.shape[1], anchors.device)
    others = others & real & full_mask(allowed, scores)  # (2B, 2B + Bn)
    sides = _masked_logsumexp(scores, pair | others).reshape(2, count)  # from q_i, from d_i
    hits = scores[:count, count : 2 * count].diagonal()  # (B,)
    return masked_mean(torch.logaddexp(sides[0], sides[1]) - hits, others.any(1).reshape(2, count).any(0))


def _pair_masks(count: int, rivals: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return masks of each text's partner and of the texts to contrast it with: (2B, 2B + Bn) each."""
    pairs = torch.arange(count, device=device)
    owner = torch.cat([pairs, pairs, pairs.repeat_interleave(rivals)])  # (2B + Bn,) the pair a text belongs to
    side = torch.cat([pairs * 0, pairs * 0 + 1, owner[2 * count :] * 0 + 2])  # 0 anchor, 1 positive, 2 negative
    left, right = side[: 2 * count, None], side
    own = owner[: 2 * count, None] == owner  # (2B, 2B + Bn)
    return own & (left + right == 1), ~own | ((left == 0) & (right == 2))


def pairs_in_batch(
    x: Tensor, y: Tensor, labels: Tensor, *, scale: float = 20.0, allowed: Tensor | None = None
) -> Tensor:
    """Compute AnglE's contrastive term: each text of a pair labeled 1 against all texts of the batch; Li & Li 2023.

    x and y (P, d), labels (P,), allowed (2P, 2P) over x and then y. A text is never its own candidate. The sum is
    divided by 2P, texts of pairs labeled below 1 included, as in the released code.

    >>> x = torch.eye(2)
    >>> round(pairs_in_batch(x, x, torch.ones(2), scale=1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    check_scale(scale)
    texts = torch.cat([x, y])  # (2P, d)
    count = len(x)
    places = torch.arange(2 * count, device=x.device)  # (2P,)
    same = places[:, None] == places  # (2P, 2P)
    wanted = (labels >= 1).repeat(2)  # (2P,)
    partner = same.roll(count, 1) & wanted[:, None]  # (2P, 2P)
    allowed = ~same if allowed is None else allowed & ~same
    loss = supcon_in_batch(texts, texts, partner, allowed=allowed, temperature=1 / scale)
    contrasted = wanted & (allowed & ~partner).any(1)
    return loss * contrasted.sum() / max(2 * count, 1)
