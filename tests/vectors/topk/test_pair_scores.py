"""Scores of pairs against numpy in float64."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.vectors.topk import pair_scores


def expected(queries, pool, offsets, candidates, metric):
    scores = []
    for query, low, high in zip(queries.astype(np.float64), offsets[:-1], offsets[1:], strict=True):
        for vector in pool[candidates[low:high]].astype(np.float64):
            if metric == "l2":
                scores.append(-np.linalg.norm(query - vector))
            elif metric == "dot":
                scores.append(query @ vector)
            else:
                lengths = np.linalg.norm(query) * np.linalg.norm(vector)
                scores.append(query @ vector / lengths if lengths else 0.0)
    return np.array(scores)


def drawn(seed, dimension, dtype):
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(50, dimension)).astype(dtype)
    pool[7] = 0
    queries = pool[rng.integers(0, 50, 12)] + rng.normal(size=(12, dimension)).astype(dtype) / 8
    queries[3] = 0
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 12))])
    return queries, pool, offsets, rng.integers(0, 50, offsets[-1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
@pytest.mark.parametrize("dimension", [1, 3, 16, 33])
def test_scores_are_those_of_numpy(metric, dtype, dimension):
    case = drawn(dimension, dimension, dtype)
    assert np.allclose(pair_scores(*case, metric), expected(*case, metric), rtol=1e-12, atol=1e-13)


def test_small_differences_and_large_numbers_are_kept():
    pair = np.array([0, 2]), np.array([0, 1])
    near = np.array([[1.0, 1.0 + 1e-9], [1.0, 1.0 - 3e-9]])
    assert np.allclose(pair_scores(np.ones((1, 2)), near, *pair, "l2"), [-1e-9, -3e-9], rtol=1e-6)
    far = np.full((2, 64), 1000, np.float32)
    far[1, 0] += np.float32(0.001)
    assert pair_scores(far[:1], far, *pair, "l2").tolist() == [0.0, 1000.0 - float(far[1, 0])]
    large = np.array([[1e150, 0], [1e150, 1e150]])
    assert np.allclose(pair_scores(large[:1], large, *pair, "cosine"), [1, 0.5**0.5])


def test_blocks_and_memory_maps_change_nothing(tmp_path, monkeypatch):
    for dtype in ("float16", "float32"):
        queries, pool, offsets, candidates = drawn(0, 9, dtype)
        whole = pair_scores(queries, pool, offsets, candidates, "cosine")
        np.save(tmp_path / "pool.npy", pool)
        mapped = np.load(tmp_path / "pool.npy", mmap_mode="r", allow_pickle=False)
        monkeypatch.setattr("citeweave.vectors.topk.scan.PAIRS_TOGETHER", 5)
        assert np.array_equal(pair_scores(queries, mapped, offsets, candidates, "cosine"), whole)
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_candidate_without_vector_has_no_score(dtype):
    pool = np.eye(2, dtype=dtype)
    scores = pair_scores(pool, pool, np.array([0, 1, 3]), np.array([-1, 1, -1]), "dot")
    assert np.isnan(scores).tolist() == [True, False, True] and scores[1] == 1


def test_what_does_not_fit_is_refused():
    empty = np.empty(0, np.int64)
    assert pair_scores(np.eye(2), np.eye(2), np.array([0, 0, 0]), empty, "l2").tolist() == []
    with pytest.raises(UserError, match=r"queries of shape \(1, 3\) cannot be scored with candidates of shape \(2, 2"):
        pair_scores(np.ones((1, 3)), np.eye(2), np.array([0, 1]), np.array([0]), "l2")
    with pytest.raises(UserError, match="metric is 'cosin'.*Did you mean 'cosine'"):
        pair_scores(np.eye(2), np.eye(2), np.array([0, 1, 1]), np.array([0]), "cosin")
    with pytest.raises(IndexError):
        pair_scores(np.eye(2), np.eye(2), np.array([0, 1, 1]), np.array([2]), "l2")
