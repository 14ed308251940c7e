"""The citation graph: for every paper which papers it cites and which cite it, as memory-mapped sparse rows.

    graph/
      cited/offsets.npy, targets.npy       row -> the rows it cites, ascending
      citing/offsets.npy, targets.npy      row -> the rows that cite it, ascending
      citing/edges.npy                     which edge of `cited` each of them is
      edges/intents.npy, strengths.npy     of every edge of `cited`
      vectors/                             vectors of the nodes, where they were requested
      manifest.json                        counts; the hash of the corpus

    >>> graph = graph_from_edges(np.array([2, 0, 0, 0]), np.array([0, 2, 1, 2]), nodes=3)
    >>> graph.cited.row(0).tolist(), graph.citing.row(2).tolist(), graph.counts.duplicates
    ([1, 2], [0], 1)

Nodes are the rows of the corpus. What "related" means beyond one edge is in `signals.py`, node vectors are made by
`build.py`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import (
    ArtifactWriter,
    artifact_matches,
    check_files,
    new_artifact,
    read_manifest,
    seal_payload,
    unseal_payload,
)
from citeweave.core.columns import GrowingColumn, offsets_fit, open_numbers, release
from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.files import link_or_copy, read_input, sync, write_json
from citeweave.corpus.corpus import Corpus
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.edge_sort import (
    MAX_EDGES,
    SortedRows,
    count_edges,
    sorted_rows,
    take_edges,
    transposed_rows,
)

KIND, VERSION = "graph", 1
DIRECTIONS = ("both", "cited", "citing")
MEMORY = 512 << 20

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

_CHECKED_AT_ONCE = 1 << 24
"""Targets checked before the pages of their column are released."""


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Counts of a citation graph, and of citations left out: input = edges + duplicates + to_itself + dangling."""

    nodes: int
    edges: int
    duplicates: int = 0
    to_itself: int = 0
    dangling: int = 0
    """Edges with an end outside the graph."""


class CitationGraph:
    """Citations as sparse rows in both directions, with intents and strengths on the edges."""

    def __init__(
        self,
        columns: Columns,
        counts: GraphCounts,
        *,
        corpus: str = "",
        folder: Path | None = None,
    ) -> None:
        self.counts, self.corpus = counts, corpus
        """`corpus` is the hash of the corpus whose rows the nodes are, empty where there is none."""
        self.folder = folder
        """Where it was opened, None if it was made in memory; the intents may differ from those in the folder."""
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
        try:
            counts = GraphCounts(*(int(manifest.facts[name]) for name in GraphCounts.__slots__))
        except (KeyError, TypeError, ValueError):
            raise ArtifactError(
                f"{folder}/manifest.json does not describe a graph: it is damaged; build it again"
            ) from None
        columns = open_columns(folder, counts.nodes, counts.edges)
        return cls(columns, counts, corpus=str(manifest.facts.get("corpus", "")), folder=folder)

    @property
    def nodes(self) -> int:
        return self.cited.nodes

    @property
    def edges(self) -> int:
        return self.cited.edges

    def __repr__(self) -> str:
        return f"CitationGraph({self.nodes:,} nodes, {self.edges:,} edges)"

    def sources(self) -> NDArray[np.int32]:
        """Return the citing row of every edge, in the order of `cited.targets`; shape (edges,)."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), self.cited.lengths())

    def degrees(self) -> NDArray[np.int64]:
        """Return the number of citations made and received by every paper; shape (nodes,)."""
        return self.cited.lengths() + self.citing.lengths()

    def adjacency(self, direction: str = "both", *, weighted: bool = False) -> Adjacency:
        """Export the rows of the citation graph as one sparse matrix: undirected, along citations or against them, weighted or not."""
        choose(direction, DIRECTIONS, "--direction")
        strengths = self.strengths if weighted else None
        forward = Csr(self.cited.offsets, self.cited.targets, strengths)
        reverse = None if strengths is None else strengths[self.citing_edges]
        backward = Csr(self.citing.offsets, self.citing.targets, reverse)
        return Adjacency({"both": (forward, backward), "cited": (forward,), "citing": (backward,)}[direction])

    def keep_edges(self, edges: NDArray[np.bool_]) -> CitationGraph:
        """Return the citation graph with only these citations, in memory; shape of the mask (edges,)."""
        return graph_from_edges(
            self.sources()[edges],
            self.cited.targets[edges],
            self.nodes,
            intents=self.intents[edges],
            strengths=self.strengths[edges],
        )

    def with_intents(self, intents: NDArray[np.uint8]) -> CitationGraph:
        """Return the same graph with other intents on its citations; shape (edges,)."""
        other = copy.copy(self)
        other.intents = intents
        return other

    def restricted(self, intents: int) -> CitationGraph:
        """Return the graph of the citations with at least one of these intents (bits of `Intent`); 0 = unknown ones."""
        return self.keep_edges((self.intents & intents) != 0 if intents else self.intents == 0)


def build_graph(corpus: Corpus, folder: str | Path, *, memory: int = MEMORY, overwrite: bool = False) -> CitationGraph:
    """Build the citation graph of a corpus in a folder, to be opened by `CitationGraph.open`; an existing one is opened.

        graph = build_graph("corpus/", "graph/")
        graph.nodes, graph.edges

    `make_graph` also computes vectors of its nodes.
    In bounded memory; an interrupted run resumes with what it had sorted.
    """
    folder, recipe = Path(folder), {"corpus": corpus.hash}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            write_graph(corpus, writer, memory=memory, before=folder)
            writer.finish()
    return CitationGraph.open(folder)


def write_graph(
    corpus: Corpus, writer: ArtifactWriter, *, memory: int = MEMORY, before: Path | None = None
) -> CitationGraph:
    """Write the columns of a corpus's citation graph into an artifact that the caller finishes.

    They are made in the artifact's work folder and linked from there, so that the next run finds them, whatever stops
    the caller later. A graph of the same corpus at `before`, which is replaced, lends its columns.
    """
    work = writer.shared_scratch_folder(f"citations-{corpus.hash[:32]}")
    counts_file = work / "counts.json"
    if (counts := _read_counts(counts_file)) is None:
        counts = _reuse_columns(before, corpus, work)
    if counts is None:
        _clear(work)
        edges = EdgeList(corpus.citing, corpus.cited, corpus.intents, corpus.strengths)
        counts = sort_edges(edges, len(corpus), work, memory)[1]
        outside = len(corpus.references_outside("citing"))
        for name in TYPES:
            sync(work / f"{name}.npy")
        counts = replace(counts, dangling=counts.dangling + outside)
        write_json(counts_file, seal_payload(asdict(counts)))
    columns = open_columns(work, counts.nodes, counts.edges)
    for name in columns:
        link_or_copy(work / f"{name}.npy", writer.folder / f"{name}.npy")
    writer.facts |= {**asdict(counts), "corpus": corpus.hash}
    return CitationGraph(columns, counts, corpus=corpus.hash)


def _read_counts(path: Path) -> GraphCounts | None:
    """Read the edge counts of an earlier run; None if it had not finished sorting, or they are damaged."""
    try:
        return GraphCounts(**unseal_payload(json.loads(read_input(path))))
    except (OSError, ValueError, TypeError):
        return None


def _reuse_columns(before: Path | None, corpus: Corpus, work: Path) -> GraphCounts | None:
    """Link the columns of an existing graph of the same corpus, if it has the corpus's own intents."""
    try:
        if before is None or "intents" in read_manifest(before, KIND, VERSION).recipe:
            return None
        graph = CitationGraph.open(before)
    except ArtifactError:
        return None
    if graph.corpus != corpus.hash:
        return None
    _clear(work)
    for name in TYPES:
        link_or_copy(before / f"{name}.npy", work / f"{name}.npy")
    write_json(work / "counts.json", seal_payload(asdict(graph.counts)))
    return graph.counts


def _clear(work: Path) -> None:
    """Delete unfinished columns instead of overwriting them: they may be linked into another graph."""
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
    """Build a citation graph from pairs of rows in any order, in memory or as plain files in a folder.

    Duplicate edges become one: intents are united, the larger strength stays. Edges of a node to itself, and edges with
    an end that is not in 0 .. nodes - 1, are left out and counted.
    """
    if len(citing) != len(cited):
        raise UserError(f"{len(citing):,} citing rows for {len(cited):,} cited rows; give two columns of one length")
    if not 0 <= nodes < 2**31:
        raise UserError(f"the graph has {nodes:,} nodes; it can have up to {2**31 - 1:,}")
    columns, counts = sort_edges(EdgeList(citing, cited, intents, strengths), nodes, folder, memory)
    return CitationGraph(columns, counts)


def hash_columns(*columns: NDArray[Any]) -> str:
    """Hash columns, such as those of a citation graph, in their order."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


# Columns: sorted out of a list of edges, opened and checked.


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Citations as pairs of rows in any order, with their intents and strengths."""

    citing: NDArray[Any]
    cited: NDArray[Any]
    intents: NDArray[np.uint8] | None = None
    strengths: NDArray[np.float32] | None = None


def sort_edges(edges: EdgeList, nodes: int, folder: Path | None, memory: int) -> tuple[Columns, GraphCounts]:
    """Sort citations into the columns of a citation graph, in both directions, within `memory` bytes.

    Columns in a folder are memory-mapped. Intents of duplicate citations are united, of their strengths the largest stays.
    """
    if len(edges.citing) >= MAX_EDGES:
        raise UserError(
            f"the graph has {len(edges.citing):,} edges; it can have up to {MAX_EDGES - 1:,}: split the corpus by year"
        )
    counts = count_edges(edges.citing, edges.cited, nodes)
    names = ("cited/targets", "edges/intents", "edges/strengths")
    out = {name: _column(folder, name) for name in names}
    offsets = np.zeros(nodes + 1, np.int64)  # (nodes + 1,)
    for rows in sorted_rows(edges.citing, edges.cited, counts, memory=memory):
        offsets[rows.first + 1 : rows.first + len(rows.counts) + 1] = rows.counts
        out["cited/targets"].append(rows.targets)
        out["edges/intents"].append(_merge_duplicates(edges.intents, rows, np.bitwise_or, np.uint8(0)))
        out["edges/strengths"].append(_merge_duplicates(edges.strengths, rows, np.maximum, np.float32(1)))
    to_itself, dangling = counts.to_itself, counts.dangling
    del counts
    columns = {name: column.close() for name, column in out.items()}
    columns["cited/offsets"] = _offsets(folder, "cited/offsets", offsets)
    del offsets
    columns |= _transpose_columns(columns, folder, memory)
    kept = len(columns["cited/targets"])
    duplicates = len(edges.citing) - kept - to_itself - dangling
    return columns, GraphCounts(nodes, kept, duplicates, to_itself, dangling)


def _merge_duplicates(
    column: NDArray[Any] | None, rows: SortedRows, merge: np.ufunc, default: np.number[Any]
) -> NDArray[Any]:
    """Return an attribute of some sorted rows of citations, the values of duplicate citations merged into one."""
    if column is None:
        return np.full(len(rows.targets), default)
    values = take_edges(column, rows.edges)
    if len(rows.repeated):
        merge.at(values, rows.repeats, column[rows.repeated])
    release(column)
    return values


def _transpose_columns(columns: Columns, folder: Path | None, memory: int) -> Columns:
    """Make the columns of the citing direction from those of the cited one."""
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
    """Turn the counts of every row, after a 0, into the offsets column of the graph, in place."""
    np.cumsum(counts, out=counts)
    column = _column(folder, name)
    column.append(counts)
    return column.close()


def open_columns(folder: Path, nodes: int, edges: int) -> Columns:
    """Open the columns of a graph folder, memory-mapped; refuse those that do not fit together."""
    columns = {name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in TYPES.items()}
    if not _columns_fit(columns, nodes, edges):
        raise ArtifactError(f"{folder} is damaged: its columns do not fit together; build the graph again")
    return columns


def _columns_fit(columns: Columns, nodes: int, edges: int) -> bool:
    """Check that offsets and targets stay within the graph: compiled code follows them without bounds checks."""
    if any(len(columns[name]) != edges for name in TYPES if not name.endswith("offsets")):
        return False
    for side in ("cited", "citing"):
        offsets, targets = columns[f"{side}/offsets"], columns[f"{side}/targets"]
        if not offsets_fit(offsets, nodes, edges):
            return False
        for start in range(0, edges, _CHECKED_AT_ONCE):
            span = targets[start : start + _CHECKED_AT_ONCE]
            if int(span.min()) < 0 or int(span.max()) >= nodes:
                return False
            release(targets)
    return True
