"""Systems that tasks evaluate: their shared protocol, scores and hits by single vectors.

    vectors(texts)                                       one row per paper; papers without a vector are marked
    scores(texts, pools, distance)                       one number per (query, candidate) pair: NaN = no score
    top(texts, queries, candidates, depth, distance)     the best candidates of every query

The kinds of systems: `precomputed.py` (vectors and scores from files), `encoder_systems.py` (encoders, aspect spaces,
BM25), `sentence_systems.py` (distances between sentences or tokens). Does not read files: `open_system.py` does.

>>> from citeweave.evaluation.tasks import TaskTexts
>>> texts = TaskTexts.of_ids(["p1", "p2"], lacking="papers.jsonl")
>>> vectors = PaperVectors(np.eye(2), np.array([PRESENT, EMPTY], np.uint8))
>>> score_pairs(vectors, Pools.of(texts, {"p1": {"p2": 1}}), "cosine").tolist()
[-inf]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.evaluation.options import split_distance
from citeweave.evaluation.tasks import Pools, TaskTexts
from citeweave.vectors.document_distance import SentenceAlignment
from citeweave.vectors.topk import nearest, pair_scores

PLUS = "+"
"""Joins the names of distances whose scores are added: `mean_best+token_best`."""

ABSENT, EMPTY, PRESENT = 0, 1, 2
"""State of a paper's vector. EMPTY: the file names the paper with an empty list, as SPECTER writes papers without text."""


class NoAnswerError(UserError):
    """A system cannot do a task, such as BM25 a classification, or has no vector for any paper of it."""


@dataclass(frozen=True)
class PaperVectors:
    """Vectors that a system has for the papers of a task, in the order of its texts; rows of absent papers hold zeros."""

    matrix: NDArray[Any]
    """(rows, dimension)"""

    state: NDArray[np.uint8]
    """(rows,) ABSENT, EMPTY or PRESENT."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """(rows,) whether the paper has a vector."""
        return np.asarray(self.state == PRESENT)

    def count_zeros(self) -> int:
        """Count present vectors that are all zero."""
        return int((self.present & ~self.matrix.any(axis=1)).sum())


class System(Protocol):
    """A system under evaluation: it scores pairs of papers and gives their vectors where it has some."""

    name: str
    """Name of the system in reports."""

    revision: str
    """Hash of what decides its scores; systems with equal revisions score equally."""

    distances: tuple[str, ...]
    """Names of the distances it computes; empty where it has scores of its own, as BM25 has."""

    def metadata(self) -> dict[str, Any]:
        """Return name, revision and origin of the system for the report."""

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        """Return the vectors of these papers; `NoAnswerError` where the system has none."""

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        """Score every pair, (pairs,), higher is better; NaN where there is no score, -inf where a paper is empty."""

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Find the best candidates of every query, rows of the texts or -1, and their scores, (queries, depth) each."""


@runtime_checkable
class Resumable(Protocol):
    """A system that saves the vectors it computes, so that an interrupted evaluation resumes."""

    def resume_in(self, folder: Path | None) -> None:
        """Save vectors in this folder while computing, and reuse those that an interrupted evaluation saved there."""


@runtime_checkable
class FacetSystem(System, Protocol):
    """A system with one vector per paper and aspect, which scores a query by the aspect that it asks about."""

    def system_for(self, facet: str) -> System:
        """Return the system that scores queries about this aspect; `NoAnswerError` where there is none."""

    def count_zeros(self, texts: TaskTexts) -> int:
        """Count vectors of zeros among those that its aspects are derived from."""


@runtime_checkable
class ExplainingSystem(System, Protocol):
    """A system that can explain its scores: by which sentences two papers match."""

    def explain(
        self, texts: TaskTexts, query: int, candidate: int, distance: str, sentences: NDArray[np.int64] | None = None
    ) -> SentenceAlignment | None:
        """Explain the match of two rows of the texts; None where a paper has no sentence."""


def choose_distance(system: System, requested: str, protocol: str) -> str:
    """Choose a system's distance or sum of distances: the requested, else the protocol's, else the system's first one."""
    if not system.distances and requested:
        raise UserError(f"--distance is {requested!r}; {system.name} has scores of its own: leave --distance out")
    if not system.distances:
        return "own"
    if requested and not set(split_distance(requested)) <= set(system.distances):
        raise UserError(f"--distance is {requested!r}; {system.name} takes {', '.join(system.distances)}")
    return requested or (protocol if protocol in system.distances else system.distances[0])


def score_pairs(vectors: PaperVectors, pools: Pools, distance: str) -> NDArray[np.float64]:
    """Score pairs by a system's vectors; NaN if one is absent or the query's is empty, -inf if the candidate's is."""
    scores = pair_scores(vectors.matrix[pools.queries], vectors.matrix, pools.offsets, pools.candidates, distance)
    query_state = np.repeat(vectors.state[pools.queries], np.diff(pools.offsets))  # (pairs,)
    candidate_state = vectors.state[pools.candidates]
    scores[candidate_state == EMPTY] = -np.inf
    scores[(candidate_state == ABSENT) | (query_state != PRESENT)] = np.nan
    return scores


def find_top(
    vectors: PaperVectors, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the nearest candidates of every query among a system's vectors by exact search."""
    pool = candidates[vectors.present[candidates]]
    rows = np.full((len(queries), depth), -1, np.int64)
    scores = np.full((len(queries), depth), np.nan)
    with_vector = np.flatnonzero(vectors.present[queries])
    if len(pool) and len(with_vector):
        k = min(depth, len(pool))
        hits = nearest(
            vectors.matrix[pool].astype(np.float32),
            vectors.matrix[queries[with_vector]].astype(np.float32),
            k,
            metric=distance,
        )
        rows[with_vector, :k] = pool[hits.rows]
        scores[with_vector, :k] = hits.scores
    return rows, scores
