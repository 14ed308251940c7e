"""Graph folders: streamed as held in memory, the same under any memory, resumed after a kill at any point."""

import json
from dataclasses import replace

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.core.publish import work_folder
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.graph import citations, fastrp, node_vectors
from citeweave.graph.build import graph_options, make_graph
from citeweave.graph.citations import CitationGraph, build_graph
from citeweave.graph.fastrp import PanelFiles
from citeweave.graph.node_vectors import embed_nodes
from citeweave.vectors.vectors import Vectors

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
    with pytest.raises(UserError, match="--dtype is 'float61'.*Did you mean 'float16'"):
        options(dtype="float61")


@pytest.mark.parametrize(
    ("owner", "name", "calls", "sorts", "panels"),
    [
        (citations, "_transpose_columns", 0, 1, 4),
        (fastrp.Projection, "add", 0, 0, 4),
        (fastrp.Projection, "add", 3, 0, 1),
        (PanelFiles, "write", 2, 0, 2),
        (fastrp, "whitening_basis", 0, 0, 0),
        (node_vectors, "write_json", 0, 0, 0),
        (citations.ArtifactWriter, "finish", 1, 0, 0),
    ],
)
def test_a_killed_run_resumes(corpus, tmp_path, monkeypatch, owner, name, calls, sorts, panels):
    chosen, place = options(memory=LITTLE), tmp_path / "graph"
    make_graph(corpus, tmp_path / "whole", chosen)
    with monkeypatch.context() as patch:
        stop_after(patch, owner, name, calls, Killed)
        with pytest.raises(Killed):
            make_graph(corpus, place, chosen)
    assert work_folder(place).is_dir() and not place.exists()
    done = [
        stop_after(monkeypatch, *counted, -1) for counted in ((citations, "sort_edges"), (fastrp.Projection, "add"))
    ]
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


def test_too_little_memory_is_named_before_anything_is_embedded(corpus, tmp_path):
    with pytest.raises(UserError, match="--memory is 1,000 bytes; node vectors of 300 nodes need at least 43,200"):
        make_graph(corpus, tmp_path / "graph", options(memory=1000))


def test_older_graphs_are_found_by_their_recipe(corpus, tmp_path):
    make_graph(corpus, tmp_path / "graph", options())
    recipe = json.loads((tmp_path / "graph" / "manifest.json").read_text())["recipe"]
    assert "dtype" not in recipe and not {"memory", "workers", "device"} & set(recipe["vectors"])
    assert make_graph(corpus, tmp_path / "graph", replace(options(), direction="both")).edges
