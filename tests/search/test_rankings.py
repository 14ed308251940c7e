"""Fusion, Rocchio and diversity against their formulas; equal scores stand by id."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.search.rankings import RankedRows, diverse_order, fuse_rankings, pool_size, rank_rows, rocchio_vector

SCORES = st.dictionaries(st.integers(0, 12), st.floats(-1, 20).map(lambda score: round(score, 3)), max_size=8)


def ranking(scores: dict[int, float]) -> RankedRows:
    best = sorted(scores.items(), key=lambda item: -item[1])
    return RankedRows(np.array([row for row, _ in best], np.int64), np.array([score for _, score in best], np.float64))


@given(SCORES, SCORES)
def test_fused_scores_follow_the_formula(words, vectors):
    name, expected = (lambda row: f"{99 - row}"), {}
    for share, own in ((0.4, words), (0.6, vectors)):
        best = max(own.values(), default=0.0)
        for row, score in own.items():
            expected[row] = expected.get(row, 0.0) + (share * score / best if best > 0 else 0.0)
    found = fuse_rankings(ranking(words), ranking(vectors), 50, name=name)
    assert dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True)) == pytest.approx(expected)
    order = list(zip((-found.scores).tolist(), (-found.rows).tolist(), strict=True))
    assert order == sorted(order)
    for count in (0, 3):
        fewer = fuse_rankings(ranking(words), ranking(vectors), count, name=name)
        assert fewer.rows.tolist() == found.rows[:count].tolist()


def test_equal_scores_are_ordered_by_id_also_at_the_end():
    names = {1: "z", 2: "a", 3: "b"}
    found = fuse_rankings(ranking({1: 4.0, 2: 4.0}), ranking({1: 0.5, 2: 0.5, 3: 0.25}), 3, name=names.__getitem__)
    assert found.rows.tolist() == [2, 1, 3] and found.scores.tolist() == pytest.approx([1, 1, 0.3])
    assert not len(fuse_rankings(ranking({}), ranking({}), 5, name=str).rows)
    rows, scores, name = np.arange(6), np.array([1.0, 2.0, 1.0, 1.0, 3.0, 1.0]), "zyxwvu".__getitem__
    best = rank_rows(rows, scores, 4, name=name)
    assert best.rows.tolist() == [4, 1, 5, 3] and best.scores.tolist() == [3, 2, 1, 1]
    assert rank_rows(rows, scores, 9, name=name).rows.tolist() == [4, 1, 5, 3, 2, 0]


def test_disliked_papers_turn_the_query_away():
    axes = np.eye(3, dtype=np.float32)
    found = rocchio_vector(axes[:1], 7 * (axes[:1] + axes[1:2]))
    assert found[0] > 0 > found[1] and found[2] == 0
    with pytest.raises(UserError, match="cancel each other out"):
        rocchio_vector(np.array([[1, 0], [-2, 0]], np.float32), np.empty((0, 2), np.float32))


def test_diversity_is_that_of_a_slow_loop():
    rng = np.random.default_rng(3)
    scores, vectors = np.sort(rng.random(12))[::-1], rng.normal(size=(12, 4)).astype(np.float32)
    relevance = (scores - scores.min()) / (scores.max() - scores.min())
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for diversity in (0.0, 0.3, 0.8, 1.0):
        order: list[int] = []
        while len(order) < 12:
            left = [at for at in range(12) if at not in order]
            near = [max((float(unit[at] @ unit[one]) for one in order), default=0) for at in left]
            gains = [(1 - diversity) * relevance[at] - diversity * n for at, n in zip(left, near, strict=True)]
            order.append(left[int(np.argmax(gains))])
        assert diverse_order(scores, vectors, diversity).tolist() == order
        assert diverse_order(scores, vectors, diversity, 5).tolist() == order[:5]
    vectors[4] = 0  # a paper without vector is neither first nor last for that
    assert sorted(diverse_order(scores, vectors, 0.5).tolist()) == list(range(12))
    assert pool_size(3) == 50 and pool_size(20) == 100
