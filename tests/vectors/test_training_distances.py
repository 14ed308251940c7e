"""Distances for training against `match`, and the Triton kernel of transport against Newton's method in torch, gradients too."""

import importlib.util
import os

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.vectors import transport
from citeweave.vectors.document_distance import DocumentDistance, match
from citeweave.vectors.sentence_distances import PaperPairs
from citeweave.vectors.training_distances import training_distances
from citeweave.vectors.transport import entropic_plan, sentence_masses

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

CAN_RUN = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
KERNEL = pytest.mark.skipif(
    not (importlib.util.find_spec("triton") and CAN_RUN), reason="no CUDA and no TRITON_INTERPRET=1"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DISTANCES = [
    *(
        DocumentDistance(name, 0.5, metric)
        for name in ("single", "attention", "transport")
        for metric in ("l2", "cosine")
    ),
    DocumentDistance("transport", mode="geomloss", start="batch"),
]


def drawn(sizes, seed=0, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    sides = [[scale * torch.randn(size[at], 6, generator=draw).double() for size in sizes] for at in (0, 1)]
    sides[1][0][0] = sides[0][0][0]  # a sentence of both papers
    return PaperPairs.of(*sides)


def plain_transport(costs, temperature, rows=None, columns=None):
    """The distances of pairs by Newton's method in torch."""
    rows = torch.ones(costs.shape[:2]).bool() if rows is None else rows
    columns = torch.ones(costs.shape[::2]).bool() if columns is None else columns
    return (entropic_plan(costs, sentence_masses(costs, rows, columns, temperature=temperature)) * costs).sum((1, 2))


@pytest.mark.parametrize("distance", DISTANCES, ids=str)
def test_distances_and_gradients_are_those_of_match(distance):
    found = []
    for compute in (lambda pairs: match(pairs, distance).training, lambda pairs: training_distances(pairs, distance)):
        pairs = drawn([(3, 2), (1, 1), (4, 5)])
        pairs.queries.requires_grad_()
        pairs.candidates.requires_grad_()
        values = compute(pairs)
        (values * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
        found.append((values.detach(), pairs.queries.grad, pairs.candidates.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_vectors_that_are_not_finite_are_refused():
    pairs = drawn([(2, 2)])
    pairs.queries[0, 0, 0] = torch.nan
    with pytest.raises(UserError, match="1 of 1 pairs of papers"):
        training_distances(pairs, DocumentDistance("single"))


@KERNEL
@pytest.mark.parametrize(
    ("n", "m", "temperature", "scale"), [(3, 4, 0.5, 1.0), (5, 2, 5000.0, 2.0), (1, 3, 0.5, 1.0), (3, 3, 0.01, 1.0)]
)
def test_the_kernel_gives_the_distances_and_gradients_of_torch(n, m, temperature, scale):
    from citeweave.vectors.triton_transport import transport_values

    pairs = drawn([(n, m), (max(1, n - 1), max(1, m - 2))], seed=n, scale=scale)
    costs = torch.cdist(pairs.queries, pairs.candidates)
    found = []
    for device in ("cpu", DEVICE):
        own, rows, columns = (part.to(device) for part in (costs.clone(), pairs.query_mask, pairs.candidate_mask))
        own.requires_grad_()
        if not found:
            values = plain_transport(own, temperature, rows, columns)
        else:
            values = transport_values(own, rows.sum(1), columns.sum(1), temperature)
        (values * torch.tensor([1.0, -2.0], device=device)).sum().backward()
        found.append((values.detach().cpu(), own.grad.cpu()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-8, atol=1e-9)


@KERNEL
def test_the_kernel_scores_pairs_of_any_size_as_the_cpu_does():
    from citeweave.vectors import triton_transport

    lengths, widths = np.array([2, 4, 1, 65]), np.array([3, 3, 2, 3])
    starts = np.cumsum(lengths) - lengths
    costs = np.random.default_rng(0).random((int(lengths.sum()), 3))
    parts = [costs[at : at + n, :m] for at, n, m in zip(starts, lengths, widths, strict=True)]
    expected = [plain_transport(torch.from_numpy(part.copy())[None], 0.5).item() for part in parts]
    found = triton_transport.transport_distances(
        torch.from_numpy(costs).to(DEVICE), starts, lengths, widths, temperature=0.5
    )
    assert np.allclose(found[:3], expected[:3], rtol=0, atol=1e-12) and np.isnan(found[3])


@KERNEL
def test_the_kernel_anneals_as_geomloss_does():
    from citeweave.vectors.triton_transport import anneal

    costs = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    rows, columns = torch.ones(3, 2).bool(), torch.ones(3, 3).bool()
    columns[1, 2:] = False
    masses = sentence_masses(costs, rows, columns, temperature=0.5)
    diameter = torch.tensor([0.4, 0.07, 0.0]).double()  # identical sentences have the diameter 0
    expected = transport.anneal(costs, masses, diameter)
    placed = transport.Masses(*(part.to(DEVICE) for part in masses))
    found = anneal(costs.to(DEVICE), placed, diameter.to(DEVICE))
    for one, other, there in zip(found, expected, (rows, columns), strict=True):
        torch.testing.assert_close(one.cpu()[there], other[there], rtol=1e-12, atol=1e-12)
