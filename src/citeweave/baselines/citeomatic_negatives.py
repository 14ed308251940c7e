"""Papers that a paper does not cite, of the three kinds that Citeomatic learns from.

    random      any paper                                         must score 0.3 below a cited paper
    near        among the nearest by the vectors of the moment    must score 0.2 below
    second_hop  cited by a cited paper                            must score 0.1 below

Bhagavatula et al. (2018); the distances are those of its code. Draws a fixed number of tries for each and says where
none was found: a paper whose references cite nothing has no second_hop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.similarity.topk import nearest

Ints = NDArray[np.int64]

MARGINS = {"random": 0.3, "near": 0.2, "second_hop": 0.1}
_TRIES = 8


class Citations:
    """Citations between papers numbered 0 .. papers - 1, sorted by citing paper."""

    def __init__(self, citing: Ints, cited: Ints, papers: int) -> None:
        self.citing, self.cited, self.papers = citing, cited, papers  # (citations,) each
        self._offsets = np.searchsorted(citing, np.arange(papers + 1))  # (papers + 1,)
        self._keys = np.sort(citing * papers + cited)  # (citations,)

    def has(self, citing: Ints, cited: Ints) -> NDArray[np.bool_]:
        """Whether the pairs are citations; any shape."""
        wanted = citing * self.papers + cited
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.asarray(self._keys[at] == wanted)

    def any_cited(self, citing: Ints, rng: np.random.Generator) -> Ints:
        """One random reference of each paper, -1 where it (or the paper, -1) has none; any shape."""
        starts, counts = self._offsets[citing], self._offsets[citing + 1] - self._offsets[citing]
        counts = np.where(citing < 0, 0, counts)
        at = starts + (rng.random(citing.shape) * counts).astype(np.int64)
        return np.where(counts > 0, self.cited[np.minimum(at, len(self.cited) - 1)], -1)


def draw_negatives(citations: Citations, near: Ints, queries: Ints, rng: np.random.Generator) -> Ints:
    """One paper of each kind for every query, (queries, 3) in the order of MARGINS; -1 where none was found.

    `near` holds the nearest papers of every paper, (papers, k), -1 where there are fewer.
    """
    many = np.repeat(queries[:, None], _TRIES, axis=1)  # (queries, tries)
    drawn = [
        rng.integers(citations.papers, size=many.shape),
        near[many, rng.integers(near.shape[1], size=many.shape)],
        citations.any_cited(citations.any_cited(many, rng), rng),
    ]
    return np.stack([_first_allowed(citations, many, tries) for tries in drawn], axis=1)


def _first_allowed(citations: Citations, queries: Ints, tries: Ints) -> Ints:
    """The first try that is a paper, not the query, and not cited by it; shapes (queries, tries) -> (queries,)."""
    good = (tries >= 0) & (tries != queries) & ~citations.has(queries, tries)
    first = good.argmax(axis=1)
    rows = np.arange(len(tries))
    return np.where(good[rows, first], tries[rows, first], -1)


def near_papers(vectors: NDArray[np.float32], queries: Ints, k: int) -> Ints:
    """The k nearest papers of every query by cosine, (papers, k); rows of papers that are no query are -1."""
    out = np.full((len(vectors), k), -1, np.int64)
    out[queries] = nearest(vectors, vectors[queries], k, itself=queries).rows
    return out
