"""Nearest neighbors: equal to sorting everything, whatever the blocks, the threads and the ties."""

import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET
from citeweave.vectors.topk import METRICS, Band, Neighbors, blocks, engine, far_band, nearest, search, search_blocks
from citeweave.vectors.topk.blocks import plan_memory
from citeweave.vectors.topk.engine import _search_by_products
from citeweave.vectors.topk.request import check_request

from ...conftest import refused


@pytest.fixture(params=["scan", "blocks"])
def way(request, monkeypatch):
    """Few queries are searched by a scan; a test with this fixture searches them by matrix products as well."""
    monkeypatch.setattr(engine, "FEW_QUERIES", 10**6 if request.param == "scan" else 0)
    return str(request.param)


def ask(*arguments, **options):
    return check_request(*arguments, **options).prepare()


def brute_force(pool, queries, bands, *, metric="cosine", pool_rows=None, itself=None):
    """Every score in float64, rounded to float32; all rows sorted by it, then by row."""
    rows = np.arange(len(pool)) if pool_rows is None else pool_rows
    pool, queries = np.asarray(pool)[rows].astype(np.float64), np.asarray(queries).astype(np.float64)
    shapes = [(len(queries), band.high - band.low) for band in bands]
    found = [Neighbors(np.full(shape, -1), np.full(shape, np.nan)) for shape in shapes]
    for i, query in enumerate(queries):
        scores = -np.sqrt(((pool - query) ** 2).sum(axis=1)) if metric == "l2" else (pool * query).sum(axis=1)
        if metric == "cosine":
            norms = np.sqrt((query**2).sum()) * np.sqrt((pool**2).sum(axis=1))
            scores = np.divide(scores, norms, out=np.zeros(len(pool)), where=norms > 0)
        scores = scores.astype(np.float32)
        order = np.lexsort((rows, -scores))
        if itself is not None:
            order = order[rows[order] != itself[i]]
        for band, into in zip(bands, found, strict=True):
            members = order[band.low : band.high]
            into.rows[i, : len(members)], into.scores[i, : len(members)] = rows[members], scores[members]
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.rows.dtype == np.int32 and one.scores.dtype == np.float32
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.scores, other.scores)


def clusters(rows, dimension, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(20, dimension))[rng.integers(0, 20, rows)]
    return (centers + rng.normal(size=(rows, dimension))).astype(dtype)


def with_torch(pool, queries, bands, *, tile, sample=blocks.SAMPLE, beside=blocks.BESIDE, **options):
    question = ask(pool, queries, bands, **options)
    ranks = question.ranks
    scan = blocks.TorchScan(question.pool, ranks.deepest, "cpu", ranks=ranks, tile=tile, sample=sample, beside=beside)
    parts = _search_by_products(question, plan_memory(question, workers=1, memory=64 << 20), scan, QUIET)
    by_band = list(zip(*(found for _, found in parts), strict=True))
    columns = (([part.rows for part in band], [part.scores for part in band]) for band in by_band)
    return [Neighbors(np.concatenate(rows), np.concatenate(scores)) for rows, scores in columns]


BANDS = [Band(20, 25), Band(0, 3), Band(398, 400), Band(24, 300)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("metric", METRICS)
def test_bands_are_those_of_sorting_everything(metric, dtype, way):
    pool, queries = clusters(9000, 33, dtype=dtype), clusters(70, 33, seed=1, dtype=dtype)
    queries[7] = 0
    pool[100:200] = 0
    pool[3000:3200] = pool[5000:5200]
    itself = np.arange(70) * 100 - 1
    queries[:50] = pool[itself[:50]]
    options = {"metric": metric, "itself": itself}
    expected = brute_force(pool, queries, BANDS, **options)
    assert_same(search(pool, queries, BANDS, **options), expected)
    assert_same(with_torch(pool, queries, BANDS, tile=700, **options), expected)
    for sample in (1000, 90):  # cuts are guessed, the second time often too high
        assert_same(with_torch(pool, queries, BANDS, tile=700, sample=sample, **options), expected)
    assert_same([search(pool, queries, [band], **options)[0] for band in BANDS], expected)


def test_torch_keeps_what_is_over_the_cuts():
    pool = clusters(4000, 16)
    question = ask(pool, pool[:30], [Band(0, 40)], itself=np.arange(30))
    scan = blocks.TorchScan(question.pool, 40, "cpu", tile=600, sample=500)
    block = question.block(slice(0, 30))
    kept, unit = scan.scan(block), pool / np.linalg.norm(pool, axis=1, keepdims=True)
    for query in range(30):
        scores = unit @ unit[query]
        scores[query] = -np.inf
        own, cut = kept.positions[query, : kept.counts[query]], kept.cuts[query]
        assert kept.counts[query] >= 40 and len(set(own.tolist())) == len(own)
        # torch and numpy round otherwise: what is nearly at the cut may be on either side
        assert set(np.flatnonzero(scores > cut + 1e-5)) <= set(own.tolist()) <= set(np.flatnonzero(scores > cut - 1e-5))
    scan._k = -500  # room for 24 alone
    assert (scan.scan(block).counts == -1).all()
    answer = _search_by_products(question, plan_memory(question, workers=1, memory=64 << 20), scan, QUIET)
    assert_same(next(answer)[1], brute_force(pool, pool[:30], [Band(0, 40)], itself=np.arange(30)))


@pytest.mark.parametrize("metric", METRICS)
def test_what_lies_between_the_bands_stays_on_the_device(metric):
    bands = [Band(398, 400), Band(20, 25), Band(21, 30)]
    pool = clusters(9000, 33)
    pool[3000:3200] = pool[5000:5200]
    pool[:40] = pool[0] * (1 + 1e-7 * np.arange(40))[:, None]  # more of a kind than there is room for beside a band
    queries = np.concatenate([pool[:60:3], pool[3000:3010], clusters(20, 33, seed=1), np.zeros((1, 33), np.float32)])
    expected = brute_force(pool, queries, bands, metric=metric)
    question = ask(pool, queries, bands, metric=metric)
    for beside, fewest, most in ((0, 0, 0), (4, 25, 37), (60, 50, 51)):
        assert_same(with_torch(pool, queries, bands, tile=700, sample=1000, beside=beside, metric=metric), expected)
        scan = blocks.TorchScan(question.pool, 400, "cpu", ranks=question.ranks, tile=700, sample=1000, beside=beside)
        kept = scan.scan(question.block(slice(0, len(queries))))
        assert kept.ranks is not None and kept.scores.shape[1] <= 12 + 4 * beside
        assert fewest <= (kept.counts > 0).sum() <= most


def test_equal_scores_on_one_side_of_a_band_are_noticed():
    scores = -np.sort(-np.random.default_rng(0).random((9000, 3), np.float32), axis=0)
    scores[9:22, 0], scores[28:60, 1] = scores[9, 0], scores[28, 1]
    bands, queries = [Band(20, 25), Band(21, 30), Band(398, 400)], np.eye(3, dtype=np.float32)
    question = ask(scores, queries, bands, metric="dot")
    scan = blocks.TorchScan(question.pool, 400, "cpu", ranks=question.ranks, tile=700, sample=1000, beside=4)
    assert (scan.scan(question.block(slice(0, 3))).counts > 0).tolist() == [False, False, True]
    expected = brute_force(scores, queries, bands, metric="dot")
    assert_same(with_torch(scores, queries, bands, tile=700, sample=1000, beside=4, metric="dot"), expected)


@settings(max_examples=150)
@given(st.data())
def test_any_small_pool(data):
    """Few small numbers make many ties, of duplicates, of zeros and of opposite vectors."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, count, dimension = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 9)), data.draw(st.integers(1, 9))
    dtype, size = data.draw(st.sampled_from(["float16", "float32"])), data.draw(st.integers(0, 3))
    pool = rng.integers(-size, size + 1, (rows, dimension)).astype(dtype)
    queries = rng.integers(-size, size + 1, (count, dimension)).astype(dtype)
    pool_rows = np.flatnonzero(rng.random(rows) < 0.7) if data.draw(st.booleans()) else None
    if pool_rows is not None and not len(pool_rows):
        pool_rows = np.array([rows - 1])
    inside = rows if pool_rows is None else len(pool_rows)
    bands = []
    for _ in range(data.draw(st.integers(1, 3))):
        low = data.draw(st.integers(0, inside - 1))
        bands.append(Band(low, data.draw(st.integers(low + 1, inside))))
    itself = rng.integers(-1, rows, count) if data.draw(st.booleans()) else None
    options = {"metric": data.draw(st.sampled_from(METRICS)), "pool_rows": pool_rows, "itself": itself}
    expected = brute_force(pool, queries, bands, **options)
    for few in (0, engine.FEW_QUERIES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "FEW_QUERIES", few)
            assert_same(search(pool, queries, bands, workers=2, **options), expected)
    if count:
        assert_same(with_torch(pool, queries, bands, tile=data.draw(st.integers(1, 70)), **options), expected)


def test_a_large_pool_whose_first_cut_is_guessed(way):
    rows = 8 * blocks.SAMPLE + 5
    pool = clusters(rows, 6)
    # the nearest of all stand together at the end, where a sample sees few of them
    itself, bands = np.array([5, 70_000, rows - 1]), [Band(20, 25), Band(998, 1000)]
    expected = brute_force(pool, pool[itself], bands, itself=itself)
    assert_same(search(pool, pool[itself], bands, itself=itself), expected)


def test_a_guess_that_was_too_bold_is_made_good(monkeypatch):
    monkeypatch.setattr(blocks, "SAMPLE", 500)
    monkeypatch.setattr(blocks, "guessed_rank", lambda k, sample, size: 1)
    pool, queries = clusters(6000, 5), clusters(40, 5, seed=1)
    assert_same(search(pool, queries, BANDS), brute_force(pool, queries, BANDS))


def duplicates(_):
    """Too many to hold."""
    pool = np.ones((6000, 3), np.float32)
    pool[::7], pool[5000:5050] = [1, 2, 3], [3, 2, 1]
    queries = np.array([[1, 1, 1], [1, 2, 3], [0, 0, 0], [3, 2, 1]], np.float32)
    return pool, queries, [Band(0, 4), Band(40, 60)], np.array([3, 7, -1, 5001])


def differing_in_the_last_digit(spread):
    rng = np.random.default_rng(0)
    pool = (np.ones((3000, 64)) + spread * rng.normal(size=(3000, 64))).astype(np.float32)
    queries = np.concatenate([pool[:4], rng.normal(size=(4, 64)).astype(np.float32)])
    return pool, queries, [Band(0, 10), Band(490, 500)], np.array([0, 1, 2, 3, -1, -1, -1, -1])


def tiny_or_huge(size):
    rng = np.random.default_rng(0)
    pool, queries = (rng.normal(size=(n, 5)) * size for n in (500, 6))
    pool[:50] *= rng.uniform(1e-5, 1, (50, 1))
    return pool.astype(np.float32), queries.astype(np.float32), [Band(3, 50)], np.full(6, -1)


HARD = [
    (duplicates, 0),
    *((differing_in_the_last_digit, spread) for spread in (1e-7, 1e-6, 1e-5)),
    *((tiny_or_huge, size) for size in (1e-43, 1e-30, 1e-20, 1e18)),
]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("make", "size"), HARD)
def test_hard_numbers(metric, make, size, way):
    pool, queries, bands, itself = make(size)
    expected = brute_force(pool, queries, bands, metric=metric, itself=itself)
    assert_same(search(pool, queries, bands, metric=metric, itself=itself), expected)
    if make is duplicates:
        assert_same(with_torch(pool, queries, bands, tile=1000, metric=metric, itself=itself), expected)
        assert metric != "cosine" or expected[0].rows[0].tolist() == [1, 2, 4, 5]


def least_memory(pool, queries, bands, **options):
    with pytest.raises(UserError, match="need at least") as error:
        search(pool, queries, bands, memory=1000, **options)
    return int(re.search(r"at least ([\d,]+)", str(error.value))[1].replace(",", ""))


def test_blocks_threads_and_memory_do_not_matter():
    pool, queries = clusters(9000, 17), clusters(300, 17, seed=1)
    for bands in ([Band(0, 1)], [Band(0, 9000)], BANDS):
        least = least_memory(pool, queries, bands, workers=1)
        search_blocks(pool, queries, bands, workers=1, memory=least)
        refused("need at least", search_blocks, pool, queries, bands, workers=1, memory=least * 9 // 10)
    whole = search(pool, queries, BANDS, workers=1)
    for options in ({"workers": 1, "memory": least}, {"workers": 3}, {"workers": 2, "memory": 3 * least}):
        assert_same(search(pool, queries, BANDS, **options), whole)
    parts = list(search_blocks(pool, queries, BANDS, workers=1, memory=least))
    assert len(parts) > 5 and [part.start for part, _ in parts[1:]] == [part.stop for part, _ in parts[:-1]]
    assert parts[0][0].start == 0 and parts[-1][0].stop == 300
    assert_same([Neighbors(whole[2].rows[part], whole[2].scores[part]) for part, _ in parts], [p[2] for _, p in parts])


@pytest.mark.parametrize("bands", [[Band(0, 1)], [Band(0, 500)], [Band(20, 25), Band(1998, 2000)]])
def test_working_memory_stays_below_the_limit(bands):
    pool, queries = clusters(9000, 64), clusters(300, 64, seed=1)
    limit = 2 * least_memory(pool, queries, bands, workers=2)
    search(pool[:3000], queries, bands, workers=2)  # what compiled code takes once is not counted
    tracemalloc.start()
    for _ in search_blocks(pool, queries, bands, workers=2, memory=limit):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert limit / 8 < peak < limit


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_mapped_matrix_and_some_of_its_rows(tmp_path, dtype, way):
    np.save(tmp_path / "matrix.npy", clusters(6000, 9, dtype=dtype))
    pool = np.load(tmp_path / "matrix.npy", mmap_mode="r")
    rows, itself = np.arange(1, 6000, 3), np.arange(100, 130)
    options = {"pool_rows": rows, "itself": itself}
    found = nearest(pool, pool[100:130], 50, **options)
    assert_same([found], brute_force(pool, pool[100:130], [Band(0, 50)], **options))
    assert np.isin(found.rows, rows).all() and not (found.rows == itself[:, None]).any()


def test_itself_is_left_out_by_row_and_not_by_position_or_value(way):
    pool = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32)
    found = nearest(pool, pool[[2, 2, 2]], 3, itself=np.array([2, 1, -1]), pool_rows=np.array([0, 2, 3]))
    assert found.rows.tolist() == [[0, 3, -1], [0, 2, 3], [0, 2, 3]]
    assert np.isnan(found.scores[0, 2]) and found.scores[:, :2].tolist() == [[1, 1]] * 3


def test_no_queries_a_slice_of_a_matrix_and_other_number_types():
    found = search(clusters(10, 3), np.empty((0, 3), np.float32), [Band(2, 5), Band(0, 1)])
    assert [band.rows.shape for band in found] == [(0, 3), (0, 1)]
    pool, queries = clusters(2000, 20)[::2, 3:11], np.asfortranarray(clusters(9, 8, seed=1)).astype(np.float64)
    assert_same(search(pool, queries, [Band(0, 30)]), brute_force(pool, queries.astype(np.float32), [Band(0, 30)]))


def test_a_far_band_ends_near_its_rank():
    """Ranks of a subsample, and the error that the docstring states for them."""
    size, part, width = 20_000, 2000, 10
    pool, queries = clusters(size, 12), clusters(60, 12, seed=1)
    order = nearest(pool, queries, size).rows
    errors = []
    for seed in range(5):
        found = far_band(pool, queries, Band(2000 - width, 2000), subsample=part, seed=seed)
        assert found.rows.shape == (60, width) and (np.diff(found.scores, axis=1) <= 0).all()
        ranks = np.argsort(order, axis=1)[np.arange(60), found.rows[:, -1]] + 1
        errors.append(ranks / 2000 - 1)
    stated = np.sqrt((1 - part / size) / 200)
    assert abs(np.mean(errors)) < stated / 3
    assert 0.8 * stated < np.std(errors) < 1.2 * stated


def test_a_far_band_keeps_its_width_and_its_pool():
    pool, queries, band = clusters(3000, 4), clusters(5, 4, seed=1), Band(20, 25)
    rows, itself = np.arange(0, 3000, 2), np.zeros(5, int)
    whole = far_band(pool, queries, band, subsample=1500, pool_rows=rows)
    assert_same([whole], search(pool, queries, [band], pool_rows=rows))
    near = far_band(pool, queries, band, subsample=50, pool_rows=rows, itself=itself)
    assert near.rows.shape == (5, 5) and (near.rows % 2 == 0).all() and (near.rows > 0).all()
    assert_same([far_band(pool, queries, band, subsample=50, pool_rows=rows, itself=itself, workers=3)], [near])
    other = far_band(pool, queries, band, subsample=50, pool_rows=rows, seed=1)
    assert not np.array_equal(other.rows, near.rows)
    for wrong in (4, 1501):
        with pytest.raises(UserError, match=f"subsample is {wrong:,}; it must be from 5, .* to 1,500"):
            far_band(pool, queries, band, subsample=wrong, pool_rows=rows)


POOL = clusters(30, 4)


CANNOT_BE_SEARCHED = [
    ({"bands": [Band(20, 31)]}, r"band \(20, 31\] ends beyond the pool of 30 vectors"),
    ({"bands": [Band(2, 3)], "pool_rows": np.array([4, 5])}, r"band \(2, 3\] ends beyond the pool of 2 vectors"),
    ({"bands": []}, "there is no band"),
    ({"metric": "cosin"}, "metric is 'cosin'.*Did you mean 'cosine'"),
    ({"device": "gpu"}, "device is 'gpu'; it must be one of auto, cpu, cuda"),
    ({"queries": POOL[:, :3]}, "the pool has vectors of 4 numbers and the queries of 3"),
    ({"pool": POOL[:0]}, "the pool is empty"),
    ({"pool_rows": np.array([], int)}, "the pool is empty"),
    ({"pool": POOL[0]}, r"the pool of shape \(4,\) and type float32: it must be a matrix"),
    ({"queries": POOL.astype(int)}, r"the queries of shape \(30, 4\) and type int64"),
    ({"pool_rows": np.array([1, 30])}, "pool_rows reaches from 1 to 30; the matrix has the rows 0 to 29"),
    ({"pool_rows": np.array([-1, 3])}, "pool_rows reaches from -1 to 3"),
    ({"pool_rows": np.array([1, 5, 5])}, "pool_rows must ascend, but 5 follows 5"),
    ({"pool_rows": np.array([True, False])}, "pool_rows of shape .* bool"),
    ({"itself": np.arange(3)}, "itself has 3 rows for 30 queries"),
    ({"itself": np.arange(1, 31)}, "itself reaches from 1 to 30; it must be -1 or one of the rows 0 to 29"),
    ({"itself": np.full(30, -2)}, "itself reaches from -2 to -2"),
    ({"workers": -1}, "workers is -1"),
    ({"memory": 5}, "memory is 5 bytes; 30 queries in 30 vectors need at least"),
    ({"pool": POOL * 1e30, "queries": POOL * 1e30, "metric": "dot"}, "scores that overflow float32"),
]


@pytest.mark.parametrize(("change", "message"), CANNOT_BE_SEARCHED)
def test_what_cannot_be_searched_is_refused(change, message, way):
    arguments = {"pool": POOL, "queries": POOL, "bands": [Band(0, 1)], **change}
    refused(message, search_blocks, **arguments)


@pytest.mark.parametrize(("low", "high"), [(5, 5), (6, 5), (-1, 5), (0, 0)])
def test_a_band_must_hold_a_rank(low, high):
    refused(re.escape(f"band ({low}, {high}]: it must be 0 <= low < high"), Band, low, high)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_named_by_row(value, way):
    broken = POOL.copy()
    broken[[17, 19], 2] = value
    for pool, queries, rows, message in (
        (broken, POOL, None, r"row 17 of the pool holds a number that is not finite \(2 such rows\)"),
        (POOL, broken, None, "row 17 of the queries"),
        (broken, POOL, np.array([3, 19, 20]), "row 19 of the pool .*1 such"),
        (POOL, np.full((1, 4), 1e300), None, "row 0 of the queries"),
    ):
        refused(message, nearest, pool, queries, 1, pool_rows=rows)
    assert nearest(broken, POOL, 1, pool_rows=np.array([3, 4])).rows.shape == (30, 1)


def test_a_device_is_used_where_there_is_one():
    expected = brute_force(POOL, POOL, [Band(0, 3)])
    assert_same(search(POOL, POOL, [Band(0, 3)], device="auto"), expected)
    if blocks.has_cuda():
        assert_same(search(POOL, POOL, [Band(0, 3)], device="cuda"), expected)
    else:
        refused("torch", search, POOL, POOL, [Band(0, 3)], device="cuda")


def test_many_workers_fit_into_little_memory(way):
    vectors = np.random.default_rng(0).normal(size=(300, 1200)).astype(np.float32)
    few, many = (nearest(vectors, vectors[:20], 5, workers=workers, memory=128 << 20) for workers in (1, 64))
    np.testing.assert_array_equal(many.rows, few.rows)
    assert plan_memory(ask(vectors, vectors[:20], [Band(0, 5)]), workers=64, memory=128 << 20).workers < 64
