"""BM25 against the formula written out, and the corners of an index of words."""

import math

import numpy as np
import pytest

from citeweave.vectors.bm25 import METHODS, Bm25, words_of

from ..conftest import refused

WORDS = ["graph", "deep", "the", "protein", "citation", "of", "vector", "é", "f1"]


def made_up(count, seed, longest=30):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, longest))) for _ in range(count)]


def lucene(papers, query, k1, b):
    """sum over the query's words of ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + k1 (1 - b + b length / average))"""
    split = [words_of(text) for text in papers]
    average = sum(map(len, split)) / len(split)
    having = {word: sum(word in paper for paper in split) for word in words_of(query)}
    rarity = {word: math.log(1 + (len(split) - n + 0.5) / (n + 0.5)) for word, n in having.items()}

    def score(paper, word):
        times = paper.count(word)
        return rarity[word] * times / (times + k1 * (1 - b + b * len(paper) / average))

    return [sum(score(paper, word) for word in words_of(query) if word in paper) for paper in split]


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (2.0, 0.0), (1.5, 1.0)])
def test_scores_are_those_of_the_formula(k1, b):
    papers, queries = made_up(40, 0), [*made_up(10, 1, 6), "", "unheard of", "graph graph graph"]
    index = Bm25(papers, k1=k1, b=b)
    expected = np.array([lucene(papers, query, k1, b) for query in queries])  # (queries, papers)
    offsets = np.arange(len(queries) + 1) * len(papers)
    found = index.scores(queries, offsets, np.tile(np.arange(len(papers)), len(queries)))
    assert np.allclose(found.reshape(expected.shape), expected, atol=1e-12)
    best = index.top(queries, 7)
    assert np.allclose(best.scores, -np.sort(-expected, axis=1)[:, :7], atol=1e-12)
    assert np.allclose(best.scores, np.take_along_axis(expected, best.rows, 1), atol=1e-12)
    assert (np.diff(best.rows)[np.diff(best.scores) == 0] > 0).all()  # of equal ones the first


@pytest.mark.parametrize("method", METHODS)
def test_pairs_score_as_in_a_search(method):
    papers, queries = made_up(60, 2), [*made_up(12, 3, 8), ""]
    index = Bm25(papers, method=method)
    best = index.top(queries, 60)
    offsets = np.arange(len(queries) + 1) * 60
    assert np.allclose(index.scores(queries, offsets, best.rows.ravel()), best.scores.ravel(), atol=1e-12)


def test_pairs_are_scored_in_blocks(monkeypatch):
    papers, queries = made_up(30, 4), made_up(9, 5)
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 20, 9))])
    candidates = rng.integers(0, 30, offsets[-1])
    index = Bm25(papers)
    whole = index.scores(queries, offsets, candidates)
    monkeypatch.setattr("citeweave.vectors.bm25.BLOCK", 7)
    assert np.array_equal(index.scores(queries, offsets, candidates), whole)


def test_stop_words_empty_papers_queries_and_candidates():
    papers = ["the cat", "a dog"]
    assert Bm25(papers).top(["the"], 1).scores.tolist() == [[0.0]]
    assert Bm25(papers, stop_words=frozenset()).top(["the"], 1).scores[0, 0] > 0
    none = np.empty(0, np.int64)
    for papers in ([], [""], ["", "the of"]):
        index, rows = Bm25(papers), np.arange(len(papers))
        assert len(index) == len(papers)
        best = index.top(["graph", ""], 5)
        assert best.rows.tolist() == [rows.tolist()] * 2 and not best.scores.any()
        assert index.scores(["graph"], np.array([0, len(papers)]), rows).tolist() == [0.0] * len(papers)
    index = Bm25(["graph", "deep graph"])
    assert index.top([], 2).rows.shape == (0, 2) and index.top(["graph"], 0).rows.shape == (1, 0)
    for queries, offsets in (([], [0]), (["graph"], [0, 0])):
        assert index.scores(queries, np.array(offsets), none).tolist() == []


def test_wrong_settings_are_refused():
    for options, message in (
        ({"method": "lucen"}, "method is 'lucen'.*Did you mean 'lucene'"),
        ({"b": 2}, "b is between 0 and 1"),
        ({"k1": -1}, "k1 must not be negative"),
    ):
        refused(message, Bm25, ["a"], **options)


def test_nothing_is_printed(capfd):
    Bm25(made_up(50, 6)).top(made_up(5, 7), 3)
    assert capfd.readouterr() == ("", "")
