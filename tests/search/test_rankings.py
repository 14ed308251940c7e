"""Fusion, Rocchio and diversity against their formulas; equal scores stand by id."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.search.rankings import diverse_order, fuse_scores, pool_size, rank_rows, rocchio_vector


def test_fused_scores_follow_the_formula():
    """A paper without a vector is scored by its words; others keep their scores whatever else is ranked."""
    cosines, coverage = np.array([0.8, -0.2, np.nan, 0.0]), np.array([0.0, 1.0, 0.25, 0.5])
    fused = fuse_scores(cosines, coverage)
    assert fused.tolist() == pytest.approx([0.56, 0.16, 0.25, 0.15])
    assert fuse_scores(cosines[:2], coverage[:2]).tolist() == fused[:2].tolist()
    assert not len(fuse_scores(np.empty(0), np.empty(0)))


def test_equal_scores_are_ordered_by_id_also_at_the_end():
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
