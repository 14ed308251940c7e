"""The margin between an anchor's two distances."""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.errors import choose
from citeweave.training.losses.cosines import everywhere, mean_of, pair_cosines, wide

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
