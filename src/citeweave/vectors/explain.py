"""Why two papers are near: which of their sentences match, and how much each pair of sentences counts.

    a  2 sentences, of which the second is b's first        plan of mean_best  [[0.5, 0],   distances  [[1.4, 1.4],
    b  2 sentences                                                              [0.5, 0]]               [0.0, 1.4]]

    explanation = explain_pair(vectors, "a", "b", DocumentDistance("mean_best"))
    explanation.total, explanation.nearest      0.7, SentencePair(left=1, right=0, mass=0.5, distance=0.0)

The total is the sum of plan x distances. Needs torch (the extra minilm). Does not read texts and draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.vectors.document_distance import DocumentDistance, match
from citeweave.vectors.sentence_distances import PaperPairs
from citeweave.vectors.sentence_search import find_papers
from citeweave.vectors.sentence_vectors import SentenceVectors

Doubles = NDArray[np.float64]


class SentencePair(NamedTuple):
    """Two matching sentences that explain why the vectors of papers are near, by their numbers in the abstracts."""

    left: int
    right: int
    mass: float
    distance: float


@dataclass(frozen=True, slots=True)
class SentenceAlignment:
    """Explanation of a distance: how the sentences of two papers match, counted from 0; truncated ones are missing."""

    left: NDArray[np.int64]
    """(n,) numbers of the first paper's sentences that took part."""

    right: NDArray[np.int64]
    """(m,) the same for the second paper."""

    plan: Doubles
    """(n, m) how much each pair counts."""

    distances: Doubles
    """(n, m) between sentences."""

    total: float
    """The distance of the papers."""

    @property
    def left_masses(self) -> Doubles:
        """(n,) how much each sentence of the first paper counts: with `transport` its mass."""
        return np.asarray(self.plan.sum(axis=1))

    @property
    def right_masses(self) -> Doubles:
        """(m,) how much each sentence of the second paper counts."""
        return np.asarray(self.plan.sum(axis=0))

    @property
    def nearest(self) -> SentencePair:
        """The nearest pair of sentences of the two papers, whatever its mass."""
        return self._pair(int(self.distances.argmin()))

    def strongest(self, count: int) -> list[SentencePair]:
        """Return the sentence pairs with the largest mass, of equal ones the nearer first; pairs without mass are left out."""
        order = np.lexsort((self.distances.ravel(), -self.plan.ravel()))[:count]
        return [self._pair(at) for at in order.tolist() if self.plan.ravel()[at] > 0]

    def _pair(self, at: int) -> SentencePair:
        i, j = divmod(at, self.plan.shape[1])
        return SentencePair(int(self.left[i]), int(self.right[j]), float(self.plan[i, j]), float(self.distances[i, j]))

    def as_json(self) -> dict[str, Any]:
        return {
            "distance": self.total,
            "left": self.left.tolist(),
            "right": self.right.tolist(),
            "left_masses": self.left_masses.tolist(),
            "right_masses": self.right_masses.tolist(),
            "plan": self.plan.tolist(),
            "distances": self.distances.tolist(),
        }


def explain_pair(
    vectors: SentenceVectors,
    left: str | int,
    right: str | int,
    distance: DocumentDistance,
    *,
    query_sentences: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> SentenceAlignment:
    """Explain by sentence vectors how near two papers are, by id or position; `query_sentences` restricts the first."""
    torch = require("torch", extra="minilm")
    rows = [find_papers(vectors, [paper])[0] if isinstance(paper, str) else paper for paper in (left, right)]
    numbers = [np.asarray(vectors.numbers[vectors.offsets[row] : vectors.offsets[row + 1]], np.int64) for row in rows]
    sentences = [np.array(vectors.sentences(row), np.float32) for row in rows]
    if query_sentences is not None:
        taken = np.isin(numbers[0], query_sentences)
        if len(taken) and not taken.any():
            raise UserError(
                f"none of the chosen sentences of paper {vectors.ids[rows[0]]!r} has a vector; it has vectors of the sentences "
                f"{', '.join(map(str, numbers[0].tolist()))}"
            )
        numbers[0], sentences[0] = numbers[0][taken], sentences[0][taken]
    for row, own in zip(rows, sentences, strict=True):
        if not len(own):
            raise UserError(f"paper {vectors.ids[row]!r} has no sentence vectors; there is nothing to explain")
    with torch.inference_mode():
        matched = match(PaperPairs.of(*([torch.from_numpy(own)] for own in sentences)), distance)
    plan, distances = matched.plans[0].numpy(), matched.sentences[0].numpy()
    if not np.isfinite(plan).all() or not np.isfinite(distances).all():
        raise UserError(
            f"papers {vectors.ids[rows[0]]!r} and {vectors.ids[rows[1]]!r} have no distance: their sentence vectors hold "
            "numbers that are not finite or too large; embed them again"
        )
    return SentenceAlignment(numbers[0], numbers[1], plan, distances, float(matched.distances[0]))
