"""A small synthetic literature, its graph, and every baseline fitted to it with options for seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from citeweave import CitationGraph, Corpus, build_graph, synthesize
from citeweave.baselines.citeomatic import CiteomaticOptions
from citeweave.baselines.data import read_training_texts
from citeweave.baselines.doc2vec import Doc2VecOptions
from citeweave.baselines.elmo import ElmoOptions
from citeweave.baselines.fit import RandomOptions, fit_baseline, fit_words
from citeweave.baselines.word_sums import FasttextOptions, SgcOptions, SifOptions, TfidfOptions
from citeweave.baselines.word_vectors import TermOptions, WordOptions, WordVectors
from citeweave.corpus.options import SyntheticOptions
from citeweave.encoders.encoder import Encoder

WORDS = WordOptions(dimension=16, epochs=6, min_count=2, buckets=2000, sample=0.01)
SMALL = {
    "random": RandomOptions(dimension=16),
    "tfidf": TfidfOptions(dimension=20),
    "doc2vec": Doc2VecOptions(vector_size=24, epochs=30, sample=0.01),
    "fasttext": FasttextOptions(words=WORDS),
    "sif": SifOptions(words=WORDS),
    "elmo": ElmoOptions(hidden=16, steps=40, batch=8, length=16),
    "sgc": SgcOptions(sif=SifOptions(a=1e-4, words=WORDS)),
    "citeomatic": CiteomaticOptions(dimension=16, epochs=6, batch=128, rate=0.02, near=10, terms=TermOptions(min_df=2)),
}
NEEDS = {"doc2vec": "gensim", "fasttext": "gensim", "sif": "gensim", "sgc": "gensim", "elmo": "torch", "citeomatic": "torch"}  # fmt: skip
Fit = Callable[..., Encoder]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("baselines") / "corpus", SyntheticOptions(papers=240, references=8))


@pytest.fixture(scope="session")
def graph(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> CitationGraph:
    return build_graph(corpus, tmp_path_factory.mktemp("baselines-graph") / "graph")


@pytest.fixture(scope="session")
def texts(corpus: Corpus) -> list[str]:
    return read_training_texts(corpus, np.arange(len(corpus)))


@pytest.fixture(scope="session")
def fit(corpus: Corpus, graph: CitationGraph) -> Fit:
    """A baseline by its name with small options; fitted once for every seed. Sums share their word vectors."""

    @cache
    def words(seed: int) -> WordVectors:
        return fit_words(corpus, options=WORDS, seed=seed)

    @cache
    def fitted(name: str, seed: int = 0) -> Encoder:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        shared = words(seed) if name in ("fasttext", "sif", "sgc") else None
        return fit_baseline(name, corpus, graph=graph, options=SMALL[name], words=shared, seed=seed)

    return fitted
