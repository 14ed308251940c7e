"""What holds for every baseline: shapes, empty texts, seeds, revisions, and that topics are told apart."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus
from citeweave.baselines.doc2vec import Doc2VecOptions
from citeweave.baselines.fit import BASELINES, RandomOptions, compute_revision, fit_baseline, fit_words
from citeweave.baselines.tfidf import TfidfOptions
from citeweave.baselines.word_sums import SifOptions
from citeweave.baselines.word_vectors import WordOptions
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.graph.citations import graph_from_edges

from .conftest import NEEDS, SMALL, WORDS

NAMES = list(BASELINES)
TRAINED = [name for name in NAMES if name != "random"]


def unit(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_have_the_promised_shape(fit, texts, name):
    encoder = fit(name)
    vectors = encoder.encode(texts[:20])
    assert encoder.name == name and len(encoder.revision) == 12
    assert vectors.shape == (20, encoder.dimension) and vectors.dtype == np.float32
    assert np.isfinite(vectors).all() and (np.linalg.norm(vectors, axis=1) > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_one_vector_whatever_stands_beside_it(fit, texts, name):
    encoder = fit(name)
    together = encoder.encode([texts[3], "", texts[5], texts[3]])
    assert not together[1].any() and np.allclose(together[0], together[3], atol=1e-5)
    assert np.allclose(encoder.encode([texts[5]])[0], together[2], atol=1e-5)
    assert encoder.encode([]).shape == (0, encoder.dimension)


@pytest.mark.parametrize("name", NAMES)
def test_strange_texts_are_no_error(fit, name):
    vectors = fit(name).encode(["qqzx wwvk", "...", "的", "[SEP]", " "])
    assert np.isfinite(vectors).all()
    if name not in ("random", "elmo"):
        assert not vectors.any(), "words that nobody wrote say nothing"


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_fixes_the_vectors(fit, corpus, graph, texts, name):
    first = fit(name).encode(texts[:10])
    again = fit_baseline(name, corpus, graph=graph, options=SMALL[name]).encode(texts[:10])
    assert np.array_equal(first, again)
    if name != "tfidf":  # the strongest directions are the same wherever the search for them starts
        other = fit(name, seed=1)
        assert not np.allclose(first, other.encode(texts[:10])) and other.revision != fit(name).revision


@pytest.mark.parametrize("name", TRAINED)
def test_papers_of_one_field_are_nearer(fit, corpus, texts, name):
    fields = np.array([field.split("\n")[0] for field in corpus.fields])
    vectors = unit(fit(name).encode(texts))
    scores = vectors @ vectors.T
    same = fields[:, None] == fields[None, :]
    np.fill_diagonal(same, False)
    apart = fields[:, None] != fields[None, :]
    # how often a paper of the same field is nearer than one of another
    rng = np.random.default_rng(0)
    inside, outside = rng.permutation(scores[same])[:20_000], rng.permutation(scores[apart])[:20_000]
    size = min(len(inside), len(outside))
    assert (inside[:size] > outside[:size]).mean() > 0.55


@pytest.mark.parametrize("name", ["sgc", "citeomatic"])
def test_citations_are_needed_where_they_are_learned_from(corpus, name):
    pytest.importorskip(NEEDS[name])
    with pytest.raises(UserError, match=f"baseline {name} learns from citations and got none; give a graph"):
        fit_baseline(name, corpus, options=SMALL[name])
    other = graph_from_edges(np.array([0]), np.array([1]), nodes=3)
    with pytest.raises(UserError, match="3 nodes and .* has 240 papers; build the graph from this corpus"):
        fit_baseline(name, corpus, graph=other, options=SMALL[name])


def test_citeomatic_does_not_train_on_nothing(corpus):
    pytest.importorskip("torch")
    nobody = graph_from_edges(np.array([], int), np.array([], int), nodes=len(corpus))
    with pytest.raises(EmptyResultError, match="the graph has none among the 240 papers"):
        fit_baseline("citeomatic", corpus, graph=nobody)


def test_wrong_calls_are_named(corpus):
    with pytest.raises(UserError, match="baseline is 'tfidff'; it must be one of .*Did you mean 'tfidf'"):
        fit_baseline("tfidff", corpus)
    with pytest.raises(UserError, match="options of baseline tfidf are a RandomOptions; they must be a TfidfOptions"):
        fit_baseline("tfidf", corpus, options=RandomOptions())
    with pytest.raises(UserError, match=r"shape \(3,\) of bool; they must be 240 booleans"):
        fit_baseline("tfidf", corpus, papers=np.ones(3, bool))
    with pytest.raises(EmptyResultError, match="no text among its 0 papers"):
        fit_baseline("tfidf", corpus, papers=np.zeros(len(corpus), bool))
    few = np.arange(len(corpus)) < 2
    with pytest.raises(EmptyResultError, match="no term is left of 2 texts"):
        fit_baseline("tfidf", corpus, papers=few)


def test_a_revision_is_known_before_and_names_all_that_matters(fit, corpus, graph):
    half = np.arange(len(corpus)) % 2 == 0
    assert compute_revision("tfidf", corpus, options=SMALL["tfidf"], graph=graph) == fit("tfidf").revision
    revisions = [
        compute_revision("tfidf", corpus),
        compute_revision("tfidf", corpus, seed=1),
        compute_revision("tfidf", corpus, papers=half),
        compute_revision("tfidf", corpus, options=TfidfOptions(sublinear=False)),
        compute_revision("sif", corpus),
        compute_revision("sgc", corpus),
        compute_revision("sgc", corpus, graph=graph),
        compute_revision("sgc", corpus, graph=graph.keep_edges(np.arange(graph.edges) > 0)),
    ]
    assert len(set(revisions)) == len(revisions)
    # what it does not learn from makes no difference
    assert compute_revision("tfidf", corpus, graph=graph) == compute_revision("tfidf", corpus)
    assert compute_revision("tfidf", corpus, papers=np.ones(len(corpus), bool)) == compute_revision("tfidf", corpus)


def test_papers_that_are_left_out_are_not_learned_from(corpus, texts):
    half = np.arange(len(corpus)) % 2 == 0
    from_half = fit_baseline("tfidf", corpus, papers=half, options=SMALL["tfidf"])
    from_all = fit_baseline("tfidf", corpus, options=SMALL["tfidf"])
    assert from_half.encode_sparse(texts).shape[1] < from_all.encode_sparse(texts).shape[1]


def test_word_vectors_made_before_change_nothing(fit, corpus, graph):
    # that the vectors are the same too is seen by the test of the seed: `fit` shares word vectors, the other does not
    for name in ("fasttext", "sif", "sgc"):
        pytest.importorskip("gensim")
        assert fit(name).revision == compute_revision(name, corpus, graph=graph, options=SMALL[name])
    other = fit_words(corpus, options=replace(WORDS, epochs=1))
    assert compute_revision("sif", corpus, options=SMALL["sif"], words=other) != fit("sif").revision


def digests(corpus: Corpus) -> list[str]:
    words = WordOptions(dimension=8, epochs=1, min_count=2, buckets=500)
    choices = {"doc2vec": Doc2VecOptions(vector_size=8, epochs=2), "sif": SifOptions(words=words)}
    texts = ["interference and cost", "a method for signals"]
    return [
        fit_baseline(name, corpus, options=chosen).encode(texts).tobytes().hex() for name, chosen in choices.items()
    ]


IMPORTS = """
import sys
from citeweave import Corpus
from citeweave.baselines.doc2vec import Doc2VecOptions
from citeweave.baselines.fit import fit_baseline
from citeweave.baselines.word_sums import SifOptions
from citeweave.baselines.word_vectors import WordOptions

"""


def test_gensim_does_not_depend_on_the_process(corpus):
    pytest.importorskip("gensim")
    script = "from __future__ import annotations" + IMPORTS + inspect.getsource(digests)
    source = str(Path(sys.modules["citeweave"].__path__[0]).parent)
    result = subprocess.run(
        [sys.executable, "-c", script + "print(digests(Corpus.open(sys.argv[1])))", str(corpus.folder)],
        capture_output=True,
        text=True,
        # this process has another, unless somebody chose just this number
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": source},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(digests(corpus))
