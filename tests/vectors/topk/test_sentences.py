"""The best papers by their sentences: equal to comparing everything, in any number of parts."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.vectors.document_distance import DocumentDistance, PlacedSentences, rerank
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import nearest
from citeweave.vectors.topk import sentences as module
from citeweave.vectors.topk.codes import halves_are_faster, make_codes
from citeweave.vectors.topk.sentences import best_papers

from ...conftest import refused


def made_papers(seed, papers, dimension, dtype="float32"):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, papers)
    if papers > 3:
        lengths[2] = 150  # more than a chunk
    matrix = rng.standard_normal((int(lengths.sum()), dimension)).astype(dtype)
    matrix[rng.random(len(matrix)) < 0.1] = 0
    matrix[len(matrix) // 2 :: 3] = matrix[: len(matrix[len(matrix) // 2 :: 3])]  # papers that tie
    return matrix, np.concatenate([[0], np.cumsum(lengths)])


def brute_force(matrix, offsets, queries, allowed):
    """(papers that count, best (papers, queries), sums)."""
    found = nearest(matrix, queries, len(matrix))
    cosines = np.empty((len(queries), len(matrix)), np.float32)
    np.put_along_axis(cosines, found.rows.astype(np.int64), found.scores, axis=1)
    papers = [p for p in range(len(offsets) - 1) if offsets[p] < offsets[p + 1] and (allowed is None or allowed[p])]
    best = [cosines[:, offsets[p] : offsets[p + 1]].max(axis=1) for p in papers]
    best = np.array(best, np.float32).reshape(len(papers), len(queries))
    return np.array(papers, int), best, np.cumsum(best.astype(float), axis=1)[:, -1].astype(np.float32)


SIZES = {"papers": st.integers(1, 40), "sentences": st.integers(1, 5), "count": st.integers(1, 50)}
KINDS = {"dtype": st.sampled_from(["float16", "float32"]), "share": st.sampled_from([None, 0.0, 0.5])}


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), **SIZES, **KINDS)
def test_equals_comparing_everything(seed, papers, sentences, count, dtype, share):
    matrix, offsets = made_papers(seed, papers, 24, dtype)
    rng = np.random.default_rng(seed + 1)
    queries = rng.standard_normal((sentences, 24)).astype(np.float32)
    allowed = None if share is None else rng.random(papers) < share
    found = best_papers(make_codes(matrix), matrix, offsets, queries, count, allowed=allowed)
    if not len(matrix):
        assert not len(found.papers)
        return
    which, best, sums = brute_force(matrix, offsets, queries, allowed)
    order = np.lexsort((which, -sums))[:count]
    np.testing.assert_array_equal(found.papers, which[order])
    np.testing.assert_array_equal(found.scores, sums[order])
    np.testing.assert_array_equal(found.best, best[order])
    for paper, rows in zip(found.papers, found.rows, strict=True):
        assert ((offsets[paper] <= rows) & (rows < offsets[paper + 1])).all()


def test_parts_and_processors_change_nothing(monkeypatch):
    matrix, offsets = made_papers(5, 700, 32, "float16")
    codes, queries = make_codes(matrix), matrix[:3].astype(np.float32) + 0.1
    for exact in (True, False):
        once = best_papers(codes, matrix, offsets, queries, 30, exact=exact)
        with monkeypatch.context() as patch:
            patch.setattr(module, "PART", 9)
            patch.setattr(module, "SCORED", 2)
            patch.setattr(module, "halves_are_faster", lambda: not halves_are_faster())
            again = best_papers(codes, matrix, offsets, queries, 30, exact=exact)
        for name in ("papers", "scores", "best", "rows"):
            np.testing.assert_array_equal(getattr(once, name), getattr(again, name))


def test_wrong_arguments_are_refused():
    matrix, offsets = made_papers(1, 5, 8)
    good = {"offsets": offsets, "queries": matrix[:1], "count": 1}
    for change, message in (
        ({"count": 0}, "count is 0"),
        ({"queries": matrix[:0]}, "query sentences"),
        ({"offsets": np.append(offsets, len(matrix) + 1)}, "offsets"),
        ({"offsets": np.array([0, 9, 3, len(matrix)])}, "offsets"),
        ({"allowed": np.ones(3, bool)}, "allowed"),
    ):
        refused(message, best_papers, make_codes(matrix), matrix, **{**good, **change})


@pytest.mark.parametrize("name", ["transport", "single", "mean_best"])
def test_reranking_gives_the_scores_of_the_folder(name):
    matrix, offsets = made_papers(2, 12, 16)
    papers = [matrix[a:b] for a, b in pairwise(offsets)]
    vectors = SentenceVectors.of([f"p{at}" for at in range(12)], papers)
    distance, query = DocumentDistance(name), matrix[4:7] + np.float32(0.5)
    chosen = np.array([2, 0, 7, 5])
    whole = PlacedSentences(vectors, "cpu").scores(query, chosen, distance)
    np.testing.assert_array_equal(rerank(query, [papers[at] for at in chosen], distance), whole)
    assert len(rerank(query, [], distance)) == 0
