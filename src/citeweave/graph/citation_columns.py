"""The columns of a citation graph: sorted out of edges in any order, opened and checked.

    cited/offsets, cited/targets                     row -> the rows it cites, ascending
    citing/offsets, citing/targets, citing/edges     row -> the rows that cite it, and which edge of `cited` each is
    edges/intents, edges/strengths                   of every edge of `cited`

In memory or as files in a folder, in memory that the caller sets. What they mean together is in `citations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import GrowingColumn, offsets_fit, open_numbers, release
from citeweave.errors import ArtefactError, UserError
from citeweave.graph.edge_sorting import MOST_EDGES, SortedRows, count_edges, pick, sorted_rows, transposed_rows

TYPES = {
    "cited/offsets": np.int64,
    "cited/targets": np.int32,
    "citing/offsets": np.int64,
    "citing/targets": np.int32,
    "citing/edges": np.uint32,
    "edges/intents": np.uint8,
    "edges/strengths": np.float32,
}
Columns = dict[str, NDArray[Any]]

_CHECKED = 1 << 24
"""Numbers looked at before the memory of their column is given back."""


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """What became of the edges: given = edges + duplicates + to_itself + dangling."""

    nodes: int
    edges: int
    duplicates: int = 0
    to_itself: int = 0
    dangling: int = 0
    """Edges with an end outside the graph."""


@dataclass(frozen=True, slots=True)
class GivenEdges:
    """Edges in any order, with what they carry."""

    citing: NDArray[Any]
    cited: NDArray[Any]
    intents: NDArray[np.uint8] | None = None
    strengths: NDArray[np.float32] | None = None

    def intents_of(self, rows: SortedRows) -> NDArray[np.uint8]:
        """Intents of some sorted rows; those of duplicates are united."""
        if self.intents is None:
            return np.zeros(len(rows.targets), np.uint8)
        found = pick(self.intents, rows.edges)
        if len(rows.repeated):
            np.bitwise_or.at(found, rows.repeats, self.intents[rows.repeated])
        release(self.intents)
        return found

    def strengths_of(self, rows: SortedRows) -> NDArray[np.float32]:
        """Strengths of some sorted rows; of duplicates the largest."""
        if self.strengths is None:
            return np.ones(len(rows.targets), np.float32)
        found = pick(self.strengths, rows.edges)
        if len(rows.repeated):
            np.maximum.at(found, rows.repeats, self.strengths[rows.repeated])
        release(self.strengths)
        return found


class SortedGraph(NamedTuple):
    """All columns, memory-mapped where they are files, and what became of the edges."""

    columns: Columns
    counts: GraphCounts


def sort_edges(given: GivenEdges, nodes: int, folder: Path | None, memory: int) -> SortedGraph:
    """Both directions of a graph from its edges."""
    if len(given.citing) >= MOST_EDGES:
        raise UserError(
            f"a graph of {len(given.citing):,} edges: it can have up to {MOST_EDGES - 1:,}; split it by year"
        )
    found = count_edges(given.citing, given.cited, nodes)
    names = ("cited/targets", "edges/intents", "edges/strengths")
    out = {name: _column(folder, name) for name in names}
    offsets = np.zeros(nodes + 1, np.int64)  # (nodes + 1,)
    for rows in sorted_rows(given.citing, given.cited, found, memory=memory):
        offsets[rows.first + 1 : rows.first + len(rows.counts) + 1] = rows.counts
        out["cited/targets"].append(rows.targets)
        out["edges/intents"].append(given.intents_of(rows))
        out["edges/strengths"].append(given.strengths_of(rows))
    wrong = found.to_itself + found.dangling, found.to_itself, found.dangling
    del found
    columns = {name: column.close() for name, column in out.items()}
    columns["cited/offsets"] = _offsets(folder, "cited/offsets", offsets)
    del offsets
    columns |= _turn_around(columns, folder, memory)
    edges = len(columns["cited/targets"])
    return SortedGraph(columns, GraphCounts(nodes, edges, len(given.citing) - edges - wrong[0], *wrong[1:]))


def _turn_around(columns: Columns, folder: Path | None, memory: int) -> Columns:
    targets, edges = _column(folder, "citing/targets"), _column(folder, "citing/edges")
    offsets, at = np.zeros(len(columns["cited/offsets"]), np.int64), 1  # (nodes + 1,)
    for degrees, sources, numbers in transposed_rows(columns["cited/offsets"], columns["cited/targets"], memory=memory):
        offsets[at : at + len(degrees)] = degrees
        at += len(degrees)
        targets.append(sources)
        edges.append(numbers)
    return {
        "citing/targets": targets.close(),
        "citing/edges": edges.close(),
        "citing/offsets": _offsets(folder, "citing/offsets", offsets),
    }


def _column(folder: Path | None, name: str) -> GrowingColumn:
    return GrowingColumn(None if folder is None else folder / f"{name}.npy", TYPES[name])


def _offsets(folder: Path | None, name: str, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts, after a 0, become offsets in their own place."""
    np.cumsum(counts, out=counts)
    column = _column(folder, name)
    column.append(counts)
    return column.close()


def open_columns(folder: Path, nodes: int, edges: int) -> Columns:
    """The columns of a folder, memory-mapped; refused where they do not fit together."""
    columns = {name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in TYPES.items()}
    if not _fit(columns, nodes, edges):
        raise ArtefactError(f"{folder} is damaged: its columns do not fit together; make the graph again")
    return columns


def _fit(columns: Columns, nodes: int, edges: int) -> bool:
    """Compiled code follows offsets and targets without looking, so they are looked at here."""
    if any(len(columns[name]) != edges for name in TYPES if not name.endswith("offsets")):
        return False
    for side in ("cited", "citing"):
        offsets, targets = columns[f"{side}/offsets"], columns[f"{side}/targets"]
        if not offsets_fit(offsets, nodes, edges):
            return False
        for start in range(0, edges, _CHECKED):
            span = targets[start : start + _CHECKED]
            if int(span.min()) < 0 or int(span.max()) >= nodes:
                return False
            release(targets)
    return True
