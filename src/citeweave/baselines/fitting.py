"""The baselines by name, and how one is fitted to a corpus.

    encoder = fit_baseline("sif", corpus)
    encoder.encode(["A title[SEP]An abstract."])       (1, 300) float32
    encoder.name, encoder.revision, encoder.dimension  ("sif", "3f09c2a71b5e", 300)

A revision names all that a vector depends on, and is known before anything is trained: `revision_of`.
BM25 is in `similarity/lexical.py`, Hugging Face encoders are in `encoders/`; sums of sentence vectors
(`sentence_sum.SentenceSum`) are not fitted to a corpus but put around any encoder of sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.citeomatic import CiteomaticOptions, fit_citeomatic
from citeweave.baselines.doc2vec import Doc2VecOptions, fit_doc2vec
from citeweave.baselines.elmo import ElmoOptions, fit_elmo
from citeweave.baselines.material import Material
from citeweave.baselines.random_vectors import RandomOptions, fit_random
from citeweave.baselines.sgc import SgcOptions, fit_sgc
from citeweave.baselines.tfidf import TfidfOptions, fit_tfidf
from citeweave.baselines.word_sums import FasttextOptions, SifOptions, fit_fasttext, fit_sif
from citeweave.baselines.word_vectors import WordOptions, WordVectors, train_words
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import Encoder
from citeweave.errors import UserError, choose
from citeweave.files import hash_json
from citeweave.graph.citations import CitationGraph
from citeweave.hashing import hash_spans
from citeweave.progress import QUIET, Reporter

_VERSION = 1
"""Raised when a change of code here changes vectors."""


@dataclass(frozen=True)
class Baseline:
    """One baseline: what it is, and how it is made."""

    about: str
    options: type[Any]
    """The class of its options; without arguments they are the defaults."""

    fit: Callable[[Material, Any, str], Encoder]
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

    `papers` (papers of the corpus,) says which may be learnt from, None = all: leave out what an evaluation asks for.
    `graph` must not have the citations that are held out. `options` is an object of `BASELINES[name].options`.
    `words` (of `fit_words`) spares fasttext, sif and sgc their own training of word vectors.
    """
    baseline, chosen = _checked(name, options)
    material = Material(corpus, _rows(corpus, papers), graph, words, seed, reporter)
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
    return train_words(Material(corpus, rows).texts(), chosen, seed=seed, identity=identity, reporter=reporter)


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
