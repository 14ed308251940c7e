"""Searching by sentences: equal to brute force for every distance, sure where it says so, and clear about mistakes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.core.randomness import stream
from citeweave.vectors import sentence_search
from citeweave.vectors.document_distance import DISTANCES, DocumentDistance, document_scores
from citeweave.vectors.sentence_search import SentenceQueries, lower_bounds, search_sentences
from citeweave.vectors.sentence_vectors import SentenceVectors, new_sentence_vectors

from ..conftest import refused

SINGLE = DocumentDistance("single")


def made(papers, seed, *, dimension=5, decimals=1, dtype="float32"):
    """Papers of 0 to 6 sentences with many equal ones, so that ties and zeros occur."""
    rng = stream(seed, "sentence search")
    blocks = [np.round(rng.normal(size=(int(n), dimension)), decimals) for n in rng.integers(0, 7, papers)]
    blocks[0] = np.round(rng.normal(size=(3, dimension)), decimals)  # at least one has sentences
    return SentenceVectors.of([f"p{at}" for at in range(papers)], blocks, dtype=dtype)


def brute_force(vectors, row, distance, wanted=None):
    """The score of every paper, -inf of those that cannot be found."""
    every = np.arange(len(vectors))
    offsets = np.array([0, len(every)])
    scores = document_scores(vectors, np.array([row]), offsets, every, distance, query_sentences=[wanted])
    return np.where(np.isfinite(scores) & (every != row), scores, -np.inf)


def assert_nearest(rows, scores, true):
    """Scores are the best ones, and each is that of its row. A plan's last digits may hang on who is scored beside it."""
    best = np.sort(true[np.isfinite(true)])[::-1][: len(rows)]
    count = len(best)
    assert len(set(rows[:count].tolist())) == count and (rows[count:] == -1).all() and np.isnan(scores[count:]).all()
    np.testing.assert_allclose(scores[:count], best, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(true[rows[:count]], best, rtol=1e-9, atol=1e-9)


NAMES, METRICS, SEEDS = st.sampled_from(DISTANCES), st.sampled_from(["l2", "cosine"]), st.integers(0, 10**6)


@settings(max_examples=50)
@given(NAMES, st.sampled_from([0.05, 0.5, 5000.0]), METRICS, st.integers(0, 3), st.integers(1, 12), SEEDS)
def test_equal_to_brute_force(name, temperature, metric, decimals, k, seed):
    vectors = made(30, seed, decimals=decimals)
    distance = DocumentDistance(name, temperature, metric)
    found = search_sentences(vectors, ["p0"], k, distance, first=None)
    assert found.is_exact.all()
    true = brute_force(vectors, 0, distance)
    assert_nearest(found.rows[0], found.scores[0], true)
    assert (np.diff(found.rows[0])[np.diff(found.scores[0]) == 0] > 0).all()  # of equal ones the first


@settings(max_examples=40)
@given(NAMES, st.sampled_from([0.01, 0.5, 5000.0]), METRICS, st.floats(-18, 15), SEEDS)
def test_no_paper_is_nearer_than_its_bound(name, temperature, metric, power, seed):
    vectors = made(20, seed, dimension=9, decimals=6)
    matrix = vectors.matrix * 10**power
    scaled = SentenceVectors(vectors.ids, vectors.offsets, matrix, vectors.numbers, vectors.provenance)
    distance = DocumentDistance(name, temperature * 10**power, metric)
    papers = np.flatnonzero(scaled.lengths() > 0)
    bounds = lower_bounds(scaled, papers, SentenceQueries(np.array([0, 3]), scaled.sentences(0)), distance)
    scores = document_scores(scaled, np.array([0]), np.array([0, len(papers)]), papers, distance)
    assert (bounds[0] <= -scores).all()
    if name in sentence_search.EXACT and metric == "cosine":
        np.testing.assert_allclose(bounds[0], -scores, atol=1e-4)


def test_chosen_sentences_pools_and_blocks(tmp_path, monkeypatch):
    vectors = made(300, 1, dimension=8, decimals=3)
    with new_sentence_vectors(tmp_path / "v", dtype="float16") as writer:
        writer.append(vectors.ids, [vectors.sentences(row) for row in range(len(vectors))])
        kept = writer.finish()
    rows = np.flatnonzero(kept.lengths() > 2)[:6]
    wanted = [np.array([1, 2]), None, np.array([0]), np.array([2, 9]), None, np.array([1])]
    whole = {}
    for distance in (DocumentDistance(name, 0.5) for name in DISTANCES):
        found = whole[distance.name] = search_sentences(kept, rows, 7, distance, query_sentences=wanted)
        for at, row in enumerate(rows.tolist()):
            assert_nearest(found.rows[at], found.scores[at], brute_force(kept, row, distance, wanted[at]))
    monkeypatch.setattr(sentence_search, "MEMORY", 1000)
    monkeypatch.setattr(sentence_search, "SCORED_TOGETHER", 5)
    monkeypatch.setattr(sentence_search, "TILE", 13)
    small = search_sentences(kept, rows, 7, DocumentDistance("transport", 0.5), query_sentences=wanted)
    np.testing.assert_array_equal(small.rows, whole["transport"].rows)
    np.testing.assert_allclose(small.scores, whole["transport"].scores, rtol=1e-9)
    pool = np.array([250, 3, 40, 41, 3, 0])
    inside = search_sentences(kept, rows[:1], 9, SINGLE, pool=pool)
    left = {row for row in pool.tolist() if kept.lengths()[row] and row != rows[0]}
    assert set(inside.rows[0].tolist()) - {-1} == left and inside.is_exact.all()
    assert (search_sentences(kept, rows, 2, SINGLE, pool=np.flatnonzero(kept.lengths() == 0)).rows == -1).all()


def test_query_vectors_and_equal_papers():
    twins = SentenceVectors.of([f"p{at}" for at in range(500)], [np.eye(3)[:2]] * 500)
    for name in DISTANCES:
        found = search_sentences(twins, [np.eye(3)[1:], np.zeros((1, 3))], 4, DocumentDistance(name), first=4)
        assert (found.rows[:, 0] >= 0).all() and np.isfinite(found.scores).all()
    found = search_sentences(twins, [np.eye(3)[1:]], 4, SINGLE)
    assert found.rows.tolist() == [[0, 1, 2, 3]] and found.scores.tolist() == [[0, 0, 0, 0]]  # none is its own


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("name", DISTANCES)
def test_zeros_and_huge_vectors(name, metric):
    unit = np.eye(3)
    rows = [np.zeros((2, 3)), np.zeros((1, 3)), unit, 1e15 * unit, 1e-15 * unit[:1], -1e15 * unit[1:]]
    distance = DocumentDistance(name, metric=metric)
    for papers in (rows, rows[:2]):
        vectors = SentenceVectors.of([f"p{at}" for at in range(len(papers))], papers)
        for row in range(len(papers)):
            found = search_sentences(vectors, np.array([row]), 3, distance, first=None)
            assert_nearest(found.rows[0], found.scores[0], brute_force(vectors, row, distance))


def test_the_first_ones_are_all_that_is_scored():
    """All sentences of a decoy are near one of the query, but too many near the same one: the bound is low, and wrong."""
    decoys = [np.array([[0.0], [0], [0], [10 + at / 100]]) for at in range(30)]
    papers = [np.array([[0.0], [10]]), np.array([[1.0], [11]]), *decoys]
    vectors = SentenceVectors.of(["q", "right", *(f"d{at}" for at in range(30))], papers)
    distance = DocumentDistance("transport")
    few, many = (search_sentences(vectors, ["q"], 1, distance, first=first) for first in (10, 31))
    assert not few.is_exact[0] and few.rows[0, 0] != 1
    assert many.is_exact[0] and many.rows[0, 0] == 1
    peer = DocumentDistance("transport", mode="geomloss")
    assert not search_sentences(vectors, ["q"], 1, peer, first=30).is_exact[0]
    found = search_sentences(vectors, ["q"], 1, peer, first=None)
    assert found.is_exact[0]
    assert_nearest(found.rows[0], found.scores[0], brute_force(vectors, 0, peer))


MISTAKES = [
    ((["x"], 1), {}, "'x' is none of the 3 papers of these sentence vectors"),
    ((np.array([0, 7]), 1), {}, "paper 7 is out of range; the sentence vectors have the papers 0 to 2"),
    ((["a"], 0), {}, "k is 0; it must be at least 1"),
    ((["a"], 9), {"first": 5}, "first is 5 and k is 9"),
    ((["c"], 1), {}, "paper 'c' has no sentence vectors"),
    ((["a"], 1), {"query_sentences": [np.array([1, 4])]}, "none of the sentences 1, 4 of paper 'a' has a vector; it has .* 0, 2"),
    ((["a"], 1), {"query_sentences": [np.array([], int)]}, "none of the sentences none of"),
    ((["a"], 1), {"query_sentences": []}, "query_sentences has 0 entries for 1 queries"),
    (([np.eye(2)], 1), {}, r"query 0 has the shape \(2, 2\); the papers have sentence vectors of 3 numbers"),
    (([np.empty((0, 3))], 1), {}, "query 0 has no sentence vectors"),
    (([np.full((1, 3), np.nan)], 1), {}, "row 0 of the queries holds a number that is not finite"),
    ((["a"], 1), {"pool": np.array([3])}, "pool reaches from 3 to 3; .* 0 to 2"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "message"), MISTAKES)
def test_mistakes(arguments, options, message):
    papers = [np.eye(3)[:2], np.eye(3)[2:], np.empty((0, 3))]
    vectors = SentenceVectors.of(["a", "b", "c"], papers, numbers=[np.array([0, 2]), np.array([0]), np.array([], int)])
    refused(message, search_sentences, vectors, *arguments, SINGLE, **options)
