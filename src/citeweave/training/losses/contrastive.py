"""What the losses share: cosines in full precision, means over what counts. Knows no loss.

>>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [-3.0, -4.0], [0.0, 0.0]])).tolist()
[[1.0, -1.0, 0.0]]
>>> mean_of(torch.tensor([2.0, 4.0, 9.0]), torch.tensor([True, True, False])).item()
3.0

Softmax losses: a positive against candidates, which are the anchor's own or those of the whole batch.

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

In-batch losses that look from both sides of a pair.

`allowed` speaks of all texts of the batch at once: first the left sides, then the right sides of the pairs, then the
negatives. It is False where two texts must not be contrasted: the same paper, or known relatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.core.errors import UserError, choose


def wide(x: Tensor) -> Tensor:
    """Half precision as float32; anything else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1, (..., d); a vector of zeros stays one, with a gradient that is not huge."""
    x = wide(x)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    return x / torch.where(length > 0, length, 1)


def products(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of the rows, (..., a, d) and (..., b, d) -> (..., a, b), never in half precision."""
    # autocast would turn the factors into half precision again, and a temperature of 0.05 would show it
    with torch.autocast(x.device.type, enabled=False):
        return wide(x) @ wide(y).transpose(-1, -2)


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Cosines of all rows with all rows, (..., a, d) and (..., b, d) -> (..., a, b); 0 for a vector of zeros."""
    return products(unit(x), unit(y))


def own_cosines(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Cosines of each anchor with its own candidates, (G, d) and (G, n, d) -> (G, n)."""
    return cosines(anchors[:, None], candidates)[:, 0]


def pair_cosines(x: Tensor, y: Tensor) -> Tensor:
    """Cosines of row i with row i, (..., d) each -> (...)."""
    return (unit(x) * unit(y)).sum(-1)


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of the values that count, 0 where none does; the others get no gradient."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)


def log_sum(scores: Tensor, counted: Tensor) -> Tensor:
    """log of the sum of exp of the scores that count, (..., n) -> (...); -inf where none does."""
    return scores.masked_fill(~counted, -torch.inf).logsumexp(-1)


def everywhere(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask, or True in the shape of `like` where there is none."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature is {temperature}; it must be above 0 and finite, such as 0.05")


def check_scale(scale: float) -> None:
    if not 0 < scale < float("inf"):
        raise UserError(f"scale is {scale}; it must be above 0 and finite, such as 20")


# Softmax losses: a positive against candidates, which are the anchor's own or those of the whole batch.

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


# In-batch losses that look from both sides of a pair.


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
    """AnglE's in-batch term: each text of a pair labeled 1 finds its partner among all texts of the batch; Li & Li 2023.

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
    found = supcon_in_batch(texts, texts, partner, allowed=allowed, temperature=1 / scale)
    contrasted = wanted & (allowed & ~partner).any(1)
    return found * contrasted.sum() / max(2 * count, 1)
