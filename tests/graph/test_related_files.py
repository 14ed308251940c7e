"""Related papers in a folder: what `related` finds, whatever the blocks, and a killed run goes on."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.core.publish import work_folder
from citeweave.graph import build
from citeweave.graph.build import RelatedFile, write_related
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.signals import Signal, related

from .conftest import stop_after


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
        with pytest.raises(UserError, match=message):
            write_related(asked, Signal("cocited"), rows, tmp_path / name)
