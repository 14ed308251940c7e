"""FastRP by torch's sparse products: the same vectors as by our loops, to what bfloat16 rounds."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.fastrp import FastRP, Projection
from citeweave.graph.kernels import unit_rows
from citeweave.graph.node_vectors import NodeVectorOptions, embed_nodes
from citeweave.graph.walk_powers import EmbeddingRun, Panels, whiten

torch = pytest.importorskip("torch")


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
    from citeweave.graph.walk_powers import GpuPowerSum

    adjacency, chosen = made_up(weighted=weighted), FastRP(weights=(0.5, 0.0, 1.0))
    wanted = embed_nodes(adjacency, NodeVectorOptions(dimension=48, fastrp=chosen, device="cpu"))
    projection = Projection(adjacency, chosen, EmbeddingRun(0, memory, 1, "cpu"))
    projection.powers = GpuPowerSum(adjacency, adjacency.degrees(), chosen.weights, "cpu")
    found = np.zeros((200, 48), np.float32)
    for panel in Panels(200, 48, memory, np.uint16):
        projection.add(panel, found, panel.columns.start, lambda rows: None)
    whiten(found, chosen.evening)
    unit_rows(found)
    assert found.any(axis=1).tolist() == wanted.any(axis=1).tolist()
    # directions that are nearly as strong may be turned a little: compare what vectors are for
    assert np.abs(found @ found.T - wanted @ wanted.T).max() < 0.01


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_card_is_said():
    with pytest.raises(UserError, match="--device is cuda, but torch finds no GPU"):
        embed_nodes(made_up(weighted=False), NodeVectorOptions(dimension=16, device="cuda"))
