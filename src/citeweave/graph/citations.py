"""The columns of a citation graph: sorted out of edges in any order, opened and checked.

    cited/offsets, cited/targets                     row -> the rows it cites, ascending
    citing/offsets, citing/targets, citing/edges     row -> the rows that cite it, and which edge of `cited` each is
    edges/intents, edges/strengths                   of every edge of `cited`

In memory or as files in a folder, in memory that the caller sets. What they mean together is in `citations.py`.

The citation graph: for every paper whom it cites and by whom it is cited, memory-mapped.

    graph/
      cited/offsets.npy, targets.npy       row -> the rows it cites, ascending
      citing/offsets.npy, targets.npy      row -> the rows that cite it, ascending
      citing/edges.npy                     which edge of `cited` each of them is
      edges/intents.npy, strengths.npy     of every edge of `cited`
      vectors/                             vectors of the nodes, where they were asked for
      manifest.json                        counts; the hash of the corpus

    >>> graph = graph_from_edges(np.array([2, 0, 0, 0]), np.array([0, 2, 1, 2]), nodes=3)
    >>> graph.cited.row(0).tolist(), graph.citing.row(2).tolist(), graph.counts.duplicates
    ([1, 2], [0], 1)

Nodes are the rows of the corpus. What "related" means beyond one edge is in `signals.py`.
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import (
    ArtifactWriter,
    Manifest,
    check_files,
    matches,
    new_artifact,
    read_manifest,
    sealed,
    unsealed,
)
from citeweave.core.columns import GrowingColumn, offsets_fit, open_numbers, release
from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.files import link_or_copy, read_input, sync, write_json
from citeweave.corpus.corpus import Corpus
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.edge_sort import (
    MOST_EDGES,
    SortedRows,
    count_edges,
    pick,
    sorted_rows,
    transposed_rows,
)

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
        raise ArtifactError(f"{folder} is damaged: its columns do not fit together; make the graph again")
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


# The citation graph: for every paper whom it cites and by whom it is cited, memory-mapped.

__all__ = [
    "DIRECTIONS",
    "KIND",
    "MEMORY",
    "VERSION",
    "CitationGraph",
    "GraphCounts",
    "build_graph",
    "graph_from_edges",
    "write_graph",
]

KIND, VERSION = "graph", 1
DIRECTIONS = ("both", "cited", "citing")
MEMORY = 512 << 20


class CitationGraph:
    """Citations as sparse rows in both directions, with intents and strengths on the edges."""

    def __init__(
        self,
        columns: dict[str, NDArray[Any]],
        counts: GraphCounts,
        *,
        corpus: str = "",
        folder: Path | None = None,
    ) -> None:
        self.counts, self.corpus = counts, corpus
        """`corpus` is the hash of the corpus whose rows the nodes are, empty where there is none."""
        self.folder = folder
        """Where it was opened, None where it was made in memory; intents may be others than those in the folder."""
        self.cited = Csr(columns["cited/offsets"], columns["cited/targets"])
        self.citing = Csr(columns["citing/offsets"], columns["citing/targets"])
        self.citing_edges: NDArray[np.unsignedinteger[Any]] = columns["citing/edges"]
        self.intents: NDArray[np.uint8] = columns["edges/intents"]
        self.strengths: NDArray[np.float32] = columns["edges/strengths"]

    @classmethod
    def open(cls, folder: str | Path) -> CitationGraph:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        return _open(folder, manifest)

    @property
    def nodes(self) -> int:
        return self.cited.nodes

    @property
    def edges(self) -> int:
        return self.cited.edges

    def __repr__(self) -> str:
        return f"CitationGraph({self.nodes:,} nodes, {self.edges:,} edges)"

    def sources(self) -> NDArray[np.int32]:
        """The citing row of every edge, in the order of `cited.targets`; shape (edges,)."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.cited.offsets))

    def degrees(self) -> NDArray[np.int64]:
        """Citations given and received of every node; shape (nodes,)."""
        return np.diff(self.cited.offsets) + np.diff(self.citing.offsets)

    def adjacency(self, direction: str = "both", *, weighted: bool = False) -> Adjacency:
        """The graph as a matrix: without directions, along citations or against them; weighted by strengths or not."""
        choose(direction, DIRECTIONS, "--direction")
        strengths = self.strengths if weighted else None
        forward = Csr(self.cited.offsets, self.cited.targets, strengths)
        back = None if strengths is None else strengths[self.citing_edges]
        backward = Csr(self.citing.offsets, self.citing.targets, back)
        return Adjacency({"both": (forward, backward), "cited": (forward,), "citing": (backward,)}[direction])

    def keep(self, edges: NDArray[np.bool_]) -> CitationGraph:
        """The graph with only these edges, in memory; shape of the mask (edges,)."""
        return graph_from_edges(
            self.sources()[edges],
            self.cited.targets[edges],
            self.nodes,
            intents=self.intents[edges],
            strengths=self.strengths[edges],
        )

    def with_intents(self, intents: NDArray[np.uint8]) -> CitationGraph:
        """The same graph with other intents on its edges; shape (edges,)."""
        other = copy.copy(self)
        other.intents = intents
        return other

    def restricted(self, intents: int) -> CitationGraph:
        """The graph of the citations that carry at least one of these intents (bits of `Intent`); 0 = no known one."""
        return self.keep((self.intents & intents) != 0 if intents else self.intents == 0)


def build_graph(corpus: Corpus, folder: str | Path, *, memory: int = MEMORY, overwrite: bool = False) -> CitationGraph:
    """The graph of a corpus's citations, written to a folder; one that is there already is opened.

    In bounded memory; what an interrupted run had sorted is found again.
    """
    folder, recipe = Path(folder), {"corpus": corpus.hash}
    if not matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            write_graph(corpus, writer, memory=memory, before=folder)
            writer.finish()
    return CitationGraph.open(folder)


def write_graph(
    corpus: Corpus, writer: ArtifactWriter, *, memory: int = MEMORY, before: Path | None = None
) -> CitationGraph:
    """The files of a corpus's graph inside an artifact that the caller finishes.

    They are made in the artifact's work folder and linked from there, so that whatever stops the caller later, the next
    run finds them; so does one that replaces `before`, a graph of the same corpus.
    """
    work = writer.shared_work(f"citations-{corpus.hash[:32]}")
    told = work / "counts.json"
    if (counts := _read_counts(told)) is None:
        counts = _take_over(before, corpus, work)
    if counts is None:
        _empty(work)
        given = GivenEdges(corpus.citing, corpus.cited, corpus.intents, corpus.strengths)
        found = sort_edges(given, len(corpus), work, memory)
        outside = len(corpus.references_outside("citing"))
        for name in TYPES:
            sync(work / f"{name}.npy")
        counts = replace(found.counts, dangling=found.counts.dangling + outside)
        write_json(told, sealed(asdict(counts)))
    columns = open_columns(work, counts.nodes, counts.edges)
    for name in columns:
        link_or_copy(work / f"{name}.npy", writer.folder / f"{name}.npy")
    writer.facts |= {**asdict(counts), "corpus": corpus.hash}
    return CitationGraph(columns, counts, corpus=corpus.hash)


def _read_counts(told: Path) -> GraphCounts | None:
    """What an earlier run had sorted; None where it had not finished, or its counts are damaged."""
    try:
        return GraphCounts(**unsealed(json.loads(read_input(told))))
    except (OSError, ValueError, TypeError):
        return None


def _take_over(before: Path | None, corpus: Corpus, work: Path) -> GraphCounts | None:
    """Link the columns of a graph of the same corpus, where there is one with the corpus's own intents."""
    try:
        if before is None or "intents" in read_manifest(before, KIND, VERSION).recipe:
            return None
        graph = CitationGraph.open(before)
    except ArtifactError:
        return None
    if graph.corpus != corpus.hash:
        return None
    _empty(work)
    for name in TYPES:
        link_or_copy(before / f"{name}.npy", work / f"{name}.npy")
    write_json(work / "counts.json", sealed(asdict(graph.counts)))
    return graph.counts


def _empty(work: Path) -> None:
    """Remove what was begun, never write over it: it may be linked to another graph."""
    shutil.rmtree(work)
    work.mkdir()


def graph_from_edges(
    citing: NDArray[np.integer[Any]],
    cited: NDArray[np.integer[Any]],
    nodes: int,
    *,
    intents: NDArray[np.uint8] | None = None,
    strengths: NDArray[np.float32] | None = None,
    folder: Path | None = None,
    memory: int = MEMORY,
) -> CitationGraph:
    """A graph from integer edges in any order, held in memory or as plain files in a folder.

    Edges given twice are one: intents are united, the larger strength stays. Edges to oneself and edges
    with an end that is not in 0 .. nodes - 1 are left out and counted.
    """
    if len(citing) != len(cited):
        raise UserError(f"{len(citing):,} citing rows for {len(cited):,} cited rows; give two columns of one length")
    if not 0 <= nodes < 2**31:
        raise UserError(f"a graph of {nodes:,} nodes: it can have up to {2**31 - 1:,}")
    columns, counts = sort_edges(GivenEdges(citing, cited, intents, strengths), nodes, folder, memory)
    return CitationGraph(columns, counts)


def _open(folder: Path, manifest: Manifest) -> CitationGraph:
    try:
        counts = GraphCounts(*(int(manifest.facts[name]) for name in GraphCounts.__slots__))
    except (KeyError, TypeError, ValueError):
        raise ArtifactError(f"{folder}/manifest.json does not describe a graph: it is damaged; make it again") from None
    columns = open_columns(folder, counts.nodes, counts.edges)
    return CitationGraph(columns, counts, corpus=str(manifest.facts.get("corpus", "")), folder=folder)
