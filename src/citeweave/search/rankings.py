"""Arithmetic on rankings: best rows by score, fusion of words and vectors, diversity (MMR), Rocchio feedback.

    >>> best = rank_rows(np.array([7, 4, 9]), np.array([0.5, 2.0, 0.5]), 2, name={4: "b", 7: "z", 9: "a"}.__getitem__)
    >>> best.rows.tolist(), best.scores.tolist()
    ([4, 9], [2.0, 0.5])

    >>> fuse_scores(np.array([0.8, 0.4, np.nan]), np.array([0.0, 0.5, 0.5])).round(4).tolist()
    [0.56, 0.43, 0.5]

    scores   0.9  0.8  0.1      papers 0 and 1 are twins, 2 is about something else
    order    0    1    2        diversity 0
    order    0    2    1        diversity 0.6

    >>> twins = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    >>> diverse_order(np.array([0.9, 0.8, 0.1]), twins, 0.6).tolist()
    [0, 2, 1]

    >>> liked, disliked = np.array([[2.0, 0.0], [0.0, 1.0]], np.float32), np.array([[0.0, 3.0]], np.float32)
    >>> rocchio_vector(liked, disliked).tolist()
    [0.5, 0.0]

Pure functions of arrays: knows no index, no query and no encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.vectors.vectors import unit_rows


class RankedRows(NamedTuple):
    """A ranking of rows of an index, the best first, with their scores."""

    rows: NDArray[np.int64]
    """(ranked,)"""

    scores: NDArray[np.float64]
    """(ranked,): higher is better."""


class Ranking(NamedTuple):
    """The ranking of one search: its rows, what was compared, and what to tell the reader about it."""

    rows: NDArray[np.int64]
    """(ranked,)"""

    scores: NDArray[np.float64]
    """(ranked,)"""

    by: str
    """What was compared: hybrid, vectors, words or sentences."""

    exact: bool = True
    """Whether it is certain that no other paper belongs here."""

    note: str = ""
    vectors: NDArray[np.float32] | None = None
    """What was compared with the papers, (queries, dimension) in the encoder's own space."""

    confidence: str = "high"
    """Whether the query's answer is likely among these papers: high, low or none (`confidence.py`)."""

    coverage: float = 0.0
    """Greatest share of the query's words that one of these papers has, where words and vectors were compared."""


def rank_rows(
    rows: NDArray[np.integer[Any]], scores: NDArray[np.floating[Any]], count: int, *, name: Callable[[int], str]
) -> RankedRows:
    """Rank rows: return the `count` best-scored, of equal scores by id; `name(row)` is called only where scores are equal."""
    if count <= 0 or not len(rows):
        return RankedRows(np.empty(0, np.int64), np.empty(0))
    if len(rows) > count:
        threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
        high = np.flatnonzero(scores >= threshold)
        rows, scores = rows[high], scores[high]
    order = np.argsort(-scores, kind="stable")
    best = RankedRows(rows[order].astype(np.int64), scores[order].astype(np.float64))
    # groups of equal scores, each sorted by id
    ends = np.concatenate([np.flatnonzero(np.diff(best.scores)) + 1, [len(order)]])
    start = 0
    for end in ends.tolist():
        if end - start > 1:
            best.rows[start:end] = sorted(best.rows[start:end].tolist(), key=name)
        start = end
    return RankedRows(best.rows[:count], best.scores[:count])


# --- words and vectors -----------------------------------------------------------------------------------

VECTOR_SHARE = 0.7
"""Share of the cosine in a fused score; `benchmarks/fusion.py` chose it."""


def fuse_scores(cosines: NDArray[np.float64], coverage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fuse the cosines of papers with the share of the query's words that they have; all (papers,).

    The score is 0.7 of the cosine plus 0.3 of the coverage, which is BM25 divided by what it would be for a paper of nothing
    but the query's words: a linear combination (Bruch et al., "An analysis of fusion functions for hybrid retrieval", ACM
    TOIS 2023) with the theoretical maximum of BM25 in place of the greatest found. So the words count little where no paper
    has most of them, as with a long question, and a score does not depend on which other papers there are. A paper
    without a vector, whose cosine is NaN, is scored by its words alone.
    """
    fused = VECTOR_SHARE * cosines + (1 - VECTOR_SHARE) * coverage
    return np.where(np.isnan(cosines), coverage, fused)


# --- maximal marginal relevance --------------------------------------------------------------------------

POOL_FACTOR, MIN_POOL = 5, 50


def pool_size(count: int) -> int:
    """Return how many of the best papers are reordered for diversity when `count` are wanted."""
    return max(POOL_FACTOR * count, MIN_POOL)


def diverse_order(
    scores: NDArray[np.floating[Any]],
    vectors: NDArray[np.floating[Any]],
    diversity: float,
    max_places: int | None = None,
) -> NDArray[np.int64]:
    """Rank a pool of papers for diversity by maximal marginal relevance, all places or the first `max_places`.

    Scores (n,), the best first; vectors (n, dimension), rows of zeros where a paper has none. Carbonell and Goldstein,
    "The use of MMR, diversity-based reranking", SIGIR 1998: the next paper maximizes (1 - diversity) relevance -
    diversity x the greatest cosine to a paper before it. The relevance is the score, scaled to 0 for the worst and 1 for
    the best of the pool, as scores of words and of vectors have different ranges. A paper without a vector counts as near
    to those before it as the others are on average. Ties go to the paper with the better place.
    """
    units, known = unit_rows(vectors), vectors.any(axis=1)
    relevance, nearest = _scaled(np.asarray(scores, np.float64)), np.zeros(len(units))
    left, order = np.ones(len(units), bool), list[int]()
    for _ in range(len(units) if max_places is None else min(max_places, len(units))):
        penalty = nearest if not order else np.where(known, nearest, nearest[known].mean() if known.any() else 0.0)
        value = (1 - diversity) * relevance - diversity * penalty
        best = int(np.argmax(np.where(left, value, -np.inf)))
        cosines = units @ units[best]  # (n,)
        nearest = cosines if not order else np.maximum(nearest, cosines)
        left[best] = False
        order.append(best)
    return np.array(order, np.int64)


def _scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(scores):
        return scores
    low, high = float(scores.min()), float(scores.max())
    return (scores - low) / (high - low) if high > low else np.ones(len(scores))


# --- relevance feedback ----------------------------------------------------------------------------------

DISLIKED = 0.5
"""Weight of the disliked papers beside 1 of the liked ones. Textbooks take 0.15 beside 0.75 for papers assumed to be
irrelevant; here a person said so."""


def rocchio_vector(liked: NDArray[np.float32], disliked: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the Rocchio vector to rank by: mean of the liked papers less DISLIKED x mean of the disliked ones.

    Rocchio, "Relevance feedback in information retrieval", 1971, without an original query; see also Manning, Raghavan
    and Schütze, "Introduction to Information Retrieval", 2008, section 9.1.1. Rows are scaled to length 1 first.
    """
    query = unit_rows(liked).mean(axis=0)  # (dimension,)
    if len(disliked):
        query = query - np.float32(DISLIKED) * unit_rows(disliked).mean(axis=0)
    if float(np.linalg.norm(query)) < 1e-6:
        raise UserError(
            "the liked and disliked papers cancel each other out: nothing is left to search by; give others"
        )
    return np.asarray(query, np.float32)
