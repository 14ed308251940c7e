"""Vectors of the nodes of a graph by FastRP, ProNE or the edge model, in memory or in a folder.

    vectors = embed_nodes(graph.adjacency(), NodeVectorOptions(method="fastrp", dimension=512))
    vectors.shape                    (nodes, 512), float32
    METHODS["fastrp"].score          "cosine": how two of them are to be compared

The methods, by cost and quality: `fastrp` (random projection: seconds for a million nodes; `fastrp.py`), `prone`
(factorization and propagation: three times that, and better at equal dimension), `edges` (trained edge by edge as
PyTorch-BigGraph does: hundreds of times that, needs torch, and with its defaults a little better still). A node without
neighbors has the vector 0. The same seed gives the same vectors, whatever the memory and the number of workers.

ProNE, sparse matrix factorization and spectral propagation (Zhang et al., IJCAI 2019):

    M_ij  = log(p_ij / (shift n_j)) at every edge    p: one random-walk step, n: how often it ends at j, to the 3/4
    E     = the strongest directions of M            randomized singular vectors, times the root of their values
    X     = (A + I) g(L) E, partly whitened          g(L) = 1 - exp(theta) exp(-theta (L - mu)^2 / 2), L = I - P

Differences from the authors' code, none of which changes what is computed: the singular vectors come from Gram
matrices, so that nothing but the result and a panel of columns is held; and the filter g is interpolated in P itself
by a polynomial of `order` steps, where their series in (L - mu)^2 needs about twice as many for the same precision.
Few iterations are meant: more of them make M's directions more exact and the vectors no better.

The edge model, trained edge by edge against random edges (Lerer et al. 2019):

    edge 7 -> 3 in a chunk of 50 edges
    score(7, 3) must be above score(7, n)   n: the targets of the 49 others, and 50 random nodes
                    and above score(n, 3)   n: the sources of the 49 others, and 50 random nodes

A loss is a sum over edges, steps are by row-wise Adagrad, one step per batch. Unlike BigGraph: steps are taken one after
the other, so a seed fixes the result on one kind of machine; a negative that is the edge's own end is left out wherever
it comes from; there are no partitions, so vectors and edges must fit into device memory. SciNCL's setting is
`EdgeModel(loss="margin", max_norm=1.0)` with dimension 768 on citations in one direction. The defaults find far more of
the held-out citations: softmax, on edges in both directions, with a bound on the vectors' lengths that is neither
BigGraph's none nor SciNCL's 1, both of which are worse.

In a folder, resumed after an interruption:

    work/panels-cpu/     FastRP's columns, panel by panel; deleted at the end
    work/vectors/        the folder of vectors
    work/done.json       {"isolated": 3}: nodes with the vector 0; written last

FastRP never holds its result: panels go to files, and rows are read from them block by block. With vectors of float16
the panels are float16 too, whatever the memory, which therefore changes no number. Other methods hold their result,
(nodes, dimension) in float32. Does not evaluate the vectors: `evaluation/links.py` does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.columns import BLOCK, TextColumn, release
from citeweave.core.errors import UserError, require
from citeweave.core.files import read_input, write_json
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.core.ragged import owners_of
from citeweave.core.randomness import stream
from citeweave.graph import fastrp
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.fastrp import PanelFiles, Panels, PowerSum, whiten
from citeweave.graph.kernels import add_columns, fill_log_weights, fill_signs, unit_rows
from citeweave.graph.options import EdgeModel, GraphOptions, NodeVectorOptions
from citeweave.vectors.vectors import new_vectors

if TYPE_CHECKING:
    import torch

Matrix = NDArray[np.float32]


def embed_nodes(
    adjacency: Adjacency,
    options: NodeVectorOptions | None = None,
    *,
    out: NDArray[np.float32] | None = None,
    reporter: Reporter = QUIET,
) -> NDArray[np.float32]:
    """Return node vectors by any method, (nodes, dimension), float32, finite; 0 for nodes without neighbors.

    Vectors of `fastrp` and `prone` have length 1 and are compared by cosine or, which is the same, by dot product.
    Those of `edges` have the lengths that training gave them and are compared by dot product, unless its comparator is
    "cos". `out` may be a writable memory map of that shape; it is overwritten.

    >>> from citeweave.graph.adjacency import Csr
    >>> forward = Csr(np.array([0, 2, 3, 3, 4, 4, 4]), np.array([1, 2, 2, 4], np.int32))     # 0 1 2 | 3 4 | 5
    >>> both = Adjacency((forward, forward.transposed()))
    >>> vectors = embed_nodes(both, NodeVectorOptions(dimension=32))
    >>> nearness = vectors @ vectors.T
    >>> bool(nearness[0, 1] > 0.9), bool(nearness[0, 3] < 0.5), vectors[5].any().item()
    (True, True, False)
    """
    options = options or NodeVectorOptions()
    shape = (adjacency.nodes, options.dimension)
    _check_edges(adjacency)
    if out is None:
        out = np.empty(shape, np.float32)
    if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out must be a writable float32 array of shape {shape}, row after row")
    METHODS[options.method].embed(adjacency, np.asarray(out), options, reporter)
    return out


def _check_edges(adjacency: Adjacency) -> None:
    """Refuse node vectors of a graph without edges."""
    if not adjacency.edges or not adjacency.degrees().any():
        raise UserError(f"the graph has {adjacency.nodes:,} nodes and no edges; node vectors need some")


# Node vectors in a folder, within a memory limit, resumed after an interruption.


def write_node_vectors(
    ids: TextColumn,
    adjacency: Callable[[], Adjacency],
    options: GraphOptions,
    work: Path,
    *,
    label: str,
    source: str,
    reporter: Reporter,
) -> int:
    """Write node vectors to `work / "vectors"`, unless complete; return the number of nodes with the vector 0.

    No id may occur twice; `adjacency` makes the matrix to embed, when it is needed.
    """
    done_file = work / "done.json"
    if (isolated := _read_isolated(done_file)) is None:
        panels = work / f"panels-{'cuda' if options.vectors.device == 'cuda' else 'cpu'}"
        if options.vectors.method == "fastrp":
            blocks = _stream_fastrp(
                PanelFiles(panels, len(ids), options.vectors.dimension, options.dtype),
                adjacency,
                options.vectors,
                reporter,
            )
        else:
            blocks = _embed_in_memory(adjacency(), options.vectors, reporter)
        isolated = released = first = 0
        # an interrupted run may have left it without done.json
        shutil.rmtree(work / "vectors", ignore_errors=True)
        with new_vectors(work / "vectors", model=label, source=source, dtype=options.dtype) as out:
            for rows in blocks:
                isolated += len(rows) - int(rows.any(axis=1).sum())
                out.append_column(ids, first, rows)
                first += len(rows)
                if first - released > 64 * BLOCK:
                    released = first
                    release(ids)
            out.finish()
        write_json(done_file, seal_payload({"isolated": isolated}))
        shutil.rmtree(panels, ignore_errors=True)
    return isolated


def _read_isolated(done_file: Path) -> int | None:
    """Read the number of nodes with the vector 0 of finished node vectors; None if they are not finished."""
    try:
        return int(unseal_payload(json.loads(read_input(done_file)))["isolated"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stream_fastrp(
    files: PanelFiles, make_adjacency: Callable[[], Adjacency], options: NodeVectorOptions, reporter: Reporter
) -> Iterator[Matrix]:
    """Yield FastRP vectors block by block from panel files, which are filled first."""
    if files.done < files.dimension:
        adjacency = make_adjacency()
        _check_edges(adjacency)
        fastrp.fill_panels(adjacency, files, options, reporter)
        adjacency.release()
        del adjacency
    with reporter.task("vectors to disk", total=files.nodes, unit="rows") as advance:
        for rows in fastrp.finished_rows(files, options):
            yield rows
            advance(len(rows))


def _embed_in_memory(adjacency: Adjacency, options: NodeVectorOptions, reporter: Reporter) -> Iterator[Matrix]:
    """Yield node vectors block by block from a matrix in memory."""
    matrix = embed_nodes(adjacency, options, reporter=reporter)
    for start in range(0, len(matrix), BLOCK):
        yield matrix[start : start + BLOCK]


# ProNE.

_NEGATIVE_POWER = 0.75
"""Exponent of word2vec's negative sampling (Mikolov et al. 2013), which ProNE adopts."""


def _embed_prone(adjacency: Adjacency, out: Matrix, options: NodeVectorOptions, reporter: Reporter) -> None:
    """Write the ProNE vectors of all nodes into `out`, (nodes, dimension)."""
    degrees, nodes, prone = adjacency.degrees(), len(out), options.prone
    reserved = 8 * adjacency.edges if adjacency.is_symmetric else 12 * adjacency.edges + 8 * nodes
    panels = Panels(nodes, out.shape[1], options.memory, reserved=reserved)
    steps = 1 + 2 * prone.iterations + prone.order + 1
    with reporter.task("node vectors (prone)", total=len(panels) * steps * nodes, unit="rows") as advance:
        _factorize(adjacency, degrees, panels, out, options, advance)
        weights = filter_weights(prone.order, prone.mu, prone.theta)
        powers = PowerSum(adjacency, degrees, weights, loop=1.0, workers=options.workers)
        for panel in panels:
            panel.now[:] = out[:, panel.columns]
            out[:, panel.columns] = 0
            powers.add(panel, out, panel.columns.start, advance)
    for start in range(0, nodes, 8192):
        out[start : start + 8192] *= (degrees[start : start + 8192, None] + 1).astype(np.float32)
    whiten(out, 0.5)
    unit_rows(out)


def filter_weights(order: int, mu: float, theta: float) -> list[float]:
    """Return the weights of P, P^2, ... in ProNE's filter P g(I - P), with g interpolated at Chebyshev points.

    >>> weights = filter_weights(8, mu=0.0, theta=0.5)
    >>> exact = 1 - np.exp(0.5) * np.exp(-0.5 * 0.7**2 / 2)
    >>> bool(abs(np.polyval(weights[::-1], 0.3) - exact) < 1e-6)
    True
    """
    series: Any = chebyshev.chebinterpolate(lambda p: 1 - np.exp(theta * (1 - (1 - p - mu) ** 2 / 2)), order)
    return [float(weight) for weight in chebyshev.cheb2poly(series)]


def _factorize(
    adjacency: Adjacency,
    degrees: NDArray[np.float64],
    panels: Panels,
    out: Matrix,
    options: NodeVectorOptions,
    advance: Advance,
) -> None:
    """Factorize M by randomized subspace iteration (Halko, Martinsson and Tropp 2011): out = E, rows of length 1."""
    proximity, transposed = _proximity(adjacency, degrees, options.prone.shift)
    workers = options.workers
    key = int(stream(options.seed, "prone").integers(1 << 63))
    ones = np.ones(len(out), np.float32)
    for panel in panels:
        fill_signs(key, panel.columns.start, ones, panel.now)
        proximity.times(panel.now, out[:, panel.columns], workers, advance)
    for _ in range(options.prone.iterations):
        whiten(out, 1.0)
        for panel in panels:
            panel.now[:] = out[:, panel.columns]
            transposed.times(panel.now, panel.after, workers, advance)
            proximity.times(panel.after, out[:, panel.columns], workers, advance)
    # singular values of M M' Q are the squares of M's, and E has the root of M's: S^(1/4)
    whiten(out, 0.75)
    unit_rows(out)


def _proximity(adjacency: Adjacency, degrees: NDArray[np.float64], shift: float) -> tuple[Adjacency, Adjacency]:
    """Return ProNE's proximity matrix M and its transpose; an undirected graph shares its rows with both."""
    inverse = np.divide(1, degrees, out=np.zeros_like(degrees), where=degrees > 0)  # (nodes,)
    ends = np.zeros_like(degrees)
    for part in adjacency.parts:
        add_columns(part.offsets, part.targets, part.weights, inverse, ends)
    chances = ends**_NEGATIVE_POWER
    chances /= chances.sum()
    rows, columns = (-np.log(values, out=np.zeros_like(values), where=values > 0) for values in (degrees, chances))
    columns -= np.log(shift)
    transposed = adjacency if adjacency.is_symmetric else adjacency.transposed()
    return _log_weighted(adjacency, rows, columns), _log_weighted(transposed, columns, rows)


def _log_weighted(adjacency: Adjacency, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Adjacency:
    """Return the adjacency with the log proximities of ProNE as edge weights."""
    parts = []
    for part in adjacency.parts:
        weights = np.empty(part.edges, np.float32)  # (edges,)
        fill_log_weights(part.offsets, part.targets, part.weights, rows, columns, weights)
        parts.append(Csr(part.offsets, part.targets, weights))
    return Adjacency(tuple(parts))


# The edge model.

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


def _embed_edges(adjacency: Adjacency, out: Matrix, options: NodeVectorOptions, reporter: Reporter) -> None:
    """Train the edge model: write the vectors of all nodes into `out`, (nodes, dimension)."""
    torch = require("torch", extra="minilm")
    device, model, rng = _choose_device(torch, options.device), options.edges, stream(options.seed, "edge model")
    with _torch_limits(torch, options.workers):
        edges = _collect_edges(torch, adjacency, device)
        connected = torch.unique(torch.cat([edges.sources, edges.targets]))  # nodes that have an edge
        _initialize(out, connected.cpu().numpy(), rng)
        vectors = torch.from_numpy(out).to(device)  # shares memory with `out` on a CPU
        trainer = _EdgeModelTrainer(torch, vectors, model)
        with reporter.task("node vectors (edges)", total=model.epochs * len(edges.sources), unit="edges") as advance:
            for epoch in range(model.epochs):
                loss = torch.zeros((), dtype=torch.float64, device=device)
                for batch in _batches(torch, rng, len(edges.sources), model):
                    negatives = rng.integers(len(connected), size=(2, len(batch), model.uniform))
                    loss += trainer.step(edges, batch.to(device), connected[torch.from_numpy(negatives).to(device)])
                    advance(batch.numel())
                _report(float(loss) / len(edges.sources), epoch, model, reporter)
        if device != "cpu":
            out[:] = vectors.cpu().numpy()
    if model.comparator == "cos":
        unit_rows(out)


def _initialize(out: Matrix, connected: NDArray[np.int64], rng: np.random.Generator) -> None:
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
        # their gradient is summed in a fixed order, unlike that of plain indexing
        ends = [torch.nn.functional.embedding(part, rows) for part in places.chunk(2, dim=1)]
        if self._options.comparator == "cos":
            ends = [torch.nn.functional.normalize(part, dim=-1) for part in ends]
        scores = torch.bmm(ends[0], ends[1].transpose(1, 2))  # (chunks, edges + uniform, edges + uniform)
        true = torch.diagonal(scores, dim1=1, dim2=2)[:, : batch.shape[1]]  # (chunks, edges)
        total = torch.zeros((), device=rows.device)
        near, far = nodes.chunk(2, dim=1)
        for candidates, given in ((far, scores), (near, scores.transpose(1, 2))):
            own = candidates[:, : batch.shape[1], None] == candidates[:, None]
            losses = self._losses(true, given[:, : batch.shape[1]].masked_fill(own, _MASKED))
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
    sources = [owners_of(part.offsets) for part in adjacency.parts]
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
def _torch_limits(torch: Any, workers: int) -> Iterator[None]:
    """Let torch use so many threads, 0 = as many as before, and explain what to do where a GPU's memory is too small."""
    before = torch.get_num_threads()
    torch.set_num_threads(workers or before)
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            "GPU memory is too small for this graph's vectors; use --device cpu, a smaller --dim, or another --method"
        ) from error
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class EmbeddingMethod:
    """A method that makes node vectors, and how its vectors are compared."""

    embed: Callable[[Adjacency, Matrix, NodeVectorOptions, Reporter], None]
    score: str
    """How its vectors are compared: "cosine" (rows have length 1, so a dot product is the same) or "dot"."""


METHODS = {
    "fastrp": EmbeddingMethod(fastrp.embed, "cosine"),
    "prone": EmbeddingMethod(_embed_prone, "cosine"),
    "edges": EmbeddingMethod(_embed_edges, "dot"),
}
