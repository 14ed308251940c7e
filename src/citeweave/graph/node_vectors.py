"""Vectors of the nodes of a graph by FastRP, ProNE or the edge model, in memory or in a folder.

    vectors = embed_nodes(graph.adjacency(), NodeVectorOptions(method="fastrp", dimension=512))
    vectors.shape                    (nodes, 512), float32
    METHODS["fastrp"].score          "cosine": how two of them are to be compared

The methods, by cost and quality: `fastrp` (random projection: seconds for a million nodes), `prone` (factorization and
propagation: three times that, and better at equal dimension), `edges` (trained edge by edge as PyTorch-BigGraph does:
hundreds of times that, needs torch, and with its defaults a little better still). A node without neighbors has the
vector 0. The same seed gives the same vectors, whatever the memory and the number of workers.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.columns import BLOCK, TextColumn, release
from citeweave.core.errors import UserError
from citeweave.core.files import read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph import edge_model, fastrp, prone
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.fastrp import PanelFiles
from citeweave.graph.options import NodeVectorOptions
from citeweave.graph.walk_powers import EmbeddingRun
from citeweave.vectors.vectors import new_vectors


@dataclass(frozen=True, slots=True)
class EmbeddingMethod:
    """A method that makes node vectors, and how its vectors are compared."""

    embed: Callable[[Adjacency, NDArray[np.float32], Any, EmbeddingRun, Reporter], None]
    score: str
    """How its vectors are compared: "cosine" (rows have length 1, so a dot product is the same) or "dot"."""


METHODS = {
    "fastrp": EmbeddingMethod(fastrp.embed, "cosine"),
    "prone": EmbeddingMethod(prone.embed, "cosine"),
    "edges": EmbeddingMethod(edge_model.embed, "dot"),
}


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
    method_options = getattr(options, options.method)  # FastRP, ProNE or EdgeModel
    METHODS[options.method].embed(adjacency, np.asarray(out), method_options, _run_settings(options), reporter)
    return out


def _run_settings(options: NodeVectorOptions) -> EmbeddingRun:
    """Return the seed and resources that every embedding method takes."""
    return EmbeddingRun(options.seed, options.memory, options.workers, options.device)


def _check_edges(adjacency: Adjacency) -> None:
    """Refuse node vectors of a graph without edges."""
    if not adjacency.edges or not adjacency.degrees().any():
        raise UserError(f"the graph has {adjacency.nodes:,} nodes and no edges; node vectors need some")


# Node vectors in a folder, within a memory limit, resumed after an interruption.


@dataclass(frozen=True, slots=True)
class NodeVectorTask:
    """Node vectors to write to a folder: the graph, the options and the provenance."""

    ids: TextColumn
    """Ids of the nodes, none twice."""

    adjacency: Callable[[], Adjacency]
    """Makes the matrix to embed, when it is needed."""

    options: NodeVectorOptions
    dtype: str
    label: str
    source: str


def write_node_vectors(task: NodeVectorTask, work: Path, reporter: Reporter) -> int:
    """Write node vectors to `work / "vectors"`, unless complete; return the number of nodes with the vector 0."""
    done_file = work / "done.json"
    if (isolated := _read_isolated(done_file)) is None:
        panels = work / f"panels-{'cuda' if task.options.device == 'cuda' else 'cpu'}"
        rows = (
            _stream_fastrp(task, panels, reporter)
            if task.options.method == "fastrp"
            else _embed_in_memory(task, reporter)
        )
        isolated = _write_rows(task, rows, work / "vectors")
        write_json(done_file, seal_payload({"isolated": isolated}))
        shutil.rmtree(panels, ignore_errors=True)
    return isolated


def _read_isolated(done_file: Path) -> int | None:
    """Read the number of nodes with the vector 0 of finished node vectors; None if they are not finished."""
    try:
        return int(unseal_payload(json.loads(read_input(done_file)))["isolated"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stream_fastrp(task: NodeVectorTask, folder: Path, reporter: Reporter) -> Iterator[NDArray[np.float32]]:
    """Yield FastRP vectors block by block from panel files, which are filled first."""
    files = PanelFiles(folder, len(task.ids), task.options.dimension, task.dtype)
    options, run = task.options.fastrp, _run_settings(task.options)
    if files.done < files.dimension:
        adjacency = task.adjacency()
        _check_edges(adjacency)
        fastrp.fill_panels(adjacency, files, options, run, reporter)
        adjacency.release()
        del adjacency
    with reporter.task("vectors to disk", total=files.nodes, unit="rows") as advance:
        for rows in fastrp.finished_rows(files, options, run):
            yield rows
            advance(len(rows))


def _embed_in_memory(task: NodeVectorTask, reporter: Reporter) -> Iterator[NDArray[np.float32]]:
    """Yield node vectors block by block from a matrix in memory."""
    matrix = embed_nodes(task.adjacency(), task.options, reporter=reporter)
    for start in range(0, len(matrix), BLOCK):
        yield matrix[start : start + BLOCK]


def _write_rows(task: NodeVectorTask, blocks: Iterator[NDArray[np.float32]], folder: Path) -> int:
    """Write blocks of node vectors to a folder; return the number of nodes with the vector 0."""
    first = isolated = released = 0
    # an interrupted run may have left it without done.json
    shutil.rmtree(folder, ignore_errors=True)
    with new_vectors(folder, model=task.label, source=task.source, dtype=task.dtype) as out:
        for rows in blocks:
            isolated += len(rows) - int(rows.any(axis=1).sum())
            out.append_column(task.ids, first, rows)
            first += len(rows)
            if first - released > 64 * BLOCK:
                released = first
                release(task.ids)
        out.finish()
    return isolated
