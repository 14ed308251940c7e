"""Sums of word and sentence vectors, SGC and TF-IDF against the formulas."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from citeweave.baselines.fit import RandomOptions, RandomVectors
from citeweave.baselines.word_sums import SentenceSum, first_direction, propagate, smooth_weights
from citeweave.baselines.word_vectors import TermOptions, count_terms, fit_terms
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph.citations import graph_from_edges


def test_common_directions_and_frequent_words_weigh_less(fit, texts):
    rows = np.random.default_rng(0).normal(size=(50, 6)) + 2
    assert np.isclose(abs(first_direction(rows) @ np.linalg.svd(rows)[2][0]), 1)
    weights = smooth_weights(np.array([1.0, 10.0, 1000.0]), 1e-3)
    assert (np.diff(weights) < 0).all() and np.isclose(weights[1], 1e-3 / (1e-3 + 10 / 1011))
    # the sums all point one way; without that direction they do not
    found = [fit(name).encode(texts) for name in ("sif", "fasttext")]
    units = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in found]
    sif, sums = (np.mean(unit @ unit.T) for unit in units)
    assert sif < 0.3 < sums


def test_order_and_repetition_of_words(fit):
    encoder = fit("fasttext")
    one, other, twice = encoder.encode(["cost of interference", "interference[SEP]of cost", "cost interference " * 2])
    assert np.allclose(one, other) and np.allclose(2 * one, twice) and one.any()


def test_propagation_is_the_dense_formula():
    rng = np.random.default_rng(3)
    citing, cited = rng.integers(12, size=40), rng.integers(12, size=40)
    citing, cited = np.append(citing, [0, 1]), np.append(cited, [1, 0])  # a pair that cite each other
    graph = graph_from_edges(citing, cited, nodes=13)
    dense = np.eye(13)
    for i, j in zip(citing, cited, strict=True):
        if i != j:
            dense[i, j] = dense[j, i] = 1
    scale = np.diag(dense.sum(axis=1) ** -0.5)
    step = scale @ dense @ scale
    features = rng.normal(size=(13, 4)).astype(np.float32)
    for k in (0, 1, 3):
        assert np.allclose(propagate(graph, features, k), np.linalg.matrix_power(step, k) @ features, atol=1e-5)


def test_papers_of_the_corpus_are_recognized_by_text(fit, corpus, texts):
    encoder = fit("sgc")
    known, other = encoder.encode([texts[7], texts[7] + " interference"])
    assert len(encoder._matrix) == len(corpus) and np.allclose(known, encoder._matrix[7])
    assert other.any() and not np.allclose(other, known)


def test_only_the_message_about_dots_is_kept_back(capsys):
    pytest.importorskip("gensim")
    from citeweave.baselines.word_vectors import silence_dot_messages

    with silence_dot_messages():
        for piece in ("Exception ignored in: ", "'gensim.models.word2vec_inner.our_dot_float'", "\n", "a\n"):
            sys.stderr.write(piece)
        for piece in ("Exception ignored in: ", "'another'", "\n", "b\n"):
            sys.stderr.write(piece)
    assert capsys.readouterr().err == "a\nException ignored in: 'another'\nb\n"


class Listening:
    """Random vectors that remember what they read."""

    name, revision, dimension = "listening", "1", 6

    def __init__(self) -> None:
        self.read: list[str] = []
        self._inner = RandomVectors("", RandomOptions(dimension=6), 0)

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        self.read += texts
        return self._inner.encode(texts)


def test_the_sum_of_title_and_sentences():
    encoder, other = Listening(), Listening()
    sums = SentenceSum(encoder)
    vectors = sums.encode(["A title[SEP]One is here. Two is there.", "", "One is here."])
    assert encoder.read == ["A title", "One is here.", "Two is there.", "One is here."]
    parts = encoder._inner.encode(["A title", "One is here.", "Two is there."])
    expected = parts.sum(axis=0)
    assert np.allclose(vectors[0], expected / np.linalg.norm(expected), atol=1e-5)
    assert not vectors[1].any() and np.allclose(vectors[2], parts[1] / np.linalg.norm(parts[1]), atol=1e-5)
    assert sums.name == "sentence_sum(listening)" and sums.dimension == 6 and vectors.dtype == np.float32
    assert sums.encode([]).shape == (0, 6)
    other.revision = "2"
    assert SentenceSum(Listening()).revision == sums.revision != SentenceSum(other).revision


def test_pairs_are_scored_as_dense_rows_would_be(fit, texts):
    encoder = fit("tfidf")
    some = [*texts[:30], ""]
    dense = encoder.encode_sparse(some).toarray()
    queries, candidates = np.array([4, 4, 4, 0, 0]), np.array([1, 4, 30, 7, 8])
    scores = encoder.pair_scores(some, queries, candidates)
    expected = [dense[q] @ dense[c] for q, c in zip(queries, candidates, strict=True)]
    assert scores.dtype == np.float64 and np.allclose(scores, expected)
    assert np.isclose(scores[1], 1) and scores[2] == 0


def test_dense_rows_keep_most_of_the_cosines(fit, texts):
    encoder = fit("tfidf")
    sparse = encoder.encode_sparse(texts).toarray()
    dense = encoder.encode(texts)
    apart = ~np.eye(len(texts), dtype=bool)
    assert np.corrcoef((sparse @ sparse.T)[apart], (dense @ dense.T)[apart])[0, 1] > 0.7


def test_weights_are_those_of_the_formula():
    texts = ["apple apple pear[SEP]plum", "apple[SEP]plum", "plum", "fig"]
    terms = fit_terms(texts, TermOptions(min_df=1, max_df=1.0), idf=True, sublinear=True, norm=None)
    row = count_terms(terms, texts[:1]).toarray()[0]
    place = terms.vocabulary_
    assert np.isclose(row[place["apple"]], (1 + math.log(2)) * (math.log(5 / 3) + 1))
    assert np.isclose(row[place["pear"]], math.log(5 / 2) + 1) and "pear plum" not in place and "sep" not in place
