"""Distances between papers for training: those of `match`, differentiable, in few launches and without waiting for a GPU.

    values = training_distances(PaperPairs(...), DocumentDistance("transport", 0.5))      (pairs,) float64

On a GPU transport is one Triton kernel for all pairs and all iterations (`triton_transport.py`), and vectors that are not
finite give NaN, which the trainer finds when it reads the losses; on a CPU they are an error at once.

>>> import torch
>>> pairs = PaperPairs.of([torch.tensor([[0.0, 0.0], [9.0, 9.0]])], [torch.tensor([[3.0, 4.0]])])
>>> training_distances(pairs, DocumentDistance("single")).tolist()
[5.0]
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from citeweave.vectors.document_distance import DocumentDistance, geomloss_plans, make_plans
from citeweave.vectors.sentence_distances import PaperPairs, Tensor, check_finite, sentence_distances


@lru_cache(maxsize=1)
def triton_kernel() -> Any:
    """Return the module of the transport kernel for GPUs; None without triton, as on a machine without CUDA."""
    try:
        from citeweave.vectors import triton_transport
    except ImportError:
        return None
    return triton_transport


def training_distances(pairs: PaperPairs, distance: DocumentDistance) -> Tensor:
    """Compute the distances that ASPIRE trains with, (pairs,); both papers of every pair must have a sentence.

    For `transport` a paper's sentences must come before its padding.
    """
    sentences = sentence_distances(pairs, distance.metric)  # (pairs, n, m)
    if not sentences.is_cuda:
        check_finite(sentences)
    rows, columns = pairs.query_mask, pairs.candidate_mask
    if distance.name == "single":
        inside = rows[:, :, None] & columns[:, None, :]
        return sentences.masked_fill(~inside, math.inf).flatten(1).min(1).values
    kernel = triton_kernel() if distance.name == "transport" and sentences.is_cuda else None
    if kernel is not None and max(sentences.shape[1:]) > kernel.MAX_SIDE:
        kernel = None
    if (distance.name, distance.mode) == ("transport", "geomloss"):
        return geomloss_plans(pairs, sentences, distance, kernel and kernel.anneal)[1]
    if kernel is not None:
        return kernel.transport_values(sentences, rows.sum(1), columns.sum(1), distance.temperature)
    return (make_plans(sentences, rows, columns, distance) * sentences).sum((1, 2))
