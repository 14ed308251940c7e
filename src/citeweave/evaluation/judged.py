"""What is judged, seen from a task: something that scores pairs of papers, and gives vectors where it has them.

    vectors(texts)                       one row a paper, with the papers that have none marked
    scores(texts, pools, distance)       one number a (query, candidate) pair: NaN = no answer, -inf = answered, last
    top(texts, queries, candidates, depth, distance)

`judging/` holds the kinds: given vectors, encoders, sentence vectors, BM25, scores from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.evaluation.summing import parts_of
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts

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

    def vectors(self, texts: Texts) -> PaperVectors:
        """Vectors of these papers; `NoAnswerError` where it has none."""

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        """(pairs,) higher is better; NaN where there is no answer, -inf where a paper is empty."""

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
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

    def count_zeros(self, texts: Texts) -> int:
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
