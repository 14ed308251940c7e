"""Pairs of papers as padded batches of sentence vectors, and the distance of every sentence to every other.

    query      2 sentences, 384 numbers each      ->  queries     (pairs, 2, 384)   query_mask      [[True, True]]
    candidate  3 sentences                        ->  candidates  (pairs, 3, 384)   candidate_mask  [[True, True, True]]
    sentence_distances(pairs, "l2")               ->  (pairs, 2, 3), float64

Runs wherever torch does and can be differentiated. Padding is zeros; what it gives is left out later, by the masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from citeweave.errors import choose
from citeweave.extras import require

Tensor: TypeAlias = Any
"""A tensor of torch, which is not imported before it is used."""

METRICS = ("l2", "cosine")


@dataclass(frozen=True, slots=True)
class PaperPairs:
    """Sentences of the query and of the candidate of each pair."""

    queries: Tensor
    """(pairs, query sentences, dimension), zeros behind a paper's last sentence."""

    candidates: Tensor
    """(pairs, candidate sentences, dimension)"""

    query_mask: Tensor
    """(pairs, query sentences), False on padding."""

    candidate_mask: Tensor
    """(pairs, candidate sentences)"""

    @classmethod
    def of(cls, queries: Sequence[Tensor], candidates: Sequence[Tensor]) -> PaperPairs:
        """Pad papers given as matrices, (sentences, dimension) each; query i belongs to candidate i."""
        assert len(queries) == len(candidates) > 0
        query, query_mask = _pad(queries)
        candidate, candidate_mask = _pad(candidates)
        return cls(query, candidate, query_mask, candidate_mask)

    @property
    def empty(self) -> Tensor:
        """(pairs,) whether one side has no sentence, so that nothing can be said."""
        return ~(self.query_mask.any(1) & self.candidate_mask.any(1))

    @property
    def rows(self) -> Tensor:
        """`query_mask`, where the padding of an empty pair counts: what is computed of it stays finite."""
        return self.query_mask | self.empty[:, None]

    @property
    def columns(self) -> Tensor:
        """`candidate_mask`, where the padding of an empty pair counts."""
        return self.candidate_mask | self.empty[:, None]


def _pad(papers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    torch = require("torch", extra="minilm")
    longest = max(1, *(len(paper) for paper in papers))  # one row of padding keeps a batch of empty papers computable
    padded = torch.stack([torch.nn.functional.pad(paper, (0, 0, 0, longest - len(paper))) for paper in papers])
    lengths = torch.tensor([len(paper) for paper in papers], device=padded.device)
    return padded, torch.arange(longest, device=padded.device) < lengths[:, None]


def sentence_distances(pairs: PaperPairs, metric: str) -> Tensor:
    """The distance of each query sentence to each candidate sentence, (pairs, query sentences, candidate sentences).

    l2: the length of the difference; cosine: 1 - cosine, where a vector of zeros has the cosine 0. Computed from the
    differences, not from |x|^2 - 2xy + |y|^2, whose cancellation gives a sentence a distance to itself.
    """
    choose(metric, METRICS, "metric")
    torch = require("torch", extra="minilm")
    queries, candidates = _precise(pairs.queries), _precise(pairs.candidates)
    if metric == "l2":
        return torch.cdist(queries, candidates, compute_mode="donot_use_mm_for_euclid_dist").double()
    queries, candidates = _unit(queries), _unit(candidates)
    apart = torch.cdist(queries, candidates, compute_mode="donot_use_mm_for_euclid_dist").double()
    # |u - v|^2 / 2 = 1 - uv for unit vectors; a vector of zeros lacks its 1/2
    lacking = (queries == 0).all(2)[:, :, None].double() + (candidates == 0).all(2)[:, None].double()
    return apart.square() / 2 + lacking / 2


def _precise(vectors: Tensor) -> Tensor:
    return vectors if vectors.element_size() > 2 else vectors.float()


def _unit(vectors: Tensor) -> Tensor:
    largest = vectors.abs().amax(2, keepdim=True)
    scaled = vectors / largest.masked_fill(largest == 0, 1)  # squares of very small or large numbers are no floats
    length = scaled.square().sum(2, keepdim=True).clamp_min(0.5).sqrt()
    return scaled / length
