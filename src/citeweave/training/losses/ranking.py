"""Losses over the order of labelled pairs: a pair with a higher label should be more alike.

One log-sum-exp over the batch, not a mean: the value grows with the batch. Pairs with equal labels are not compared.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from citeweave.training.losses.bidirectional import pairs_in_batch
from citeweave.training.losses.cosines import check_scale, pair_cosines, unit
from citeweave.training.losses.weighting import weighted_sum


class Pairs(NamedTuple):
    """Labelled pairs of texts."""

    x: Tensor
    """(P, d)"""

    y: Tensor
    """(P, d)"""

    labels: Tensor
    """(P,) how alike; only their order matters."""


def triplets_as_pairs(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Pairs:
    """(anchor, positive) labelled 1, then (anchor, negative) labelled 0: (B, d) each -> 2B pairs; as in the loss study.

    >>> x = torch.eye(2)
    >>> triplets_as_pairs(x, x, x).labels.tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    labels = torch.arange(2, device=anchors.device).flip(0).repeat_interleave(len(anchors))  # (2B,)
    return Pairs(torch.cat([anchors, anchors]), torch.cat([positives, negatives]), labels.float())


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
