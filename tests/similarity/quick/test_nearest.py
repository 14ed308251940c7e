"""Quick search: the very rows and scores of `similarity.nearest`, whatever the vectors, the filter and the threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.errors import ArtefactError, UserError
from citeweave.similarity.nearest import nearest
from citeweave.similarity.quick import nearest as quick
from citeweave.similarity.quick import sharing
from citeweave.similarity.quick.asking import ask
from citeweave.similarity.quick.codes import Codes, make_codes
from citeweave.similarity.quick.nearest import compare, quick_candidates, quick_nearest


def hard_vectors(seed: int, rows: int, dimension: int, dtype: str) -> np.ndarray:
    """Vectors in bundles that are all but equal, with copies, zeros, and lengths from the least to the greatest."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, rows // 8), dimension))
    vectors = centres[rng.integers(len(centres), size=rows)] + 1e-3 * rng.standard_normal((rows, dimension))
    exponents = rng.integers(-4, 4, (rows, 1)) if dtype == "float16" else rng.integers(-36, 36, (rows, 1))
    vectors = (vectors * 10.0**exponents).astype(dtype)
    vectors[rng.random(rows) < 0.1] = 0
    copies = rng.random(rows) < 0.2
    vectors[copies] = vectors[rng.integers(rows, size=int(copies.sum()))]
    return vectors


def expected(matrix, queries, k, *, allowed=None, itself=None):
    """The same by `similarity.nearest`, filled up where fewer than k rows count."""
    rows = np.full((len(queries), k), -1)
    scores = np.full((len(queries), k), np.nan, np.float32)
    pool = np.arange(len(matrix)) if allowed is None else np.flatnonzero(allowed)
    width = min(k, len(pool))
    if width:
        found = nearest(matrix, queries, width, pool_rows=pool, itself=itself)
        rows[:, :width], scores[:, :width] = found.rows, found.scores
    return rows, scores


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 90),
    dimension=st.sampled_from([1, 3, 16, 40]),
    dtype=st.sampled_from(["float16", "float32"]),
    k=st.integers(1, 100),
    share=st.sampled_from([None, 0.0, 0.1, 0.7]),
)
def test_equals_the_slow_search(seed, rows, dimension, dtype, k, share) -> None:
    matrix, rng = hard_vectors(seed, rows, dimension, dtype), np.random.default_rng(seed + 1)
    own = rng.integers(-1, rows, 5)
    queries = np.concatenate(
        [matrix[own], np.zeros((1, dimension), dtype), hard_vectors(seed + 2, 2, dimension, dtype)]
    )
    own = np.concatenate([own, [-1, -1, 0]])
    allowed = None if share is None else rng.random(rows) < share
    found = quick_nearest(make_codes(matrix), matrix, queries, k, allowed=allowed, itself=own)
    rows_, scores = expected(matrix, queries, k, allowed=allowed, itself=own)
    np.testing.assert_array_equal(found.rows, rows_)
    np.testing.assert_array_equal(found.scores, scores)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    dimension=st.sampled_from([1, 5, 64, 100]),
    dtype=st.sampled_from(["float16", "float32"]),
)
def test_no_quick_cosine_is_more_wrong_than_its_bound(seed, dimension, dtype) -> None:
    matrix, queries = hard_vectors(seed, 70, dimension, dtype), hard_vectors(seed + 1, 3, dimension, dtype)
    codes, asked = make_codes(matrix), ask(queries, dimension)
    searched = quick.Searched.of(codes, matrix, None)
    found = np.empty((3, 70), np.float32)
    quick._scan(searched, asked, np.full(3, -1), 4, found)
    for query in range(3):
        exact = searched.score(asked.vectors[query], float(asked.norms[query]), np.arange(70, dtype=np.int32))
        share, rest = asked.error(query)
        assert (np.abs(found[query].astype(float) - exact) <= codes.errors * share + rest).all()


def test_many_parts_and_threads_change_nothing(monkeypatch) -> None:
    matrix = hard_vectors(1, 3000, 48, "float32")
    codes, queries = make_codes(matrix), matrix[:11]
    for exact in (True, False):
        once = quick_nearest(codes, matrix, queries, 20, exact=exact)
        for part, cores, scored in ((64, 3, 7), (100, 1, 64), (1 << 14, 4, 1)):
            with monkeypatch.context() as patch:
                patch.setattr(quick, "PART", part)
                patch.setattr(quick, "SCORED", scored)
                patch.setattr(sharing, "cores", lambda cores=cores: cores)
                again = quick_nearest(codes, matrix, queries, 20, exact=exact)
            np.testing.assert_array_equal(once.rows, again.rows)
            np.testing.assert_array_equal(once.scores, again.scores)
    np.testing.assert_array_equal(quick_nearest(codes, matrix, queries, 20).rows, nearest(matrix, queries, 20).rows)


def test_processors_without_the_instruction_find_the_same(monkeypatch) -> None:
    matrix = hard_vectors(2, 500, 40, "float16")
    codes = make_codes(matrix)
    with_it = quick_nearest(codes, matrix, matrix[:6], 9)
    monkeypatch.setattr(quick, "_HAS_INSTRUCTION", False)
    without = quick_nearest(codes, matrix, matrix[:6], 9)
    np.testing.assert_array_equal(with_it.rows, without.rows)
    np.testing.assert_array_equal(with_it.scores, without.scores)


def test_all_that_tie_with_the_last_are_candidates() -> None:
    matrix = np.array([[1, 0], [0, 1], [2, 0], [1, 1], [3, 0]], np.float32)
    codes = make_codes(matrix)
    [found] = quick_candidates(codes, matrix, matrix[:1], 2)
    assert found.rows.tolist() == [0, 2, 4] and found.scores.tolist() == [1.0, 1.0, 1.0]
    [few] = quick_candidates(codes, matrix, matrix[:1], 4, least=0.9)
    assert few.rows.tolist() == [0, 2, 4]


def test_half_precision_is_read_to_the_last_bit() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits[np.isfinite(bits.view(np.float16))].view(np.float16)
    matrix = np.stack([halves, np.ones_like(halves)], axis=1)  # (numbers, 2)
    searched = quick.Searched.of(make_codes(matrix), matrix, None)
    rows = np.arange(len(matrix), dtype=np.int32)
    wide = matrix.astype(np.float32)
    as_single = quick.Searched.of(make_codes(wide), wide, None)
    query = np.array([1, 0], np.float32)
    np.testing.assert_array_equal(searched.score(query, 1.0, rows), as_single.score(query, 1.0, rows))


def test_the_quick_way_finds_nearly_all_of_ordinary_vectors() -> None:
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((4000, 64)).astype(np.float16)
    queries = rng.standard_normal((20, 64)).astype(np.float32)
    found = quick_nearest(make_codes(matrix), matrix, queries, 10, exact=False)
    exact = nearest(matrix, queries, 10)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.rows, exact.rows, strict=True)]) > 0.98


def test_no_rows_no_queries() -> None:
    empty = np.empty((0, 4), np.float32)
    assert quick_nearest(make_codes(empty), empty, np.ones((2, 4), np.float32), 3).rows.tolist() == [[-1] * 3] * 2
    some = np.ones((2, 4), np.float32)
    assert quick_nearest(make_codes(some), some, empty, 3).rows.shape == (0, 3)


def test_questions_that_cannot_be_answered() -> None:
    matrix = np.ones((3, 4), np.float32)
    codes, query = make_codes(matrix), np.ones((1, 4), np.float32)
    with pytest.raises(UserError, match="not finite"):
        quick_nearest(codes, matrix, np.full((1, 4), np.inf, np.float16), 1)
    with pytest.raises(UserError, match=r"\(n, 4\)"):
        quick_nearest(codes, matrix, np.ones((1, 5), np.float32), 1)
    with pytest.raises(UserError, match="k is 0"):
        quick_nearest(codes, matrix, query, 0)
    with pytest.raises(UserError, match="allowed"):
        quick_nearest(codes, matrix, query, 1, allowed=np.ones(2, bool))
    with pytest.raises(UserError, match="itself"):
        quick_nearest(codes, matrix, query, 1, itself=np.array([0, 1]))
    with pytest.raises(UserError, match="float64"):
        quick_nearest(codes, matrix.astype(np.float64), query, 1)
    with pytest.raises(ArtefactError, match="make the codes again"):
        quick_nearest(codes, matrix[:2], query, 1)


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def job(part: int) -> None:
        if part == 5:
            raise ValueError("part 5")

    with pytest.raises(ValueError, match="part 5"):
        sharing.share(9, job, workers=3)
    done: list[int] = []
    sharing.share(40, done.append, workers=4)
    assert sorted(done) == list(range(40))


def test_codes_are_a_value() -> None:
    assert isinstance(make_codes(np.eye(3, dtype=np.float32)), Codes)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_one_query_compared_with_all_rows(dtype):
    matrix, query = hard_vectors(6, 300, 24, dtype), np.random.default_rng(6).standard_normal(24).astype(np.float32)
    found = compare(make_codes(matrix), matrix, query)
    wanted = nearest(matrix, query[None], 300)
    cosines = np.empty(300, np.float32)
    cosines[wanted.rows[0]] = wanted.scores[0]
    assert found.exact(np.arange(300)).tolist() == cosines.tolist()
    assert (found.low <= cosines).all() and (cosines <= found.high).all() and (found.high - found.low < 0.05).all()
    none = compare(make_codes(matrix[:0]), matrix[:0], query)
    assert len(none.low) == len(none.exact(np.empty(0, np.int64))) == 0
