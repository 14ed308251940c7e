"""Citeomatic: what is drawn as a negative, and that citations are learned."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.baselines.citeomatic import MARGINS, CitationPairs, draw_negatives, find_near_papers


def some_citations() -> CitationPairs:
    pairs = np.unique(np.random.default_rng(0).integers(40, size=(150, 2)), axis=0)
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & (pairs[:, 0] < 30)]  # the last ten cite nobody
    return CitationPairs(pairs[:, 0], pairs[:, 1], 40)


def test_negatives_are_of_their_kind_and_never_cited():
    citations, rng = some_citations(), np.random.default_rng(1)
    known = {*zip(citations.citing.tolist(), citations.cited.tolist(), strict=True)}
    citing, cited = np.divmod(np.arange(1600), 40)
    expected = [pair in known for pair in zip(citing.tolist(), cited.tolist(), strict=True)]
    assert citations.contains(citing, cited).tolist() == expected
    queries = np.repeat(np.unique(citations.citing), 20)
    negatives = draw_negatives(citations, np.tile(np.arange(5), (40, 1)), queries, rng)
    assert negatives.shape == (len(queries), len(MARGINS))
    for kind, drawn in zip(MARGINS, negatives.T, strict=True):
        found = drawn >= 0
        assert found.mean() > 0.8 and not citations.contains(queries[found], drawn[found]).any()
        assert (drawn[found] != queries[found]).all()
        if kind == "near":
            assert (drawn[found] < 5).all()
        if kind == "second_hop":
            for query, paper in zip(queries[found], drawn[found], strict=True):
                hops = citations.cited[citations.citing == query]
                assert citations.contains(hops, np.full(len(hops), paper)).any()
    citations = CitationPairs(np.array([0, 0]), np.array([1, 2]), 3)
    negatives = draw_negatives(citations, np.full((3, 2), -1), np.zeros(50, np.int64), rng)
    assert (negatives == -1).all(), "0 cites everybody else, and they cite nobody"


def test_near_papers_are_the_nearest():
    vectors = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    near = find_near_papers(vectors, np.array([3, 8]), 5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = np.argsort(-(unit @ unit[8]))
    assert near[8].tolist() == order[order != 8][:5].tolist() and (near[4] == -1).all()


def test_cited_papers_come_near(fit, graph, texts):
    pytest.importorskip("torch")
    vectors = fit("citeomatic").encode(texts)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    citing, cited = graph.sources(), graph.cited.targets
    other = np.random.default_rng(0).integers(len(texts), size=len(citing))
    nearer = (vectors[citing] * vectors[cited]).sum(axis=1) > (vectors[citing] * vectors[other]).sum(axis=1)
    assert nearer.mean() > 0.7  # half of them by chance
