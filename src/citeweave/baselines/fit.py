"""The table of baselines by name: fit one to a corpus, compute its revision, open it as a system to evaluate.

    encoder = fit_baseline("sif", corpus)
    encoder.encode(["A title[SEP]An abstract."])       (1, 300) float32
    encoder.name, encoder.revision, encoder.dimension  ("sif", "3f09c2a71b5e", 300)

A revision identifies everything a vector depends on and is known before training (`compute_revision`), so cached
vectors make training unnecessary: `baseline_system` fits a baseline only when its vectors are first needed.
BM25 is in `vectors/bm25.py`, Hugging Face encoders are in `encoders/`; sums of sentence vectors
(`word_sums.SentenceSum`) are not fitted to a corpus but wrap any sentence encoder.

The random baseline is defined here as well:

    >>> encoder = RandomVectors("", RandomOptions(), seed=0)
    >>> one, same, empty = encoder.encode(["A title", "A title", ""])
    >>> bool((one == same).all()), float(abs(empty).sum())
    (True, 0.0)

"Zero-mean 25-dimensional vectors were used as representations for each document" (Cohan et al. 2020, appendix A). The
paper does not name the distribution: normal here, with the text as the seed, so that equal texts have equal vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.citeomatic import CiteomaticOptions, fit_citeomatic
from citeweave.baselines.data import BaselineData, Floats
from citeweave.baselines.doc2vec import Doc2VecOptions, fit_doc2vec
from citeweave.baselines.elmo import ElmoOptions, fit_elmo
from citeweave.baselines.word_sums import (
    FasttextOptions,
    SentenceSum,
    SgcOptions,
    SifOptions,
    Tfidf,
    TfidfOptions,
    fit_fasttext,
    fit_sgc,
    fit_sif,
    fit_tfidf,
)
from citeweave.baselines.word_vectors import WordOptions, WordVectors, train_words
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import hash_spans, hash_text
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import Encoder, load_encoder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.options import OpeningOptions
from citeweave.evaluation.systems import System
from citeweave.evaluation.tasks import Pools, TaskTexts
from citeweave.graph.citations import CitationGraph


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Options of the random baseline."""

    dimension: Annotated[int, Range(1)] = 25
    """As in SPECTER's appendix A."""

    def __post_init__(self) -> None:
        check(self, "random")


class RandomVectors:
    """Random baseline: a normal vector per text, seeded by the text itself."""

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


def _fit_random(data: BaselineData, options: RandomOptions, revision: str) -> RandomVectors:
    """Return the random baseline; nothing is trained and the corpus is not read."""
    return RandomVectors(revision, options, data.seed)


# The table of baselines, and fitting one of them

_VERSION = 1
"""Increased when a change in this package changes vectors."""


@dataclass(frozen=True)
class Baseline:
    """Entry of the table of baselines: description, class of options, fit function, packages."""

    about: str
    options: type[Any]
    """The class of its options; without arguments they are the defaults."""

    fit: Callable[[BaselineData, Any, str], Encoder]
    packages: tuple[str, ...]
    """Packages whose versions its numbers depend on."""

    graph: bool = False
    """Whether it learns from citations."""


BASELINES: dict[str, Baseline] = {
    "random": Baseline("random vectors seeded by the text, 25", RandomOptions, _fit_random, ("numpy",)),
    "tfidf": Baseline("weighted terms, sparse; dense by SVD, 300", TfidfOptions, fit_tfidf, ("scikit-learn",)),
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
        "SIF vectors averaged over citations, 300", SgcOptions, fit_sgc, ("gensim", "scikit-learn", "scipy"), graph=True
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
    """Train the baseline of this name on the texts of a corpus, and on the citations of `graph` if it uses them.

    `papers` (papers of the corpus,) says which papers to train on, None = all: leave out what an evaluation tests.
    `graph` must not contain held-out citations. `options` is an instance of `BASELINES[name].options`.
    `words` (from `fit_words`) saves fasttext, sif and sgc training word vectors of their own.
    """
    baseline, chosen = _check_options(name, options)
    data = BaselineData(corpus, _training_rows(corpus, papers), graph, words, seed, reporter)
    revision = compute_revision(name, corpus, graph=graph, papers=papers, options=chosen, words=words, seed=seed)
    return baseline.fit(data, chosen, revision)


def fit_words(
    corpus: Corpus,
    *,
    papers: NDArray[np.bool_] | None = None,
    options: WordOptions | None = None,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> WordVectors:
    """Fit what several baselines of the table share, the word vectors of a corpus; `papers` as in `fit_baseline`."""
    chosen, rows = options or WordOptions(), _training_rows(corpus, papers)
    identity = _words_identity(corpus, rows, chosen, seed)
    return train_words(BaselineData(corpus, rows).texts(), chosen, seed=seed, identity=identity, reporter=reporter)


def compute_revision(
    name: str,
    corpus: Corpus,
    *,
    graph: CitationGraph | None = None,
    papers: NDArray[np.bool_] | None = None,
    options: object = None,
    words: WordVectors | None = None,
    seed: int = 0,
) -> str:
    """Compute the revision of a baseline before it is fitted: twelve hex digits of all that its vectors depend on.

    Precomputed word vectors give the same revision as those that the baseline would have trained itself.
    """
    baseline, chosen = _check_options(name, options)
    rows = _training_rows(corpus, papers)
    return hash_json(
        {
            "baseline": name,
            "version": _VERSION,
            "corpus": corpus.hash,
            "papers": _hash_array(rows),
            "graph": (
                [_hash_array(graph.cited.offsets), _hash_array(graph.cited.targets)]
                if baseline.graph and graph is not None
                else []
            ),
            "options": asdict(chosen),
            "words": _used_words_identity(chosen, words, corpus, rows, seed),
            "seed": seed,
            "packages": {package: _version(package) for package in baseline.packages},
        }
    )[:12]


def _check_options(name: str, options: object) -> tuple[Baseline, Any]:
    baseline = BASELINES[choose(name, BASELINES, "baseline")]
    chosen = baseline.options() if options is None else options
    if not isinstance(chosen, baseline.options):
        raise UserError(
            f"options of baseline {name} are a {type(chosen).__name__}; they must be a {baseline.options.__name__}"
        )
    return baseline, chosen


def _training_rows(corpus: Corpus, papers: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    if papers is None:
        return np.arange(len(corpus), dtype=np.int64)
    if papers.dtype != np.bool_ or papers.shape != (len(corpus),):
        raise UserError(
            f"papers to learn from have the shape {papers.shape} of {papers.dtype}; they must be {len(corpus):,} booleans"
        )
    return np.flatnonzero(papers).astype(np.int64)


def _used_words_identity(
    options: Any, words: WordVectors | None, corpus: Corpus, rows: NDArray[np.int64], seed: int
) -> dict[str, object]:
    """Return what a baseline's word vectors depend on; nothing for a baseline without word vectors."""
    holder = options.sif if isinstance(options, SgcOptions) else options
    if not isinstance(holder, FasttextOptions | SifOptions):
        return {}
    return _words_identity(corpus, rows, holder.words, seed) if words is None else words.identity


def _words_identity(corpus: Corpus, rows: NDArray[np.int64], options: WordOptions, seed: int) -> dict[str, object]:
    return {"corpus": corpus.hash, "papers": _hash_array(rows), "seed": seed, **asdict(options)}


def _hash_array(array: NDArray[Any]) -> str:
    data = np.ascontiguousarray(array).view(np.uint8)
    return f"{int(hash_spans(data, np.zeros(1, np.int64), np.array([len(data)]))[0]):016x}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# Baselines as systems to evaluate

SENTENCE_SUM = "sentence_sum"


def baseline_system(
    name: str,
    corpus: Corpus,
    graph: CitationGraph,
    options: OpeningOptions,
    *,
    words: WordVectors | None = None,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> System:
    """Open a baseline as a system to evaluate, fitted when first needed; `graph` must not contain held-out citations.

    `words` (from `fit_words`) saves fasttext, sif and sgc training word vectors of their own.
    """
    choose(name, [*BASELINES, SENTENCE_SUM], "baseline")
    if name == SENTENCE_SUM:
        return EncoderSystem(SentenceSum(load_encoder("minilm")), cache=options.cache, reporter=reporter)
    encoder = LazyBaseline(
        name,
        compute_revision(name, corpus, graph=graph, words=words, seed=seed),
        lambda: fit_baseline(name, corpus, graph=graph, words=words, seed=seed, reporter=reporter),
    )
    kind = SparseTfidf if name == "tfidf" else EncoderSystem
    return kind(encoder, cache=options.cache, reporter=reporter)


class LazyBaseline:
    """Baseline encoder that is fitted when it first encodes a text."""

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


class SparseTfidf(EncoderSystem):
    """TF-IDF as a system: pairs and rankings use cosines of sparse vectors, probes the dense ones."""

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        if distance != "cosine":
            return super().scores(texts, pools, distance)
        papers = texts.paper_texts()
        queries = np.repeat(pools.queries, np.diff(pools.offsets))  # (pairs,)
        scores = self._tfidf.pair_scores(papers, queries, pools.candidates)
        has_text = np.array([bool(text) for text in papers])  # (rows,)
        return np.where(has_text[queries] & has_text[pools.candidates], scores, np.nan)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if distance != "cosine":
            return super().top(texts, queries, candidates, depth, distance)
        rows = self._tfidf.encode_sparse(texts.paper_texts())  # (rows, terms)
        pool, depth = rows[candidates].T.tocsc(), min(depth, len(candidates))
        hits, scores = np.empty((len(queries), depth), np.int64), np.empty((len(queries), depth))
        for at, query in enumerate(queries.tolist()):
            cosines = np.asarray((rows[query] @ pool).todense()).ravel()  # (candidates,)
            best = np.argsort(-cosines, kind="stable")[:depth]
            hits[at], scores[at] = candidates[best], cosines[best]
        return hits, scores

    @property
    def _tfidf(self) -> Tfidf:
        tfidf = self.encoder.fitted if isinstance(self.encoder, LazyBaseline) else self.encoder
        assert isinstance(tfidf, Tfidf)
        return tfidf
