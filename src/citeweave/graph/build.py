"""Build graph folders: citation graph and node vectors of a corpus (the `[graph]` table of a recipe), related papers.

    graph/cited, citing, edges     the citation graph: `citations.py`
    graph/vectors/                 one vector per paper, in the same format as other vectors of papers
    graph/vectors-method/          vectors of the graph with only the citations of one intent, if requested

Embedded are the citations, directed or not, or a weighted union of signals (`signals.py`).

Folders of related papers for many queries, such as co-citation counts, counted block by block.

    cocited/
      row.npy            the query papers, ascending, each once
      offsets.npy        where the related papers of each begin
      target.npy         the related papers, ascending within a row
      strength.npy       how strongly: of co-citations the number of papers that cite both
      manifest.json

    >>> from tempfile import mkdtemp
    >>> from citeweave.graph.citations import graph_from_edges
    >>> graph = graph_from_edges(np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]), nodes=4)
    >>> cocited = write_related(graph, Signal("cocited"), np.array([3, 2]), Path(mkdtemp()) / "cocited")
    >>> cocited.rows.tolist(), cocited.related.row(0)[0].tolist(), cocited.pairs
    ([2, 3], [3], 2)

Results in flight take at most `memory`, beside 8 bytes per node for each worker. Finished blocks are saved, so that a
killed run resumes with the next one. Holds one block at a time; `signals.related` returns everything in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.columns import NumberWriter, open_numbers, read_saved_arrays, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import link_or_copy, move, new_file
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.citations import KIND, MEMORY, VERSION, CitationGraph, hash_columns, write_graph
from citeweave.graph.edge_sort import row_ranges
from citeweave.graph.node_vectors import embed_nodes, write_node_vectors
from citeweave.graph.options import CITATIONS, FULL, GraphOptions
from citeweave.graph.signals import (
    Related,
    Relations,
    Signal,
    SignalLinks,
    join_related,
    largest_sizes,
    link_papers,
    parse_union,
    stream_related,
    symmetrize,
    unite_signals,
)

LinkEvaluator = Callable[[CitationGraph | SignalLinks, Callable[[Any], NDArray[np.float32]]], dict[str, Any]]
"""Evaluates node vectors: gets citations or links of signals, and a function that embeds some of them; its result goes
into the manifest."""


@dataclass(frozen=True, slots=True)
class LinkEvaluation:
    """An evaluation of a graph's node vectors by links that are held out."""

    evaluate: LinkEvaluator
    name: str
    """What is held out and how much, for the manifest."""

    of: str = CITATIONS
    """What is held out: citations, or the links of the signal that is embedded, such as co-citations."""


@dataclass(frozen=True, slots=True)
class GraphIntents:
    """Citation intents from elsewhere to build a graph with, and which of them get node vectors of their own."""

    source: str
    """Where the intents come from, for the manifest: the hash of an overlay, or how they were read."""

    annotate: Callable[[CitationGraph], CitationGraph]
    """Returns the graph with these intents on its edges."""

    embedded: Mapping[str, int] = field(default_factory=dict)
    """Intents whose citations get node vectors of their own: name -> bits of `Intent`; 0 = unknown intent."""


def make_graph(
    corpus: Corpus,
    folder: str | Path,
    options: GraphOptions | None = None,
    *,
    evaluation: LinkEvaluation | None = None,
    intents: GraphIntents | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """Build a graph folder: the citation graph of a corpus and vectors of its nodes; an existing one is opened.

    `evaluation` may evaluate the method on this graph. `intents` are put on the edges, and the citations of
    some get vectors of their own; an intent that no citation has gets none.

    An interrupted run resumes when it is started again with the same options: sorted citations, panels of FastRP and
    complete vectors are saved. `overwrite` of a graph of the same corpus reuses its citations.
    """
    options, folder = options or GraphOptions(), Path(folder)
    judged = "" if evaluation is None else evaluation.name
    recipe = {"corpus": corpus.hash, **_result_options(options), "judged": judged}
    if intents is not None:
        recipe["intents"] = {"from": intents.source, "apart": dict(sorted(intents.embedded.items()))}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            # a function of its own, so that its memory maps are closed: Windows cannot rename a folder in use
            _write_graph_and_vectors(writer, corpus, options, evaluation, intents, folder, reporter)
            writer.finish()
    return CitationGraph.open(folder)


def _write_graph_and_vectors(
    writer: ArtifactWriter,
    corpus: Corpus,
    options: GraphOptions,
    evaluation: LinkEvaluation | None,
    intents: GraphIntents | None,
    before: Path,
    reporter: Reporter,
) -> None:
    """Write the citation graph, the evaluation of its node vectors, and the vectors into the artifact."""
    graph = write_graph(corpus, writer, memory=options.vectors.memory, before=before)
    if not graph.edges:
        raise UserError(f"{corpus.folder} has no citations between its papers; node vectors need some")

    def embed(of: CitationGraph | SignalLinks) -> NDArray[np.float32]:
        adjacency = of.adjacency() if isinstance(of, SignalLinks) else build_adjacency(of, corpus, options, reporter)
        return embed_nodes(adjacency, options.vectors, reporter=reporter)

    if evaluation is not None:
        is_citations = evaluation.of == CITATIONS
        links = graph if is_citations else link_papers(unite_graph(graph, corpus, options, reporter))
        writer.facts["links"] = evaluation.evaluate(links, embed) | ({} if is_citations else {"of": options.signal})
    writer.facts["isolated"] = _write_vectors(writer, corpus, graph, options, reporter)
    if options.vectors.device == "cuda" and options.vectors.method == "fastrp":
        writer.facts["device"] = "cuda"  # its numbers differ a little from those of a CPU
    if intents is not None:
        annotated, apart = intents.annotate(graph), {}
        _replace_intents(writer.folder, annotated)
        for name, bits in intents.embedded.items():
            part = annotated.restricted(bits)
            apart[name] = {"citations": part.edges, "papers": int((part.degrees() > 0).sum())}
            if part.edges:
                _write_vectors(writer, corpus, part, options, reporter, name)
        writer.facts["apart"] = apart


def node_vectors_folder(folder: Path, intent: str = "") -> Path:
    """Return the subfolder of a graph folder with its node vectors, or those of one intent's citations."""
    return folder / (f"vectors-{intent}" if intent else "vectors")


def _write_vectors(
    writer: ArtifactWriter,
    corpus: Corpus,
    graph: CitationGraph,
    options: GraphOptions,
    reporter: Reporter,
    intent: str = "",
) -> int:
    """Write node vectors of a graph, or of one intent's citations, into its folder; return how many papers have the vector 0."""
    place = node_vectors_folder(writer.folder, intent)
    work = writer.scratch_folder(place.name)
    isolated = write_node_vectors(
        corpus.ids,
        lambda: build_adjacency(graph, corpus, options, reporter),
        options,
        work,
        label=f"{options.label}, {intent} only" if intent else options.label,
        source=f"citations of corpus {corpus.hash[:12]}",
        reporter=reporter,
    )
    for path in sorted((work / "vectors").iterdir()):
        link_or_copy(path, place / path.name)
    return isolated


def _replace_intents(folder: Path, graph: CitationGraph) -> None:
    """Replace the intents column of a graph by renaming: the old one is memory-mapped and must not be overwritten."""
    place = folder / "edges" / "intents.npy"
    write_numbers(place.with_name("intents.new.npy"), graph.intents, np.uint8)
    move(place.with_name("intents.new.npy"), place)


def check_graph_options(folder: Path, required: GraphOptions) -> None:
    """Refuse a built graph with node vectors of another signal than the recipe requires; method and size are free."""
    recipe = read_manifest(folder, KIND, VERSION).recipe
    for name in ("signal", "direction", "weighted", "normalize", "equal"):
        actual, expected = recipe.get(name, False if name == "equal" else None), getattr(required, name)
        if actual is not None and actual != expected:
            raise UserError(
                f"{folder} has node vectors with {name} {actual!r}, and the recipe asks for {expected!r}; build a graph for "
                f"this recipe with `citeweave graph --recipe`, or use this one anyway with --set graph.{name}={actual}"
            )


def build_adjacency(
    graph: CitationGraph, corpus: Corpus | None, options: GraphOptions, reporter: Reporter = QUIET
) -> Adjacency:
    """Return the adjacency matrix to embed: the citations, or a weighted union of signals."""
    if options.signal == CITATIONS:
        return graph.adjacency(options.direction, weighted=options.weighted)
    return symmetrize(unite_graph(graph, corpus, options, reporter))


def unite_graph(graph: CitationGraph, corpus: Corpus | None, options: GraphOptions, reporter: Reporter = QUIET) -> Csr:
    """Return the weighted union of a graph's signals to embed; only `cocited_nearby` reads the corpus."""
    if options.signal == CITATIONS:
        raise UserError(
            "--links is 'signal', and graph.signal is 'citations'; give --signal, such as cocited, or leave --links out"
        )
    return unite_signals(
        Relations(graph, corpus),
        parse_union(options.signal, strongest=options.strongest),
        normalize=options.normalize,
        equal=options.equal,
        memory=MEMORY,
        workers=options.vectors.workers,
        reporter=reporter,
    )


def _result_options(options: GraphOptions) -> dict[str, Any]:
    """Return the options that change the graph and its node vectors, as plain JSON."""
    table = dataclasses.asdict(options)
    for name in ("workers", "memory", "device"):
        table["vectors"].pop(name, None)
    for name, default in (("dtype", FULL), ("equal", False)):  # absent from older graphs, which must still match
        if table[name] == default:
            del table[name]
    return table


_RELATED_KIND, _RELATED_VERSION = "related papers", 1
BLOCK_ROWS = 8192
"""Most queries whose related papers are one file while the folder is made."""

_BYTES_PER_PAIR = 8
_COLUMNS = {"target": np.int32, "strength": np.float32}


@dataclass(frozen=True, slots=True)
class RelatedFile:
    """A built folder of related papers: the queries and the papers related to each, memory-mapped."""

    rows: NDArray[np.int64]
    related: Related
    """One line for each of `rows`."""

    @classmethod
    def open(cls, folder: str | Path) -> RelatedFile:
        folder = Path(folder)
        check_files(folder, read_manifest(folder, _RELATED_KIND, _RELATED_VERSION))
        rows, offsets = (open_numbers(folder / f"{name}.npy", np.int64) for name in ("row", "offsets"))
        targets, strengths = (open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _COLUMNS.items())
        if len(offsets) != len(rows) + 1 or offsets[-1] != len(targets) or len(targets) != len(strengths):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; count them again")
        return cls(rows, Related(offsets, targets, strengths))

    @property
    def pairs(self) -> int:
        """Number of pairs of related papers."""
        return len(self.related.targets)


def write_related(
    graph: CitationGraph | Relations,
    signal: Signal,
    rows: NDArray[np.integer[Any]],
    folder: str | Path,
    *,
    memory: int = 256 << 20,
    workers: int = 0,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> RelatedFile:
    """Build a folder of the papers related to these rows; the same call again opens the folder, or resumes it."""
    relations = graph if isinstance(graph, Relations) else Relations(graph)
    queries = np.unique(np.asarray(rows, np.int64))
    if len(queries) and not 0 <= queries[0] <= queries[-1] < relations.graph.nodes:
        outside = int(queries[0] if queries[0] < 0 else queries[-1])
        raise UserError(f"row {outside} is not in a graph of {relations.graph.nodes:,} nodes; give rows of this graph")
    if not len(queries):
        raise UserError(f"{folder}: there is no query paper; give at least one row")
    recipe = _recipe(relations, signal, queries)
    if artifact_matches(Path(folder), _RELATED_KIND, _RELATED_VERSION, recipe):
        return RelatedFile.open(folder)
    with new_artifact(Path(folder), _RELATED_KIND, _RELATED_VERSION, recipe, overwrite=overwrite) as writer:
        parts = []
        with reporter.task(f"counting {signal.name}", len(queries), "papers") as advance:
            for first, last in _spans(relations, signal, queries, memory):
                # named by its rows, as another memory makes other blocks
                path = writer.scratch_folder("blocks") / f"{first:09d}-{last:09d}.npz"
                if not path.exists():
                    spans = stream_related(relations, signal, queries[first:last], memory=memory // 2, workers=workers)
                    block = join_related([block for _, block in spans])
                    with new_file(path) as file:
                        np.savez(file, offsets=block.offsets, target=block.targets, strength=block.strengths)
                parts.append(path)
                advance(last - first)
        _join(writer, queries, parts)
        writer.finish()
    return RelatedFile.open(folder)


def _spans(relations: Relations, signal: Signal, rows: NDArray[np.int64], memory: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of queries whose related papers, held three times while written, fit into half of the memory."""
    max_pairs = max(1, memory // (2 * 3 * _BYTES_PER_PAIR))
    graph = relations.restricted(signal.intent)
    sizes = np.minimum(largest_sizes(graph, signal, rows), graph.nodes) + -(-max_pairs // BLOCK_ROWS)
    return row_ranges(sizes, max_pairs)


def _recipe(relations: Relations, signal: Signal, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return what the related papers depend on; a graph without a corpus is identified by its edges."""
    graph, corpus = relations.graph, relations.corpus
    recipe = {
        "graph": [
            graph.nodes,
            graph.edges,
            graph.corpus or hash_columns(graph.cited.offsets, graph.cited.targets),
            None if signal.intent is None else hash_columns(graph.intents),
        ],
        "signal": asdict(signal),
        "rows": hash_columns(rows),
    }
    if signal.name == "cocited_nearby" and corpus is not None and corpus.hash != graph.corpus:
        recipe["contexts"] = corpus.hash
    return recipe


def _join(writer: ArtifactWriter, rows: NDArray[np.int64], parts: Sequence[Path]) -> None:
    """Concatenate the saved blocks of related papers into the columns of the folder."""
    types = {"row": np.int64, "offsets": np.int64, **_COLUMNS}
    out = {name: NumberWriter(writer.folder / f"{name}.npy", dtype) for name, dtype in types.items()}
    out["row"].append(rows)
    out["offsets"].append([0])
    for path in parts:
        part = read_saved_arrays(path, ["offsets", *_COLUMNS])
        out["offsets"].append(part["offsets"][1:] + out["target"].count)
        for name in _COLUMNS:
            out[name].append(part[name])
    pairs = out["target"].count
    for column in out.values():
        column.close()
    writer.facts |= {"papers": len(rows), "pairs": pairs}
