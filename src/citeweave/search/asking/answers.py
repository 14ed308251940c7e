"""What an index answers: papers, the best first, each with the reason that the search itself knows.

    Found(id="a", title="Rain", year=2019, score=0.71, row=7, matches=(Match(query=0, sentence=2, mass=0.4, score=0.8),))

Says nothing about papers beyond that; `Index.paper` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.search.asking.query import Query
from citeweave.search.citing import Recommendation


class Ranking(NamedTuple):
    """Rows of an index, the best first, and what is to be said about them."""

    rows: NDArray[np.int64]
    """(found,)"""

    scores: NDArray[np.float64]
    """(found,)"""

    by: str
    """What was compared: hybrid, vectors, words or sentences."""

    exact: bool = True
    """Whether surely no other paper belongs to them."""

    note: str = ""
    vectors: NDArray[np.float32] | None = None
    """What was compared with the papers, (queries, dimension) in the encoder's own space."""


@dataclass(frozen=True, slots=True)
class Match:
    """Which sentence of a hit answers which sentence of the query."""

    query: int
    """Place among the query's sentences; a whole text is one sentence."""

    sentence: int
    """Number in the hit's abstract, from 0."""

    mass: float
    """How much the pair counts: its share of all pairs of query and hit."""

    score: float
    """Cosine of the two."""

    def as_json(self) -> dict[str, Any]:
        return {"query": self.query, "sentence": self.sentence, "mass": self.mass, "score": self.score}


@dataclass(frozen=True, slots=True)
class Found:
    """A paper that was found."""

    id: str
    title: str
    year: int | None
    score: float
    """A cosine by vectors and by sentences (the mean over matched pairs), BM25 by words, reciprocal ranks by both."""

    row: int
    matches: tuple[Match, ...] = ()
    cited: Recommendation | None = None
    """With `cite`: why the paper is to be cited."""

    passage: int | None = None
    """With `cite` and `each`: which sentence of the passage it is for."""

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"id": self.id, "title": self.title, "year": self.year}
        told |= {"score": self.score, "row": self.row, "matches": [match.as_json() for match in self.matches]}
        if self.cited is not None:
            told |= self.cited.as_json()
        if self.passage is not None:
            told["passage"] = self.passage
        return told


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query."""

    query: Query
    hits: list[Found]
    exact: bool
    """Whether surely no other paper belongs to the hits."""

    note: str
    """One plain sentence where the answer is less than was asked for; else empty."""

    took: float
    """Seconds."""

    by: str = ""
    """What was compared."""

    passage: list[str] = field(default_factory=list)
    """With `cite` and `each`: the sentences of the passage."""

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"query": self.query.as_json(), "by": self.by}
        told |= {"hits": [hit.as_json() for hit in self.hits], "exact": self.exact, "note": self.note}
        if self.passage:
            told["passage"] = self.passage
        return {**told, "took_ms": round(1000 * self.took, 2)}
