"""Distances between papers against loops written out, their gradients against finite differences, and every corner."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.vectors import transport
from citeweave.vectors.document_distance import (
    DISTANCES,
    LIMITS,
    DocumentDistance,
    PlacedSentences,
    ScoringLimits,
    document_scores,
    explain_pair,
    match,
)
from citeweave.vectors.sentence_distances import METRICS, PaperPairs, distances_to_query, sentence_distances
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.transport import ENTROPY, round_to_marginals
from citeweave.vectors.transport_kernels import transport_distances, transport_plan

from ..conftest import refused
from .conftest import softmax

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

SIZES = [(1, 1), (3, 2), (2, 5), (7, 7), (1, 4), (4, 1), (9, 3)]
KINDS = [
    *(DocumentDistance(name, metric=metric) for name in DISTANCES for metric in METRICS),
    DocumentDistance("transport", mode="geomloss"),
]


def drawn(seed, sizes, dimension=6, scale=1.0):
    """Papers with so many sentences on either side; the first sentences of every third pair are the same."""
    rng = np.random.default_rng(seed)
    queries = [scale * rng.normal(size=(n, dimension)) for n, _ in sizes]
    candidates = [scale * rng.normal(size=(m, dimension)) for _, m in sizes]
    for at in range(0, len(sizes), 3):
        if min(sizes[at]):
            candidates[at][0] = queries[at][0]
    return queries, candidates


def paired(queries, candidates):
    return PaperPairs.of([torch.from_numpy(q) for q in queries], [torch.from_numpy(c) for c in candidates])


def sentence_by_sentence(query, candidate, metric):
    if metric == "l2":
        return np.array([[np.linalg.norm(q - c) for c in candidate] for q in query])
    return np.array([[1 - q @ c / max(np.linalg.norm(q) * np.linalg.norm(c), 1e-30) for c in candidate] for q in query])


def sinkhorn(distances, a, b, rounds=5000):
    """Plain, in the form of Cuturi (2013)."""
    kernel = np.exp(-(distances - distances.min()) / ENTROPY)
    v = np.ones(len(b))
    for _ in range(rounds):
        u = a / (kernel @ v)
        v = b / (kernel.T @ u)
    return u[:, None] * kernel * v


def written_out(distances, name, temperature):
    if name == "single":
        return float(distances.min())
    if name == "top2":
        return float(np.sort(distances.ravel())[[0, min(1, distances.size - 1)]].sum())
    if name == "mean_best":
        return float(distances.min(axis=1).mean())
    if name == "attention":
        return float((softmax(-distances / temperature) * distances).sum())
    a, b = softmax(-distances.min(axis=1) / temperature), softmax(-distances.min(axis=0) / temperature)
    return float((sinkhorn(distances, a, b) * distances).sum())


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_those_of_loops(name, metric):
    queries, candidates = drawn(0, SIZES, scale=0.2 if name == "transport" else 1.0)
    for temperature in (0.5, 5000):
        found = match(paired(queries, candidates), DocumentDistance(name, temperature=temperature, metric=metric))
        for at, (query, candidate) in enumerate(zip(queries, candidates, strict=True)):
            expected = written_out(sentence_by_sentence(query, candidate, metric), name, temperature)
            assert found.distances[at].item() == pytest.approx(expected, abs=1e-7)
            assert found.training[at] == found.distances[at]


def test_transport_lies_between_the_cheapest_way_and_its_price_of_entropy():
    scipy = pytest.importorskip("scipy.optimize")
    queries, candidates = drawn(1, [(5, 6), (3, 8), (7, 4)], scale=3.0)
    found = match(paired(queries, candidates), DocumentDistance("transport", temperature=1))
    for at, (query, candidate) in enumerate(zip(queries, candidates, strict=True)):
        cost = sentence_by_sentence(query, candidate, "l2")
        n, m = cost.shape
        a, b = softmax(-cost.min(axis=1)), softmax(-cost.min(axis=0))
        sums = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
        least = scipy.linprog(cost.ravel(), A_eq=sums, b_eq=np.concatenate([a, b])).fun
        assert least - 1e-7 <= found.distances[at].item() <= least + ENTROPY * np.log(n * m)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0, 300.0])
def test_newton_converges_without_help_of_the_rounding(scale, monkeypatch):
    monkeypatch.setattr("citeweave.vectors.transport.round_to_marginals", lambda plan, rows, columns: plan)
    queries, candidates = drawn(2, [(n, m) for n in (1, 4, 9) for m in (2, 8, 12)] * 8, scale=scale)
    for temperature in (0.5, 5000):
        plans = match(paired(queries, candidates), DocumentDistance("transport", temperature=temperature)).plans
        costs = [sentence_by_sentence(*pair, "l2") for pair in zip(queries, candidates, strict=True)]
        check_marginals(costs, plans.numpy(), (queries, candidates), temperature, atol=1e-8)


def test_rounding_gives_any_plan_the_marginals():
    rng = np.random.default_rng(3)
    plan = torch.from_numpy(rng.random((20, 4, 6)))
    plan[0] = 0
    rows, columns = (torch.from_numpy(rng.dirichlet(np.ones(size), 20)) for size in (4, 6))
    rounded = round_to_marginals(plan, rows, columns)
    assert (rounded >= 0).all()
    assert np.allclose(rounded.sum(2), rows, atol=1e-14) and np.allclose(rounded.sum(1), columns, atol=1e-14)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("name", DISTANCES)
def test_gradients_equal_finite_differences(name, metric):
    queries, candidates = drawn(5, [(3, 2), (2, 3)], dimension=2, scale=0.3)
    candidates[0] += 0.1  # a sentence at distance 0 has no gradient
    pairs = paired(queries, candidates)
    distance = DocumentDistance(name, temperature=0.5, metric=metric)

    def distances(left, right):
        return match(PaperPairs(left, right, pairs.query_mask, pairs.candidate_mask), distance).distances

    sides = pairs.queries.clone().requires_grad_(), pairs.candidates.clone().requires_grad_()
    with torch.no_grad():
        for side, mask in zip(sides, (pairs.query_mask, pairs.candidate_mask), strict=True):
            side[~mask] = 0.7  # not zeros, whose cosine has no gradient
    assert torch.autograd.gradcheck(distances, sides, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["exact", "geomloss"])
@pytest.mark.parametrize("name", DISTANCES)
def test_empty_papers_and_equal_sentences_do_not_spoil_gradients(name, mode):
    queries, candidates = drawn(6, [(2, 3), (0, 2), (1, 0), (1, 1), (0, 0)])
    candidates[0] += 0.1  # the same sentence has no gradient
    candidates[3] = queries[3].copy()
    pairs = paired(queries, candidates)
    left = pairs.queries.clone().requires_grad_()
    given = PaperPairs(left, pairs.candidates, pairs.query_mask, pairs.candidate_mask)
    found = match(given, DocumentDistance(name, mode=mode))
    assert found.distances[3] == 0 and found.training[3] == 0
    assert torch.isposinf(found.distances[pairs.empty]).all() and torch.isposinf(found.training[pairs.empty]).all()
    (found.distances.sum() + found.training.sum()).backward()  # the empty pairs too
    assert torch.isfinite(left.grad).all() and left.grad[0].any() and not left.grad[pairs.empty].any()


def test_the_peer_trains_as_geomloss_does():
    geomloss = pytest.importorskip("geomloss")
    queries, candidates = drawn(8, [(4, 5)] * 3)
    candidates[0] += 0.1
    pairs = paired(queries, candidates)
    gradients = []
    for peer in (True, False):
        x, y = pairs.queries.clone().requires_grad_(), pairs.candidates.clone().requires_grad_()
        if peer:
            apart = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
            a, b = (-apart.amin(2)).softmax(1), (-apart.amin(1)).softmax(1)
            solver = geomloss.SamplesLoss("sinkhorn", p=1, blur=0.05, scaling=0.9, debias=False)
            value = solver(a, x, b, y)
        else:
            distance = DocumentDistance("transport", temperature=1, mode="geomloss", start="batch")
            value = match(PaperPairs(x, y, pairs.query_mask, pairs.candidate_mask), distance).training
        value.sum().backward()
        gradients.append((value.detach(), x.grad, y.grad))
    for theirs, ours in zip(*gradients, strict=True):
        assert torch.allclose(theirs, ours, atol=1e-8)


def test_padding_and_company_change_nothing():
    queries, candidates = drawn(9, [(2, 3), (8, 1), (5, 9), (1, 6)], scale=2.0)
    for name in DISTANCES:
        for mode in ("exact", "geomloss"):
            distance = DocumentDistance(name, temperature=0.5, mode=mode)
            together = match(paired(queries, candidates), distance)
            for at, pair in enumerate(zip(queries, candidates, strict=True)):
                alone = match(paired(*([side] for side in pair)), distance)
                assert alone.distances.item() == pytest.approx(together.distances[at].item(), abs=1e-9)
                n, m = len(pair[0]), len(pair[1])
                assert torch.allclose(alone.plans[0], together.plans[at, :n, :m], atol=1e-9)


def stored(seed=0):
    rng = np.random.default_rng(seed)
    papers = [rng.normal(size=(n, 4)) for n in (3, 1, 0, 6, 2, 5)]
    numbers = [np.arange(len(paper)) for paper in papers]
    numbers[3] = np.array([0, 1, 3, 4, 7, 9])
    return SentenceVectors.of([f"p{at}" for at in range(6)], papers, numbers=numbers)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name} {kind.metric} {kind.mode}")
def test_scores_of_many_pairs_are_those_of_each(kind, monkeypatch):
    distance = replace(kind, temperature=0.5)
    vectors, rng = stored(), np.random.default_rng(1)
    queries = np.array([3, 0, 2, 5, -1, 3])
    offsets = np.array([0, 6, 12, 13, 19, 20, 23])
    candidates = np.concatenate([np.arange(6), np.arange(6), [1], rng.permutation(6), [0], [0, -1, 4]])
    facets = [np.array([3, 7, 8]), None, None, np.array([], np.int64), None, None]
    scores = document_scores(vectors, queries, offsets, candidates, distance, query_sentences=facets)
    chosen = [vectors.sentences(3)[[2, 4]], vectors.sentences(0), None, None, None, vectors.sentences(3)]
    for query, (low, high) in enumerate(pairwise(offsets)):
        for at in range(low, high):
            candidate = candidates[at]
            if chosen[query] is None or candidate in (-1, 2):
                assert scores[at] == -np.inf
            else:
                pair = paired([np.float64(chosen[query])], [np.float64(vectors.sentences(candidate))])
                assert scores[at] == pytest.approx(-match(pair, distance).distances.item(), abs=1e-9)
    for room in (ScoringLimits(1, 1, 1), ScoringLimits(7, 30, 40), ScoringLimits(1000, 4, 10_000)):
        monkeypatch.setitem(LIMITS, "cpu", room)
        again = document_scores(vectors, queries, offsets, candidates, distance, query_sentences=facets)
        assert np.array_equal(np.isneginf(again), np.isneginf(scores))
        assert np.allclose(again[np.isfinite(again)], scores[np.isfinite(scores)], atol=1e-9)


def test_half_precision_and_vectors_of_zeros():
    pairs = paired([np.zeros((1, 3))], [np.array([[1.0, 2, 3], [0, 0, 0]])])
    assert match(pairs, DocumentDistance("single", metric="cosine")).sentences.tolist() == [[[1.0, 1.0]]]
    papers = [np.random.default_rng(2).normal(size=(3, 4)).astype(np.float16) for _ in range(3)]
    one, other = (SentenceVectors.of(["a", "b", "c"], papers, dtype=dtype) for dtype in ("float16", "float32"))
    for name in DISTANCES:
        pairs = (np.array([0]), np.array([0, 3]), np.arange(3), DocumentDistance(name))
        assert np.array_equal(document_scores(one, *pairs), document_scores(other, *pairs))


def test_empty_papers_score_lowest_and_numbers_that_are_not_finite_are_refused():
    vectors, none = stored(), np.empty(0, np.int64)
    assert document_scores(vectors, none, np.array([0]), none, DocumentDistance()).tolist() == []
    for distance in (DocumentDistance(), DocumentDistance(mode="geomloss"), DocumentDistance("single")):
        empty = document_scores(vectors, np.array([2]), np.array([0, 2]), np.array([0, 2]), distance)
        assert empty.tolist() == [-np.inf, -np.inf]
    for number in (np.inf, np.nan):
        vectors = stored()
        vectors.matrix[vectors.offsets[4]] = number  # past the doors that refuse it
        for distance in (*map(DocumentDistance, DISTANCES), DocumentDistance(mode="geomloss")):
            with pytest.raises(UserError, match="1 pairs of papers, such as one with 'p4'.*not finite"):
                document_scores(vectors, np.array([0]), np.array([0, 2]), np.array([4, 3]), distance)
    with pytest.raises(UserError, match="1 of 2 pairs.*too large"):
        match(paired([np.ones((2, 3)), np.ones((1, 3))], [np.ones((1, 3)), np.full((1, 3), 1e200)]), DocumentDistance())


WRONG_SETTINGS = [
    ({"name": "singel"}, "distance is 'singel'.*Did you mean 'single'"),
    ({"temperature": 0}, "temperature is 0; it must be at least 1e-30"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"metric": "dot"}, "metric is 'dot'"),
    ({"mode": "geomloss", "metric": "cosine"}, "has l2 only"),
    ({"mode": "geomloss", "start": "batch"}, "start is 'batch'.*score with 'pair'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_SETTINGS)
def test_wrong_settings_are_refused(options, message):
    placed = PlacedSentences(stored())
    refused(message, lambda: placed.scores(0, np.array([1]), DocumentDistance(**options)))


def test_devices():
    pair = (stored(), np.array([0]), np.array([0, 2]), np.array([1, 3]), DocumentDistance())
    assert np.allclose(document_scores(*pair), document_scores(*pair, device="auto"))
    if not torch.cuda.is_available():
        refused("no GPU", document_scores, *pair, device="cuda")
    refused("device is 'gpu'", document_scores, *pair, device="gpu")


SCALES = {"float64": [1e-150, 1e100], "float32": [1e-30, 1e30], "float16": [1e-6, 1e4]}


@st.composite
def papers(draw, count, dtype, dimension=3):
    """Papers of 0, 1, few or 60 sentences: normal, all the same, zeros, far apart, very small or very large."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    found = []
    for _ in range(count):
        size = draw(st.sampled_from([0, 1, 1, 2, 3, 7, 60]))
        scale = draw(st.sampled_from([1.0, 1.0, 0.05, 50.0, 0.0, *SCALES[dtype]]))
        paper = rng.normal(size=(size, dimension))
        if draw(st.booleans()):
            paper[:] = paper[:1].copy()
        elif size and draw(st.booleans()):
            paper[0] = 0
        found.append((paper * scale).astype(dtype))
    if draw(st.booleans()):
        found[-1] = found[0].copy()
    return found


@given(data=st.data(), dtype=st.sampled_from(list(SCALES)), temperature=st.sampled_from([1e-3, 0.5, 5000.0]))
@settings(max_examples=20)
def test_distances_plans_and_gradients_are_numbers(data, dtype, temperature):
    sides = [data.draw(papers(3, dtype)) for _ in range(2)]
    leaves = [[torch.from_numpy(paper).requires_grad_() for paper in side] for side in sides]
    empty = np.array([not (len(query) and len(candidate)) for query, candidate in zip(*sides, strict=True)])
    for kind in KINDS:
        distance = replace(kind, temperature=temperature)
        found = match(PaperPairs.of(*leaves), distance)
        for values in (found.distances.detach().numpy(), found.training.detach().numpy()):
            assert np.isfinite(values[~empty]).all() and np.isposinf(values[empty]).all()
        plans = found.plans.detach().numpy()
        assert np.isfinite(plans).all() and (plans >= 0).all()
        for plan, query, candidate in zip(plans, *sides, strict=True):
            n, m = (len(query), len(candidate)) if len(query) and len(candidate) else (0, 0)
            assert not plan[n:].any() and not plan[:, m:].any()
        (found.distances + found.training).sum().backward()
        for leaf in (leaf for side in leaves for leaf in side):
            # a vector of 1e-6 in half precision turns by more than that type can hold
            assert (torch.isfinite(leaf.grad) if dtype != "float16" else ~leaf.grad.isnan()).all()
            leaf.grad = None
        if (kind.name, kind.mode) == ("transport", "exact"):
            check_marginals(found.sentences.detach().numpy(), plans, sides, temperature)


def check_marginals(apart, plans, sides, temperature, atol=1e-6):
    for cost, plan, query, candidate in zip(apart, plans, *sides, strict=True):
        if len(query) and len(candidate):
            cost, plan = cost[: len(query), : len(candidate)], plan[: len(query), : len(candidate)]
            assert np.allclose(plan.sum(1), softmax(-cost.min(axis=1) / temperature), rtol=0, atol=atol)
            assert np.allclose(plan.sum(0), softmax(-cost.min(axis=0) / temperature), rtol=0, atol=atol)


@given(data=st.data(), dtype=st.sampled_from(["float16", "float32"]), temperature=st.sampled_from([1e-3, 0.5, 5000.0]))
@settings(max_examples=30)
def test_scores_are_numbers_and_those_of_one_pair_at_a_time(data, dtype, temperature):
    blocks = data.draw(papers(4, dtype))
    vectors = SentenceVectors.of(["a", "b", "c", "d"], blocks, dtype=dtype)
    wanted = data.draw(st.sampled_from([None, np.array([], np.int64), np.array([0]), np.array([1, 59])]))
    query = blocks[0] if wanted is None else blocks[0][wanted[wanted < len(blocks[0])]]
    rows = np.array([1, -1, 2, 3, 0, 2])
    for kind in KINDS:
        distance = replace(kind, temperature=temperature)
        scores = document_scores(vectors, np.array([0]), np.array([0, 6]), rows, distance, query_sentences=[wanted])
        for row, score in zip(rows, scores, strict=True):
            if row < 0 or not len(query) or not len(blocks[row]):
                assert score == -np.inf
            else:
                alone = match(paired([query], [blocks[row]]), distance)
                # the last digits of a distance grow by this division
                slack = 1e-7 + 1e-13 * float(alone.sentences.max()) / min(temperature, 0.05)
                assert score == pytest.approx(-alone.distances.item(), rel=1e-7 + slack, abs=1e-7)


@pytest.mark.parametrize("metric", METRICS)
def test_a_product_gives_the_distances_that_differences_give(metric):
    rng = np.random.default_rng(0)
    query = 30 + rng.normal(size=(5, 24))  # far from the origin, where products cancel
    sentences = np.concatenate([query, query * (1 + 1e-7), query + 1e-9, -query, 1e25 * query, 0 * query])
    query[4] = 0
    query, sentences = torch.from_numpy(query), torch.from_numpy(sentences)
    pairs = PaperPairs.of([query], [sentences])
    expected, found = sentence_distances(pairs, metric)[0].T, distances_to_query(query, sentences, metric)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-15)
    assert not found.diagonal()[:4].any()  # the same sentence, exactly


def test_vectors_stay_where_they_are_placed():
    rng = np.random.default_rng(1)
    blocks = [rng.normal(size=(size, 5)).astype(np.float32) for size in (3, 0, 2, 6, 1)]
    vectors = SentenceVectors.of(list("abcde"), blocks)
    placed, rows = PlacedSentences(vectors, "cpu"), np.arange(-1, 5)
    pairs = np.array([3]), np.array([0, 6]), rows
    for distance in KINDS:
        expected = document_scores(vectors, *pairs, distance)
        for query in (3, np.int64(3), blocks[3], blocks[3].astype(np.float64)):
            assert np.allclose(placed.scores(query, rows, distance)[2:], expected[2:], atol=1e-12)
        some = document_scores(placed, *pairs, distance, query_sentences=[np.array([1, 4])])
        assert np.allclose(some[3:], placed.scores(blocks[3][[1, 4]], rows, distance)[3:], atol=1e-12)
        again = document_scores(placed, *pairs, distance)
        assert np.array_equal(again, expected) and np.isneginf(again).sum() == 2
        assert np.isneginf(placed.scores(np.empty((0, 5)), rows, distance)).all()
    refused(r"shape \(2, 4\); it must be \(sentences, 5\)", placed.scores, np.zeros((2, 4)), rows, KINDS[0])
    with pytest.raises(UserError, match="query's sentence vectors hold numbers that are not finite"):
        placed.scores(np.full((2, 5), np.nan), rows, KINDS[0])


def test_workers_change_no_score():
    rng = np.random.default_rng(2)
    costs, m, n = rng.random((6000, 7)) * 3, rng.integers(1, 9, 1000), rng.integers(1, 8, 1000)
    given = costs, np.cumsum(m) - m, m, n
    one, three = (transport_distances(*given, temperature=0.5, workers=workers) for workers in (1, 3))
    assert np.array_equal(one, three)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 6), (6, 3), (1, 7)])
def test_the_compiled_plan_is_that_of_match(n, m):
    rng = np.random.default_rng(4)
    found = match(paired(*([rng.normal(size=(size, 5))] for size in (n, m))), DocumentDistance(temperature=0.5))
    plan = transport_plan(found.sentences[0].numpy(), temperature=0.5)
    np.testing.assert_allclose(plan, found.plans[0].numpy(), atol=1e-6)
    assert float((plan * found.sentences[0].numpy()).sum()) == pytest.approx(float(found.distances[0]), abs=1e-9)


def test_the_pauses_of_a_graphics_card_change_nothing(monkeypatch):
    """What is asked for less often there rests once it is solved."""
    rng = np.random.default_rng(3)
    pairs = paired(*([rng.normal(size=(size, 4)) for size in (3, 1, 5, 8)] for _ in range(2)))
    expected = match(pairs, DocumentDistance(temperature=0.5))
    monkeypatch.setattr(transport, "CPU_PAUSE", 4)
    monkeypatch.setattr(transport, "CPU_MAX_LEFT", 0.5)
    found = match(pairs, DocumentDistance(temperature=0.5))
    assert torch.allclose(found.distances, expected.distances, rtol=0, atol=1e-9)
    assert torch.allclose(found.plans, expected.plans, rtol=0, atol=1e-9)


# --- explanations: the plan adds up to the distance that ranks -------------------------------------------

RNG = stream(0, "explaining")
PAPERS = SentenceVectors.of(
    ["long", "short", "empty"],
    [RNG.normal(size=(60, 4)), RNG.normal(size=(2, 4)), np.empty((0, 4))],
    numbers=[np.arange(60), np.array([1, 3]), np.empty(0, np.int64)],
)


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("chosen", [None, [3], [1, 7, 99]])
def test_the_plan_adds_up_to_the_score(name, chosen):
    distance = DocumentDistance(name, 0.5)
    found = explain_pair(PAPERS, "long", "short", distance, query_sentences=chosen)
    wanted = [None if chosen is None else np.array(chosen)]
    pair = np.array([0]), np.array([0, 1]), np.array([1])
    score = document_scores(PAPERS, *pair, distance, query_sentences=wanted)
    assert found.total == pytest.approx(-score[0], abs=1e-9)
    assert (found.plan * found.distances).sum() == pytest.approx(found.total, abs=1e-9)
    assert found.right.tolist() == [1, 3] and found.plan.shape == (len(found.left), 2)
    assert chosen is None or found.left.tolist() == [number for number in chosen if number < 60]
    if name == "transport":
        assert found.left_masses.sum() == pytest.approx(1, abs=1e-6)
    pairs = found.strongest(5)
    assert [pair.mass for pair in pairs] == sorted((pair.mass for pair in pairs), reverse=True)
    assert found.nearest.distance == found.distances.min() and found.nearest.right in (1, 3)


def test_papers_without_vectors_are_refused():
    for query, candidate, chosen, message in (
        ("long", "nobody", None, "'nobody' is none of the 3 papers"),
        (0, 2, None, "paper 'empty' has no sentence vectors"),
        ("short", "long", [0, 2], "none of the chosen sentences of paper 'short' has a vector; .* sentences 1, 3"),
    ):
        refused(message, explain_pair, PAPERS, query, candidate, DocumentDistance(), query_sentences=chosen)
