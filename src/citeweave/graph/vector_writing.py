"""Node vectors into a folder, in memory that an option sets, and resumed where an earlier run was stopped.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.integrity import sealed, unsealed
from citeweave.columns import BLOCK, TextColumn, release
from citeweave.files import read_input, write_json
from citeweave.graph import fastrp
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.node_vectors import NodeVectorOptions, check_edges, embed_nodes, run_of
from citeweave.graph.panel_files import PanelFiles
from citeweave.progress import Reporter
from citeweave.similarity.vectors import new_vectors


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
