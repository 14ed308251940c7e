"""Node vectors: against dense references, the same under any memory and workers, and telling communities apart."""

import io

import numpy as np
import pytest
from scipy.special import iv

from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.fastrp import MIN_PANEL_WIDTH, Panels, whiten
from citeweave.graph.kernels import fill_signs
from citeweave.graph.node_vectors import METHODS, _proximity, embed_nodes, filter_weights
from citeweave.graph.options import EdgeModel, FastRP, NodeVectorOptions, ProNE

from ..conftest import refused

CHEAP = ("fastrp", "prone")
QUICK = EdgeModel(epochs=2, batch=100, chunk=10, uniform=10)


def both_ways(nodes, sources, targets, weights=None):
    order = np.lexsort((targets, sources))
    offsets = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(sources, minlength=nodes), out=offsets[1:])
    weights = None if weights is None else weights[order].astype(np.float32)
    there = Csr(offsets, targets[order].astype(np.int32), weights)
    return Adjacency((there, there.transposed()))


def communities(number=4, size=40, inside=6, seed=0, *, weighted=False):
    """Groups whose members cite each other; one citation in ten goes anywhere. The last 3 nodes have no edges."""
    rng = np.random.default_rng(seed)
    nodes = number * size
    sources = np.repeat(np.arange(nodes), inside)
    targets = sources // size * size + rng.integers(0, size, len(sources))
    away = rng.random(len(sources)) < 0.1
    targets[away] = rng.integers(0, nodes, away.sum())
    kept = np.unique(np.stack([sources, targets])[:, sources != targets], axis=1)
    weights = rng.integers(1, 5, kept.shape[1]).astype(np.float32) if weighted else None
    return both_ways(nodes + 3, kept[0], kept[1], weights)


def dense(adjacency):
    return adjacency.times(np.eye(adjacency.nodes, dtype=np.float32)).astype(np.float64)


def unit(matrix):
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > 0)


def options(method, **more):
    usual = {"method": method, "dimension": 48, "edges": QUICK, "workers": 1, "device": "cpu"}
    return NodeVectorOptions(**usual | more)


@pytest.mark.parametrize("exponent", [0.0, -0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_fastrp_is_what_its_formula_says(exponent, weighted):
    adjacency = communities(weighted=weighted)
    weights = (0.5, 0.0, 1.0, 2.0)
    found = embed_nodes(adjacency, options("fastrp", fastrp=FastRP(weights, exponent, evening=0.0), dimension=80))
    matrix, degrees = dense(adjacency), adjacency.degrees()
    inverse = np.divide(1, degrees, out=np.zeros_like(degrees), where=degrees > 0)[:, None]
    power = np.empty((adjacency.nodes, 80), np.float32)
    fill_signs(int(stream(0, "fastrp").integers(1 << 63)), 0, np.ones(adjacency.nodes, np.float32), power)
    assert set(np.unique(power)) == {-1, 1} and abs(power.mean()) < 0.05
    power = power * np.where(degrees > 0, np.maximum(degrees, 1) ** exponent, 0)[:, None]
    total = np.zeros_like(power)
    for weight in weights:
        power = inverse * (matrix @ power)
        lengths = np.linalg.norm(power[:, :MIN_PANEL_WIDTH], axis=1, keepdims=True)
        total += weight * np.divide(power, lengths, out=np.zeros_like(power), where=lengths > 0)
    # powers are kept with 8 bits of precision on the way
    assert np.abs(found - unit(total)).max() < 0.01


@pytest.mark.parametrize("weighted", [False, True])
def test_prone_is_what_its_formula_says(weighted):
    adjacency = communities(2, 30, inside=2, weighted=weighted)
    chosen = ProNE(shift=2.0, iterations=30, order=20, mu=0.2, theta=0.5)
    nodes, matrix, degrees = adjacency.nodes, dense(adjacency), adjacency.degrees()
    found = embed_nodes(adjacency, options("prone", prone=chosen, dimension=nodes))
    chances = (matrix[degrees > 0] / degrees[degrees > 0, None]).sum(0) ** 0.75
    chances /= chances.sum()
    proximity = np.zeros_like(matrix)
    for part in adjacency.parts:  # an edge that goes both ways counts twice, as the sum of its parts
        for i, j in zip(np.repeat(np.arange(nodes), np.diff(part.offsets)), part.targets, strict=True):
            weight = 1.0 if part.weights is None else part.weights[np.searchsorted(part.row(i), j) + part.offsets[i]]
            proximity[i, j] += np.log(weight / degrees[i] / (2.0 * chances[j]))
    assert np.allclose(dense(_proximity(adjacency, degrees, shift=2.0)[0]), proximity, atol=1e-4)
    left, values, _ = np.linalg.svd(proximity)
    vectors = unit(left * np.sqrt(np.where(values > 1e-9, values, 0)))
    walk = (matrix + np.eye(nodes)) / (degrees + 1)[:, None]
    powers, roots = np.linalg.eig(walk)
    kept = np.real(roots @ np.diag(1 - np.exp(0.5 * (1 - (1 - powers - 0.2) ** 2 / 2))) @ np.linalg.inv(roots))
    left, values, _ = np.linalg.svd((matrix + np.eye(nodes)) @ kept @ vectors * (degrees > 0)[:, None])
    wanted = unit(left[:, : len(values)] * np.sqrt(np.where(values > 1e-6, values, 0)))
    # directions may be turned: compare what vectors are for
    near, far = found @ found.T, wanted @ wanted.T
    assert np.abs(near - far).max() < 0.03


def test_prones_filter_is_that_of_the_authors_series():
    """Their code sums (-1)^k (2 - [k = 0]) I_k(theta) T_k((L - mu)^2 / 2 - 1) over k."""
    mu, theta, p = 0.3, 0.7, np.linspace(-1, 1, 21)
    x = (1 - p - mu) ** 2 / 2 - 1
    signs = np.where(np.arange(30) % 2, -2.0, 2.0)
    signs[0] = 1
    series = np.polynomial.chebyshev.chebval(x, signs * iv(np.arange(30), theta))
    weights = filter_weights(20, mu, theta)
    assert np.allclose(np.polyval(weights[::-1], p), 1 - series, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_prone_turns_the_matrix_round_where_it_has_directions(weighted):
    both = communities(weighted=weighted)
    for adjacency in (both, Adjacency(both.parts[:1])):
        there, back = _proximity(adjacency, adjacency.degrees(), shift=1.0)
        assert np.allclose(dense(there), dense(back).T, rtol=1e-5) and dense(there).any()
        found = embed_nodes(adjacency, options("prone", dimension=16))
        assert np.isfinite(found).all() and found.any(axis=1).tolist() == (adjacency.degrees() > 0).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_vectors_tell_communities_apart_and_are_0_without_neighbors(method, tmp_path):
    adjacency = communities()
    chosen = options(method, edges=EdgeModel(epochs=12, batch=300, chunk=20, uniform=20))
    vectors = embed_nodes(adjacency, chosen)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    group = np.arange(160) // 40
    nearest = np.argsort(-scores[:160, :160], axis=1)[:, :10]
    assert (group[nearest] == group[:, None]).mean() > 0.9
    assert vectors.shape == (163, 48) and vectors.dtype == np.float32 and np.isfinite(vectors).all()
    assert vectors.any(axis=1).tolist() == (adjacency.degrees() > 0).tolist()
    if METHODS[method].score == "cosine":
        assert np.allclose(np.linalg.norm(vectors[:160], axis=1), 1, atol=1e-6)
    mapped = np.lib.format.open_memmap(tmp_path / "v.npy", "w+", np.float32, vectors.shape)
    mapped[:] = np.nan
    assert embed_nodes(adjacency, chosen, out=mapped) is mapped
    assert np.array_equal(np.load(tmp_path / "v.npy", allow_pickle=False), vectors)


@pytest.mark.parametrize("method", METHODS)
def test_no_bit_depends_on_workers_or_memory(method):
    adjacency = communities(weighted=True)
    first = embed_nodes(adjacency, options(method, workers=1))
    again = embed_nodes(adjacency, options(method, workers=2))
    # torch, which learns the edge model, does not promise bits where it sums on several threads
    assert np.array_equal(first, again) if method in CHEAP else np.allclose(first, again, atol=1e-4)
    least = 4 * 163 * 2 * MIN_PANEL_WIDTH + 12 * adjacency.edges
    for memory in (least, 2 * least, 1 << 20) if method in CHEAP else ():
        assert np.array_equal(first, embed_nodes(adjacency, options(method, memory=memory)))
    assert not np.array_equal(first, embed_nodes(adjacency, options(method, seed=1)))


def test_panels_share_the_columns_evenly_and_no_column_depends_on_the_others():
    adjacency, plain = communities(), FastRP(evening=0.0)
    wide, narrow = (embed_nodes(adjacency, options("fastrp", fastrp=plain, dimension=d)) for d in (100, 70))
    assert np.allclose(unit(wide[:, :70]), narrow, atol=1e-6)
    panels = Panels(1000, 100, 1000 * 4 * 2 * 60)
    assert [panel.columns for panel in panels] == [slice(0, 48), slice(48, 96), slice(96, 100)]
    assert [panel.now.shape for panel in panels] == [(1000, 48), (1000, 48), (1000, 4)]
    assert Panels(1000, 128, 1000 * 4 * 2 * 100).width == 64 and Panels(10, 7, 1 << 20).width == 7


@pytest.mark.parametrize("method", METHODS)
def test_odd_graphs_and_refusals(method):
    vectors = embed_nodes(both_ways(5, np.array([0, 0, 3]), np.array([1, 2, 4])), options(method, dimension=64))
    assert np.isfinite(vectors).all() and vectors.any(axis=1).all()  # with more dimensions than nodes
    part = Csr(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32), np.array([1, 0, 0], np.float32))
    vectors = embed_nodes(Adjacency((part, part.transposed())), options(method))
    assert np.isfinite(vectors).all() and vectors.any(axis=1).tolist() == [True, True, False]  # weight 0 is no edge
    nothing = Csr(np.zeros(4, np.int64), np.zeros(0, np.int32))
    refused("3 nodes and no edges", embed_nodes, Adjacency((nothing, nothing)), options(method))
    if method in CHEAP:
        with pytest.raises(UserError, match="--memory is 1,000 bytes; node vectors of 163 nodes need at least"):
            embed_nodes(communities(), options(method, memory=1000))
    refused("shape", embed_nodes, communities(), options(method), out=np.empty((163, 47), np.float32), error=ValueError)


def test_an_edge_given_twice_is_an_edge_of_weight_two():
    adjacency = communities(2, 30)
    weights = [np.full(part.edges, 2, np.float32) for part in adjacency.parts]
    double = Adjacency(tuple(Csr(p.offsets, p.targets, w) for p, w in zip(adjacency.parts, weights, strict=True)))
    once, *others = (embed_nodes(a, options("fastrp")) for a in (adjacency, Adjacency(adjacency.parts * 2), double))
    assert all(np.allclose(twice @ twice.T, once @ once.T, atol=0.02) for twice in others)


def test_evening_out():
    matrix = np.random.default_rng(0).normal(size=(5000, 6)).astype(np.float32)
    matrix *= np.array([9, 5, 3, 1, 1, 0], np.float32)
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    for power in (0.0, 0.5, 1.0):
        turned = matrix.copy()
        assert np.allclose(whiten(turned, power)[:5], values[:5] ** 2, rtol=1e-4)
        assert np.allclose(np.linalg.norm(turned, axis=0)[:5], values[:5] ** (1 - power), rtol=1e-3)
        assert not turned[:, 5].any()


WRONG_OPTIONS = [
    (NodeVectorOptions, {"method": "fasrtp"}, "graph.method is 'fasrtp'; .* Did you mean 'fastrp'"),
    (NodeVectorOptions, {"dimension": 0}, "graph.dimension is 0"),
    (NodeVectorOptions, {"memory": -1}, "graph.memory is -1"),
    (NodeVectorOptions, {"device": "gpu"}, "graph.device is 'gpu'"),
    (FastRP, {"weights": (0.0, 0.0)}, "graph.fastrp.weights is .* not all 0"),
    (FastRP, {"weights": ()}, "graph.fastrp.weights"),
    (FastRP, {"weights": (np.nan,)}, "graph.fastrp.weights"),
    (FastRP, {"exponent": 3}, "graph.fastrp.exponent is 3; it must be from -2 to 2"),
    (FastRP, {"evening": 2}, "graph.fastrp.evening"),
    (ProNE, {"order": 0}, "graph.prone.order is 0; it must be from 1 to 30"),
    (ProNE, {"theta": float("nan")}, "graph.prone.theta is nan"),
    (ProNE, {"shift": 0}, "graph.prone.shift"),
    (EdgeModel, {"loss": "hinge"}, "graph.edges.loss is 'hinge'; it must be one of logistic, margin, softmax"),
    (EdgeModel, {"rate": 0}, "graph.edges.rate is 0; it must be greater than 0"),
    (EdgeModel, {"max_norm": -1}, "graph.edges.max_norm is -1; it must be at least 0"),
    (EdgeModel, {"chunk": 1, "uniform": 0}, "needs a negative"),
]


@pytest.mark.parametrize(("make", "wrong", "message"), WRONG_OPTIONS)
def test_options_are_tables_of_a_recipe_and_wrong_ones_are_refused(make, wrong, message):
    table = NodeVectorOptions(fastrp={"weights": [0, 1, 1]}, edges={"loss": "margin", "rate": 1})
    assert table.fastrp == FastRP((0, 1, 1)) and table.edges == EdgeModel(loss="margin", rate=1)
    refused(message, make, **wrong)


def test_the_edge_model_learns_by_hand():
    """One edge 0 -> 1 and nodes 2, 3 as negatives: two steps of loss, gradient and row-wise Adagrad on paper."""
    torch = pytest.importorskip("torch")
    from citeweave.graph.node_vectors import _EdgeModelTrainer, _EdgeTensors

    start = np.array([[1, 0], [0.5, 0], [1, 1], [0, 1]], np.float32)
    edges = _EdgeTensors(torch.tensor([0]), torch.tensor([1]), None)
    drawn = torch.tensor([[[2]], [[3]]])  # node 2 as a source, node 3 as a target
    vectors = torch.from_numpy(start.copy())
    trainer = _EdgeModelTrainer(torch, vectors, EdgeModel(loss="margin", margin=0.15, rate=0.1, max_norm=0.0))
    loss = trainer.step(edges, torch.tensor([[0]]), drawn)
    # target side: 0.15 - 0.5 + 0 < 0, nothing; source side: 0.15 - 0.5 + 0.5
    assert float(loss) == pytest.approx(0.15)
    gradients = {0: [-0.5, 0], 1: [0, 1], 2: [0.5, 0]}  # of (x2 - x0) . x1
    wanted = start.copy()
    for node, gradient in gradients.items():
        wanted[node] -= 0.1 * np.array(gradient) / np.sqrt(np.mean(np.square(gradient)))
    assert np.allclose(vectors.numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
def test_losses_are_their_formulas(loss):
    torch = pytest.importorskip("torch")
    from citeweave.graph.node_vectors import _MASKED, _EdgeModelTrainer

    true, false = np.array([[0.5, -1.0]]), np.array([[[0.45, 0.1, _MASKED], [0.0, 2.0, _MASKED]]])
    trainer = _EdgeModelTrainer(torch, torch.zeros(1, 2), EdgeModel(loss=loss))
    found = trainer._losses(torch.tensor(true), torch.tensor(false))
    positive, negative = true[..., None], false[..., :2]
    wanted = {
        "margin": np.maximum(0, 0.15 - positive + negative).sum(-1),
        "softmax": np.log(np.exp(positive[..., 0]) + np.exp(negative).sum(-1)) - positive[..., 0],
        "logistic": np.log1p(np.exp(-positive[..., 0])) + np.log1p(np.exp(negative)).sum(-1) / 3,
    }[loss]
    assert np.allclose(found.numpy(), wanted)


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
@pytest.mark.parametrize("comparator", ["dot", "cos"])
def test_the_edge_model_is_repeatable_and_keeps_its_bound(loss, comparator):
    pytest.importorskip("torch")
    adjacency = communities(weighted=True)
    edges = EdgeModel(loss=loss, comparator=comparator, max_norm=0.5, epochs=3, batch=100, chunk=10, uniform=5)
    one, two = (embed_nodes(adjacency, options("edges", edges=edges)) for _ in range(2))
    assert np.array_equal(one, two)
    lengths = np.linalg.norm(one[:160], axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) if comparator == "cos" else lengths.max() <= 0.5 + 1e-5


def test_the_edge_model_reports_every_epoch_and_its_divergence():
    pytest.importorskip("torch")
    lines = io.StringIO()
    embed_nodes(communities(), options("edges"), reporter=Reporter(stream=lines))
    assert "epoch 1 of 2: mean loss" in lines.getvalue() and "epoch 2 of 2: mean loss" in lines.getvalue()
    wild = EdgeModel(rate=1e30, max_norm=0.0, epochs=2, batch=100, chunk=10)
    refused("diverged; graph.edges.rate is 1e\\+30", embed_nodes, communities(), options("edges", edges=wild))


@pytest.mark.parametrize("method", ["fastrp", "edges"])
def test_a_missing_card_is_named(method):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused("--device is cuda, but torch finds no GPU", embed_nodes, communities(), options(method, device="cuda"))
