"""Papers as sums of their words: TF-IDF, sums of word vectors (fastText, SIF, SGC) and of sentence vectors.

    tfidf       (1 + ln tf) idf of every term, sparse; dense rows by SVD
    fasttext    sum over words of  tf idf           v(w)
    sif         sum over words of  tf a / (a + p(w)) v(w), over the length; minus its part along one direction
    sgc         S^k X with S = D^-1/2 (A + I) D^-1/2 and X the rows of sif: averaged over citations, without training

Terms and word vectors are those of `word_vectors.py`; words outside the vocabulary count nothing.

TF-IDF. SPECTER's tables have none; terms follow its appendix A. Rankings should use `Tfidf.pair_scores`: TF-IDF as
published is sparse, and `encode` is its projection onto the 300 strongest directions of the corpus (latent semantic
analysis), which is a different, smoother method.

fastText. "This simple baseline is a weighted sum of pretrained word vectors [...] The summed bag of words representation
has a number of weighting options, which are extensively tuned on a validation set" (Cohan et al. 2020, appendix A). The
paper does not say which of the 9 combinations of sublinear_tf, binary, use_idf and smooth_idf won, so idf is an option
here, on by default.

SGC (Wu et al. 2019, "Simplifying graph convolutional networks"). "SGC with no learning boils down to graph propagation on
node features [...] we used SIF features as node representations [...] Our range of k was 1 through 8 (inclusive), and was
chosen with a validation set. For the node features, we chose the SIF model with a = 0.0001" (Cohan et al. 2020, appendix
A). The paper does not give the chosen k: 2 here, as in Wu et al. Citations count in both directions, once per pair of
papers. Only papers of the corpus have neighbors. `encode` recognizes them by their text; every other text gets its plain
SIF vector, which is in the same space.

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
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from citeweave.baselines.data import BaselineData, Floats, read_training_texts, split_fields
from citeweave.baselines.word_vectors import TermOptions, WordOptions, WordVectors, count_terms, fit_terms, train_words
from citeweave.core.arguments import as_texts
from citeweave.core.columns import KeyLookup
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import hash_texts
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import owners_of, to_offsets
from citeweave.core.randomness import stream
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import Encoder
from citeweave.graph.citations import CitationGraph
from citeweave.vectors.vectors import unit_rows


class TermSum:
    """Encoder of texts as the sum of one vector per term, by the counts or weights of its terms."""

    name: str

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors = vectorizer, vectors  # (terms, dimension)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        return np.asarray(count_terms(self._vectorizer, as_texts(texts)) @ self._vectors, np.float32)


# TF-IDF

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


class Tfidf(TermSum):
    """Fitted TF-IDF: a vocabulary with its weights, and the SVD directions for dense vectors, which `encode` returns."""

    name = "tfidf"

    def encode_sparse(self, texts: Sequence[str]) -> Any:
        """Return TF-IDF rows of length 1 as a CSR matrix of float64, (texts, terms); empty texts have no entries."""
        return count_terms(self._vectorizer, texts)

    def pair_scores(
        self, texts: Sequence[str], queries: NDArray[np.int64], candidates: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the TF-IDF cosine of every query with its candidate, higher is nearer; positions in `texts`, (pairs,)."""
        rows = self.encode_sparse(texts)  # (texts, terms)
        out = np.empty(len(queries))
        for start in range(0, len(queries), _PAIRS):
            part = slice(start, start + _PAIRS)
            out[part] = np.asarray(rows[queries[part]].multiply(rows[candidates[part]]).sum(axis=1)).ravel()
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


# Sums of word vectors


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


class FasttextSum(TermSum):
    """Encoder of texts as the weighted sum of their fastText word vectors."""

    name = "fasttext"


class Sif(TermSum):
    """Encoder of texts as the smooth-inverse-frequency mean of their word vectors, minus the common direction."""

    name = "sif"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats, common: NDArray[np.float64]) -> None:
        super().__init__(revision, vectorizer, vectors)
        self._common = common  # (dimension,), of length 1

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        means = _weighted_means(count_terms(self._vectorizer, as_texts(texts)), self._vectors)  # (texts, dimension)
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


# SGC


@dataclass(frozen=True, slots=True)
class SgcOptions:
    """Options of the SGC baseline."""

    k: Annotated[int, Range(0, 64)] = 2
    """How many times vectors are averaged over neighbors."""

    sif: SifOptions = field(default_factory=lambda: SifOptions(a=1e-4))

    def __post_init__(self) -> None:
        check(self, "sgc")


class Sgc:
    """SGC encoder: propagated vectors for the papers of its corpus, SIF vectors for all other texts."""

    name = "sgc"

    def __init__(self, revision: str, sif: Sif, matrix: Floats, texts: Sequence[str]) -> None:
        self.revision, self.dimension = revision, sif.dimension
        self._sif, self._matrix = sif, matrix
        self._lookup = KeyLookup(hash_texts(list(texts)))  # the first of equal texts

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = self._sif.encode(texts, reporter=reporter)  # (texts, dimension)
        rows = self._lookup.find(hash_texts(list(texts)))  # (texts,)
        known = (rows >= 0) & np.array([bool(text) for text in texts], bool)
        out[known] = self._matrix[rows[known]]
        return out


def fit_sgc(data: BaselineData, options: SgcOptions, revision: str) -> Sgc:
    """Fit SIF on the training papers, then propagate its vectors over all citations of the graph."""
    graph = data.citation_graph("sgc")
    sif = fit_sif(data, options.sif, revision)
    texts = read_training_texts(data.corpus, np.arange(len(data.corpus)))
    matrix = propagate(graph, sif.encode(texts), options.k)  # (papers, dimension)
    return Sgc(revision, sif, matrix, texts)


def propagate(graph: CitationGraph, features: Floats, k: int) -> Floats:
    """Propagate features (papers, dimension) k times over the normalized citation graph: S^k X.

    >>> from citeweave.graph.citations import graph_from_edges
    >>> pair = graph_from_edges(np.array([0]), np.array([1]), nodes=3)
    >>> propagate(pair, np.array([[2.0], [0.0], [5.0]], np.float32), 1).round(6).tolist()
    [[1.0], [1.0], [5.0]]
    """
    nodes, ones = graph.nodes, np.ones(graph.edges, np.float64)
    cited = sparse.csr_matrix((ones, graph.cited.targets, graph.cited.offsets), shape=(nodes, nodes))
    linked = cited.maximum(cited.T) + sparse.identity(nodes, format="csr")
    scale = sparse.diags(1 / np.sqrt(np.asarray(linked.sum(axis=1)).ravel()))
    step = (scale @ linked @ scale).tocsr()  # (papers, papers)
    propagated = features.astype(np.float64)
    for _ in range(k):
        propagated = step @ propagated
    return np.asarray(propagated, np.float32)


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
                owners = owners_of(to_offsets([len(sentences) for sentences in part]))
                np.add.at(out[start : start + _TEXTS], owners, vectors)
        return unit_rows(out)


def _split_sentences(text: str) -> list[str]:
    """Split a paper's text into its title and the sentences of its abstract; a text of one part is split as well.

    >>> _split_sentences("What is it? A title[SEP]One. Two."), _split_sentences("One. Two."), _split_sentences("")
    (['What is it? A title', 'One.', 'Two.'], ['One.', 'Two.'], [])
    """
    title, abstract = split_fields(text)
    return [title.strip(), *sentence_texts(abstract)] if abstract else sentence_texts(title)
