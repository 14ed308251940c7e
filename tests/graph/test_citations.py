"""The citation graph against plain sets of edges."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import ArtifactError
from citeweave.graph.citations import CitationGraph, build_graph, graph_from_edges
from citeweave.graph.edge_sort import count_edges, sorted_rows

from ..conftest import refused
from .conftest import hash_of

EDGES = st.lists(st.tuples(st.integers(-1, 12), st.integers(-1, 12)), max_size=60)


def columns(edges):
    table = np.array(edges, np.int32).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(EDGES, st.sampled_from([8, 64, 1 << 20]))
@settings(max_examples=60)
def test_both_directions_hold_every_edge_once(edges, memory):
    nodes = 12
    graph = graph_from_edges(*columns(edges), nodes, memory=memory)
    valid = [(a, b) for a, b in edges if 0 <= a < nodes and 0 <= b < nodes]
    expected = sorted({(a, b) for a, b in valid if a != b})
    assert list(zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True)) == expected
    back = [(int(source), node) for node in range(nodes) for source in graph.citing.row(node)]
    assert sorted(back) == expected
    assert all(np.diff(graph.citing.row(node)).min(initial=1) > 0 for node in range(nodes))
    assert graph.counts.dangling == len(edges) - len(valid)
    assert graph.counts.to_itself == sum(a == b for a, b in valid)
    assert graph.counts.duplicates == len([1 for a, b in valid if a != b]) - len(expected)


def test_attributes_of_duplicates_are_merged_and_restrict():
    intents, strengths = np.array([1, 2, 4], np.uint8), np.array([2.0, 1.0, 5.0], np.float32)
    graph = graph_from_edges(np.array([3, 0, 3]), np.array([1, 2, 1]), 4, intents=intents, strengths=strengths)
    assert graph.intents.tolist() == [2, 5]
    assert graph.strengths.tolist() == [1.0, 5.0]
    assert graph.intents[graph.citing_edges[graph.citing.offsets[1] : graph.citing.offsets[2]]].tolist() == [5]
    graph = graph_from_edges(np.array([0, 0, 0]), np.array([1, 2, 3]), 4, intents=np.array([1, 3, 0], np.uint8))
    assert [graph.restricted(bits).cited.row(0).tolist() for bits in (2, 1, 0)] == [[2], [1, 2], [3]]


def test_adjacency_directions_and_weights():
    graph = graph_from_edges(np.array([0, 2]), np.array([1, 1]), 3, strengths=np.array([2.0, 3.0], np.float32))
    both = graph.adjacency("both", weighted=True)
    assert len(both.parts) == 2 and len(graph.adjacency("cited").parts) == 1
    assert both.parts[1].row(1).tolist() == [0, 2] and both.parts[1].weights.tolist() == [2.0, 3.0]
    refused("--direction is 'bot'.*Did you mean 'both'", graph.adjacency, "bot")
    refused("3 citing rows for 2 cited rows", graph_from_edges, np.zeros(3, int), np.zeros(2, int), 4)


def test_no_edges_no_nodes_and_one_giant_citing_paper():
    assert graph_from_edges(*columns([]), 5).edges == 0
    assert graph_from_edges(*columns([]), 0).nodes == 0
    cited = np.arange(1, 100_001)
    graph = graph_from_edges(np.zeros(100_000, np.int64), cited[::-1], 100_001, memory=1 << 16)
    assert graph.cited.row(0).tolist() == cited.tolist()
    assert graph.citing.row(100_000).tolist() == [0]


def test_built_from_a_corpus_and_opened_again(corpus, tmp_path):
    graph = build_graph(corpus, tmp_path / "graph")
    assert graph.corpus == corpus.hash
    assert np.array_equal(graph.sources(), corpus.citing) and np.array_equal(graph.cited.targets, corpus.cited)
    assert np.array_equal(graph.intents, corpus.intents) and np.array_equal(graph.strengths, corpus.strengths)
    assert build_graph(corpus, tmp_path / "graph").counts == graph.counts
    small = build_graph(corpus, tmp_path / "small", memory=4096)
    assert np.array_equal(small.citing.targets, graph.citing.targets)
    assert hash_of(tmp_path / "small") == hash_of(tmp_path / "graph")


def test_a_damaged_graph_is_refused(as_large, corpus, tmp_path):
    build_graph(corpus, tmp_path / "graph")
    path = tmp_path / "graph" / "cited" / "targets.npy"
    data = bytearray(path.read_bytes())
    data[128:132] = (2**30).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    refused("damaged", CitationGraph.open, tmp_path / "graph", error=ArtifactError)
    manifest = json.loads((tmp_path / "graph" / "manifest.json").read_text())
    del manifest["facts"]["edges"], manifest["seal"]
    (tmp_path / "graph" / "manifest.json").write_text(json.dumps(manifest))
    refused("does not describe a graph", CitationGraph.open, tmp_path / "graph", error=ArtifactError)


@pytest.mark.parametrize("memory", [1, 24 * 40, 1 << 30])
def test_edges_in_order_and_shuffled_make_one_graph(memory):
    random = np.random.default_rng(5)
    citing, cited = np.sort(random.integers(-1, 52, 400)), random.integers(-1, 52, 400)
    intents, strengths = random.integers(0, 8, 400).astype(np.uint8), random.random(400).astype(np.float32)
    order = random.permutation(400)
    columns = [[each[p] for each in (citing, cited, intents, strengths)] for p in (np.arange(400), order)]
    graphs = [graph_from_edges(a, b, 50, intents=i, strengths=s, memory=memory) for a, b, i, s in columns]
    assert graphs[0].counts == graphs[1].counts and graphs[0].counts.duplicates and graphs[0].counts.dangling
    for name in ("intents", "strengths", "citing_edges"):
        assert np.array_equal(getattr(graphs[0], name), getattr(graphs[1], name))
    for one, two in zip(graphs[0].adjacency().parts, graphs[1].adjacency().parts, strict=True):
        assert np.array_equal(one.offsets, two.offsets) and np.array_equal(one.targets, two.targets)


def test_edges_in_order_are_not_copied_to_be_cut():
    """Half a billion of them would be copied for every range of rows."""
    citing = np.repeat(np.arange(1000, dtype=np.int32), 1000)  # 4 MB
    cited = np.tile(np.arange(1000, dtype=np.int32), 1000)
    found = count_edges(citing, cited, 1000)
    tracemalloc.start()
    rows = next(sorted_rows(citing, cited, found, memory=1 << 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.ascending and (rows.first, len(rows.counts)) == (0, 2)
    assert peak < 1 << 20
