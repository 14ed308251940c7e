"""Sums of word vectors against the formulas, and SGC against dense matrices."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from citeweave.baselines.sgc import propagate
from citeweave.baselines.word_sums import first_direction, smooth_weights
from citeweave.graph.citations import graph_from_edges


def test_the_first_direction_is_that_of_the_svd():
    rows = np.random.default_rng(0).normal(size=(50, 6)) + 2
    expected = np.linalg.svd(rows)[2][0]
    assert np.isclose(abs(first_direction(rows) @ expected), 1)


def test_frequent_words_weigh_less():
    weights = smooth_weights(np.array([1.0, 10.0, 1000.0]), 1e-3)
    assert (np.diff(weights) < 0).all() and np.isclose(weights[1], 1e-3 / (1e-3 + 10 / 1011))


def test_sif_vectors_have_nothing_along_the_common_direction(fit, texts):
    vectors = fit("sif").encode(texts)
    sums = fit("fasttext").encode(texts)
    # the sums all point one way; without that direction they do not
    mean_cosine = [np.mean(unit @ unit.T) for unit in (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (vectors, sums))]  # fmt: skip
    assert mean_cosine[0] < 0.3 < mean_cosine[1]


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
    encoder, sif = fit("sgc"), fit("sif")
    matrix = encoder.vectors_of_corpus()
    assert matrix.shape == (len(corpus), encoder.dimension)
    assert np.allclose(encoder.encode([texts[7]]), matrix[7])
    other = encoder.encode([texts[7] + " interference"])[0]
    assert other.any() and not np.allclose(other, matrix[7])
    assert sif.dimension == encoder.dimension


def test_only_the_message_about_dots_is_kept_back(capsys):
    pytest.importorskip("gensim")
    from citeweave.baselines.word_vectors import silence_dot_messages

    with silence_dot_messages():
        for piece in ("Exception ignored in: ", "'gensim.models.word2vec_inner.our_dot_float'", "\n", "a\n"):
            sys.stderr.write(piece)
        for piece in ("Exception ignored in: ", "'another'", "\n", "b\n"):
            sys.stderr.write(piece)
    assert capsys.readouterr().err == "a\nException ignored in: 'another'\nb\n"
