"""Pairs of papers as padded batches of sentence vectors, and the distance of every sentence to every other.

    query      2 sentences, 384 numbers each      ->  queries     (pairs, 2, 384)   query_mask      [[True, True]]
    candidate  3 sentences                        ->  candidates  (pairs, 3, 384)   candidate_mask  [[True, True, True]]
    sentence_distances(pairs, "l2")               ->  (pairs, 2, 3), float64
    flat_distances(query, sentences, "l2")         ->  (sentences, 2): one query, all sentences of its candidates

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

NEAR, NEAR_BLOCK = 1e-4, 1 << 14
"""Where |x - y|^2 is below this part of |x|^2 + |y|^2 a product has lost digits; pairs that are taken at a time then."""


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
    differences, not from |x|^2 - 2xy + |y|^2, whose cancellation gives a sentence a distance to itself, and in float64,
    so that no finite number of single precision is too large or too small.
    """
    choose(metric, METRICS, "metric")
    torch = require("torch", extra="minilm")
    queries, candidates = pairs.queries.double(), pairs.candidates.double()
    if metric == "l2":
        return torch.cdist(queries, candidates, compute_mode="donot_use_mm_for_euclid_dist")
    queries, candidates = _unit(queries), _unit(candidates)
    apart = torch.cdist(queries, candidates, compute_mode="donot_use_mm_for_euclid_dist")
    # |u - v|^2 / 2 = 1 - uv for unit vectors; a vector of zeros lacks its 1/2
    lacking = (queries == 0).all(2)[:, :, None].double() + (candidates == 0).all(2)[:, None].double()
    return apart.square() / 2 + lacking / 2


def _unit(vectors: Tensor) -> Tensor:
    largest = vectors.detach().abs().amax(2, keepdim=True)  # which the unit vector does not depend on
    scaled = vectors / largest.masked_fill(largest == 0, 1)  # squares of very small or large numbers are no floats
    length = scaled.square().sum(2, keepdim=True).clamp_min(0.5).sqrt()
    return scaled / length


def flat_distances(query: Tensor, sentences: Tensor, metric: str) -> Tensor:
    """The same distances of many sentences (s, dimension) to those of one query (n, dimension): (s, n), no gradient.

    One product of float64 instead of all differences; where it would cancel, the differences are taken after all. Its
    relative error stays below 1e-10, and a sentence has the distance 0 to itself.
    """
    torch = require("torch", extra="minilm")
    query, sentences = query.double(), sentences.double()
    ours, theirs = torch.linalg.vector_norm(query, dim=1), torch.linalg.vector_norm(sentences, dim=1)  # (n,), (s,)
    if metric == "cosine":
        query, scale = query / ours.masked_fill(ours == 0, 1)[:, None], 1 / theirs.masked_fill(theirs == 0, 1)
        squares = (theirs > 0)[:, None].double() + (ours > 0).double()  # of the unit vectors, (s, n)
        apart = squares - 2 * scale[:, None] * (sentences @ query.T)
    else:
        scale = torch.ones_like(theirs)
        squares = theirs.square()[:, None] + ours.square()
        apart = torch.addmm(squares, sentences, query.T, alpha=-2)
    for part in torch.nonzero(apart < NEAR * squares).split(NEAR_BLOCK):
        row, column = part.T
        apart[row, column] = (sentences[row] * scale[row, None] - query[column]).square().sum(1)
    return apart.sqrt() if metric == "l2" else (apart + 2 - squares) / 2
