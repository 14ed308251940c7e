"""Folders of graphs and of related papers: as held in memory, under any memory and blocks, resumed after a kill."""

import json
from dataclasses import replace

import numpy as np
import pytest

from citeweave import CitationGraph, Vectors, build_graph, graph_from_edges, synthesize
from citeweave.core.publish import work_folder
from citeweave.corpus.options import SyntheticOptions
from citeweave.graph import build, citations, fastrp, node_vectors
from citeweave.graph.build import RelatedFile, make_graph, write_related
from citeweave.graph.fastrp import PanelFiles
from citeweave.graph.node_vectors import embed_nodes
from citeweave.graph.options import graph_options
from citeweave.graph.signals import Signal, related

from ..conftest import refused
from .conftest import hash_of, stop_after

LITTLE = 300 * (4 * 4 + 16 * 8)
"""Bytes for panels of 16 columns, sums in float32."""


class Killed(BaseException):
    """What no code of ours catches."""


def options(**more):
    return graph_options({"dimension": 64, "workers": 1, **more})


@pytest.mark.parametrize("evening", [0.5, 0.0])
def test_streamed_vectors_are_those_in_memory_bit_for_bit(corpus, tmp_path, evening):
    chosen = options(fastrp={"evening": evening})
    graph = make_graph(corpus, tmp_path / "graph", chosen)
    wanted = embed_nodes(graph.adjacency(), chosen.vectors)
    found = Vectors.open(tmp_path / "graph" / "vectors")
    assert found.matrix.dtype == np.float32 and np.array_equal(found.matrix, wanted)
    assert list(found.ids) == list(corpus.ids)
    assert not (tmp_path / "graph" / ".work").exists()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_bit_depends_on_memory_or_workers(corpus, tmp_path, dtype):
    for number, (memory, workers) in enumerate([(1 << 30, 1), (LITTLE, 2), (2 * LITTLE, 1)]):
        make_graph(corpus, tmp_path / str(number), options(memory=memory, workers=workers, dtype=dtype))
    assert len({hash_of(folder) for folder in tmp_path.iterdir()}) == 1


def test_float16_is_float32_but_for_rounding(corpus, tmp_path):
    for dtype in ("float32", "float16"):
        make_graph(corpus, tmp_path / dtype, options(dtype=dtype))
    one, two = (Vectors.open(tmp_path / dtype / "vectors").matrix for dtype in ("float32", "float16"))
    assert two.dtype == np.float16
    two = two.astype(np.float32)
    # directions that are nearly as strong may be turned: compare what vectors are for
    assert np.abs(one @ one.T - two @ two.T).max() < 0.01
    refused("graph.dtype is 'float61'.*Did you mean 'float16'", options, dtype="float61")


KILLS = [
    (citations, "_transpose_columns", 0, 1, 4),
    (fastrp.Projection, "add", 0, 0, 4),
    (fastrp.Projection, "add", 3, 0, 1),
    (PanelFiles, "write", 2, 0, 2),
    (fastrp, "whitening_basis", 0, 0, 0),
    (node_vectors, "write_json", 0, 0, 0),
    (citations.ArtifactWriter, "finish", 1, 0, 0),
]


@pytest.mark.parametrize(("owner", "name", "calls", "sorts", "panels"), KILLS)
def test_a_killed_run_resumes(corpus, tmp_path, monkeypatch, owner, name, calls, sorts, panels):
    chosen, place = options(memory=LITTLE), tmp_path / "graph"
    make_graph(corpus, tmp_path / "whole", chosen)
    with monkeypatch.context() as patch:
        stop_after(patch, owner, name, calls, Killed)
        with pytest.raises(Killed):
            make_graph(corpus, place, chosen)
    assert work_folder(place).is_dir() and not place.exists()
    done = [stop_after(monkeypatch, *name, -1) for name in ((citations, "sort_edges"), (fastrp.Projection, "add"))]
    make_graph(corpus, place, chosen)
    assert hash_of(place) == hash_of(tmp_path / "whole")
    assert [len(calls) for calls in done] == [sorts, panels]


def test_panels_resume_with_another_memory(corpus, tmp_path, monkeypatch):
    make_graph(corpus, tmp_path / "whole", options())
    with monkeypatch.context() as patch:
        stop_after(patch, fastrp.Projection, "add", 1, Killed)
        with pytest.raises(Killed):
            make_graph(corpus, tmp_path / "graph", options(memory=LITTLE))
    make_graph(corpus, tmp_path / "graph", options())
    assert hash_of(tmp_path / "graph") == hash_of(tmp_path / "whole")


def test_overwriting_keeps_the_citations_of_the_same_corpus(corpus, tmp_path, monkeypatch):
    build_graph(corpus, tmp_path / "graph")
    before = (tmp_path / "graph" / "cited" / "targets.npy").stat().st_ino
    with monkeypatch.context() as patch:
        patch.delattr(citations, "sort_edges")
        graph = make_graph(corpus, tmp_path / "graph", options(), overwrite=True)
    assert graph.edges == len(corpus.citing) and (tmp_path / "graph" / "vectors").is_dir()
    assert (tmp_path / "graph" / "cited" / "targets.npy").stat().st_ino == before
    other = synthesize(tmp_path / "other", SyntheticOptions(papers=200))
    assert make_graph(other, tmp_path / "graph", options(), overwrite=True).nodes == 200
    assert CitationGraph.open(tmp_path / "graph").corpus == other.hash


def test_older_graphs_are_found_by_their_recipe(corpus, tmp_path):
    make_graph(corpus, tmp_path / "graph", options())
    recipe = json.loads((tmp_path / "graph" / "manifest.json").read_text())["recipe"]
    assert not {"dtype", "equal"} & set(recipe) and not {"memory", "workers", "device"} & set(recipe["vectors"])
    assert make_graph(corpus, tmp_path / "graph", replace(options(), direction="both")).edges


@pytest.fixture
def graph():
    random = np.random.default_rng(3)
    return graph_from_edges(random.integers(0, 300, 2500), random.integers(0, 300, 2500), 300)


@pytest.mark.parametrize("name", ["cocited", "coupled", "citing"])
def test_columns_hold_what_related_finds(name, graph, tmp_path, monkeypatch):
    rows = np.random.default_rng(4).permutation(300)[:90]
    monkeypatch.setattr(build, "BLOCK_ROWS", 7)
    found = write_related(graph, Signal(name), np.concatenate([rows, rows[:5]]), tmp_path / "r", workers=2)
    expected = related(graph, Signal(name), np.sort(rows))
    assert found.rows.tolist() == np.sort(rows).tolist()
    for column in ("offsets", "targets", "strengths"):
        np.testing.assert_array_equal(getattr(found.related, column), getattr(expected, column))
    assert RelatedFile.open(tmp_path / "r").pairs == len(expected.targets) > 0


def test_a_stopped_run_resumes_at_its_block(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "BLOCK_ROWS", 50)

    def write():
        return write_related(graph, Signal("cocited"), np.arange(300), tmp_path / "r")

    for blocks in (3, 2):  # stopped, and stopped again after two blocks more
        with monkeypatch.context() as patch:
            stop_after(patch, build, "stream_related", blocks)
            with pytest.raises(KeyboardInterrupt):
                write()
        assert not (tmp_path / "r").exists()
    counted = stop_after(monkeypatch, build, "stream_related", -1)
    found = write()
    assert [len(rows) for _, _, rows in counted] == [49, 6]  # five of seven were there
    np.testing.assert_array_equal(found.related.targets, related(graph, Signal("cocited"), np.arange(300)).targets)
    assert not work_folder(tmp_path / "r").exists()


def test_the_same_call_opens_and_another_graph_is_refused(graph, tmp_path):
    write_related(graph, Signal("cocited"), np.arange(20), tmp_path / "r")
    before = (tmp_path / "r" / "manifest.json").stat().st_mtime_ns
    write_related(graph, Signal("cocited"), np.arange(20), tmp_path / "r")
    assert (tmp_path / "r" / "manifest.json").stat().st_mtime_ns == before
    sources = [[0, 0, 1, 1], [0, 0, 1, 2]]
    one, other = (graph_from_edges(np.array(citing), np.array([2, 3, 2, 3]), 4) for citing in sources)
    assert one.cited.targets.tolist() == other.cited.targets.tolist()
    assert write_related(one, Signal("cocited"), np.array([2]), tmp_path / "one").related.strengths.tolist() == [2.0]
    for asked, rows, name, message in (
        (graph_from_edges(np.array([0, 0]), np.array([1, 2]), 300), np.arange(20), "r", "made from other inputs"),
        (other, np.array([2]), "one", "made from other inputs"),
        (graph, np.arange(0), "empty", "there is no query paper"),
        (graph, np.array([300]), "outside", "row 300 is not in a graph of 300 nodes"),
    ):
        refused(message, write_related, asked, Signal("cocited"), rows, tmp_path / name)
