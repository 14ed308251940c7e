"""How well the sentences of an anchor match those of every candidate of a batch, as scores that losses can contrast."""

from __future__ import annotations

import torch
from torch import Tensor

from citeweave.errors import choose
from citeweave.training.losses.cosines import check_temperature, products, unit

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
