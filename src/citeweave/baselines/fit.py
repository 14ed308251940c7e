"""Random vectors: what a judge must give to an encoder that knows nothing.

    >>> encoder = RandomVectors("", RandomOptions(), seed=0)
    >>> one, same, empty = encoder.encode(["A title", "A title", ""])
    >>> bool((one == same).all()), float(abs(empty).sum())
    (True, 0.0)

"Zero-mean 25-dimensional vectors were used as representations for each document" (Cohan et al. 2020, appendix A);
the text does not name the distribution: normal numbers here. They are drawn by the text, so one text has one vector.

The baselines by name, and how one is fitted to a corpus.

    encoder = fit_baseline("sif", corpus)
    encoder.encode(["A title[SEP]An abstract."])       (1, 300) float32
    encoder.name, encoder.revision, encoder.dimension  ("sif", "3f09c2a71b5e", 300)

A revision names all that a vector depends on, and is known before anything is trained: `revision_of`.
BM25 is in `vectors/bm25.py`, Hugging Face encoders are in `encoders/`; sums of sentence vectors
(`sentence_sum.SentenceSum`) are not fitted to a corpus but put around any encoder of sentences.

Baselines as things that `evaluate` judges: fitted when their vectors are first asked for, not before.

A baseline's revision is known before it is trained, so that vectors in the cache spare the training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.citeomatic import CiteomaticOptions, fit_citeomatic
from citeweave.baselines.data import BaselineData, Floats
from citeweave.baselines.doc2vec import Doc2VecOptions, fit_doc2vec
from citeweave.baselines.elmo import ElmoOptions, fit_elmo
from citeweave.baselines.sgc import SgcOptions, fit_sgc
from citeweave.baselines.tfidf import Tfidf, TfidfOptions, fit_tfidf
from citeweave.baselines.word_sums import FasttextOptions, SentenceSum, SifOptions, fit_fasttext, fit_sif
from citeweave.baselines.word_vectors import WordOptions, WordVectors, train_words
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import hash_spans, hash_text, stream
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import Encoder, load_encoder
from citeweave.evaluation.encoder_systems import Encoded
from citeweave.evaluation.open_system import OpeningOptions
from citeweave.evaluation.systems import Judged
from citeweave.evaluation.tasks import Pools, TaskTexts
from citeweave.graph.citations import CitationGraph


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Options of random vectors."""

    dimension: int = 25
    """SPECTER's."""

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise UserError(f"dimension of random vectors is {self.dimension}; it must be 1 or more")


class RandomVectors:
    """An encoder that only tells texts apart."""

    name = "random"

    def __init__(self, revision: str, options: RandomOptions, seed: int) -> None:
        self.revision, self.dimension, self._seed = revision, options.dimension, seed

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        for row, text in enumerate(texts):
            if text:
                rng = stream(self._seed, "random baseline", int(hash_text(text)))
                out[row] = rng.standard_normal(self.dimension)
        return out


def fit_random(material: BaselineData, options: RandomOptions, revision: str) -> RandomVectors:
    """Nothing is learned; the corpus is not read."""
    return RandomVectors(revision, options, material.seed)


# The baselines by name, and how one is fitted to a corpus.

_VERSION = 1
"""Raised when a change of code here changes vectors."""


@dataclass(frozen=True)
class Baseline:
    """One baseline: what it is, and how it is made."""

    about: str
    options: type[Any]
    """The class of its options; without arguments they are the defaults."""

    fit: Callable[[BaselineData, Any, str], Encoder]
    packages: tuple[str, ...]
    """Whose versions its numbers depend on."""

    graph: bool = False
    """Whether it learns from citations."""


BASELINES: dict[str, Baseline] = {
    "random": Baseline("random vectors, 25 numbers drawn by the text", RandomOptions, fit_random, ("numpy",)),
    "tfidf": Baseline("weighted words; dense by SVD to 300", TfidfOptions, fit_tfidf, ("scikit-learn",)),
    "doc2vec": Baseline("PV-DBOW paragraph vectors, 300", Doc2VecOptions, fit_doc2vec, ("gensim",)),
    "fasttext": Baseline(
        "idf-weighted sum of fastText word vectors, 300", FasttextOptions, fit_fasttext, ("gensim", "scikit-learn")
    ),
    "sif": Baseline(
        "smooth-inverse-frequency mean of word vectors without its first direction, 300",
        SifOptions,
        fit_sif,
        ("gensim", "scikit-learn"),
    ),
    "elmo": Baseline(
        "mean over words and layers of a small two-layer LSTM language model, 128", ElmoOptions, fit_elmo, ("torch",)
    ),
    "sgc": Baseline(
        "SIF vectors mixed over citations, 300", SgcOptions, fit_sgc, ("gensim", "scikit-learn", "scipy"), graph=True
    ),
    "citeomatic": Baseline(
        "weighted words trained on citations, 75",
        CiteomaticOptions,
        fit_citeomatic,
        ("torch", "scikit-learn"),
        graph=True,
    ),
}
"""In the order of SPECTER's appendix A, with TF-IDF after random."""


def fit_baseline(
    name: str,
    corpus: Corpus,
    *,
    graph: CitationGraph | None = None,
    papers: NDArray[np.bool_] | None = None,
    options: object = None,
    words: WordVectors | None = None,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> Encoder:
    """Train one baseline on the texts of a corpus, and on the citations of `graph` where it learns from them.

    `papers` (papers of the corpus,) says which may be learned from, None = all: leave out what an evaluation asks for.
    `graph` must not have the citations that are held out. `options` is an object of `BASELINES[name].options`.
    `words` (of `fit_words`) spares fasttext, sif and sgc their own training of word vectors.
    """
    baseline, chosen = _checked(name, options)
    material = BaselineData(corpus, _rows(corpus, papers), graph, words, seed, reporter)
    revision = revision_of(name, corpus, graph=graph, papers=papers, options=chosen, words=words, seed=seed)
    return baseline.fit(material, chosen, revision)


def fit_words(
    corpus: Corpus,
    *,
    papers: NDArray[np.bool_] | None = None,
    options: WordOptions | None = None,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> WordVectors:
    """Word vectors of a corpus for several baselines; `papers` as in `fit_baseline`."""
    chosen, rows = options or WordOptions(), _rows(corpus, papers)
    identity = _words_identity(corpus, rows, chosen, seed)
    return train_words(BaselineData(corpus, rows).texts(), chosen, seed=seed, identity=identity, reporter=reporter)


def revision_of(
    name: str,
    corpus: Corpus,
    *,
    graph: CitationGraph | None = None,
    papers: NDArray[np.bool_] | None = None,
    options: object = None,
    words: WordVectors | None = None,
    seed: int = 0,
) -> str:
    """The revision that `fit_baseline` will give: twelve hex digits of everything that a vector depends on.

    Word vectors that were given count as those that the baseline would have trained, if they are the same.
    """
    baseline, chosen = _checked(name, options)
    rows = _rows(corpus, papers)
    return hash_json(
        {
            "baseline": name,
            "version": _VERSION,
            "corpus": corpus.hash,
            "papers": _hash_array(rows),
            "graph": _hash_graph(graph) if baseline.graph and graph is not None else [],
            "options": asdict(chosen),
            "words": _words_used(chosen, words, corpus, rows, seed),
            "seed": seed,
            "packages": {package: _version(package) for package in baseline.packages},
        }
    )[:12]


def _checked(name: str, options: object) -> tuple[Baseline, Any]:
    baseline = BASELINES[choose(name, BASELINES, "baseline")]
    chosen = baseline.options() if options is None else options
    if not isinstance(chosen, baseline.options):
        raise UserError(
            f"options of baseline {name} are a {type(chosen).__name__}; they must be a {baseline.options.__name__}"
        )
    return baseline, chosen


def _rows(corpus: Corpus, papers: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    if papers is None:
        return np.arange(len(corpus), dtype=np.int64)
    if papers.dtype != np.bool_ or papers.shape != (len(corpus),):
        raise UserError(
            f"papers to learn from have the shape {papers.shape} of {papers.dtype}; they must be {len(corpus):,} booleans"
        )
    return np.flatnonzero(papers).astype(np.int64)


def _words_used(
    options: Any, given: WordVectors | None, corpus: Corpus, rows: NDArray[np.int64], seed: int
) -> dict[str, object]:
    """What the word vectors of a baseline depend on, nothing for one without."""
    holder = options.sif if isinstance(options, SgcOptions) else options
    if not isinstance(holder, FasttextOptions | SifOptions):
        return {}
    return _words_identity(corpus, rows, holder.words, seed) if given is None else given.identity


def _words_identity(corpus: Corpus, rows: NDArray[np.int64], options: WordOptions, seed: int) -> dict[str, object]:
    return {"corpus": corpus.hash, "papers": _hash_array(rows), "seed": seed, **asdict(options)}


def _hash_graph(graph: CitationGraph) -> list[str]:
    return [_hash_array(graph.cited.offsets), _hash_array(graph.cited.targets)]


def _hash_array(array: NDArray[Any]) -> str:
    data = np.ascontiguousarray(array).view(np.uint8)
    return f"{int(hash_spans(data, np.zeros(1, np.int64), np.array([len(data)]))[0]):016x}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# Baselines as things that `evaluate` judges: fitted when their vectors are first asked for, not before.

SENTENCE_SUM = "sentence_sum"


def judged_baseline(
    name: str,
    corpus: Corpus,
    graph: CitationGraph,
    options: OpeningOptions,
    *,
    words: WordVectors | None = None,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> Judged:
    """A baseline over the texts of a corpus and the citations of a graph, which must not hold what is asked for.

    `words` (of `fit_words`) spares fasttext, sif and sgc their own training of word vectors.
    """
    choose(name, [*BASELINES, SENTENCE_SUM], "baseline")
    if name == SENTENCE_SUM:
        return Encoded(SentenceSum(load_encoder("minilm")), cache=options.cache, reporter=reporter)
    encoder = FittedLater(
        name,
        revision_of(name, corpus, graph=graph, words=words, seed=seed),
        lambda: fit_baseline(name, corpus, graph=graph, words=words, seed=seed, reporter=reporter),
    )
    kind = SparseWords if name == "tfidf" else Encoded
    return kind(encoder, cache=options.cache, reporter=reporter)


class FittedLater:
    """An encoder that is trained at its first text."""

    def __init__(self, name: str, revision: str, fit: Callable[[], Encoder]) -> None:
        self.name, self.revision, self._fit = name, revision, fit

    @cached_property
    def fitted(self) -> Encoder:
        return self._fit()

    @property
    def dimension(self) -> int:
        return self.fitted.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        return self.fitted.encode(texts, reporter=reporter)


class SparseWords(Encoded):
    """TF-IDF: pairs and searches go by the cosine of whole sparse vectors; probes see them reduced."""

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        if distance != "cosine":
            return super().scores(texts, pools, distance)
        written = texts.paper_texts()
        scores = self._words.pair_scores(written, pools.offsets, pools.queries, pools.candidates)
        has_text = np.array([bool(text) for text in written])  # (rows,)
        owners = np.repeat(pools.queries, np.diff(pools.offsets))  # (pairs,)
        return np.where(has_text[owners] & has_text[pools.candidates], scores, np.nan)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if distance != "cosine":
            return super().top(texts, queries, candidates, depth, distance)
        rows = self._words.encode_sparse(texts.paper_texts())  # (rows, terms)
        pool, depth = rows[candidates].T.tocsc(), min(depth, len(candidates))
        found, scores = np.empty((len(queries), depth), np.int64), np.empty((len(queries), depth))
        for at, query in enumerate(queries.tolist()):
            cosines = np.asarray((rows[query] @ pool).todense()).ravel()  # (candidates,)
            best = np.argsort(-cosines, kind="stable")[:depth]
            found[at], scores[at] = candidates[best], cosines[best]
        return found, scores

    @property
    def _words(self) -> Tfidf:
        words = self.encoder.fitted if isinstance(self.encoder, FittedLater) else self.encoder
        assert isinstance(words, Tfidf)
        return words
