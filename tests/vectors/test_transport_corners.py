"""No NaN leaves the distances between papers: every corner that numbers and lengths of papers have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.vectors.document_distance import DISTANCES, DocumentDistance, PlacedSentences, document_scores, match
from citeweave.vectors.sentence_distances import METRICS, PaperPairs, distances_to_query, sentence_distances
from citeweave.vectors.sentence_vectors import SentenceVectors

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

KINDS = [
    DocumentDistance(name, metric=metric, mode=mode)
    for name in DISTANCES
    for metric in METRICS
    for mode in ("exact", "geomloss")
    if mode == "exact" or (name, metric) == ("transport", "l2")
]
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


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


@given(data=st.data(), dtype=st.sampled_from(list(SCALES)), temperature=st.sampled_from([1e-3, 0.5, 5000.0]))
@settings(max_examples=20)
def test_distances_plans_and_gradients_are_numbers(data, dtype, temperature):
    sides = [data.draw(papers(3, dtype)) for _ in range(2)]
    leaves = [[torch.from_numpy(paper).requires_grad_() for paper in side] for side in sides]
    empty = np.array([not (len(query) and len(candidate)) for query, candidate in zip(*sides, strict=True)])
    for kind in KINDS:
        distance = DocumentDistance(kind.name, temperature, kind.metric, kind.mode)
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


def check_marginals(apart, plans, sides, temperature):
    for cost, plan, query, candidate in zip(apart, plans, *sides, strict=True):
        if len(query) and len(candidate):
            cost, plan = cost[: len(query), : len(candidate)], plan[: len(query), : len(candidate)]
            assert np.allclose(plan.sum(1), softmax(-cost.min(axis=1) / temperature), rtol=0, atol=1e-6)
            assert np.allclose(plan.sum(0), softmax(-cost.min(axis=0) / temperature), rtol=0, atol=1e-6)


@given(data=st.data(), dtype=st.sampled_from(["float16", "float32"]), temperature=st.sampled_from([1e-3, 0.5, 5000.0]))
@settings(max_examples=30)
def test_scores_are_numbers_and_those_of_one_pair_at_a_time(data, dtype, temperature):
    blocks = data.draw(papers(4, dtype))
    vectors = SentenceVectors.of(["a", "b", "c", "d"], blocks, dtype=dtype)
    wanted = data.draw(st.sampled_from([None, np.array([], np.int64), np.array([0]), np.array([1, 59])]))
    query = blocks[0] if wanted is None else blocks[0][wanted[wanted < len(blocks[0])]]
    rows = np.array([1, -1, 2, 3, 0, 2])
    for kind in KINDS:
        distance = DocumentDistance(kind.name, temperature, kind.metric, kind.mode)
        scores = document_scores(vectors, np.array([0]), np.array([0, 6]), rows, distance, query_sentences=[wanted])
        for row, score in zip(rows, scores, strict=True):
            if row < 0 or not len(query) or not len(blocks[row]):
                assert score == -np.inf
            else:
                pair = PaperPairs.of([torch.from_numpy(query)], [torch.from_numpy(blocks[row])])
                alone = match(pair, distance)
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
    for distance in KINDS:
        expected = document_scores(vectors, np.array([3]), np.array([0, 6]), rows, distance)
        for query in (3, np.int64(3), blocks[3], blocks[3].astype(np.float64)):
            assert np.allclose(placed.scores(query, rows, distance)[2:], expected[2:], atol=1e-12)
        some = placed.scores(3, rows, distance, sentences=np.array([1, 4]))
        assert np.allclose(some[3:], placed.scores(blocks[3][[1, 4]], rows, distance)[3:], atol=1e-12)
        again = document_scores(placed, np.array([3]), np.array([0, 6]), rows, distance)
        assert np.array_equal(again, expected) and np.isneginf(again).sum() == 2
        assert np.isneginf(placed.scores(np.empty((0, 5)), rows, distance)).all()
    with pytest.raises(UserError, match=r"shape \(2, 4\); it must be \(sentences, 5\)"):
        placed.scores(np.zeros((2, 4)), rows, KINDS[0])
    with pytest.raises(UserError, match="query's sentence vectors hold numbers that are not finite"):
        placed.scores(np.full((2, 5), np.nan), rows, KINDS[0])


def test_workers_change_no_score():
    from citeweave.vectors.transport_kernels import transport_distances

    rng = np.random.default_rng(2)
    costs, m, n = rng.random((6000, 7)) * 3, rng.integers(1, 9, 1000), rng.integers(1, 8, 1000)
    one, three = (
        transport_distances(costs, np.cumsum(m) - m, m, n, temperature=0.5, workers=workers) for workers in (1, 3)
    )
    assert np.array_equal(one, three)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 6), (6, 3), (1, 7)])
def test_the_compiled_plan_is_that_of_match(n, m):
    from citeweave.vectors.transport_kernels import transport_plan

    rng = np.random.default_rng(4)
    given = [torch.from_numpy(rng.normal(size=(size, 5))) for size in (n, m)]
    found = match(PaperPairs.of([given[0]], [given[1]]), DocumentDistance(temperature=0.5))
    plan = transport_plan(found.sentences[0].numpy(), temperature=0.5)
    np.testing.assert_allclose(plan, found.plans[0].numpy(), atol=1e-6)
    assert float((plan * found.sentences[0].numpy()).sum()) == pytest.approx(float(found.distances[0]), abs=1e-9)


def test_the_pauses_of_a_graphics_card_change_nothing(monkeypatch):
    """What is asked for less often there rests once it is solved."""
    from citeweave.vectors import transport

    rng = np.random.default_rng(3)
    pairs = PaperPairs.of(*([torch.from_numpy(rng.normal(size=(s, 4))) for s in (3, 1, 5, 8)] for _ in range(2)))
    expected = match(pairs, DocumentDistance(temperature=0.5))
    monkeypatch.setattr(transport, "CPU_PAUSE", 4)
    monkeypatch.setattr(transport, "CPU_MAX_LEFT", 0.5)
    found = match(pairs, DocumentDistance(temperature=0.5))
    assert torch.allclose(found.distances, expected.distances, rtol=0, atol=1e-9)
    assert torch.allclose(found.plans, expected.plans, rtol=0, atol=1e-9)
