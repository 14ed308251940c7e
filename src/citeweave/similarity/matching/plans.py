"""Plans: how much each pair of sentences weighs in the distance of two papers.

    distances  [[0.2, 0.9],      single     [[1, 0],     mean_best  [[0.5, 0],
                [0.8, 0.5]]                  [0, 0]]                 [0, 0.5]]

    distance of the papers = sum of plan x distances = 0.2 and 0.35

Every function takes distances (pairs, n, m), float64, and masks (pairs, n) and (pairs, m) with at least one sentence on
each side, and gives a plan of the shape of the distances, 0 on padding. Optimal transport is in `entropic.py`.
"""

from __future__ import annotations

import math

from citeweave.similarity.matching.pairs import Tensor


def single(distances: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The nearest pair of sentences: ASPIRE's single match, and its `max` (Mysore and others, 2022, section 3.2)."""
    return _nearest_pairs(distances, rows, columns, 1)


def top2(distances: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The two nearest pairs, each with weight 1: ASPIRE's l2top2. A pair that is the only one counts twice."""
    return _nearest_pairs(distances, rows, columns, 2)


def _nearest_pairs(distances: Tensor, rows: Tensor, columns: Tensor, count: int) -> Tensor:
    valid = _both(rows, columns).flatten(1)  # (pairs, n * m)
    held = distances.detach().flatten(1).masked_fill(~valid, math.inf)
    plan = held.new_zeros(held.shape)
    for _ in range(count):
        best = held.argmin(1, keepdim=True)  # (pairs, 1)
        plan.scatter_add_(1, best, held.new_ones(best.shape))
        others = valid.sum(1, keepdim=True) > 1
        held = held.scatter(1, best, held.gather(1, best).masked_fill(others, math.inf))
    return plan.reshape(distances.shape)


def attention(distances: Tensor, rows: Tensor, columns: Tensor, *, temperature: float) -> Tensor:
    """softmax(-distance / temperature) over all pairs of sentences: ASPIRE's l2attention."""
    flat = distances.masked_fill(~_both(rows, columns), math.inf).flatten(1)  # (pairs, n * m)
    return ((flat.detach().amin(1, keepdim=True) - flat) / temperature).softmax(1).reshape(distances.shape)


def mean_best(distances: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The nearest candidate sentence of each query sentence, all with the same weight. Not symmetric."""
    best = distances.detach().masked_fill(~_both(rows, columns), math.inf).argmin(2, keepdim=True)  # (pairs, n, 1)
    shares = rows.to(distances.dtype) / rows.sum(1, keepdim=True)  # (pairs, n)
    return distances.new_zeros(distances.shape).scatter(2, best, shares[:, :, None])


def _both(rows: Tensor, columns: Tensor) -> Tensor:
    return rows[:, :, None] & columns[:, None, :]
