"""Sums of word vectors: fastText-sum and SIF.

    fasttext    sum over words of  tf idf           v(w)
    sif         sum over words of  tf a / (a + p(w)) v(w), over the length; minus its part along one direction

"This simple baseline is a weighted sum of pretrained word vectors [...] The summed bag of words representation has a
number of weighting options, which are extensively tuned on a validation set" (Cohan et al. 2020, appendix A): which of
the 9 combinations of sublinear_tf, binary, use_idf and smooth_idf won is not said, so idf is an option here, and on.
Both use the terms of `terms.py` and the word vectors of `word_vectors.py`. Words outside the vocabulary count nothing.

Sums of sentence vectors: an encoder of sentences becomes one of papers.

    SentenceSum(encoder).encode(["A title[SEP]One. Two."])     encoder reads "A title", "One.", "Two."

"The model is designed to encode sentences as opposed to paragraphs, so we embed the title and each sentence in the
abstract separately, sum the embeddings, and L2 normalize the result" (Cohan et al. 2020, appendix A, on Sentence-BERT).
Which encoder reads the sentences is the caller's choice; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.data import BaselineData, Floats, split_fields
from citeweave.baselines.word_vectors import TermOptions, WordOptions, WordVectors, count_terms, fit_terms, train_words
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import Encoder


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


def fit_fasttext(material: BaselineData, options: FasttextOptions, revision: str) -> FasttextSum:
    """Word vectors of the corpus, and the weights of its words."""
    texts = material.texts()
    vectorizer = fit_terms(texts, options.terms, idf=options.idf, sublinear=False, norm=None)
    words = words_for(material, options.words, texts)
    return FasttextSum(revision, vectorizer, words.of(list(vectorizer.get_feature_names_out())))


def fit_sif(material: BaselineData, options: SifOptions, revision: str) -> Sif:
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
    """The first right singular vector of the rows, which are not centered (Arora et al. 2017, algorithm 1).

    >>> abs(first_direction(np.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 0.5]]))).round(6).tolist()
    [1.0, 0.0]
    """
    exact = np.asarray(rows, np.float64)
    return np.asarray(np.linalg.eigh(exact.T @ exact).eigenvectors[:, -1])  # (dimension,)


def words_for(material: BaselineData, options: WordOptions, texts: Sequence[str]) -> WordVectors:
    """The word vectors that were given, else new ones."""
    if material.words is not None:
        return material.words
    return train_words(texts, options, seed=material.seed, reporter=material.reporter)


def _weighted_means(counts: Any, vectors: Floats) -> NDArray[np.float64]:
    """Sums of weighted vectors over the number of words, (texts, dimension); zeros for no words."""
    lengths = np.asarray(counts.sum(axis=1)).ravel()  # (texts,)
    return np.asarray((counts @ vectors) / np.maximum(lengths, 1)[:, None])


# Sums of sentence vectors: an encoder of sentences becomes one of papers.

_TEXTS = 4096
"""Texts whose sentences are encoded at a time."""


class SentenceSum:
    """The sum of the vectors of a paper's title and sentences, of length 1."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.name = f"sentence_sum({encoder.name})"
        self.revision = hash_json({"sentence_sum": 1, "of": [encoder.name, encoder.revision]})[:12]
        self.dimension = encoder.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        for start in range(0, len(texts), _TEXTS):
            part = [sentences_of(text) for text in texts[start : start + _TEXTS]]
            flat = [sentence for sentences in part for sentence in sentences]
            if flat:
                vectors = self._encoder.encode(flat, reporter=reporter)  # (sentences, dimension)
                owners = np.repeat(np.arange(len(part)), [len(sentences) for sentences in part])
                np.add.at(out[start : start + _TEXTS], owners, vectors)
        lengths = np.linalg.norm(out, axis=1, keepdims=True)
        return np.asarray(out / np.where(lengths > 0, lengths, 1), np.float32)


def sentences_of(text: str) -> list[str]:
    """The title and the sentences of the abstract; a text of one part may be an abstract, so it is split as well.

    >>> sentences_of("What is it? A title[SEP]One. Two."), sentences_of("One. Two."), sentences_of("")
    (['What is it? A title', 'One.', 'Two.'], ['One.', 'Two.'], [])
    """
    title, abstract = split_fields(text)
    return [title.strip(), *sentence_texts(abstract)] if abstract else sentence_texts(title)
