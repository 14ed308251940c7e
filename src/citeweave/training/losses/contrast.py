"""Softmax losses: a positive against candidates, which are the anchor's own or those of the whole batch.

With one positive an anchor and the same candidates, all of them are the same number:

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
"""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.errors import choose
from citeweave.training.losses.cosines import (
    check_temperature,
    cosines,
    everywhere,
    log_sum,
    mean_of,
    own_cosines,
    products,
)

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
    """log(1 + sum over n of exp((s(a, n) - s(a, p)) / t)), mean over the anchors; Sohn 2016, equation 6.

    anchors and positives (G, d), negatives (G, n, d). Without negatives they are the positives of the other anchors
    (Sohn's N-pair-mc, equation 7), and negative_mask is (G, G). The cosine with a temperature is the form of the
    SPECTER-CL text; Sohn's own is similarity="product", temperature=1.

    >>> x = torch.eye(3)
    >>> round(n_pairs(x, x, temperature=1.0).item(), 4)  # the negatives are the two other rows
    0.5514
    """
    check_temperature(temperature)
    choose(similarity, SIMILARITIES, "similarity of the n_pairs loss")
    every = cosines if similarity == "cosine" else products
    positive = every(anchors[:, None], positives[:, None])[:, 0] / temperature  # (G, 1)
    if negatives is None:
        negative = every(anchors, positives) / temperature  # (G, G)
        own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
        counted = everywhere(negative_mask, negative) & ~own  # (G, G)
    else:
        negative = every(anchors[:, None], negatives)[:, 0] / temperature  # (G, n)
        counted = everywhere(negative_mask, negative)
    return mean_of(_against(positive, negative, counted), counted.any(1, keepdim=True))


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    positive_mask: Tensor | None = None,
    negative_mask: Tensor | None = None,
    temperature: float = 0.1,
) -> Tensor:
    """-log(e^(s(a, p)/t) / (e^(s(a, p)/t) + sum over n of e^(s(a, n)/t))), mean over the positives; van den Oord et al. 2018.

    anchors (G, d), positives (G, d) or (G, m, d), negatives (G, n, d): blocks of triplets that share their anchor, in
    which each positive meets all the negatives of the block and no other positive.

    >>> anchor, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]]])
    >>> positives = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> round(info_nce(anchor, positives, negatives, temperature=1.0).item(), 4)  # mean of log 2 and log(1 + e)
    1.0032
    """
    check_temperature(temperature)
    positives = positives[:, None] if positives.dim() == 2 else positives
    positive = own_cosines(anchors, positives) / temperature  # (G, m)
    negative = own_cosines(anchors, negatives) / temperature  # (G, n)
    opposed = everywhere(negative_mask, negative)  # (G, n)
    counted = everywhere(positive_mask, positive) & opposed.any(1, keepdim=True)  # (G, m)
    return mean_of(_against(positive, negative, opposed), counted)


def supcon(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    positive_mask: Tensor | None = None,
    negative_mask: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """Mean over p of -log(e^(s(a, p)/t) / sum over the anchor's candidates c of e^(s(a, c)/t)); Khosla et al. 2020, L_out.

    anchors (G, d), positives (G, m, d), negatives (G, n, d); the candidates are the anchor's own, positives included.
    Mean over the positives of an anchor, then over the anchors that have a positive and a negative.

    >>> anchor, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]]])
    >>> positives = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> round(supcon(anchor, positives, negatives, temperature=1.0).item(), 4)  # log(2e + 1) - (1 + 0) / 2
    1.362
    """
    check_temperature(temperature)
    positive = own_cosines(anchors, positives)  # (G, m)
    negative = own_cosines(anchors, negatives)  # (G, n)
    wanted, opposed = everywhere(positive_mask, positive), everywhere(negative_mask, negative)
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
    """`supcon` with every candidate of the batch in the denominator; Khosla et al. 2020, L_out.

    anchors (G, d), candidates (C, d), targets (G, C) True at the anchor's positives. `allowed` (G, C) is False at
    relatives that must not count as negatives, and at the anchor itself; a target counts whatever it says.

    >>> x, targets = torch.eye(3), torch.eye(3, dtype=torch.bool)
    >>> round(supcon_in_batch(x, x, targets, temperature=1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    return scores_in_batch(cosines(anchors, candidates), targets, allowed=allowed, temperature=temperature)


def scores_in_batch(
    scores: Tensor, targets: Tensor, *, allowed: Tensor | None = None, temperature: float = 0.05
) -> Tensor:
    """`supcon_in_batch` of scores that are not cosines of single vectors, such as `match_scores`; (G, C) each.

    >>> scores, targets = torch.eye(3), torch.eye(3, dtype=torch.bool)
    >>> round(scores_in_batch(scores, targets, temperature=1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    check_temperature(temperature)
    return _mean_over_targets(scores / temperature, targets, everywhere(allowed, scores) | targets)


def in_batch(
    anchors: Tensor,
    candidates: Tensor,
    target: Tensor,
    *,
    allowed: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """-log softmax of the target among the candidates of the batch, mean over the anchors; Henderson et al. 2017.

    anchors (G, d), candidates (C, d), target (G,) the place of the anchor's positive, -1 for an anchor that has none.
    `allowed` (G, C) is False at known relatives (cited, co-cited, duplicates, other positives of the anchor, the anchor
    itself), which are then no negatives; the target counts whatever it says. 1 / temperature is
    sentence-transformers' scale.

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


def _against(positive: Tensor, negative: Tensor, opposed: Tensor) -> Tensor:
    """log(1 + sum over n of exp(negative - positive)), (G, m) and (G, n) -> (G, m)."""
    excess = log_sum(negative, opposed)[:, None] - positive  # (G, m)
    return torch.logaddexp(excess, torch.zeros_like(excess))


def _mean_over_targets(scores: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Mean over rows of the mean over their targets of -log softmax among the counted, (G, C) each."""
    total = log_sum(scores, counted)  # (G,)
    hits = torch.where(targets, scores, 0).sum(1) / targets.sum(1).clamp(min=1)  # (G,)
    contrasted = targets.any(1) & (counted & ~targets).any(1)  # (G,)
    return mean_of(total - hits, contrasted)
