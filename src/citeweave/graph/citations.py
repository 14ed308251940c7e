"""The citation graph: for every paper whom it cites and by whom it is cited, memory-mapped.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import GrowingColumn, open_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.errors import ArtefactError, UserError, choose
from citeweave.files import ArtefactWriter, Manifest, check_files, matches, new_artefact, read_manifest
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.edge_sorting import MOST_EDGES, SortedRows, count_edges, sorted_rows, transposed_rows

KIND, VERSION = "graph", 1
DIRECTIONS = ("both", "cited", "citing")
MEMORY = 512 << 20


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """What became of the edges: given = edges + duplicates + to_itself + dangling."""

    nodes: int
    edges: int
    duplicates: int = 0
    to_itself: int = 0
    dangling: int = 0
    """Edges with an end outside the graph."""


class CitationGraph:
    """Citations as sparse rows in both directions, with intents and strengths on the edges."""

    def __init__(self, columns: dict[str, NDArray[Any]], counts: GraphCounts, *, corpus: str = "") -> None:
        self.counts, self.corpus = counts, corpus
        """`corpus` is the hash of the corpus whose rows the nodes are, empty where there is none."""
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
    """The graph of a corpus's citations, written to a folder; one that is there already is opened."""
    folder, recipe = Path(folder), {"corpus": corpus.hash}
    if not matches(folder, KIND, VERSION, recipe):
        with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            write_graph(corpus, writer, memory=memory)
            writer.finish()
    return CitationGraph.open(folder)


def write_graph(corpus: Corpus, writer: ArtefactWriter, *, memory: int = MEMORY) -> CitationGraph:
    """The files of a corpus's graph inside an artefact that the caller finishes."""
    columns, counts = _sort_edges(
        corpus.citing, corpus.cited, len(corpus), _Attributes(corpus.intents, corpus.strengths), writer.folder, memory
    )
    outside = len(corpus.references_outside("citing"))
    counts = GraphCounts(counts.nodes, counts.edges, counts.duplicates, counts.to_itself, counts.dangling + outside)
    writer.facts |= {**asdict(counts), "corpus": corpus.hash}
    return CitationGraph(columns, counts, corpus=corpus.hash)


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
    columns, counts = _sort_edges(citing, cited, nodes, _Attributes(intents, strengths), folder, memory)
    return CitationGraph(columns, counts)


@dataclass(frozen=True, slots=True)
class _Attributes:
    intents: NDArray[np.uint8] | None
    strengths: NDArray[np.float32] | None

    def of(self, rows: SortedRows) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Intents and strengths of some sorted rows; those of duplicates are merged."""
        size = len(rows.targets)
        intents = np.zeros(size, np.uint8) if self.intents is None else self.intents[rows.edges]
        strengths = np.ones(size, np.float32) if self.strengths is None else self.strengths[rows.edges]
        if len(rows.repeated) and self.intents is not None:
            np.bitwise_or.at(intents, rows.repeats, self.intents[rows.repeated])
        if len(rows.repeated) and self.strengths is not None:
            np.maximum.at(strengths, rows.repeats, self.strengths[rows.repeated])
        return intents, strengths


def _sort_edges(
    citing: NDArray[Any], cited: NDArray[Any], nodes: int, attributes: _Attributes, folder: Path | None, memory: int
) -> tuple[dict[str, NDArray[Any]], GraphCounts]:
    if len(citing) >= MOST_EDGES:
        raise UserError(f"a graph of {len(citing):,} edges: it can have up to {MOST_EDGES - 1:,}; split it by year")
    found = count_edges(citing, cited, nodes)
    names = {"cited/targets": np.int32, "edges/intents": np.uint8, "edges/strengths": np.float32}
    out = {name: _column(folder, name, dtype) for name, dtype in names.items()}
    degrees = np.zeros(nodes, np.int64)
    for rows in sorted_rows(citing, cited, found.degrees, memory=memory):
        degrees[rows.first : rows.first + len(rows.counts)] = rows.counts
        out["cited/targets"].append(rows.targets)
        intents, strengths = attributes.of(rows)
        out["edges/intents"].append(intents)
        out["edges/strengths"].append(strengths)
    columns = {name: column.close() for name, column in out.items()}
    columns["cited/offsets"] = _offsets(folder, "cited/offsets", [degrees])
    columns |= _turn_around(columns, folder, memory)
    edges = len(columns["cited/targets"])
    duplicates = len(citing) - edges - found.to_itself - found.dangling
    return columns, GraphCounts(nodes, edges, duplicates, found.to_itself, found.dangling)


def _turn_around(columns: dict[str, NDArray[Any]], folder: Path | None, memory: int) -> dict[str, NDArray[Any]]:
    targets, edges = _column(folder, "citing/targets", np.int32), _column(folder, "citing/edges", np.uint32)
    counts = []
    for degrees, sources, numbers in transposed_rows(columns["cited/offsets"], columns["cited/targets"], memory=memory):
        counts.append(degrees)
        targets.append(sources)
        edges.append(numbers)
    return {
        "citing/offsets": _offsets(folder, "citing/offsets", counts),
        "citing/targets": targets.close(),
        "citing/edges": edges.close(),
    }


def _column(folder: Path | None, name: str, dtype: Any) -> GrowingColumn:
    return GrowingColumn(None if folder is None else folder / f"{name}.npy", dtype)


def _offsets(folder: Path | None, name: str, counts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    column = _column(folder, name, np.int64)
    column.append(np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts])))
    return column.close()


_TYPES = {
    "cited/offsets": np.int64,
    "cited/targets": np.int32,
    "citing/offsets": np.int64,
    "citing/targets": np.int32,
    "citing/edges": np.uint32,
    "edges/intents": np.uint8,
    "edges/strengths": np.float32,
}


def _open(folder: Path, manifest: Manifest) -> CitationGraph:
    columns = {name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _TYPES.items()}
    try:
        counts = GraphCounts(*(int(manifest.facts[name]) for name in GraphCounts.__slots__))
    except (KeyError, TypeError, ValueError):
        raise ArtefactError(f"{folder}/manifest.json does not describe a graph: it is damaged; make it again") from None
    _check(folder, columns, counts)
    return CitationGraph(columns, counts, corpus=str(manifest.facts.get("corpus", "")))


def _check(folder: Path, columns: dict[str, NDArray[Any]], counts: GraphCounts) -> None:
    """Compiled code follows offsets and targets without looking, so they are looked at here."""
    right = all(len(columns[name]) == counts.edges for name in _TYPES if not name.endswith("offsets"))
    for side in ("cited", "citing"):
        offsets, targets = columns[f"{side}/offsets"], columns[f"{side}/targets"]
        right = right and len(offsets) == counts.nodes + 1 and offsets[0] == 0 and offsets[-1] == counts.edges
        right = right and bool((np.diff(offsets) >= 0).all())
        right = right and (not len(targets) or (int(targets.min()) >= 0 and int(targets.max()) < counts.nodes))
    if not right:
        raise ArtefactError(f"{folder} is damaged: its columns do not fit together; make the graph again")
