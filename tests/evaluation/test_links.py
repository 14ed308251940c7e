"""Link prediction: ranks against brute force, and what blind vectors must get."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.randomness import stream
from citeweave.evaluation import links
from citeweave.evaluation.links import evaluate_links, hold_out
from citeweave.graph.adjacency import Csr
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.signals import Relations, link_papers, parse_union, symmetrize, unite_signals

from .conftest import refused


def csr(nodes: int, edges: set[tuple[int, int]]) -> Csr:
    pairs = np.array(sorted(edges), np.int64).reshape(-1, 2)
    offsets = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=nodes), out=offsets[1:])
    return Csr(offsets, pairs[:, 1].astype(np.int32))


def random_edges(rng: np.random.Generator, nodes: int, count: int) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in rng.integers(0, nodes, (count, 2)) if a != b}


def brute_ranks(vectors, sources, targets, known, count, seed, draw) -> list[tuple[float, int]]:
    """(rank, negatives) of every edge and side, with the negatives drawn as the module says."""
    found = []
    for number in range(0, len(sources), links._SHARING):
        rng = stream(seed, "negatives", number // links._SHARING)
        group = range(number, min(number + links._SHARING, len(sources)))
        drawn = {side: draw(rng, count) for side in (0, 1)}
        for side in (0, 1):
            for edge in group:
                a, b = int(sources[edge]), int(targets[edge])
                true = float(vectors[a] @ vectors[b])
                above = equal = compared = 0
                for node in drawn[side].tolist():
                    pair = (node, b) if side == 0 else (a, node)
                    if pair in known or pair[0] == pair[1] or pair == (a, b):
                        continue
                    compared += 1
                    value = float(vectors[pair[0]] @ vectors[pair[1]])
                    above, equal = above + (value > true), equal + (value == true)
                found.append((1 + above + equal / 2, compared))
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 999), nodes=st.integers(3, 60), edges=st.integers(1, 200), degree=st.booleans())
def test_ranks_are_those_of_brute_force(seed, nodes, edges, degree):
    rng = np.random.default_rng(seed)
    known = random_edges(rng, nodes, edges) | {(0, 1)}
    held = sorted(known)[:: max(1, len(known) // 70)]
    sources, targets = np.array(held).T
    # small whole numbers: many ties, and exact in any order of summing
    vectors = rng.integers(-2, 3, (nodes, 3)).astype(np.float32)
    degrees = rng.integers(0, 5, nodes) + (np.arange(nodes) == 2)

    def draw(rng, count):
        return rng.choice(nodes, count, p=degrees / degrees.sum()) if degree else rng.integers(nodes, size=count)

    how = {"degrees": degrees, "negatives": "degree" if degree else "uniform", "count": 30, "seed": seed}
    scores = evaluate_links(vectors, sources, targets, known=csr(nodes, known), **how)
    ranks, compared = np.array(brute_ranks(vectors, sources, targets, known, 30, seed, draw)).T
    assert scores.edges == len(held) and scores.negatives == pytest.approx(compared.mean())
    assert scores.mrr == pytest.approx((1 / ranks).mean()) and scores.mean_rank == pytest.approx(ranks.mean())
    for limit, value in ((1, scores.hits_1), (10, scores.hits_10), (50, scores.hits_50)):
        assert value == pytest.approx((ranks <= limit).mean())
    if compared.any():
        some = compared > 0
        assert scores.auc == pytest.approx(1 - ((ranks - 1)[some] / compared[some]).mean())


def test_cosine_leaves_lengths_out():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 8)).astype(np.float32)
    stretched = vectors * rng.integers(1, 9, (200, 1)).astype(np.float32)
    ends = rng.integers(0, 100, 50), rng.integers(100, 200, 50)
    one, two = (evaluate_links(each, *ends, score="cosine", count=100) for each in (vectors, stretched))
    assert one.mrr == pytest.approx(two.mrr) and one.auc == pytest.approx(two.auc)
    one, two = (evaluate_links(each, *ends, count=100) for each in (vectors, stretched))
    assert one.auc != two.auc


def test_vectors_that_know_nothing_get_what_chance_gives():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(5000, 16)).astype(np.float32)
    sources, targets = rng.integers(0, 5000, 600), rng.integers(0, 5000, 600)
    scores = evaluate_links(vectors, sources, targets, count=200)
    harmonic = (1 / np.arange(1, 202)).sum() / 201  # the mean of 1 / rank over ranks 1 to 201
    assert scores.auc == pytest.approx(0.5, abs=0.04) and scores.mrr == pytest.approx(harmonic, abs=0.012)
    assert scores.hits_50 == pytest.approx(50 / 201, abs=0.05)
    sources, targets = np.arange(50), np.arange(50, 100)
    for vectors in (np.zeros((100, 4), np.float32), np.random.default_rng(0).normal(size=(1, 33)).repeat(100, 0)):
        for score in ("dot", "cosine"):  # of vectors that are all alike
            scores = evaluate_links(vectors, sources, targets, count=101, score=score)
            assert scores.auc == 0.5 and 45 < scores.mean_rank <= 51.5 and scores.hits_10 == 0
    # neither an end itself nor the true other end is a negative
    nothing = evaluate_links(np.eye(2, dtype=np.float32), np.array([0]), np.array([1]), count=5)
    assert nothing.negatives == 0 and nothing.mrr == 1 and np.isnan(nothing.auc)


def test_memory_maps_and_half_precision_are_evaluated_too(tmp_path):
    vectors = np.random.default_rng(0).integers(-3, 4, (300, 5)).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r", allow_pickle=False)
    sources, targets = np.arange(100), np.arange(100, 200)
    assert evaluate_links(mapped, sources, targets) == evaluate_links(vectors.astype(np.float32), sources, targets)
    assert evaluate_links(mapped, sources, targets, seed=1) != evaluate_links(mapped, sources, targets)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_the_share_is_held_out_and_mutual_edges_together(share):
    rng = np.random.default_rng(0)
    edges = random_edges(rng, 300, 4000)
    pairs = np.array(sorted(edges | {(b, a) for a, b in sorted(edges)[:500]}))
    citing, cited = pairs.T
    held = hold_out(citing, cited, share, seed=3)
    assert held.sum() == pytest.approx(share * len(pairs), abs=2)
    kept = {tuple(pair) for pair in pairs[~held].tolist()}
    assert not any((b, a) in kept for a, b in pairs[held].tolist())
    order = rng.permutation(len(pairs))
    assert np.array_equal(hold_out(citing[order], cited[order], share, seed=3), held[order])
    assert not np.array_equal(hold_out(citing, cited, share, seed=4), held)


def test_wrong_options_are_refused():
    for share in (0.0, 1.0, -0.1, 0.0001, 0.9999):
        refused("cannot be held out", hold_out, np.arange(10), np.arange(10) + 10, share, seed=0)
    given = np.eye(3, dtype=np.float32), np.array([0]), np.array([1])
    refused("Did you mean 'cosine'", evaluate_links, *given, score="cosin")
    refused("one of degree, uniform", evaluate_links, *given, negatives="hard")
    refused("degrees", evaluate_links, *given, negatives="degree", error=ValueError)
    refused("at least one of each", evaluate_links, given[0], np.array([], int), np.array([], int))


def test_held_out_co_citations_are_removed_in_both_directions_and_ranked_once():
    rng = np.random.default_rng(0)
    citing, cited = np.array(sorted(random_edges(rng, 40, 300))).T
    graph = graph_from_edges(citing, cited, 40)
    union = unite_signals(Relations(graph), parse_union("cocited", strongest=5), normalize=False)
    links_ = link_papers(union)
    dense, pairs = (
        np.zeros((40, 40)),
        {(min(a, b), max(a, b)) for a, b in zip(union.owners(), union.targets, strict=True)},
    )
    for part in symmetrize(union).parts:
        np.add.at(dense, (part.owners(), part.targets), part.weights)
    found = np.zeros((40, 40))
    found[links_.sources(), links_.cited.targets] = links_.cited.weights
    np.testing.assert_array_equal(found, dense)
    rest = []

    def embed(of):
        rest.append({(int(a), int(b)) for a, b in zip(of.sources(), of.cited.targets, strict=True)})
        return np.ones((40, 2), np.float32)

    results = links.held_out_evaluator(0.05, count=20)(links_, embed)
    (kept,) = rest
    assert (
        kept == {(b, a) for a, b in kept}
        and len(pairs) - len(kept) // 2 == results["edges"] == results["uniform"]["edges"]
    )
    assert results["edges"] == pytest.approx(0.05 * len(pairs), abs=1)
    assert results["uniform"]["auc"] == pytest.approx(0.5)  # blind vectors
    # its own and all other true links are no negatives
    assert results["uniform"]["negatives"] < 20
