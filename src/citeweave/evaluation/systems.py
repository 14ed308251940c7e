"""Systems that tasks evaluate: their shared protocol; precomputed vectors, precomputed scores and BM25 as systems.

    vectors(texts)                                       one row per paper; papers without a vector are marked
    scores(texts, pools, distance)                       one number per (query, candidate) pair: NaN = no score
    top(texts, queries, candidates, depth, distance)     the best candidates of every query

Other kinds of systems: `encoder_systems.py` (encoders and their aspect spaces), `sentence_systems.py` (distances between
sentences or tokens). Does not read files: `open_system.py` does.

>>> texts = TaskTexts.of_ids(["p1", "p2", "p3"], lacking="papers.jsonl")
>>> system = VectorSystem(["p1"], np.ones((1, 2)), name="mine", empty=["p2"])
>>> system.vectors(texts).state.tolist() == [PRESENT, EMPTY, ABSENT]
True
>>> system.scores(texts, Pools.of(texts, {"p1": {"p2": 1, "p3": 0}}), "cosine").tolist()
[-inf, nan]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.text import SEPARATOR
from citeweave.evaluation.options import DISTANCES, split_distance
from citeweave.evaluation.tasks import QUESTION, Pools, TaskTexts
from citeweave.vectors.bm25 import Bm25
from citeweave.vectors.document_distance import SentenceAlignment
from citeweave.vectors.topk import nearest, pair_scores

Rows = NDArray[np.int64]
"""Rows of a task's texts."""

Scores = NDArray[np.float64]
Hits = tuple[Rows, Scores]
"""The best candidates of every query, -1 where there is none, and their scores, (queries, depth) each."""

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

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        """Score every pair, (pairs,), higher is better; NaN where there is no score, -inf where a paper is empty."""

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        """Find the best candidates of every query among these rows of the texts."""


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


def score_pairs(vectors: PaperVectors, pools: Pools, distance: str) -> Scores:
    """Score pairs by a system's vectors; NaN if one is absent or the query's is empty, -inf if the candidate's is."""
    scores = pair_scores(vectors.matrix[pools.queries], vectors.matrix, pools.offsets, pools.candidates, distance)
    query_state = vectors.state[pools.queries][pools.owners()]  # (pairs,)
    candidate_state = vectors.state[pools.candidates]
    scores[candidate_state == EMPTY] = -np.inf
    scores[(candidate_state == ABSENT) | (query_state != PRESENT)] = np.nan
    return scores


def no_hits(queries: int, depth: int) -> Hits:
    """Return the hits of a system that finds nothing, to be filled."""
    return np.full((queries, depth), -1, np.int64), np.full((queries, depth), np.nan)


def find_top(vectors: PaperVectors, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
    """Find the nearest candidates of every query among a system's vectors by exact search."""
    pool = candidates[vectors.present[candidates]]
    rows, scores = no_hits(len(queries), depth)
    with_vector = np.flatnonzero(vectors.present[queries])
    if len(pool) and len(with_vector):
        k = min(depth, len(pool))
        ours, asked = (vectors.matrix[part].astype(np.float32) for part in (pool, queries[with_vector]))
        hits = nearest(ours, asked, k, metric=distance)
        rows[with_vector, :k] = pool[hits.rows]
        scores[with_vector, :k] = hits.scores
    return rows, scores


class SingleVectorSystem:
    """What systems with one vector per paper share: scores and hits by these vectors; subclasses make them."""

    distances: tuple[str, ...] = DISTANCES
    _last: tuple[TaskTexts, PaperVectors] | None = None
    """Texts and vectors of the last task: most tasks of a suite share their texts."""

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        """Return the vectors of these papers, made when first needed."""
        if self._last is None or self._last[0] is not texts:
            self._last = texts, self._make_vectors(texts)
        return self._last[1]

    def _make_vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NotImplementedError

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        """Score every pair by the vectors of its papers."""
        return score_pairs(self.vectors(texts), pools, distance)

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        """Find the nearest candidates of every query."""
        return find_top(self.vectors(texts), queries, candidates, depth, distance)


class VectorSystem(SingleVectorSystem):
    """A system of precomputed vectors, one per paper id."""

    def __init__(
        self,
        ids: Sequence[str],
        matrix: NDArray[Any],
        *,
        name: str,
        revision: str = "",
        empty: Iterable[str] = (),
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.revision, self._metadata, self._matrix = name, revision, metadata or {}, matrix
        self._rows = {paper: row for row, paper in enumerate(ids)}  # the last of equal ids
        self._empty = frozenset(empty)

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "dimension": int(self._matrix.shape[1]), **self._metadata}

    def _make_vectors(self, texts: TaskTexts) -> PaperVectors:
        """Look up the precomputed vectors of a task's papers by id."""
        rows = np.array([self._rows.get(paper, -1) for paper in texts.ids], np.int64)
        state = np.where(rows >= 0, PRESENT, ABSENT).astype(np.uint8)
        if self._empty:
            state[[at for at, paper in enumerate(texts.ids) if paper in self._empty]] = EMPTY
        matrix = np.zeros((len(rows), self._matrix.shape[1]), self._matrix.dtype)  # (rows, dimension)
        matrix[state == PRESENT] = self._matrix[rows[state == PRESENT]]
        return PaperVectors(matrix, state)


class PrecomputedScores:
    """A system of precomputed scores; a query is looked up by its name in the task (`8781666_method`), then by its id."""

    distances: tuple[str, ...] = ()

    def __init__(
        self,
        scores: Mapping[str, Mapping[str, float]],
        *,
        name: str,
        revision: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._scores, self.name, self.revision, self._metadata = scores, name, revision, metadata or {}

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "queries given": len(self._scores), **self._metadata}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError(f"{self.name} holds scores, not vectors, so it can rank but not classify or regress")

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        scores = np.full(len(pools.candidates), np.nan)
        for number, row in enumerate(pools.queries.tolist()):
            by_paper = self._scores.get(pools.names[number], self._scores.get(texts.ids[row], {}))
            span = pools.span(number)
            scores[span] = [by_paper.get(texts.ids[candidate], np.nan) for candidate in pools.candidates[span]]
        return scores

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        rows, scores = no_hits(len(queries), depth)
        pool = frozenset(candidates.tolist())
        for number, query in enumerate(queries.tolist()):
            query_id = texts.ids[query]
            by_paper = self._scores.get(query_id, self._scores.get(query_id.removeprefix(QUESTION), {}))
            scored = [pair for pair in by_paper.items() if pair[1] == pair[1]]  # NaN is no score
            best = sorted(scored, key=lambda pair: (pair[1], pair[0]), reverse=True)
            hits = [(row, score) for (paper, score) in best if (row := int(texts.rows([paper])[0])) in pool][:depth]
            rows[number, : len(hits)] = [row for row, _ in hits]
            scores[number, : len(hits)] = [score for _, score in hits]
        return rows, scores


class Bm25System:
    """BM25 as a system to compare other systems with, by word statistics of the suite's own texts."""

    name, revision = "bm25", "bm25"
    distances: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._index: tuple[str, Bm25, list[str]] | None = None

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "statistics": "of the suite's texts"}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError("bm25 has no vectors, so it can rank but not classify or regress")

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Scores:
        index, words = self._open(texts)
        queries = [words[row] for row in pools.queries.tolist()]
        scores = index.scores(queries, pools.offsets, pools.candidates)
        has_text = np.array([bool(text) for text in words])  # (rows,)
        both_have_text = has_text[pools.queries][pools.owners()] & has_text[pools.candidates]
        return np.where(both_have_text, scores, np.nan)

    def top(self, texts: TaskTexts, queries: Rows, candidates: Rows, depth: int, distance: str) -> Hits:
        words = _words(texts)
        best = Bm25([words[row] for row in candidates.tolist()]).top([words[row] for row in queries.tolist()], depth)
        # a paper that shares no word with the question is no hit
        is_hit = best.scores > 0  # (queries, depth)
        return np.where(is_hit, candidates[best.rows], -1), np.where(is_hit, best.scores, np.nan)

    def _open(self, texts: TaskTexts) -> tuple[Bm25, list[str]]:
        """Return the BM25 index of a suite's texts, and the texts, built when first needed."""
        if self._index is None or self._index[0] != texts.hash:
            words = _words(texts)
            self._index = texts.hash, Bm25(words), words
        return self._index[1], self._index[2]


def _words(texts: TaskTexts) -> list[str]:
    """Return title and abstract of each paper as BM25 reads them, without the separator."""
    return [text.replace(SEPARATOR, " ") for text in texts.paper_texts()]
