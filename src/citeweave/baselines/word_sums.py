"""Sums of word vectors: fastText-sum and SIF.

    fasttext    sum over words of  tf idf           v(w)
    sif         sum over words of  tf a / (a + p(w)) v(w), over the length; minus its part along one direction

"This simple baseline is a weighted sum of pretrained word vectors [...] The summed bag of words representation has a
number of weighting options, which are extensively tuned on a validation set" (Cohan et al. 2020, appendix A): which of
the 9 combinations of sublinear_tf, binary, use_idf and smooth_idf won is not said, so idf is an option here, and on.
Both use the terms of `terms.py` and the word vectors of `word_vectors.py`. Words outside the vocabulary count nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arguments import as_texts
from citeweave.baselines.material import Floats, Material
from citeweave.baselines.terms import TermOptions, count_terms, fit_terms
from citeweave.baselines.word_vectors import WordOptions, WordVectors, train_words
from citeweave.errors import UserError
from citeweave.progress import QUIET, Reporter


@dataclass(frozen=True, slots=True)
class FasttextOptions:
    """Options of the weighted sum."""

    idf: bool = True
    """Weigh a word by its inverse document frequency; off, every word of a text counts as often as it stands there."""

    terms: TermOptions = field(default_factory=TermOptions)
    words: WordOptions = field(default_factory=WordOptions)


@dataclass(frozen=True, slots=True)
class SifOptions:
    """Options of SIF, smooth inverse frequency."""

    a: float = 1e-3
    """Arora et al. (2017) use 1e-3; SPECTER chose from 1e-5 to 1e-3, and 1e-4 for the features of SGC."""

    terms: TermOptions = field(default_factory=TermOptions)
    words: WordOptions = field(default_factory=WordOptions)

    def __post_init__(self) -> None:
        if not self.a > 0:
            raise UserError(f"a of sif is {self.a}; it must be over 0")


class FasttextSum:
    """The weighted sum of the vectors of a text's words."""

    name = "fasttext"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors = vectorizer, vectors  # (terms, dimension)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        return np.asarray(count_terms(self._vectorizer, texts) @ self._vectors, np.float32)  # (texts, dimension)


class Sif:
    """The smooth-inverse-frequency mean of the vectors of a text's words, without the common direction."""

    name = "sif"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats, common: NDArray[np.float64]) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors = vectorizer, vectors  # (terms, dimension), times their weights
        self._common = common  # (dimension,), of length 1

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        means = _weighted_means(count_terms(self._vectorizer, texts), self._vectors)  # (texts, dimension)
        return np.asarray(means - np.outer(means @ self._common, self._common), np.float32)


def fit_fasttext(material: Material, options: FasttextOptions, revision: str) -> FasttextSum:
    """Word vectors of the corpus, and the weights of its words."""
    texts = material.texts()
    vectorizer = fit_terms(texts, options.terms, idf=options.idf, sublinear=False, norm=None)
    words = words_for(material, options.words, texts)
    return FasttextSum(revision, vectorizer, words.of(list(vectorizer.get_feature_names_out())))


def fit_sif(material: Material, options: SifOptions, revision: str) -> Sif:
    """Word vectors of the corpus, the probabilities of its words, and the direction that its texts share.

    "sublinear_tf, binary, use_idf, smooth_idf were all set to False", "The word probability p(w) was estimated on the
    training set only" (Cohan et al. 2020, appendix A).
    """
    texts = material.texts()
    vectorizer = fit_terms(texts, options.terms, idf=False, sublinear=False, norm=None)
    words = words_for(material, options.words, texts)
    counts = count_terms(vectorizer, texts)  # (papers, terms)
    weights = smooth_weights(np.asarray(counts.sum(axis=0)).ravel(), options.a)  # (terms,)
    vectors = words.of(list(vectorizer.get_feature_names_out())) * weights[:, None].astype(np.float32)
    return Sif(revision, vectorizer, vectors, first_direction(_weighted_means(counts, vectors)))


def smooth_weights(counts: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """a / (a + p(w)) for words that stand `counts` times in the corpus (Arora et al. 2017, equation 3).

    >>> smooth_weights(np.array([1.0, 9.0]), 0.1).round(3).tolist()
    [0.5, 0.1]
    """
    return np.asarray(a / (a + counts / counts.sum()))


def first_direction(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The first right singular vector of the rows, which are not centred (Arora et al. 2017, algorithm 1).

    >>> abs(first_direction(np.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 0.5]]))).round(6).tolist()
    [1.0, 0.0]
    """
    exact = np.asarray(rows, np.float64)
    return np.asarray(np.linalg.eigh(exact.T @ exact).eigenvectors[:, -1])  # (dimension,)


def words_for(material: Material, options: WordOptions, texts: Sequence[str]) -> WordVectors:
    """The word vectors that were given, else new ones."""
    if material.words is not None:
        return material.words
    return train_words(texts, options, seed=material.seed, reporter=material.reporter)


def _weighted_means(counts: Any, vectors: Floats) -> NDArray[np.float64]:
    """Sums of weighted vectors over the number of words, (texts, dimension); zeros for no words."""
    lengths = np.asarray(counts.sum(axis=1)).ravel()  # (texts,)
    return np.asarray((counts @ vectors) / np.maximum(lengths, 1)[:, None])
