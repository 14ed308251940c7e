"""Vectors of the nodes of a graph: near if their neighborhoods are.

    vectors = embed_nodes(graph.adjacency(), NodeVectorOptions(method="fastrp", dimension=512))
    vectors.shape                    (nodes, 512), float32
    METHODS["fastrp"].score          "cosine": how two of them are to be compared

Three methods, by what they cost and find: `fastrp` (random projection: seconds for a million nodes), `prone`
(factorization and smoothing: three times that, and better at equal dimension), `edges` (trained edge by edge as
PyTorch-BigGraph does: hundreds of times that, needs torch, and with its defaults a little better still). A node without
neighbors has the vector 0. The same seed gives the same vectors, whatever the memory and the number of workers.

Does not judge them; see `evaluation/links.py`.

Node vectors into a folder, in memory that an option sets, and resumed where an earlier run was stopped.

    work/panels-cpu/     FastRP's columns, panel by panel: `panel_files.py`; removed at the end
    work/vectors/        the folder of vectors
    work/done.json       {"isolated": 3}: nodes with the vector 0; there when all is

FastRP never holds its result: panels go to files, and rows come out of them one block after the other. With vectors of
float16 the panels are of float16 too, half as large, whatever the memory, which therefore changes no number. Other
methods hold their result, (nodes, dimension) in float32. `making.py` says where the folder goes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import sealed, unsealed
from citeweave.core.columns import BLOCK, TextColumn, release
from citeweave.core.errors import UserError, choose
from citeweave.core.files import read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph import edge_model, fastrp, prone
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.edge_model import EdgeModel
from citeweave.graph.fastrp import FastRP
from citeweave.graph.prone import ProNE
from citeweave.graph.walks import EmbeddingRun, PanelFiles
from citeweave.vectors.vectors import new_vectors

__all__ = ["METHODS", "EdgeModel", "FastRP", "Method", "NodeVectorOptions", "ProNE", "embed_nodes"]


@dataclass(frozen=True, slots=True)
class NodeVectorOptions:
    """How nodes are embedded."""

    method: str = "fastrp"
    """One of METHODS."""

    dimension: int = 256
    """Numbers a vector. `fastrp` gains a little up to 512; `prone` with 128 is as good as that."""

    seed: int = 0

    memory: int = 1 << 30
    """Bytes of working memory; less memory means narrower panels and more passes. Beside the mapped graph, and beside
    the result where it is held: `fastrp` that is written to a folder never holds it."""

    workers: int = 0
    """Threads; 0 = one a core."""

    device: str = "auto"
    """cpu, cuda or auto. `edges` takes a graphics card under auto if there is one. `fastrp` takes one only where it is
    told cuda, since its numbers then differ a little; `prone` never does."""

    fastrp: FastRP = field(default_factory=FastRP)
    """Options of the methods; a table of a recipe will do."""

    prone: ProNE = field(default_factory=ProNE)
    edges: EdgeModel = field(default_factory=EdgeModel)

    def __post_init__(self) -> None:
        for name, kind in (("fastrp", FastRP), ("prone", ProNE), ("edges", EdgeModel)):
            if isinstance(table := getattr(self, name), Mapping):
                object.__setattr__(self, name, _from_table(table, kind, name))
            elif not isinstance(table, kind):
                raise UserError(f"graph.{name} is {table!r}; it must be a table [graph.{name}]")
        choose(self.method, METHODS, "--method")
        choose(self.device, edge_model.DEVICES, "--device")
        if not 1 <= self.dimension <= 65_536:
            raise UserError(f"--dim is {self.dimension}; a vector has 1 to 65,536 numbers")
        for name in ("memory", "workers"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} is {getattr(self, name)}; it cannot be negative")


@dataclass(frozen=True, slots=True)
class Method:
    """A way to embed nodes."""

    embed: Callable[[Adjacency, NDArray[np.float32], Any, EmbeddingRun, Reporter], None]
    score: str
    """How its vectors are compared: "cosine" (rows have length 1, so a dot product is the same) or "dot"."""


METHODS = {
    "fastrp": Method(fastrp.embed, "cosine"),
    "prone": Method(prone.embed, "cosine"),
    "edges": Method(edge_model.embed, "dot"),
}


def _from_table(table: Mapping[str, Any], kind: type[Any], name: str) -> Any:
    """Options from a table of a recipe, such as {"weights": [0, 1, 1]}."""
    defaults = {entry.name: entry.default for entry in fields(kind)}
    values = {}
    for key, value in table.items():
        like = defaults[choose(key, defaults, f"{name}: key")]
        values[key] = tuple(value) if isinstance(like, tuple) and isinstance(value, list | tuple) else value
        numbers, examples = (x if isinstance(x, tuple) else (x,) for x in (values[key], like))
        wanted: Any = (int, float) if isinstance(examples[0], float) else type(examples[0])
        is_right = all(isinstance(number, wanted) and not isinstance(number, bool) for number in numbers)
        if not is_right or isinstance(values[key], tuple) != isinstance(like, tuple):
            raise UserError(f"{name}.{key} is {value!r}; it must be like its default, {like!r}")
    return kind(**values)


def embed_nodes(
    adjacency: Adjacency,
    options: NodeVectorOptions | None = None,
    *,
    out: NDArray[np.float32] | None = None,
    reporter: Reporter = QUIET,
) -> NDArray[np.float32]:
    """One vector a node, (nodes, dimension), float32, finite; 0 for nodes without neighbors in any part.

    Vectors of `fastrp` and `prone` have length 1 and are compared by cosine or, which is the same, by dot product.
    Those of `edges` have the lengths that training gave them and are compared by dot product, unless its comparator is
    "cos". `out` may be a writable memory map of that shape; it is overwritten.

    >>> from citeweave.graph.adjacency import Csr
    >>> there = Csr(np.array([0, 2, 3, 3, 4, 4, 4]), np.array([1, 2, 2, 4], np.int32))     # 0 1 2 | 3 4 | 5
    >>> both = Adjacency((there, there.transposed()))
    >>> vectors = embed_nodes(both, NodeVectorOptions(dimension=32))
    >>> nearness = vectors @ vectors.T
    >>> bool(nearness[0, 1] > 0.9), bool(nearness[0, 3] < 0.5), vectors[5].any().item()
    (True, True, False)
    """
    options = options or NodeVectorOptions()
    shape = (adjacency.nodes, options.dimension)
    check_edges(adjacency)
    if out is None:
        out = np.empty(shape, np.float32)
    if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out must be a writable float32 array of shape {shape}, row after row")
    chosen = getattr(options, options.method)  # FastRP, ProNE or EdgeModel
    METHODS[options.method].embed(adjacency, np.asarray(out), chosen, run_of(options), reporter)
    return out


def run_of(options: NodeVectorOptions) -> EmbeddingRun:
    """How a method is told to run."""
    return EmbeddingRun(options.seed, options.memory, options.workers, options.device)


def check_edges(adjacency: Adjacency) -> None:
    """Refuse a graph without edges."""
    if not adjacency.edges or not adjacency.degrees().any():
        raise UserError(f"the graph has {adjacency.nodes:,} nodes and no edges; node vectors need some")


# Node vectors into a folder, in memory that an option sets, and resumed where an earlier run was stopped.


@dataclass(frozen=True, slots=True)
class VectorTask:
    """Which vectors are written."""

    ids: TextColumn
    """Of the nodes, none twice."""

    adjacency: Callable[[], Adjacency]
    """What is embedded; made when it is needed."""

    options: NodeVectorOptions
    dtype: str
    label: str
    source: str


def write_node_vectors(task: VectorTask, work: Path, reporter: Reporter) -> int:
    """Make `work / "vectors"`, unless it is whole; the number of nodes with the vector 0."""
    told = work / "done.json"
    if (isolated := _read_isolated(told)) is None:
        panels = work / f"panels-{'cuda' if task.options.device == 'cuda' else 'cpu'}"
        rows = _streamed(task, panels, reporter) if task.options.method == "fastrp" else _held(task, reporter)
        isolated = _write(task, rows, work / "vectors")
        write_json(told, sealed({"isolated": isolated}))
        shutil.rmtree(panels, ignore_errors=True)
    return isolated


def _read_isolated(told: Path) -> int | None:
    """What a whole folder says of itself; None where there is none."""
    try:
        return int(unsealed(json.loads(read_input(told)))["isolated"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _streamed(task: VectorTask, folder: Path, reporter: Reporter) -> Iterator[NDArray[np.float32]]:
    files = PanelFiles(folder, len(task.ids), task.options.dimension, task.dtype)
    chosen, run = task.options.fastrp, run_of(task.options)
    if files.done < files.dimension:
        adjacency = task.adjacency()
        check_edges(adjacency)
        fastrp.fill_panels(adjacency, files, chosen, run, reporter)
        adjacency.release()
        del adjacency
    with reporter.task("vectors to disk", total=files.nodes, unit="rows") as advance:
        for rows in fastrp.finished_rows(files, chosen, run):
            yield rows
            advance(len(rows))


def _held(task: VectorTask, reporter: Reporter) -> Iterator[NDArray[np.float32]]:
    matrix = embed_nodes(task.adjacency(), task.options, reporter=reporter)
    for start in range(0, len(matrix), BLOCK):
        yield matrix[start : start + BLOCK]


def _write(task: VectorTask, blocks: Iterator[NDArray[np.float32]], folder: Path) -> int:
    first = isolated = released = 0
    # what an interrupted run left without telling that it was done
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
