"""Papers as sums of word vectors (fastText sum, SIF) or of sentence vectors (Sentence-BERT's way).

    fasttext    sum over words of  tf idf           v(w)
    sif         sum over words of  tf a / (a + p(w)) v(w), over the length; minus its part along one direction

"This simple baseline is a weighted sum of pretrained word vectors [...] The summed bag of words representation has a
number of weighting options, which are extensively tuned on a validation set" (Cohan et al. 2020, appendix A). The
paper does not say which of the 9 combinations of sublinear_tf, binary, use_idf and smooth_idf won, so idf is an option
here, on by default. Terms and word vectors are those of `word_vectors.py`; words outside the vocabulary count nothing.

`SentenceSum` turns any sentence encoder into an encoder of papers, without training:

    SentenceSum(encoder).encode(["A title[SEP]One. Two."])     encoder reads "A title", "One.", "Two."

"The model is designed to encode sentences as opposed to paragraphs, so we embed the title and each sentence in the
abstract separately, sum the embeddings, and L2 normalize the result" (Cohan et al. 2020, appendix A, on Sentence-BERT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.data import BaselineData, Floats, split_fields
from citeweave.baselines.word_vectors import TermOptions, WordOptions, WordVectors, count_terms, fit_terms, train_words
from citeweave.core.arguments import as_texts
from citeweave.core.files import hash_json
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import Encoder
from citeweave.vectors.vectors import unit_rows


@dataclass(frozen=True, slots=True)
class FasttextOptions:
    """Options of the weighted sum of fastText word vectors."""

    idf: bool = True
    """Weight words by inverse document frequency; otherwise a word counts as often as it occurs."""

    terms: TermOptions = field(default_factory=TermOptions)
    words: WordOptions = field(default_factory=WordOptions)


@dataclass(frozen=True, slots=True)
class SifOptions:
    """Options of SIF, smooth inverse frequency."""

    a: Annotated[float, Range(above=0)] = 1e-3
    """Arora et al. (2017) use 1e-3; SPECTER chose from 1e-5 to 1e-3, and 1e-4 for the features of SGC."""

    terms: TermOptions = field(default_factory=TermOptions)
    words: WordOptions = field(default_factory=WordOptions)

    def __post_init__(self) -> None:
        check(self, "sif")


class FasttextSum:
    """Encoder of texts as the weighted sum of their fastText word vectors."""

    name = "fasttext"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors = vectorizer, vectors  # (terms, dimension)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        return np.asarray(count_terms(self._vectorizer, texts) @ self._vectors, np.float32)  # (texts, dimension)


class Sif:
    """Encoder of texts as the smooth-inverse-frequency mean of their word vectors, minus the common direction."""

    name = "sif"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats, common: NDArray[np.float64]) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors = vectorizer, vectors  # (terms, dimension), weighted
        self._common = common  # (dimension,), of length 1

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        means = _weighted_means(count_terms(self._vectorizer, texts), self._vectors)  # (texts, dimension)
        return np.asarray(means - np.outer(means @ self._common, self._common), np.float32)


def fit_fasttext(data: BaselineData, options: FasttextOptions, revision: str) -> FasttextSum:
    """Fit the fastText sum: train word vectors on the corpus, and idf weights of its words."""
    texts = data.texts()
    vectorizer = fit_terms(texts, options.terms, idf=options.idf, sublinear=False, norm=None)
    words = _get_words(data, options.words, texts)
    return FasttextSum(revision, vectorizer, words.of(list(vectorizer.get_feature_names_out())))


def fit_sif(data: BaselineData, options: SifOptions, revision: str) -> Sif:
    """Fit SIF: train word vectors, estimate word probabilities, and find the direction that all texts share.

    "sublinear_tf, binary, use_idf, smooth_idf were all set to False", "The word probability p(w) was estimated on the
    training set only" (Cohan et al. 2020, appendix A).
    """
    texts = data.texts()
    vectorizer = fit_terms(texts, options.terms, idf=False, sublinear=False, norm=None)
    words = _get_words(data, options.words, texts)
    counts = count_terms(vectorizer, texts)  # (papers, terms)
    weights = smooth_weights(np.asarray(counts.sum(axis=0)).ravel(), options.a)  # (terms,)
    vectors = words.of(list(vectorizer.get_feature_names_out())) * weights[:, None].astype(np.float32)
    return Sif(revision, vectorizer, vectors, first_direction(_weighted_means(counts, vectors)))


def smooth_weights(counts: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Return SIF's weight a / (a + p(w)) of words by their counts in the corpus (Arora et al. 2017, equation 3).

    >>> smooth_weights(np.array([1.0, 9.0]), 0.1).round(3).tolist()
    [0.5, 0.1]
    """
    return np.asarray(a / (a + counts / counts.sum()))


def first_direction(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the first right singular vector of uncentered rows, SIF's common direction (Arora et al. 2017).

    >>> abs(first_direction(np.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 0.5]]))).round(6).tolist()
    [1.0, 0.0]
    """
    exact = np.asarray(rows, np.float64)
    return np.asarray(np.linalg.eigh(exact.T @ exact).eigenvectors[:, -1])  # (dimension,)


def _get_words(data: BaselineData, options: WordOptions, texts: Sequence[str]) -> WordVectors:
    """Return the precomputed word vectors of the training data, or train new ones."""
    if data.words is not None:
        return data.words
    return train_words(texts, options, seed=data.seed, reporter=data.reporter)


def _weighted_means(counts: Any, vectors: Floats) -> NDArray[np.float64]:
    """Return the mean of weighted word vectors per text, (texts, dimension); zeros for a text without words."""
    lengths = np.asarray(counts.sum(axis=1)).ravel()  # (texts,)
    return np.asarray((counts @ vectors) / np.maximum(lengths, 1)[:, None])


# Sums of sentence vectors

_TEXTS = 4096
"""Texts whose sentences are encoded at a time."""


class SentenceSum:
    """Encoder of papers as the normalized sum of the vectors of title and sentences, by any sentence encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.name = f"sentence_sum({encoder.name})"
        self.revision = hash_json({"sentence_sum": 1, "of": [encoder.name, encoder.revision]})[:12]
        self.dimension = encoder.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        for start in range(0, len(texts), _TEXTS):
            part = [_split_sentences(text) for text in texts[start : start + _TEXTS]]
            flat = [sentence for sentences in part for sentence in sentences]
            if flat:
                vectors = self._encoder.encode(flat, reporter=reporter)  # (sentences, dimension)
                owners = np.repeat(np.arange(len(part)), [len(sentences) for sentences in part])
                np.add.at(out[start : start + _TEXTS], owners, vectors)
        return unit_rows(out)


def _split_sentences(text: str) -> list[str]:
    """Split a paper's text into its title and the sentences of its abstract; a text of one part is split as well.

    >>> _split_sentences("What is it? A title[SEP]One. Two."), _split_sentences("One. Two."), _split_sentences("")
    (['What is it? A title', 'One.', 'Two.'], ['One.', 'Two.'], [])
    """
    title, abstract = split_fields(text)
    return [title.strip(), *sentence_texts(abstract)] if abstract else sentence_texts(title)
