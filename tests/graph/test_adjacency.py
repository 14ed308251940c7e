"""Sparse rows: products, degrees and turning round, against dense matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.graph.adjacency import CHUNK, Adjacency, Csr
from citeweave.graph.kernels import end_step

from ..conftest import refused


def csr(matrix, *, weighted=False):
    """The entries of a dense matrix that are not 0."""
    rows, columns = np.nonzero(matrix)
    offsets = np.zeros(len(matrix) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(matrix)), out=offsets[1:])
    weights = matrix[rows, columns].astype(np.float32) if weighted else None
    return Csr(offsets, columns.astype(np.int32), weights)


def random_matrix(seed, nodes, density):
    rng = np.random.default_rng(seed)
    return (rng.random((nodes, nodes)) < density) * rng.integers(1, 9, (nodes, nodes))


SHAPES = {"nodes": st.integers(1, 40), "width": st.sampled_from([1, 3, 16, 40])}
DENSITIES = st.sampled_from([0.0, 0.1, 0.6])


@settings(max_examples=40)
@given(seed=st.integers(0, 999), **SHAPES, density=DENSITIES, weighted=st.booleans())
def test_products_degrees_and_transposes_are_those_of_the_dense_matrix(seed, nodes, width, density, weighted):
    one, two = random_matrix(seed, nodes, density), random_matrix(seed + 1, nodes, density)
    adjacency = Adjacency((csr(one, weighted=weighted), csr(two, weighted=weighted)))
    dense = (one + two if weighted else (one > 0) + 1.0 * (two > 0)).astype(np.float64)
    block = np.random.default_rng(seed).normal(size=(nodes, width)).astype(np.float32)
    assert np.allclose(adjacency.times(block), dense @ block, atol=1e-4)
    assert np.allclose(adjacency.transposed().times(block), dense.T @ block, atol=1e-4)
    assert np.array_equal(adjacency.degrees(), dense.sum(1))


def test_no_bit_depends_on_workers_or_on_the_columns_beside():
    rng = np.random.default_rng(0)
    nodes = 2 * CHUNK + 77
    part = Csr(np.arange(nodes + 1) * 7, np.sort(rng.integers(0, nodes, (nodes, 7)), axis=1).astype(np.int32).ravel())
    adjacency = Adjacency((part, part.transposed()))
    block = rng.normal(size=(nodes, 40)).astype(np.float32)
    whole = adjacency.times(block, workers=1)
    assert np.array_equal(whole, adjacency.times(block, workers=3))
    for columns in (slice(0, 1), slice(3, 20), slice(16, 40)):
        assert np.array_equal(whole[:, columns], adjacency.times(np.ascontiguousarray(block[:, columns])))
        assert np.array_equal(whole[:, columns], adjacency.times(block[:, columns]))
    out = np.zeros((nodes, 50), np.float32)
    adjacency.times(block, out[:, 5:45])
    assert np.array_equal(out[:, 5:45], whole) and not out[:, :5].any() and not out[:, 45:].any()


def test_bfloat16_is_rounded_to_the_nearest_and_summed_in_full():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.14159, 1e-30, 0.0, 65504.0], np.float32)
    halves = np.empty((1, len(values)), np.uint16)
    end_step(values[None].copy(), halves, 0.0, np.ones(1, np.float32), 0, halves)
    back = (halves.astype(np.uint32) << 16).view(np.float32)[0]
    # exact ones stay, a tie goes to the even neighbor, the others to the nearest
    assert back[:3].tolist() == [1.0, 1.0, 1 + 2**-6] and back[5] == 0
    assert (np.abs(back - values) <= np.abs(values) * 2**-8).all()
    # a block is summed in full precision
    matrix = random_matrix(5, 50, 0.5)
    numbers = np.random.default_rng(0).integers(-100, 100, (50, 18)).astype(np.float32)  # exact in 8 bits
    halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    sums = Adjacency((csr(matrix, weighted=True),)).times(halves)
    assert np.array_equal(sums, matrix @ numbers)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_symmetry_is_seen_and_weights_are_numbers_from_0_up(weight):
    part = Csr(np.array([0, 1, 1]), np.array([1], np.int32), np.array([weight], np.float32))
    refused("negative or not finite", Adjacency((part,)).degrees)
    matrix = np.triu(random_matrix(7, 40, 0.2), 1)
    there, weighted = csr(matrix), csr(matrix, weighted=True)
    assert Adjacency((there, there.transposed())).is_symmetric
    assert Adjacency((weighted, weighted.transposed())).is_symmetric
    assert Adjacency((csr(matrix + matrix.T, weighted=True),)).is_symmetric
    assert not Adjacency((there,)).is_symmetric
    assert not Adjacency((weighted, there.transposed())).is_symmetric
    assert not Adjacency((there, there)).is_symmetric
