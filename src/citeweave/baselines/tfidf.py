"""TF-IDF vectors of papers: sparse rows of weighted terms for rankings, dense rows by SVD for probes.

    encoder.encode_sparse(texts)                                     (texts, terms) CSR, rows of length 1
    encoder.pair_scores(texts, offsets, query_rows, candidate_rows)  cosines of pairs, computed sparsely
    encoder.encode(texts)                                            (texts, 300) dense, for probes and maps

Rankings should use `pair_scores`: TF-IDF as published is sparse, and `encode` is its projection onto the 300 strongest
directions of the corpus (latent semantic analysis), which is a different, smoother method.

SPECTER's tables have no TF-IDF; terms follow its appendix A (see `fit_terms`), weights are (1 + ln tf) idf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd

from citeweave.baselines.data import BaselineData, Floats
from citeweave.baselines.word_vectors import TermOptions, count_terms, fit_terms
from citeweave.core.arguments import as_texts
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream

_PAIRS = 65_536
"""Pairs of sparse rows multiplied at a time."""


@dataclass(frozen=True, slots=True)
class TfidfOptions:
    """Options of the TF-IDF baseline."""

    terms: TermOptions = field(default_factory=TermOptions)

    sublinear: bool = True
    """A term that occurs tf times counts 1 + ln tf."""

    dimension: Annotated[int, Range(1)] = 300
    """Length of a dense vector; less where the corpus has fewer papers or terms."""

    def __post_init__(self) -> None:
        check(self, "tfidf")


class Tfidf:
    """Fitted TF-IDF: a vocabulary with its weights, and the SVD directions for dense vectors."""

    name = "tfidf"

    def __init__(self, revision: str, vectorizer: Any, directions: Floats) -> None:
        self.revision, self.dimension = revision, directions.shape[1]
        self._vectorizer, self._directions = vectorizer, directions  # (terms, dimension)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        return np.asarray(self.encode_sparse(texts) @ self._directions, np.float32)  # (texts, dimension)

    def encode_sparse(self, texts: Sequence[str]) -> Any:
        """Return TF-IDF rows of length 1 as a CSR matrix of float64, (texts, terms); empty texts have no entries."""
        return count_terms(self._vectorizer, texts)

    def pair_scores(
        self,
        texts: Sequence[str],
        offsets: NDArray[np.int64],
        query_rows: NDArray[np.int64],
        candidate_rows: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return the TF-IDF cosine of every query with its candidates, (pairs,), higher is nearer.

        `query_rows` (queries,) and `candidate_rows` (pairs,) are positions in `texts`; the candidates of query i are
        candidate_rows[offsets[i]:offsets[i + 1]].
        """
        rows = self.encode_sparse(texts)  # (texts, terms)
        firsts = np.repeat(query_rows, np.diff(offsets))  # (pairs,)
        out = np.empty(len(firsts))
        for start in range(0, len(firsts), _PAIRS):
            part = slice(start, start + _PAIRS)
            out[part] = np.asarray(rows[firsts[part]].multiply(rows[candidate_rows[part]]).sum(axis=1)).ravel()
        return out


def fit_tfidf(data: BaselineData, options: TfidfOptions, revision: str) -> Tfidf:
    """Fit TF-IDF: count the terms of the corpus and find its strongest directions by SVD."""
    texts = data.texts()
    vectorizer = fit_terms(texts, options.terms, idf=True, sublinear=options.sublinear, norm="l2")
    counts = count_terms(vectorizer, texts)  # (papers, terms)
    dimension = min(options.dimension, *counts.shape)
    # an int seed: sklearn takes no Generator
    start = int(stream(data.seed, "tfidf").integers(2**31))
    directions = randomized_svd(counts, n_components=dimension, random_state=start)[2]
    return Tfidf(revision, vectorizer, np.ascontiguousarray(directions.T, np.float32))
