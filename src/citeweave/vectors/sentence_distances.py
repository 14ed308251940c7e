"""Distances between the sentences of pairs of papers, and plans: how much each pair of sentences counts.

    query      2 sentences, 384 numbers each      ->  queries     (pairs, 2, 384)   query_mask      [[True, True]]
    candidate  3 sentences                        ->  candidates  (pairs, 3, 384)   candidate_mask  [[True, True, True]]
    sentence_distances(pairs, "l2")               ->  (pairs, 2, 3), float64
    distances_to_query(query, sentences, "l2")    ->  (sentences, 2): one query, all sentences of its candidates

    distances  [[0.2, 0.9],      single     [[1, 0],     mean_best  [[0.5, 0],
                [0.8, 0.5]]                  [0, 0]]                 [0, 0.5]]

    distance of the papers = sum of plan x distances = 0.2 and 0.35

Every plan function takes distances (pairs, n, m), float64, and masks (pairs, n) and (pairs, m) with at least one sentence
on each side, and returns a plan of the shape of the distances, 0 on padding; the plan of optimal transport is in
`transport.py`. Everything runs wherever torch does and can be differentiated. Padding is zeros; the masks leave out what
it gives.

`SentenceRows` says which rows of a matrix of sentence vectors belong to which papers:

    >>> papers = SentenceRows.of(np.array([0, 2, 5, 6]), np.array([1, -1, 2]))
    >>> papers.lengths.tolist(), papers.rows().tolist()
    ([3, 0, 1], [2, 3, 4, 5])

Token vectors in place of sentence vectors are compared by late interaction, MaxSim (Khattab and Zaharia, SIGIR 2020,
ColBERT, equation 3): the mean over the query's tokens of 1 - the best cosine with any token of the candidate.

    >>> import torch
    >>> query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> near, half = torch.tensor([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> token_distances(query, [near, half, near[:2]]).double().round(decimals=3).tolist()
    [0.0, 0.5, 0.2]

The third candidate has the query's second token, and for its first one with the cosine 0.6: (0.4 + 0) / 2. Not symmetric.
ColBERT sums where this takes the mean; within a query the order is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose, require
from citeweave.core.ragged import spans, split_rows, to_offsets

Tensor: TypeAlias = Any
"""A torch tensor; torch is not imported before it is used."""

Longs = NDArray[np.int64]

TOKEN_BEST = "token_best"

MAX_TOKEN_NUMBERS = 1 << 25
"""Numbers of candidates' token vectors converted to float32 at a time, and of cosines held."""

METRICS = ("l2", "cosine")

NEAR, NEAR_BLOCK = 1e-4, 1 << 14
"""Where |x - y|^2 is below this part of |x|^2 + |y|^2 a product has lost digits; pairs recomputed at a time then."""


@dataclass(frozen=True, slots=True)
class PaperPairs:
    """Pairs of papers between whose sentences distances are computed: their sentence vectors, as padded batches."""

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
        """Pad the sentence matrices (sentences, dimension) of papers; query i belongs to candidate i."""
        assert len(queries) == len(candidates) > 0
        query, query_mask = _pad(queries)
        candidate, candidate_mask = _pad(candidates)
        return cls(query, candidate, query_mask, candidate_mask)

    @property
    def empty(self) -> Tensor:
        """(pairs,) whether a paper of the pair has no sentence, so that there is no distance."""
        return ~(self.query_mask.any(1) & self.candidate_mask.any(1))

    @property
    def rows(self) -> Tensor:
        """`query_mask`, but with the padding of an empty pair, so that computations on it stay finite."""
        return self.query_mask | self.empty[:, None]

    @property
    def columns(self) -> Tensor:
        """`candidate_mask`, but with the padding of an empty pair, as in `rows`."""
        return self.candidate_mask | self.empty[:, None]


def _pad(papers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    torch = require("torch", extra="minilm")
    longest = max(1, *(len(paper) for paper in papers))  # one row of padding keeps a batch of empty papers computable
    padded = torch.stack([torch.nn.functional.pad(paper, (0, 0, 0, longest - len(paper))) for paper in papers])
    lengths = torch.tensor([len(paper) for paper in papers], device=padded.device)
    return padded, torch.arange(longest, device=padded.device) < lengths[:, None]


def sentence_distances(pairs: PaperPairs, metric: str) -> Tensor:
    """Return the distance of each query sentence to each candidate sentence, (pairs, n, m).

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


def check_finite(sentences: Tensor) -> None:
    """Refuse sentence distances (pairs, n, m) that are not finite; waits for the device."""
    torch = require("torch", extra="minilm")
    bad = int((~torch.isfinite(sentences)).flatten(1).any(1).sum())
    if bad:
        raise UserError(
            f"{bad:,} of {len(sentences):,} pairs of papers have sentence vectors that are not finite or too large; "
            "a common cause is a learning rate that is too high"
        )


def _unit(vectors: Tensor) -> Tensor:
    largest = vectors.detach().abs().amax(2, keepdim=True)  # the unit vector does not depend on it
    scaled = vectors / largest.masked_fill(
        largest == 0, 1
    )  # squares of very small or large numbers would under- or overflow
    length = scaled.square().sum(2, keepdim=True).clamp_min(0.5).sqrt()
    return scaled / length


def distances_to_query(query: Tensor, sentences: Tensor, metric: str) -> Tensor:
    """Return the distances of many sentences (s, dimension) to those of one query (n, dimension): (s, n), no gradient.

    One float64 product instead of all differences; where it would cancel, the differences are computed after all. The
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


# --- rows of sentences, and batches of papers that fit into memory ---------------------------------------


class SentenceRows(NamedTuple):
    """Rows of sentences whose distances are computed: those of paper i are flat[starts[i]:starts[i] + lengths[i]]."""

    flat: Longs | None
    """None where all sentences of the papers take part, so that nothing is copied."""

    starts: Longs
    lengths: Longs

    @classmethod
    def of(cls, offsets: Longs, papers: NDArray[np.integer[Any]]) -> SentenceRows:
        """Return all sentence rows of these papers; paper -1 has none."""
        known = np.maximum(papers, 0)
        starts = offsets[known]
        return cls(None, starts, np.where(papers >= 0, offsets[known + 1] - starts, 0))

    def restricted(
        self, numbers: NDArray[np.int32], sentences: Sequence[NDArray[np.integer[Any]] | None]
    ) -> SentenceRows:
        """Return only the rows of the chosen sentence numbers of each paper; None chooses all."""
        assert self.flat is None and len(sentences) == len(self.starts)
        chosen = [np.empty(0, np.int64)]
        for start, length, numbers_chosen in zip(self.starts, self.lengths, sentences, strict=True):
            rows = np.arange(start, start + length)
            chosen.append(rows if numbers_chosen is None else rows[np.isin(numbers[rows], numbers_chosen)])
        lengths = np.array([len(rows) for rows in chosen[1:]], np.int64)
        return SentenceRows(np.concatenate(chosen), to_offsets(lengths)[:-1], lengths)

    def take(self, papers: NDArray[np.int64] | slice) -> SentenceRows:
        return SentenceRows(self.flat, self.starts[papers], self.lengths[papers])

    def rows(self) -> Longs:
        """Return the sentence rows of all papers, paper after paper."""
        places = spans(self.starts, self.lengths)
        return places if self.flat is None else self.flat[places]


def batch_pairs(n: Longs, m: Longs, max_size: int) -> Iterator[Longs]:
    """Yield batches of pairs for sentence distances, of similar n and m, largest first; at most `max_size` n x m."""
    order = np.lexsort((m, n))[::-1].copy()  # torch takes no negative strides
    start = 0
    while start < len(order):
        ahead = order[start : start + max_size]
        # the padded size of a pair grows with every pair that joins the batch
        each = np.maximum.accumulate(n[ahead]) * np.maximum.accumulate(m[ahead])
        size = max(1, int((np.arange(1, len(ahead) + 1) * each <= max_size).sum()))
        yield ahead[:size]
        start += size


# --- plans ----------------------------------------------------------------------------------------------


def nearest_plan(distances: Tensor, rows: Tensor, columns: Tensor, *, count: int) -> Tensor:
    """Weigh the `count` nearest pairs of sentences by 1 each; an only pair counts as often.

    1 is ASPIRE's single match, its `max` (Mysore et al., 2022, section 3.2), 2 its l2top2.
    """
    valid = _both(rows, columns).flatten(1)  # (pairs, n * m)
    held = distances.detach().flatten(1).masked_fill(~valid, math.inf)
    plan = held.new_zeros(held.shape)
    for _ in range(count):
        best = held.argmin(1, keepdim=True)  # (pairs, 1)
        plan.scatter_add_(1, best, held.new_ones(best.shape))
        others = valid.sum(1, keepdim=True) > 1
        held = held.scatter(1, best, held.gather(1, best).masked_fill(others, math.inf))
    return plan.reshape(distances.shape)


def attention_plan(distances: Tensor, rows: Tensor, columns: Tensor, *, temperature: float) -> Tensor:
    """Weigh all pairs of sentences by softmax(-distance / temperature): ASPIRE's l2attention."""
    flat = distances.masked_fill(~_both(rows, columns), math.inf).flatten(1)  # (pairs, n * m)
    return ((flat.detach().amin(1, keepdim=True) - flat) / temperature).softmax(1).reshape(distances.shape)


def mean_best_plan(distances: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weigh the nearest candidate sentence of each query sentence, all alike. Not symmetric."""
    best = distances.detach().masked_fill(~_both(rows, columns), math.inf).argmin(2, keepdim=True)  # (pairs, n, 1)
    shares = rows.to(distances.dtype) / rows.sum(1, keepdim=True)  # (pairs, n)
    return distances.new_zeros(distances.shape).scatter(2, best, shares[:, :, None])


def _both(rows: Tensor, columns: Tensor) -> Tensor:
    return rows[:, :, None] & columns[:, None, :]


# --- tokens ---------------------------------------------------------------------------------------------


def token_distances(query: Tensor, candidates: Sequence[Tensor]) -> Tensor:
    """Return the MaxSim distances of a query's tokens (n, dimension) to candidates' tokens, (candidates,) float32.

    A candidate is (tokens, dimension). Every side must have a token, and every vector the length 1, in any precision.
    """
    torch = require("torch", extra="minilm")
    assert len(query) and all(map(len, candidates))
    query, distances = query.float(), [query.new_zeros(0, dtype=torch.float32)]
    lengths = np.array([len(each) for each in candidates], np.int64)
    for part in split_rows(lengths, max(1, MAX_TOKEN_NUMBERS // max(query.shape))):
        tokens = torch.cat(list(candidates[part])).float()  # (tokens, dimension)
        ends = torch.from_numpy(lengths[part]).to(tokens.device)
        best = torch.segment_reduce(tokens @ query.T, "max", lengths=ends, axis=0)  # (candidates, n)
        distances.append((1 - best).mean(1))
    return torch.cat(distances)
