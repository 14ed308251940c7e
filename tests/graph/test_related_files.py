"""Related papers in a folder: what `related` finds, whatever the blocks, and a killed run goes on."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.core.publish import work_folder
from citeweave.graph import related_files
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.related_files import RelatedFile, write_related
from citeweave.graph.signals import Related, Signal, related, stream_related


@pytest.fixture
def graph():
    random = np.random.default_rng(3)
    return graph_from_edges(random.integers(0, 300, 2500), random.integers(0, 300, 2500), 300)


@pytest.mark.parametrize("name", ["cocited", "coupled", "citing"])
def test_columns_hold_what_related_finds(name, graph, tmp_path, monkeypatch):
    rows = np.random.default_rng(4).permutation(300)[:90]
    monkeypatch.setattr(related_files, "BLOCK_ROWS", 7)
    found = write_related(graph, Signal(name), np.concatenate([rows, rows[:5]]), tmp_path / "r", workers=2)
    expected = related(graph, Signal(name), np.sort(rows))
    assert found.rows.tolist() == np.sort(rows).tolist()
    for column in ("offsets", "targets", "strengths"):
        np.testing.assert_array_equal(getattr(found.related, column), getattr(expected, column))
    assert RelatedFile.open(tmp_path / "r").pairs == len(expected.targets) > 0


def test_a_stopped_run_goes_on_at_its_block(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(related_files, "BLOCK_ROWS", 50)
    counted: list[int] = []
    count = stream_related

    def stopping(relations, signal, rows, **options):  # type: ignore[no-untyped-def]
        if len(counted) == 3:
            raise KeyboardInterrupt
        counted.append(len(rows))
        return count(relations, signal, rows, **options)

    monkeypatch.setattr(related_files, "stream_related", stopping)
    with pytest.raises(KeyboardInterrupt):
        write_related(graph, Signal("cocited"), np.arange(300), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    counted[:] = [0]
    monkeypatch.setattr(related_files, "stream_related", stopping)
    with pytest.raises(KeyboardInterrupt):  # two blocks more, and stopped again
        write_related(graph, Signal("cocited"), np.arange(300), tmp_path / "r")
    counted.clear()
    found = write_related(graph, Signal("cocited"), np.arange(300), tmp_path / "r")
    assert counted == [49, 6]  # five of seven were there
    expected: Related = related(graph, Signal("cocited"), np.arange(300))
    np.testing.assert_array_equal(found.related.targets, expected.targets)
    assert not work_folder(tmp_path / "r").exists()


def test_the_same_call_opens_and_another_graph_is_refused(graph, tmp_path):
    write_related(graph, Signal("cocited"), np.arange(20), tmp_path / "r")
    before = (tmp_path / "r" / "manifest.json").stat().st_mtime_ns
    write_related(graph, Signal("cocited"), np.arange(20), tmp_path / "r")
    assert (tmp_path / "r" / "manifest.json").stat().st_mtime_ns == before
    other = graph_from_edges(np.array([0, 0]), np.array([1, 2]), 300)
    with pytest.raises(UserError, match="made from other inputs"):
        write_related(other, Signal("cocited"), np.arange(20), tmp_path / "r")
    with pytest.raises(UserError, match="there is no query paper"):
        write_related(graph, Signal("cocited"), np.arange(0), tmp_path / "empty")
    with pytest.raises(UserError, match="row 300 is not in a graph of 300 nodes"):
        write_related(graph, Signal("cocited"), np.array([300]), tmp_path / "outside")


def test_another_graph_with_the_same_targets_is_counted_anew(tmp_path):
    one, other = (
        graph_from_edges(np.array(citing), np.array([2, 3, 2, 3]), 4) for citing in ([0, 0, 1, 1], [0, 0, 1, 2])
    )
    assert one.cited.targets.tolist() == other.cited.targets.tolist()
    assert write_related(one, Signal("cocited"), np.array([2]), tmp_path / "r").related.strengths.tolist() == [2.0]
    with pytest.raises(UserError, match="made from other inputs"):
        write_related(other, Signal("cocited"), np.array([2]), tmp_path / "r")
