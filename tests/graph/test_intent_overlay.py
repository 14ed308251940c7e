"""Overlays of intents: on the edges of graphs that lost citations, and refused where they do not belong."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import ArtifactError
from citeweave.graph import intent_overlay
from citeweave.graph.citations import build_graph, graph_from_edges
from citeweave.graph.intent_overlay import IntentOverlay, mask_from_confidence

from ..conftest import corpus_of, refused
from .conftest import write_overlay

PAPERS = 9
EDGES = [(0, 1), (0, 2), (0, 0), (1, 0), (3, 8), (5, 2), (8, 3), (8, 7)]


def write_corpus(folder, edges):
    """Also with citations given twice, and one of a paper to itself."""
    papers = [{"id": f"p{row}", "title": f"Title {row} of a paper"} for row in range(PAPERS)]
    return corpus_of(folder, papers, [(f"p{a}", f"p{b}") for a, b in edges])


def overlay_of(corpus, folder, confidence, own):
    mask = np.where(own > 0, own, mask_from_confidence(confidence, 0.5))
    return write_overlay(corpus, folder, mask, confidence, given=own > 0, mentions=70_000, contexts=[1])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("overlay"), EDGES + EDGES[:3])


@pytest.fixture(scope="module")
def overlay(corpus):
    rows = np.random.default_rng(0).dirichlet([0.4] * 3, len(corpus.citing)).astype(np.float16)
    own = np.zeros(len(rows), np.uint8)
    own[[1, 4]] = [6, 128]
    return overlay_of(corpus, corpus.folder.parent / "intents", rows, own)


def masks_by_pair(corpus, masks):
    return {(int(a), int(b)): int(mask) for a, b, mask in zip(corpus.citing, corpus.cited, masks, strict=True)}


def test_a_graph_gets_the_masks_of_its_citations(corpus, overlay, tmp_path):
    expected = masks_by_pair(corpus, overlay.mask)
    graph = overlay.on(build_graph(corpus, tmp_path / "graph"), corpus)
    edges = list(zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True))
    assert len(edges) == len([1 for a, b in expected if a != b]) > 4  # no paper cites itself in a graph
    assert graph.intents.tolist() == [expected[edge] for edge in edges]
    assert len(set(expected.values())) > 2


@given(st.lists(st.tuples(st.integers(0, PAPERS - 1), st.integers(0, PAPERS - 1)), max_size=30), st.floats(0.05, 1.0))
@settings(max_examples=40)
def test_any_graph_over_the_papers(corpus, overlay, edges, threshold):
    """Duplicates, citations held out, edges that the corpus does not have: those keep what they had."""
    table = np.array(edges, np.int32).reshape(-1, 2)
    before = np.full(len(table), 64, np.uint8)
    graph = graph_from_edges(table[:, 0], table[:, 1], PAPERS, intents=before)
    known = masks_by_pair(corpus, overlay.masks_at(threshold))
    found = overlay.on(graph, corpus, threshold=threshold)
    pairs = zip(found.sources().tolist(), found.cited.targets.tolist(), strict=True)
    assert found.intents.tolist() == [known.get(pair, 64) for pair in pairs]
    assert (graph.intents == 64).all()


def test_masks_by_another_threshold(overlay):
    for least in (0.2, 0.5, 0.9):
        rows = zip(overlay.given.tolist(), overlay.mask.tolist(), overlay.confidence.tolist(), strict=True)
        limit = float(np.float16(least))
        expected = [
            mask if given else sum(bit for bit, value in zip((1, 2, 4), row, strict=True) if value >= limit)
            for given, mask, row in rows
        ]
        assert overlay.masks_at(least).tolist() == expected
    assert overlay.masks_at(0.5).tolist() == overlay.mask.tolist()
    assert overlay.mask[overlay.given].tolist() == [6, 128]
    # columns are mapped, and counts end at their largest
    assert not overlay.mask.flags.writeable
    assert overlay.contexts.tolist() == [65_535] * len(overlay)
    assert overlay.context_mask.tolist() == [1]
    assert overlay.context_confidence.tolist() == [[1.0, 0.0, 0.0]]


def test_places_of_pairs_that_are_no_citation(corpus):
    places = intent_overlay.CitationPlaces(corpus)
    found = places.find(np.array([0, 0, -1, 1, 8]), np.array([1, 5, PAPERS + 1, -1, 7]))
    assert found[[1, 2, 3]].tolist() == [-1, -1, -1]
    assert (corpus.citing[found[[0, 4]]].tolist(), corpus.cited[found[[0, 4]]].tolist()) == ([0, 8], [1, 7])
    # finer intents have no confidence
    assert intent_overlay.confidence_from_mask(np.array([128, 4 | 16], np.uint8)).tolist() == [[0, 0, 0], [0, 0, 1]]
    assert mask_from_confidence(np.zeros((2, 3), np.float16), 1e-9).tolist() == [0, 0]


def test_another_corpus_is_refused(corpus, overlay, tmp_path):
    other = write_corpus(tmp_path, EDGES[1:])
    graph = graph_from_edges(corpus.citing, corpus.cited, PAPERS)
    for asked, own, message in (
        (graph, other, rf"intents of corpus {corpus.hash[:12]}.*citeweave annotate"),
        (graph_from_edges(np.array([0]), np.array([1]), 7), corpus, r"graph \(7 nodes\) is of another corpus"),
        (build_graph(other, tmp_path / "graph"), corpus, "is of another corpus"),
    ):
        refused(message, overlay.on, asked, own)


def test_damage_is_named(corpus, tmp_path):
    folder = tmp_path / "intents"
    overlay_of(corpus, folder, np.zeros((len(corpus.citing), 3), np.float16), np.zeros(len(corpus.citing), np.uint8))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["facts"]["citations"]["all"] += 1
    del manifest["seal"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    refused("do not fit together", IntentOverlay.open, folder, error=ArtifactError)
    refused("holds corpus, not intents", IntentOverlay.open, corpus.folder, error=ArtifactError)
