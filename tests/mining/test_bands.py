"""Bands: curves against counting by hand, and bands that keep positives and negatives apart in pools of any size."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.graph.citations import graph_from_edges
from citeweave.mining import band_curves as curves
from citeweave.mining import bands as module
from citeweave.mining.audit import audit_samples
from citeweave.mining.bands import BandOptions, apply_bands, choose_bands, choose_bands_for_rules, draw_bands
from citeweave.mining.false_negatives import relate_pairs, relation_bit
from citeweave.mining.inputs import MiningInputs, PoolVectors
from citeweave.mining.mine import mine_samples
from citeweave.mining.rules import parse_rules
from citeweave.vectors.topk import Band, nearest

from .conftest import refused, table_of

SCINCL = {
    "positives": {"source": "neighbors", "count": 5, "band": 25},
    "negatives": {
        "hard": {"source": "neighbors", "count": 2, "band": 200},
        "easy": {"source": "random", "count": 3, "exclude": ["neighbors"]},
    },
}


def clusters(papers, seed=0, size=12):
    """Papers in clusters that cite within them, as vectors and as a graph; every tenth paper is not in the pool."""
    random = np.random.default_rng(seed)
    home = np.arange(papers) // size
    matrix = random.normal(size=(home.max() + 1, 24))[home] + 0.6 * random.normal(size=(papers, 24))
    citing = np.repeat(np.arange(papers), 3)
    cited = np.minimum(home[citing] * size + random.integers(0, size, len(citing)), papers - 1)
    rows = np.arange(papers)
    pool = PoolVectors(matrix.astype(np.float32), rows, rows, rows[rows % 10 != 3])
    return pool, graph_from_edges(citing, cited, papers)


def all_ranks(vectors, metric):
    """[a, b] = the rank of row b among the neighbors of row a, 0 where it has none."""
    pool, size = vectors.pool, len(vectors.matrix)
    matrix, ranks = vectors.matrix, np.zeros((size, size), np.int64)
    found = nearest(matrix, matrix[pool], len(pool) - 1, metric=metric, pool_rows=pool, itself=pool)
    ranks[pool[:, None], found.rows] = np.arange(1, len(pool))
    return ranks


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("ties", [False, True])
def test_reverse_ranks_are_those_of_a_full_search(metric, ties):
    vectors, _ = clusters(400)
    matrix = np.round(vectors.matrix[:, :4]) if ties else vectors.matrix
    matrix[~matrix.any(axis=1)] = 1
    vectors = PoolVectors(matrix, vectors.row_of, vectors.paper_of, vectors.pool)
    expected = all_ranks(vectors, metric)
    random = np.random.default_rng(1)
    rows, targets = random.choice(vectors.pool, (2, 1500))
    rows, targets = rows[rows != targets], targets[rows != targets]
    found = curves.rank_pairs(matrix, rows, targets, metric=metric, pool_rows=vectors.pool, workers=2)
    assert np.array_equal(found, expected[rows, targets])


@pytest.mark.parametrize("part", [1.0, 0.6])
def test_the_collision_curve_of_all_anchors_is_counted_by_hand(part):
    vectors, _ = clusters(300)
    anchors = np.random.default_rng(2).permutation(300)[: int(300 * part)]
    usable = set(anchors.tolist()) & set(vectors.pool.tolist())
    ranks, band = all_ranks(vectors, "cosine"), Band(3, 8)
    grid = [12, 20, 60, 200]
    rows = curves.draw_anchors(vectors, anchors, 10_000, 0)
    reverse = curves.reverse_ranks(vectors, rows, anchors, band)
    shares = curves.collision_shares(reverse, len(rows), grid, len(vectors.pool))
    for rank, share in zip(grid, shares, strict=True):
        low, high = int(rank / curves.STEP), min(int(np.ceil(rank * curves.STEP)), len(vectors.pool) - 1)
        pairs = [(a, b) for a in usable for b in usable if a != b]
        collisions = sum(low < ranks[a, b] <= high and band.low < ranks[b, a] <= band.high for a, b in pairs)
        assert share == pytest.approx(collisions / len(usable) / (high - low))
    assert shares[0] > shares[-1] and len(reverse) <= 5 * len(usable)


def test_the_related_curve_asks_the_graph_about_each_rank():
    vectors, graph = clusters(300)
    rows = vectors.pool[::7]
    curve = curves.related_curve(vectors, graph, rows, near=6, ranks=np.array([3, 20, 40]))
    assert curve.ranks.tolist() == [1, 2, 3, 4, 5, 6, 20, 40]
    ranks = all_ranks(vectors, "cosine")
    for at, (low, high) in enumerate([*((k - 1, k) for k in range(1, 7)), (10, 20), (30, 40)]):
        pairs = [(a, int(b)) for a in rows for b in np.flatnonzero((ranks[a] > low) & (ranks[a] <= high))]
        bits = relate_pairs(graph, *np.array(pairs).T)
        assert curve.shares["co-cited"][at] == pytest.approx(((bits & relation_bit("cocited")) > 0).mean())
        assert curve.shares["connected or co-cited"][at] == pytest.approx(((bits & 7) > 0).mean())
    assert 0 < curve.background["connected"] < curve.shares["connected"][0]


@settings(max_examples=25)
@given(st.integers(56, 700), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.sampled_from([0.0005, 0.9]))
def test_bands_never_overlap(papers, positives, negatives, known, limit):
    vectors, graph = clusters(papers, seed=papers)
    options = BandOptions(sample=60, seed=papers, collisions=limit)
    given = {"positives": positives, "negatives": negatives, "options": options} | ({"graph": graph} if known else {})
    bands = choose_bands(vectors, **given)
    assert bands.as_json() == choose_bands(vectors, **given).as_json()
    assert positives <= bands.positive_rank <= max(positives, min(25, len(vectors.pool) // 40))
    assert bands.positive_rank <= bands.negative_rank - negatives < bands.negative_rank <= len(vectors.pool) / 2
    assert bands.pool == len(vectors.pool) and 0 <= bands.collisions <= 1
    json.dumps(bands.as_json())


def test_the_negative_rank_is_the_least_that_fits():
    vectors, graph = clusters(2000)
    bands = choose_bands(vectors, graph=graph)
    assert bands.related is not None and bands.collisions <= 0.0005
    compared, random = bands.related.shares["connected or co-cited"], bands.related.background["connected or co-cited"]
    limit = random + 0.05 * (compared[:5].mean() - random)
    ranks = bands.curve.ranks
    fits = (bands.curve.shares <= 0.0005) & (compared[np.searchsorted(bands.related.ranks, ranks)] <= limit)
    assert fits[ranks >= bands.negative_rank].all() and not fits[ranks < bands.negative_rank][-1]
    assert compared[bands.positive_rank - 5 : bands.positive_rank].mean() >= compared[:5].mean() / 2
    strict = choose_bands(vectors, graph=graph, options=BandOptions(collisions=0.0, max_share=0.02))
    assert strict.negative_rank <= 0.02 * strict.pool and "fewest" in str(strict)


@pytest.mark.parametrize("known", [True, False])
def test_mined_samples_have_as_few_collisions_as_predicted(known, corpus, graph, vectors, mine, tmp_path):
    inputs = MiningInputs(graph=graph if known else None, vectors={"graph": vectors})
    rules = parse_rules(SCINCL)
    bands = choose_bands_for_rules(corpus, rules, inputs, seed=1)

    def audit(name, bands):
        samples = mine_samples(corpus, apply_bands(rules, bands), tmp_path / name, inputs)
        return audit_samples(samples, corpus, graph=graph, near_duplicates=False)

    banded, crowded = audit("b", bands), audit("n", replace(bands, negative_rank=bands.positive_rank + 2))
    hard = next(rule.picks for rule in banded.rules if rule.name == "hard")
    assert banded.collisions.touched_by_rule.get("hard", 0) / hard == pytest.approx(bands.collisions, abs=0.005)
    assert crowded.collisions.share_of_pairs > 10 * banded.collisions.share_of_pairs
    assert "--bands auto" in str(crowded)


def test_bands_go_to_the_rules_that_take_them(corpus, vectors):
    negatives = {"near": ("graph", 2, 100), "far": ("graph", 4, 150), "text": ("text", 1, 40)}
    table = {
        "positives": {"a": {**SCINCL["positives"], "count": 2}, "b": {**SCINCL["positives"], "count": 3}},
        "negatives": {
            name: {"source": "neighbors", "count": count, "band": band, "vectors": named}
            for name, (named, count, band) in negatives.items()
        }
        | {"easy": {"source": "random", "count": 3}},
    }
    rules = parse_rules(table)
    with pytest.raises(UserError, match=r"graph \(cosine\), text \(cosine\); write the bands"):
        choose_bands_for_rules(corpus, rules, MiningInputs(vectors={"graph": vectors}))
    bands = choose_bands(clusters(400)[0], positives=5, negatives=6)
    applied = apply_bands(rules, bands)
    first, last = bands.positive_rank, bands.negative_rank
    assert [rule.band for rule in applied.positives] == [first, first - 2]
    assert [rule.band for rule in applied.negatives] == [last, last + 4, 40, None]
    banded = [rule for rule in applied.rules if rule.band and rule.vectors == "graph"]
    covered = [rank for rule in banded for rank in range(*rule.ranks(360))]
    assert len(covered) == len(set(covered)) == 11
    mixture = apply_bands(parse_rules({"tasks": {"x": table, "y": {**SCINCL, "weight": 2}}}), bands)
    assert [rules.positives[0].band for _, _, rules in mixture.tasks] == [first, first]


def test_bands_are_chosen_for_each_aspect(corpus, graph, intent_inputs, tmp_path):
    inputs = intent_inputs(graph)
    rules = parse_rules(table_of("sciaspect_bands"))
    chosen = module.choose_aspect_bands(corpus, rules, inputs)
    assert list(chosen) == ["background", "method", "result"]
    banded = module.apply_aspect_bands(rules, chosen)
    for aspect, bands in chosen.items():
        own = banded.for_aspect(aspect)
        assert (own.positives[0].band, own.negatives[0].band) == (bands.positive_rank, bands.negative_rank)
        assert own.positives[0].vectors == f"graph-{aspect}"
    assert rules.positives[0].for_aspect("method").band == (20, 25)
    assert len(mine_samples(corpus, banded, tmp_path / "s", inputs)) > len(corpus)
    tiny = graph.with_intents(np.where(np.arange(graph.edges) < 9, 4, graph.intents & 3).astype(np.uint8))
    with pytest.raises(UserError, match="aspect result: the pool has .* bands need 50 or more.*leave the aspect out"):
        module.choose_aspect_bands(corpus, rules, intent_inputs(tiny, "small"))


def test_pools_that_are_too_small_are_refused(corpus):
    for papers, options, message in (
        (40, {}, "the pool has 36 papers with text and a vector; bands need 50 or more: give more"),
        (60, {"positives": 20, "negatives": 10}, "20 positives and 10 hard negatives do not fit side by side into the nearest 27 of 54"),
        (100, {"positives": 0}, "0 positives"),
        (100, {"anchors": np.array([3])}, "none of the anchors has text"),
    ):  # fmt: skip
        refused(message, choose_bands, clusters(papers)[0], **options)
    with pytest.raises(UserError, match="they are of none"):
        choose_bands_for_rules(corpus, parse_rules({"positives": {"source": "cited", "count": 1}}), MiningInputs())
    refused("max_share is 2", BandOptions, max_share=2)


def test_the_grid_reaches_both_ends():
    for first, last in ((1, 1), (1, 2), (7, 12), (1, 50_000)):
        grid = curves.rank_grid(first, last)
        assert grid[0] == first and grid[-1] == last and (np.diff(grid) > 0).all() and len(grid) < 50


def test_pictures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    vectors, graph = clusters(300)
    drawn = draw_bands(choose_bands(vectors, graph=graph), tmp_path)
    assert [path.name for path in drawn] == ["collisions.png", "related.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
