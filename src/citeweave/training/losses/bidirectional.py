"""In-batch losses that look from both sides of a pair.

`allowed` speaks of all texts of the batch at once: first the left sides, then the right sides of the pairs, then the
negatives. It is False where two texts must not be contrasted: the same paper, or known relatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.training.losses.contrast import supcon_in_batch
from citeweave.training.losses.cosines import check_scale, check_temperature, cosines, everywhere, log_sum, mean_of


def gte(
    anchors: Tensor,
    positives: Tensor,
    *,
    negatives: Tensor | None = None,
    negative_mask: Tensor | None = None,
    allowed: Tensor | None = None,
    temperature: float = 0.01,
) -> Tensor:
    """-log(e^(s(q_i, d_i)/t) / Z_i), mean over the pairs; Li et al. 2023 (GTE), with Z_i the sum of e^(s/t) over

        (q_i, d_j) all j      (q_i, q_j) j != i      (q_j, d_i) all j      (d_j, d_i) j != i

    anchors q and positives d (B, d); (q_i, d_i) stands in Z_i twice, as in the text. `negatives` (B, n, d) are further
    d_j, those of pair i not against d_i. `allowed` (2B, 2B + Bn) holds for anchors, positives, negatives in this
    order; the pair itself counts whatever it says. 0.01 is the text's temperature.

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
        real = torch.cat([real, everywhere(negative_mask, negatives[..., 0]).flatten()])  # (2B + Bn,)
    scores = cosines(texts, candidates) / temperature  # (2B, 2B + Bn)
    pair, others = _opposites(count, 0 if negatives is None else negatives.shape[1], anchors.device)
    others = others & real & everywhere(allowed, scores)  # (2B, 2B + Bn)
    sides = log_sum(scores, pair | others).reshape(2, count)  # from q_i, from d_i
    hits = scores[:count, count : 2 * count].diagonal()  # (B,)
    return mean_of(torch.logaddexp(sides[0], sides[1]) - hits, others.any(1).reshape(2, count).any(0))


def _opposites(count: int, rivals: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where a text meets its partner, and where it meets what it should be unlike: (2B, 2B + Bn) each."""
    pairs = torch.arange(count, device=device)
    owner = torch.cat([pairs, pairs, pairs.repeat_interleave(rivals)])  # (2B + Bn,) the pair a text belongs to
    side = torch.cat([pairs * 0, pairs * 0 + 1, owner[2 * count :] * 0 + 2])  # 0 anchor, 1 positive, 2 negative
    left, right = side[: 2 * count, None], side
    own = owner[: 2 * count, None] == owner  # (2B, 2B + Bn)
    return own & (left + right == 1), ~own | ((left == 0) & (right == 2))


def pairs_in_batch(
    x: Tensor, y: Tensor, labels: Tensor, *, scale: float = 20.0, allowed: Tensor | None = None
) -> Tensor:
    """AnglE's in-batch term: each text of a pair labelled 1 finds its partner among all texts of the batch; Li & Li 2023.

    x and y (P, d), labels (P,), allowed (2P, 2P) over x and then y. A text is never its own candidate. The sum is
    divided by 2P, texts of pairs labelled below 1 included, as in the released code.

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
    found = supcon_in_batch(texts, texts, partner, allowed=allowed, temperature=1 / scale)
    contrasted = wanted & (allowed & ~partner).any(1)
    return found * contrasted.sum() / max(2 * count, 1)
