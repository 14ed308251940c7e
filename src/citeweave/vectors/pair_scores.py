"""Pairs of papers as padded batches of sentence vectors, and the distance of every sentence to every other.

    query      2 sentences, 384 numbers each      ->  queries     (pairs, 2, 384)   query_mask      [[True, True]]
    candidate  3 sentences                        ->  candidates  (pairs, 3, 384)   candidate_mask  [[True, True, True]]
    sentence_distances(pairs, "l2")               ->  (pairs, 2, 3), float64
    flat_distances(query, sentences, "l2")         ->  (sentences, 2): one query, all sentences of its candidates

Runs wherever torch does and can be differentiated. Padding is zeros; what it gives is left out later, by the masks.

Which rows of a matrix of sentences belong to which papers, and pairs of papers cut into parts that fit into memory.

    >>> papers = SentenceRows.of(np.array([0, 2, 5, 6]), np.array([1, -1, 2]))
    >>> papers.lengths.tolist(), papers.rows().tolist()
    ([3, 0, 1], [2, 3, 4, 5])
    >>> list(pieces(np.array([3, 1, 4, 2]), most=5))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]

Only rows and sizes; vectors are read in `transport.py`.

Plans: how much each pair of sentences weighs in the distance of two papers.

    distances  [[0.2, 0.9],      single     [[1, 0],     mean_best  [[0.5, 0],
                [0.8, 0.5]]                  [0, 0]]                 [0, 0.5]]

    distance of the papers = sum of plan x distances = 0.2 and 0.35

Every function takes distances (pairs, n, m), float64, and masks (pairs, n) and (pairs, m) with at least one sentence on
each side, and gives a plan of the shape of the distances, 0 on padding. Optimal transport is in `entropic.py`.

The best match token by token: the MaxSim of late interaction (Khattab and Zaharia, SIGIR 2020, ColBERT, equation 3).

    token_best   mean over the query's tokens of 1 - the best cosine with any token of the candidate

    >>> import torch
    >>> query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> near, half = torch.tensor([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> token_distances(query, [near, half, near[:2]]).double().round(decimals=3).tolist()
    [0.0, 0.5, 0.2]

The third candidate has the query's second token, and for its first one with the cosine 0.6: (0.4 + 0) / 2. Not symmetric.
ColBERT sums where this takes the mean; within a query the order is the same. Does not read texts: vectors are given, of
length 1, in any precision.

Scores of given pairs: each query with its own candidates, as evaluations rank them.

    >>> pool = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    >>> offsets, candidates = np.array([0, 2, 4]), np.array([1, 0, 2, -1])
    >>> pair_scores(pool[[0, 1]], pool, offsets, candidates, "cosine").tolist()
    [0.8, 1.0, 0.0, nan]
    >>> pair_scores(pool[[0, 1]], pool, offsets, candidates, "l2")[2]
    np.float64(-2.0)

Numbers are widened to float64 before they are multiplied or subtracted, so a distance is computed from the differences
and never from lengths and products. Does not search: for the best of a whole pool see `topk`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose, require
from citeweave.vectors.topk.kernels import COSINE, DOT, L2

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


# Which rows of a matrix of sentences belong to which papers, and pairs of papers cut into parts that fit into memory.

Longs = NDArray[np.int64]


class SentenceRows(NamedTuple):
    """Rows of the matrix by paper: paper i has flat[starts[i]:starts[i] + lengths[i]]."""

    flat: Longs | None
    """None: the rows themselves, so that nothing is copied where papers take part whole."""

    starts: Longs
    lengths: Longs

    @classmethod
    def of(cls, offsets: Longs, papers: NDArray[np.integer[Any]]) -> SentenceRows:
        """All rows of the papers; none of paper -1."""
        known = np.maximum(papers, 0)
        starts = offsets[known]
        return cls(None, starts, np.where(papers >= 0, offsets[known + 1] - starts, 0))

    def restricted(
        self, numbers: NDArray[np.int32], sentences: Sequence[NDArray[np.integer[Any]] | None]
    ) -> SentenceRows:
        """Only the rows whose number is wanted; None wants all."""
        assert self.flat is None and len(sentences) == len(self.starts)
        chosen = [np.empty(0, np.int64)]
        for start, length, wanted in zip(self.starts, self.lengths, sentences, strict=True):
            rows = np.arange(start, start + length)
            chosen.append(rows if wanted is None else rows[np.isin(numbers[rows], wanted)])
        lengths = np.array([len(rows) for rows in chosen[1:]], np.int64)
        return SentenceRows(np.concatenate(chosen), np.cumsum(lengths) - lengths, lengths)

    def take(self, papers: NDArray[np.int64] | slice) -> SentenceRows:
        return SentenceRows(self.flat, self.starts[papers], self.lengths[papers])

    def rows(self) -> Longs:
        """Of all papers, one after the other."""
        ends = np.cumsum(self.lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts - ends + self.lengths, self.lengths)
        return places if self.flat is None else self.flat[places]


def pieces(lengths: Longs, most: int) -> Iterator[slice]:
    """Consecutive papers with at most so many sentences together; a longer one is alone."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(start, stop)
        start = stop


def batches(n: Longs, m: Longs, most: int) -> Iterator[Longs]:
    """Positions of pairs of about the same size, the largest first; n x m of a batch with its padding are at most this."""
    order = np.lexsort((m, n))[::-1].copy()  # torch knows no steps backwards
    start = 0
    while start < len(order):
        ahead = order[start : start + most]
        # the widest that the batch may become, the more pairs it has
        each = np.maximum.accumulate(n[ahead]) * np.maximum.accumulate(m[ahead])
        size = max(1, int((np.arange(1, len(ahead) + 1) * each <= most).sum()))
        yield ahead[:size]
        start += size


# Plans: how much each pair of sentences weighs in the distance of two papers.


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


# The best match token by token: the MaxSim of late interaction (Khattab and Zaharia, SIGIR 2020, ColBERT, equation 3).

TOKEN_BEST = "token_best"

ROOM = 1 << 25
"""Numbers of candidates' tokens that are widened to float32 at a time, and of cosines that are held."""


def token_distances(query: Tensor, candidates: Sequence[Tensor]) -> Tensor:
    """Of one query (n, dimension) to candidates (tokens, dimension) each, (candidates,) float32.

    Every side must have a token, and every vector the length 1; candidates are taken in parts that fit into ROOM.
    """
    torch = require("torch", extra="minilm")
    assert len(query) and all(map(len, candidates))
    query, found = query.float(), [query.new_zeros(0, dtype=torch.float32)]
    lengths = np.array([len(each) for each in candidates], np.int64)
    for part in pieces(lengths, max(1, ROOM // max(query.shape))):
        tokens = torch.cat(list(candidates[part])).float()  # (tokens, dimension)
        ends = torch.from_numpy(lengths[part]).to(tokens.device)
        best = torch.segment_reduce(tokens @ query.T, "max", lengths=ends, axis=0)  # (candidates, n)
        found.append((1 - best).mean(1))
    return torch.cat(found)


# Scores of given pairs: each query with its own candidates, as evaluations rank them.

PAIR_METRICS = {"cosine": COSINE, "dot": DOT, "l2": L2}

BLOCK = 8192
"""Pairs that one thread takes at a time; half-precision candidates are widened so many at a time."""


def pair_scores(
    queries: NDArray[Any],
    pool: NDArray[Any],
    offsets: NDArray[np.integer[Any]],
    candidates: NDArray[np.integer[Any]],
    metric: str,
) -> NDArray[np.float64]:
    """Score query i (a row of `queries`) with the rows candidates[offsets[i]:offsets[i + 1]] of `pool`.

    One number a pair, higher is nearer: the cosine, 0 where a vector is all zeros; the inner product; or minus the L2
    distance. NaN where the candidate is -1, a paper without vector. Memory-mapped matrices are read in blocks.
    """
    code = PAIR_METRICS[choose(metric, PAIR_METRICS, "metric")]
    if queries.ndim != 2 or pool.ndim != 2 or queries.shape[1] != pool.shape[1]:
        raise UserError(
            f"queries of shape {queries.shape} cannot be scored with candidates of shape {pool.shape}; "
            "both must come from one model"
        )
    pairs = len(candidates)
    assert len(offsets) == len(queries) + 1 and offsets[0] == 0 and offsets[-1] == pairs
    if pairs and not (candidates.min() >= -1 and candidates.max() < len(pool)):
        raise IndexError(f"candidates are rows {candidates.min()} to {candidates.max()} of {len(pool)}")
    owners = np.repeat(np.arange(len(queries)), np.diff(offsets))  # (pairs,)
    rows = np.ascontiguousarray(candidates, np.int64)
    wide = _widened(queries)
    scores = np.empty(pairs)

    def work(start: int) -> None:
        part = slice(start, min(start + BLOCK, pairs))
        if pool.dtype in (np.float32, np.float64):
            _score(wide, np.asarray(pool), owners[part], rows[part], code, scores[part])
        else:
            taken = _widened(pool[np.maximum(rows[part], 0)])  # (pairs of the block, dimension)
            places = np.where(rows[part] < 0, -1, np.arange(len(taken)))
            _score(wide, taken, owners[part], places, code, scores[part])

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(work, range(0, pairs, BLOCK)))
    return scores


def _widened(matrix: NDArray[Any]) -> NDArray[Any]:
    """As it is where compiled code can read it, else in a type that loses nothing."""
    if matrix.dtype in (np.float32, np.float64):
        return np.asarray(matrix)
    return matrix.astype(np.float32 if matrix.dtype == np.float16 else np.float64)


@njit(cache=True, nogil=True)
def _score(
    queries: NDArray[Any],
    pool: NDArray[Any],
    owners: NDArray[np.int64],
    rows: NDArray[np.int64],
    metric: int,
    out: NDArray[np.float64],
) -> None:
    last, length = -1, 0.0
    for pair in range(len(rows)):
        if rows[pair] < 0:
            out[pair] = np.nan
            continue
        query, vector = queries[owners[pair]], pool[rows[pair]]
        if metric == L2:
            out[pair] = -math.sqrt(_squared_distance(query, vector))
        elif metric == DOT:
            out[pair] = _product(query, vector)
        else:
            if owners[pair] != last:
                last, length = owners[pair], math.sqrt(_product(query, query))
            # two roots: the product of two squares may be more than a float64 holds
            lengths = length * math.sqrt(_product(vector, vector))
            out[pair] = _product(query, vector) / lengths if lengths > 0 else 0.0


# "reassoc" lets the compiler sum in several registers at once; the order is the same for every pair


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _product(one: NDArray[Any], other: NDArray[Any]) -> float:
    total = 0.0
    for at in range(len(one)):
        total += np.float64(one[at]) * np.float64(other[at])
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squared_distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    total = 0.0
    for at in range(len(one)):
        difference = np.float64(one[at]) - np.float64(other[at])
        total += difference * difference
    return total
