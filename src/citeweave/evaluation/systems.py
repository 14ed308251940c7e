"""What is judged, seen from a task: something that scores pairs of papers, and gives vectors where it has them.

    vectors(texts)                       one row a paper, with the papers that have none marked
    scores(texts, pools, distance)       one number a (query, candidate) pair: NaN = no answer, -inf = answered, last
    top(texts, queries, candidates, depth, distance)

`judging/` holds the kinds: given vectors, encoders, sentence vectors, BM25, scores from a file.

Answers by single vectors: the scores of pairs, the best candidates of a query.

>>> from citeweave.evaluation.tasks import Texts
>>> texts = Texts.of_ids(["p1", "p2"], lacking="papers.jsonl")
>>> vectors = PaperVectors(np.eye(2), np.array([PRESENT, EMPTY], np.uint8))
>>> score_pairs(vectors, Pools.of(texts, {"p1": {"p2": 1}}), "cosine").tolist()
[-inf]

Reads no files.

A hash of a task's content: the same question, the same hash, wherever its files lie.

>>> fingerprint({"a": np.arange(3)}) == fingerprint({"a": np.arange(3)}), fingerprint([1]) == fingerprint([1.5])
(True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.evaluation.tasks import Pools, TaskTexts, parts_of
from citeweave.vectors.pair_scores import pair_scores
from citeweave.vectors.topk import nearest

ABSENT, EMPTY, PRESENT = 0, 1, 2
"""State of a paper's vector. EMPTY: the file names the paper with an empty list, as SPECTER writes papers without text."""


class NoAnswerError(UserError):
    """What is judged cannot do this kind of task, such as BM25 a classification."""


@dataclass(frozen=True)
class PaperVectors:
    """Vectors in the order of some texts; rows of absent papers hold zeros."""

    matrix: NDArray[Any]
    """(rows, dimension)"""

    state: NDArray[np.uint8]
    """(rows,) ABSENT, EMPTY or PRESENT."""

    @property
    def present(self) -> NDArray[np.bool_]:
        return np.asarray(self.state == PRESENT)

    def count_zeros(self) -> int:
        """Present vectors that are all zero: a model that had nothing to say."""
        return int((self.present & ~self.matrix.any(axis=1)).sum())


class Judged(Protocol):
    """What a task may ask."""

    name: str
    """What reports call it."""

    revision: str
    """Hash of what decides its answers; equal revisions answer equally."""

    distances: tuple[str, ...]
    """Those it takes; empty where its scores are its own, as BM25's."""

    def facts(self) -> dict[str, Any]:
        """Where it comes from, for the report."""

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        """Vectors of these papers; `NoAnswerError` where it has none."""

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        """(pairs,) higher is better; NaN where there is no answer, -inf where a paper is empty."""

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """For every query the best candidates (rows of the texts, -1 = no more) and their scores, (queries, depth)."""


@runtime_checkable
class Resumable(Protocol):
    """What computes for a long time and can save that."""

    def resume_in(self, folder: Path | None) -> None:
        """Save vectors in this folder while they are made, and take those that an interrupted evaluation saved there."""


@runtime_checkable
class ByFacet(Judged, Protocol):
    """What answers a query by the aspect that it asks about, and has no one vector a paper."""

    def answering(self, facet: str) -> Judged:
        """What answers queries about this aspect; `NoAnswerError` where nothing does."""

    def count_zeros(self, texts: TaskTexts) -> int:
        """Vectors that are all zero, of those that it starts from."""


def choose_distance(judged: Judged, asked: str, protocol: str) -> str:
    """The user's distance or sum of distances, else the protocol's where it fits, else the first that fits."""
    if not judged.distances and asked:
        raise UserError(f"--distance is {asked!r}; {judged.name} has scores of its own: leave --distance out")
    if not judged.distances:
        return "own"
    if asked and not set(parts_of(asked)) <= set(judged.distances):
        raise UserError(f"--distance is {asked!r}; {judged.name} takes {', '.join(judged.distances)}")
    return asked or (protocol if protocol in judged.distances else judged.distances[0])


# Answers by single vectors: the scores of pairs, the best candidates of a query.


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


# A hash of a task's content: the same question, the same hash, wherever its files lie.


def fingerprint(value: object) -> str:
    """SHA-256 over the value's parts; dataclasses by their fields, arrays by type, shape and bytes."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:
    if isinstance(value, TaskTexts):
        digest.update(value.hash.encode())
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        if value.dtype == object:
            _feed(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)}".encode())
        for part in value:
            _feed(digest, part)
    elif isinstance(value, (set, frozenset)):
        _feed(digest, sorted(value, key=repr))
    elif value is None or isinstance(value, (str, int, float, bool, np.generic)):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    else:
        raise TypeError(f"a task holds a {type(value).__name__}, which has no fingerprint")
