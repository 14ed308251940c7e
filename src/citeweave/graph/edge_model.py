"""The edge model: node vectors trained edge by edge against random edges, as in PyTorch-BigGraph.

    edge 7 -> 3 in a chunk of 50 edges
    score(7, 3) must be above score(7, n)   n: the targets of the 49 others, and 50 random nodes
                    and above score(n, 3)   n: the sources of the 49 others, and 50 random nodes

After Lerer et al. 2019. A loss is a sum over edges, steps are by row-wise Adagrad, one step per batch. Unlike BigGraph:
steps are taken one after the other, so a seed fixes the result on one kind of machine; a negative that is the edge's
own end is left out wherever it comes from; there are no partitions, so vectors and edges must fit into device memory.

SciNCL's setting is `EdgeModel(loss="margin", max_norm=1.0)` with dimension 768 on citations in one direction. The
defaults find far more of the held-out citations: softmax, on edges in both directions, with a bound on the vectors'
lengths that is neither BigGraph's none nor SciNCL's 1, both of which are worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.progress import Reporter
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.kernels import unit_rows
from citeweave.graph.options import EdgeModel
from citeweave.graph.walk_powers import EmbeddingRun

if TYPE_CHECKING:
    import torch


DEVICES = ("auto", "cpu", "cuda")

_INIT_SCALE = 1e-3
"""Standard deviation of the initial vectors; BigGraph's init_scale."""

_MASKED = -1e9
"""Score of a candidate that is not a negative."""


@dataclass(frozen=True, slots=True)
class _EdgeTensors:
    """All edges of the graph as tensors on the device, one entry each."""

    sources: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor | None


def embed(
    adjacency: Adjacency, out: NDArray[np.float32], options: EdgeModel, run: EmbeddingRun, reporter: Reporter
) -> None:
    """Train the edge model: write the vectors of all nodes into `out`, (nodes, dimension)."""
    torch = require("torch", extra="minilm")
    device, epochs = _choose_device(torch, run.device), options.epochs
    rng = stream(run.seed, "edge model")
    with _threads(torch, run.workers), _memory_errors(torch):
        edges = _collect_edges(torch, adjacency, device)
        connected = torch.unique(torch.cat([edges.sources, edges.targets]))  # nodes that have an edge
        _initialize(out, connected.cpu().numpy(), rng)
        vectors = torch.from_numpy(out).to(device)  # shares memory with `out` on a CPU
        trainer = _EdgeModelTrainer(torch, vectors, options)
        with reporter.task("node vectors (edges)", total=epochs * len(edges.sources), unit="edges") as advance:
            for epoch in range(epochs):
                loss = torch.zeros((), dtype=torch.float64, device=device)
                for batch in _batches(torch, rng, len(edges.sources), options):
                    negatives = rng.integers(len(connected), size=(2, len(batch), options.uniform))
                    loss += trainer.step(edges, batch.to(device), connected[torch.from_numpy(negatives).to(device)])
                    advance(batch.numel())
                _report(float(loss) / len(edges.sources), epoch, options, reporter)
        if device != "cpu":
            out[:] = vectors.cpu().numpy()
    if options.comparator == "cos":
        unit_rows(out)


def _initialize(out: NDArray[np.float32], connected: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Fill the initial node vectors with small random numbers, 0 for nodes without an edge."""
    out[:] = 0
    for start in range(0, len(connected), 65_536):
        rows = connected[start : start + 65_536]
        out[rows] = rng.standard_normal((len(rows), out.shape[1]), np.float32) * np.float32(_INIT_SCALE)


def _report(loss: float, epoch: int, options: EdgeModel, reporter: Reporter) -> None:
    """Report the mean loss of an epoch; refuse to go on when training diverged."""
    reporter.say(f"epoch {epoch + 1} of {options.epochs}: mean loss {loss:.4g}")
    if not np.isfinite(loss):
        raise UserError(f"training diverged; graph.edges.rate is {options.rate}, give a smaller one")


class _EdgeModelTrainer:
    """Trains the edge model: the node vectors, and row-wise Adagrad's sum of squares per row."""

    def __init__(self, torch: Any, vectors: torch.Tensor, options: EdgeModel) -> None:
        self._torch, self._vectors, self._options = torch, vectors, options
        self._squares = torch.zeros(len(vectors), device=vectors.device)

    def step(self, edges: _EdgeTensors, batch: torch.Tensor, drawn: torch.Tensor) -> Any:
        """Train on edges `batch`, (chunks, edges), with negatives `drawn`, (2, chunks, uniform); return the loss."""
        torch = self._torch
        sources, targets = edges.sources[batch], edges.targets[batch]  # (chunks, edges) each
        weights = None if edges.weights is None else edges.weights[batch]
        nodes = torch.cat([sources, drawn[0], targets, drawn[1]], dim=1)  # (chunks, 2 * (edges + uniform))
        unique, places = torch.unique(nodes, return_inverse=True)
        rows = self._vectors[unique].requires_grad_()  # (unique, dimension)
        # its gradient is summed in a fixed order, unlike that of plain indexing
        vectors = torch.nn.functional.embedding(places, rows)
        if self._options.comparator == "cos":
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        edge_count, half = batch.shape[1], nodes.shape[1] // 2
        total = torch.zeros((), device=rows.device)
        for near, far in ((0, half), (half, 0)):
            anchors = vectors[:, near : near + edge_count]  # (chunks, edges, dimension)
            candidates = vectors[:, far : far + half]  # (chunks, edges + uniform, dimension)
            own = nodes[:, far : far + edge_count, None] == nodes[:, None, far : far + half]
            scores = torch.bmm(anchors, candidates.transpose(1, 2))  # (chunks, edges, edges + uniform)
            true = torch.diagonal(scores, dim1=1, dim2=2)  # (chunks, edges)
            losses = self._losses(true, scores.masked_fill(own, _MASKED))
            total = total + (losses if weights is None else losses * weights).sum()
        (gradient,) = torch.autograd.grad(total, rows)
        self._descend(unique, rows.detach(), gradient)
        return total.detach()

    def _losses(self, true: torch.Tensor, false: torch.Tensor) -> Any:
        """Return the loss per edge, (chunks, edges), from its score and its negatives', (chunks, edges, negatives)."""
        torch, functional = self._torch, self._torch.nn.functional
        if self._options.loss == "margin":
            return functional.relu(false - true[..., None] + self._options.margin).sum(-1)
        if self._options.loss == "softmax":
            return torch.logaddexp(true, torch.logsumexp(false, -1)) - true
        return functional.softplus(-true) + functional.softplus(false).mean(-1)

    def _descend(self, nodes: torch.Tensor, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update some node vectors by row-wise Adagrad, and shorten those over the maximum norm."""
        self._squares[nodes] += gradient.square().mean(1)
        rows = rows - self._options.rate * gradient / (self._squares[nodes].sqrt() + 1e-10)[:, None]
        if self._options.max_norm:
            rows = rows * (self._options.max_norm / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1)
        self._vectors[nodes] = rows


def _collect_edges(torch: Any, adjacency: Adjacency, device: str) -> _EdgeTensors:
    """Collect the edges of all parts on the device; drop weights of 0 and scale the mean weight to 1."""
    sources = [np.repeat(np.arange(part.nodes), np.diff(part.offsets)) for part in adjacency.parts]
    weights = [np.ones(part.edges, np.float32) if part.weights is None else part.weights for part in adjacency.parts]
    columns = [np.concatenate(sources), np.concatenate([part.targets for part in adjacency.parts]).astype(np.int64)]
    all_weights = np.concatenate(weights)
    is_edge = all_weights > 0
    first, second = (torch.from_numpy(column[is_edge]).to(device) for column in columns)
    relative = all_weights[is_edge] / all_weights[is_edge].mean()
    is_uniform = bool((relative == relative[0]).all())
    return _EdgeTensors(first, second, None if is_uniform else torch.from_numpy(relative).to(device))


def _batches(torch: Any, rng: np.random.Generator, count: int, options: EdgeModel) -> Iterator[torch.Tensor]:
    """Yield the numbers of all edges in random order, (chunks, edges) at a time; an incomplete chunk comes last."""
    order = torch.from_numpy(rng.permutation(count))
    size = min(options.chunk, options.batch)
    step = options.batch // size * size
    end = count // size * size
    for start in range(0, end, step):
        yield order[start : min(start + step, end)].view(-1, size)
    if end < count:
        yield order[end:].view(1, -1)


def _choose_device(torch: Any, requested: str) -> str:
    has_gpu = torch.cuda.is_available()
    if requested == "cuda" and not has_gpu:
        raise UserError("--device is cuda, but torch finds no GPU; use cpu or auto")
    return "cuda" if has_gpu and requested != "cpu" else "cpu"


@contextmanager
def _threads(torch: Any, workers: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(workers or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _memory_errors(torch: Any) -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            "GPU memory is too small for this graph's vectors; use --device cpu, a smaller --dim, or another --method"
        ) from error
