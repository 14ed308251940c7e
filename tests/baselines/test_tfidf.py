"""TF-IDF: pairs are scored by the sparse vectors, dense ones are their projection."""

from __future__ import annotations

import math

import numpy as np

from citeweave.baselines.word_vectors import TermOptions, count_terms, fit_terms


def test_pairs_are_scored_as_dense_rows_would_be(fit, texts):
    encoder = fit("tfidf")
    some = [*texts[:30], ""]
    dense = encoder.encode_sparse(some).toarray()
    offsets, queries = np.array([0, 3, 3, 5]), np.array([4, 9, 0])
    candidates = np.array([1, 4, 30, 7, 8])
    scores = encoder.pair_scores(some, offsets, queries, candidates)
    expected = [dense[q] @ dense[c] for q, c in zip([4, 4, 4, 0, 0], candidates, strict=True)]
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
