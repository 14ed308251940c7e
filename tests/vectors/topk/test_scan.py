"""A scan for few queries: the very result of comparing everything, whatever the vectors, the filter and the threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.executor import run_in_threads, run_range_in_threads
from citeweave.vectors.topk import METRICS, Neighbors, compare, engine, kernels, make_codes, nearest, scan
from citeweave.vectors.topk.codes import halves_are_faster
from citeweave.vectors.topk.kernels import widen
from citeweave.vectors.topk.scan import Queries, Rows

from ...conftest import refused


def hard_vectors(seed, rows, dimension, dtype):
    """Vectors in bundles that are all but equal, with copies, zeros, and lengths from the least to the greatest."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((max(1, rows // 8), dimension))
    vectors = centers[rng.integers(len(centers), size=rows)] + 1e-3 * rng.standard_normal((rows, dimension))
    exponents = rng.integers(-4, 4, (rows, 1)) if dtype == "float16" else rng.integers(-36, 36, (rows, 1))
    vectors = (vectors * 10.0**exponents).astype(dtype)
    vectors[rng.random(rows) < 0.1] = 0
    copies = rng.random(rows) < 0.2
    vectors[copies] = vectors[rng.integers(rows, size=int(copies.sum()))]
    return vectors


def by_blocks(matrix, queries, k, **options):
    """The same by matrix products."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "FEW_QUERIES", 0)
        return nearest(matrix, queries, k, **options)


def assert_same(one, other):
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.scores, other.scores)


SEEDS, DTYPES = st.integers(0, 10**6), st.sampled_from(["float16", "float32"])
POOLS = {"rows": st.integers(1, 90), "dimension": st.sampled_from([1, 3, 16, 40]), "dtype": DTYPES}
KINDS = {"dimension": st.sampled_from([1, 5, 64, 100]), "dtype": DTYPES, "metric": st.sampled_from([None, *METRICS])}


@settings(max_examples=80)
@given(seed=SEEDS, **POOLS, metric=st.sampled_from(METRICS), share=st.sampled_from([None, 0.0, 0.1, 0.7]))
def test_equals_matrix_products(seed, rows, dimension, dtype, metric, share):
    matrix, rng = hard_vectors(seed, rows, dimension, dtype), np.random.default_rng(seed + 1)
    if metric != "cosine" and dtype == "float32":
        matrix = np.clip(matrix, -1e16, 1e16)  # products that float32 can hold
    own, k = rng.integers(-1, rows, 5), int(rng.integers(1, rows + 1))
    queries = np.concatenate([matrix[own], np.zeros((1, dimension), dtype), matrix[rng.integers(rows, size=2)]])
    allowed = None if share is None else rng.random(rows) < share
    options = {"metric": metric, "itself": np.concatenate([own, [-1, -1, 0]]), "allowed": allowed}
    wanted = by_blocks(matrix, queries, k, **options)
    assert_same(nearest(matrix, queries, k, **options), wanted)
    assert_same(nearest(matrix, queries, k, codes=make_codes(matrix), **options), wanted)
    if share is None:
        one = {**options, "itself": options["itself"][:1]}
        assert_same(nearest(matrix, queries[:1], k, **one), Neighbors(wanted.rows[:1], wanted.scores[:1]))


@settings(max_examples=60)
@given(seed=SEEDS, **KINDS, count=st.sampled_from([1, 3]))
def test_no_approximate_score_is_more_wrong_than_its_bound(seed, dimension, dtype, metric, count):
    """None is the cosine by codes."""
    matrix, queries = hard_vectors(seed, 70, dimension, dtype), hard_vectors(seed + 1, count, dimension, dtype)
    if metric in ("dot", "l2") and dtype == "float32":
        matrix, queries = np.clip(matrix, -1e15, 1e15), np.clip(queries, -1e15, 1e15)
    code = {"dot": kernels.DOT, "l2": kernels.L2}.get(metric, kernels.COSINE)
    codes = make_codes(matrix) if metric is None else None
    rows, asked = Rows.of(matrix, metric=code, codes=codes), Queries.of(queries)
    scanned = scan.scan(rows, asked, 4)
    for query in range(count):
        keys = rows.keys(asked, query, np.arange(70, dtype=np.int32))
        exact = np.array([kernels.score_of(key) for key in keys], float)
        approximate, bound = scanned.approximate_scores[query].astype(float), scanned.bounds[query]
        of_codes = 0 if codes is None else codes.errors * bound.of_row
        error = bound.of_score * np.abs(approximate) + bound.constant + of_codes
        assert (np.abs(approximate - exact) <= error).all()


def test_many_parts_and_threads_change_nothing(monkeypatch):
    matrix = hard_vectors(1, 3000, 48, "float32")
    queries = matrix[:11]
    for options in ({"codes": make_codes(matrix)}, {"codes": make_codes(matrix), "exact": False}, {}):
        once = nearest(matrix, queries, 20, **options)
        for part, workers, scored, together in ((64, 3, 7, 1), (100, 1, 64, 3), (1 << 14, 4, 1, 11)):
            with monkeypatch.context() as patch:
                patch.setattr(scan, "PART", part)
                patch.setattr(scan, "SCORED", scored)
                patch.setattr(scan, "SCANNED_TOGETHER", together)
                assert_same(nearest(matrix, queries, 20, workers=workers, **options), once)
    assert_same(once, by_blocks(matrix, queries, 20))


@pytest.mark.parametrize("dimension", [1, 16, 40, 384, 1100])
def test_both_ways_to_multiply_codes_give_the_same_cosines(dimension, monkeypatch):
    matrix = hard_vectors(2, 500, dimension, "float16")
    rows, queries = Rows.of(matrix, codes=make_codes(matrix)), Queries.of(matrix[:6])
    approximate = []
    for by_halves in (True, False):
        monkeypatch.setattr(scan, "halves_are_faster", lambda by_halves=by_halves: by_halves)
        approximate.append(scan.scan(rows, queries, 9).approximate_scores)
    np.testing.assert_array_equal(*approximate)
    assert halves_are_faster() in (True, False) and halves_are_faster.cache_info().currsize == 1


def test_half_precision_is_read_to_the_last_bit():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide, finite = np.empty(1 << 16, np.float32), np.isfinite(halves)
    widen(halves.view(np.int16), wide)
    np.testing.assert_array_equal(wide[finite], halves[finite].astype(np.float32))
    np.testing.assert_array_equal(np.signbit(wide[finite]), np.signbit(halves[finite]))
    assert np.isinf(wide[~finite]).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 2])
def test_numbers_that_are_not_finite_are_named_by_row(metric, dtype, value, count):
    matrix = np.random.default_rng(0).standard_normal((40_000, 4)).astype(dtype)
    matrix[[23_000, 39_000, 39_001], 2] = value
    query = np.full((count, 4), 40_000, dtype)
    with pytest.raises(UserError, match=r"row 23000 of the pool holds a number that is not finite \(3 such rows\)"):
        nearest(matrix, query, 3, metric=metric)
    options = {"metric": metric, "allowed": np.isfinite(matrix).all(axis=1)}
    assert_same(nearest(matrix, query, 3, **options), by_blocks(matrix, query, 3, **options))


def test_large_halves_are_not_taken_for_infinite():
    matrix = np.random.default_rng(0).choice(np.array([-65504, 65504, 60000, 1e-7], np.float16), (500, 40))
    for metric in METRICS:
        assert_same(nearest(matrix, matrix[:1], 50, metric=metric), by_blocks(matrix, matrix[:1], 50, metric=metric))


def test_the_quick_way_finds_nearly_all_of_ordinary_vectors():
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((4000, 64)).astype(np.float16)
    queries = rng.standard_normal((20, 64)).astype(np.float32)
    found = nearest(matrix, queries, 10, codes=make_codes(matrix), exact=False)
    exact = nearest(matrix, queries, 10)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.rows, exact.rows, strict=True)]) > 0.98


def test_only_allowed_and_chosen_rows_are_found():
    some = np.ones((2, 4), np.float32)
    for queries in (some, np.ones((100, 4), np.float32)):
        found = nearest(some, queries, 2, allowed=np.zeros(2, bool))
        assert (found.rows == -1).all() and np.isnan(found.scores).all() and found.rows.shape == (len(queries), 2)
        assert (nearest(some, queries, 2, allowed=np.array([False, True])).rows == [1, -1]).all()
    matrix = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)
    rows, allowed = np.arange(0, 300, 2), np.arange(300) % 3 == 0
    for queries in (matrix[:2], matrix[:100]):
        both = nearest(matrix, queries, 20, pool_rows=rows, allowed=allowed)
        assert_same(both, nearest(matrix, queries, 20, pool_rows=np.arange(0, 300, 6)))


def test_wrong_arguments_are_refused():
    matrix = np.ones((3, 4), np.float32)
    for pool, size, options, message in (
        (matrix, 1, {"allowed": np.ones(2, bool)}, "allowed"),
        (matrix, 1, {"allowed": np.ones(3, int)}, "allowed"),
        (matrix * np.float32(1e30), 1e30, {"metric": "dot"}, "overflow float32"),
        (matrix * np.float32(1.6e38), -1.6e38, {"metric": "l2"}, "overflow float32"),
        (matrix[:2], 1, {"codes": make_codes(matrix)}, "make the codes again"),
    ):
        with pytest.raises(ArtifactError if "codes" in options else UserError, match=message):
            nearest(pool, np.full((1, 4), size, np.float32), 1, **options)


def test_an_error_in_a_thread_reaches_the_caller():
    def job(part):
        if part == 5:
            raise ValueError("part 5")

    refused("part 5", run_in_threads, 9, job, workers=3, error=ValueError)
    done: list[int] = []
    run_in_threads(40, done.append, workers=4)
    assert sorted(done) == list(range(40))
    for size, workers in ((0, 2), (1, 3), (10, 3), (7, 1)):
        spans: list[tuple[int, int]] = []
        run_range_in_threads(size, lambda low, high, spans=spans: spans.append((low, high)), workers)
        assert [at for low, high in sorted(spans) for at in range(low, high)] == list(range(size))
        assert len(spans) == min(size, workers)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("coded", [True, False])
def test_one_query_compared_with_all_rows(dtype, coded):
    matrix, query = hard_vectors(6, 300, 24, dtype), np.random.default_rng(6).standard_normal(24).astype(np.float32)
    codes = make_codes(matrix) if coded else None
    found = compare(matrix, query, codes)
    wanted = nearest(matrix, query[None], 300)
    cosines = np.empty(300, np.float32)
    cosines[wanted.rows[0]] = wanted.scores[0]
    assert found.exact(np.arange(300)).tolist() == cosines.tolist()
    assert (found.low <= cosines).all() and (cosines <= found.high).all()
    assert (found.high - found.low < (0.05 if coded else 1e-5)).all()
    none = compare(matrix[:0], query, make_codes(matrix[:0]) if coded else None)
    assert len(none.low) == len(none.exact(np.empty(0, np.int64))) == 0
