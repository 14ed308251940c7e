"""Distances between papers against loops written out, their gradients against finite differences, and every corner."""

from itertools import pairwise

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.vectors.document_distance import (
    DISTANCES,
    LIMITS,
    DocumentDistance,
    PlacedSentences,
    ScoringLimits,
    document_scores,
    match,
)
from citeweave.vectors.sentence_distances import METRICS, PaperPairs
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.transport import ENTROPY, round_to_marginals

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")


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


SIZES = [(1, 1), (3, 2), (2, 5), (7, 7), (1, 4), (4, 1), (9, 3)]


def sentence_by_sentence(query, candidate, metric):
    if metric == "l2":
        return np.array([[np.linalg.norm(q - c) for c in candidate] for q in query])
    return np.array([[1 - q @ c / max(np.linalg.norm(q) * np.linalg.norm(c), 1e-30) for c in candidate] for q in query])


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


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
        return float(
            np.sort(np.r_[distances.ravel(), distances.ravel()] if distances.size == 1 else distances.ravel())[:2].sum()
        )
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
        for plan, query, candidate in zip(plans, queries, candidates, strict=True):
            n, m = len(query), len(candidate)
            cost = sentence_by_sentence(query, candidate, "l2")
            assert np.allclose(plan[:n, :m].sum(1), softmax(-cost.min(axis=1) / temperature), atol=1e-8)
            assert np.allclose(plan[:n, :m].sum(0), softmax(-cost.min(axis=0) / temperature), atol=1e-8)


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
    found = match(
        PaperPairs(left, pairs.candidates, pairs.query_mask, pairs.candidate_mask), DocumentDistance(name, mode=mode)
    )
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


@pytest.mark.parametrize(
    "distance",
    [DocumentDistance(name, 0.5, metric) for name in DISTANCES for metric in METRICS]
    + [DocumentDistance("transport", 0.5, mode="geomloss")],
    ids=lambda distance: f"{distance.name} {distance.metric} {distance.mode}",
)
def test_scores_of_many_pairs_are_those_of_each(distance, monkeypatch):
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


def test_half_precision_is_read():
    papers = [np.random.default_rng(2).normal(size=(3, 4)).astype(np.float16) for _ in range(3)]
    one, other = (SentenceVectors.of(["a", "b", "c"], papers, dtype=dtype) for dtype in ("float16", "float32"))
    for name in DISTANCES:
        pairs = (np.array([0]), np.array([0, 3]), np.arange(3), DocumentDistance(name))
        assert np.array_equal(document_scores(one, *pairs), document_scores(other, *pairs))


def test_no_pairs_and_only_empty_pairs():
    vectors, none = stored(), np.empty(0, np.int64)
    assert document_scores(vectors, none, np.array([0]), none, DocumentDistance()).tolist() == []
    for distance in (DocumentDistance(), DocumentDistance(mode="geomloss"), DocumentDistance("single")):
        empty = document_scores(vectors, np.array([2]), np.array([0, 2]), np.array([0, 2]), distance)
        assert empty.tolist() == [-np.inf, -np.inf]


def test_numbers_that_are_not_finite_are_refused():
    for number in (np.inf, np.nan):
        vectors = stored()
        vectors.matrix[vectors.offsets[4]] = number  # past the doors that refuse it
        for name in DISTANCES:
            with pytest.raises(UserError, match="1 pairs of papers, such as one with 'p4'.*not finite"):
                document_scores(vectors, np.array([0]), np.array([0, 2]), np.array([4, 3]), DocumentDistance(name))
        with pytest.raises(UserError, match="1 pairs of papers, such as one with 'p4'"):
            document_scores(
                vectors, np.array([0]), np.array([0, 2]), np.array([4, 3]), DocumentDistance(mode="geomloss")
            )
    with pytest.raises(UserError, match="1 of 2 pairs.*too large"):
        match(paired([np.ones((2, 3)), np.ones((1, 3))], [np.ones((1, 3)), np.full((1, 3), 1e200)]), DocumentDistance())


def test_a_vector_of_zeros_has_the_cosine_0():
    pairs = paired([np.zeros((1, 3))], [np.array([[1.0, 2, 3], [0, 0, 0]])])
    assert match(pairs, DocumentDistance("single", metric="cosine")).sentences.tolist() == [[[1.0, 1.0]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "singel"}, "distance is 'singel'.*Did you mean 'single'"),
        ({"temperature": 0}, "temperature is 0; it must be at least 1e-30"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"metric": "dot"}, "metric is 'dot'"),
        ({"mode": "geomloss", "metric": "cosine"}, "has l2 only"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        DocumentDistance(**options)


def test_a_score_cannot_depend_on_its_company():
    with pytest.raises(UserError, match="start is 'batch'.*score with 'pair'"):
        PlacedSentences(stored()).scores(0, np.array([1]), DocumentDistance(mode="geomloss", start="batch"))


def test_devices():
    pair = (stored(), np.array([0]), np.array([0, 2]), np.array([1, 3]), DocumentDistance())
    assert np.allclose(document_scores(*pair), document_scores(*pair, device="auto"))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no GPU"):
            document_scores(*pair, device="cuda")
    with pytest.raises(UserError, match="device is 'gpu'"):
        document_scores(*pair, device="gpu")
