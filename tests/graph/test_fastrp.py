"""FastRP: columns in files, never taken for complete before they are; by torch the same vectors as by our loops."""

import numpy as np
import pytest

from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.fastrp import ROW_BLOCK, GpuPowerSum, PanelFiles, Panels, Projection, whiten
from citeweave.graph.kernels import as_kernel_array, narrow_into, unit_rows
from citeweave.graph.node_vectors import embed_nodes
from citeweave.graph.options import FastRP, NodeVectorOptions


def test_panels_come_back_side_by_side_in_blocks_of_rows(tmp_path):
    matrix = np.random.default_rng(0).normal(size=(ROW_BLOCK + 7, 5)).astype(np.float32)
    files = PanelFiles(tmp_path, *matrix.shape, np.float32)
    for columns in (slice(0, 3), slice(3, 5)):
        assert files.done == columns.start
        files.write(columns, matrix[:, columns])
    blocks = list(PanelFiles(tmp_path, *matrix.shape, np.float32).blocks())
    assert [len(block) for block in blocks] == [ROW_BLOCK, 7]
    assert np.array_equal(np.concatenate(blocks), matrix)


def test_float16_is_read_and_written_as_numpy_does(tmp_path):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)][:, None]
    files = PanelFiles(tmp_path, len(every), 1, np.float16)
    files.write(slice(0, 1), every)
    wide = np.concatenate(list(files.blocks()))
    assert np.array_equal(wide, every.astype(np.float32))
    numbers = np.random.default_rng(0).normal(size=(13, 5000)) * 10.0 ** np.arange(-9, 4)[:, None]
    numbers = np.concatenate([numbers.astype(np.float32).reshape(-1, 1), wide])
    out = np.zeros(numbers.shape, np.float16)
    narrow_into(numbers, 0, as_kernel_array(out))
    wanted = numbers.astype(np.float16)
    small = np.abs(numbers) < 2**-14  # denormal: rounded twice, so that a near tie may go the other way
    assert np.array_equal(out[~small], wanted[~small])
    assert np.abs(out[small].astype(float) - wanted[small]).max() <= 2**-24
    narrow_into(np.array([[1e9]], np.float32), 0, as_kernel_array(out))
    assert out[0, 0] == 65504


def test_what_was_begun_does_not_count(tmp_path):
    files = PanelFiles(tmp_path, 2, 4, np.float32)
    assert files.read_gains() == {}
    files.write_gains({4: np.ones(2, np.float32)})
    assert files.read_gains() == {}  # of a panel that is not there
    files.write(slice(0, 2), np.zeros((2, 2), np.float32))
    (tmp_path / "00002-00004.new").write_bytes(b"half")
    again = PanelFiles(tmp_path, 2, 4, np.float32)
    assert again.done == 2 and again.read_gains()[4].tolist() == [1.0, 1.0]
    with pytest.raises(AssertionError):
        next(again.blocks())


def made_up(*, weighted):
    """200 nodes; the last two have no edges."""
    random = np.random.default_rng(3)
    degrees = np.append(random.integers(1, 9, 198), [0, 0])
    offsets = np.append(0, np.cumsum(degrees))
    targets = random.integers(0, 198, offsets[-1]).astype(np.int32)
    weights = random.random(offsets[-1]).astype(np.float32) if weighted else None
    there = Csr(offsets, targets, weights)
    return Adjacency((there, there.transposed()))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("memory", [1 << 20, 200 * 2 * 2 * 16])
def test_vectors_are_those_of_the_loops_to_rounding(weighted, memory):
    pytest.importorskip("torch")
    adjacency, chosen = made_up(weighted=weighted), FastRP(weights=(0.5, 0.0, 1.0))
    options = NodeVectorOptions(dimension=48, fastrp=chosen, device="cpu")
    wanted = embed_nodes(adjacency, options)
    projection = Projection(adjacency, options)
    projection.powers = GpuPowerSum(adjacency, adjacency.degrees(), chosen.weights, "cpu")
    found = np.zeros((200, 48), np.float32)
    for panel in Panels(200, 48, memory, np.uint16):
        projection.add(panel, found, panel.columns.start, lambda rows: None)
    whiten(found, chosen.evening)
    unit_rows(found)
    assert found.any(axis=1).tolist() == wanted.any(axis=1).tolist()
    # directions that are nearly as strong may be turned a little: compare what vectors are for
    assert np.abs(found @ found.T - wanted @ wanted.T).max() < 0.01
