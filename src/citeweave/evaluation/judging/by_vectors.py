"""Answers by single vectors: the scores of pairs, the best candidates of a query.

>>> from citeweave.evaluation.texts import Texts
>>> texts = Texts.of_ids(["p1", "p2"], lacking="papers.jsonl")
>>> vectors = PaperVectors(np.eye(2), np.array([PRESENT, EMPTY], np.uint8))
>>> score_pairs(vectors, Pools.of(texts, {"p1": {"p2": 1}}), "cosine").tolist()
[-inf]

Reads no files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.judged import ABSENT, EMPTY, PRESENT, PaperVectors
from citeweave.evaluation.tasks import Pools
from citeweave.similarity.pair_scores import pair_scores
from citeweave.similarity.topk import nearest


def score_pairs(vectors: PaperVectors, pools: Pools, distance: str) -> NDArray[np.float64]:
    """Score every pair; NaN where a vector is absent, -inf where the candidate's is empty, NaN where the query's is."""
    scores = pair_scores(vectors.matrix[pools.queries], vectors.matrix, pools.offsets, pools.candidates, distance)
    query_state = np.repeat(vectors.state[pools.queries], np.diff(pools.offsets))  # (pairs,)
    candidate_state = vectors.state[pools.candidates]
    scores[candidate_state == EMPTY] = -np.inf
    scores[(candidate_state == ABSENT) | (query_state != PRESENT)] = np.nan
    return scores


def find_top(
    vectors: PaperVectors, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best candidates of every query among those that have vectors."""
    pool = candidates[vectors.present[candidates]]
    rows = np.full((len(queries), depth), -1, np.int64)
    scores = np.full((len(queries), depth), np.nan)
    asked = np.flatnonzero(vectors.present[queries])
    if len(pool) and len(asked):
        k = min(depth, len(pool))
        found = nearest(
            vectors.matrix[pool].astype(np.float32),
            vectors.matrix[queries[asked]].astype(np.float32),
            k,
            metric=distance,
        )
        rows[asked, :k] = pool[found.rows]
        scores[asked, :k] = found.scores
    return rows, scores
