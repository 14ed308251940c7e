"""Making a graph folder: the citations as sparse rows, and the vectors of their nodes beside them.

    graph/cited, citing, edges     the citation graph: `citations.py`
    graph/vectors/                 one vector a paper, as any other vectors of papers: `vectors/vectors.py`
    graph/vectors-method/          the same of the graph that has only the citations of one intent, where it is asked for

What is embedded is the citations, in one direction or without, or a weighted union of signals: `unions.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, matches, new_artifact, read_manifest
from citeweave.core.columns import write_numbers
from citeweave.core.errors import UserError, choose
from citeweave.core.files import link_or_copy, move
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.citations import DIRECTIONS, KIND, MEMORY, VERSION, CitationGraph, write_graph
from citeweave.graph.node_vectors import NodeVectorOptions, VectorTask, embed_nodes, write_node_vectors
from citeweave.graph.signals import Relations, parse_union, symmetric, unite
from citeweave.vectors.vectors import DTYPES

CITATIONS, FULL = "citations", "float32"
Judge = Callable[[CitationGraph, Callable[[CitationGraph], NDArray[np.float32]]], dict[str, Any]]
"""Judges node vectors: gets the graph and the way to embed one; what it finds goes into the manifest."""


@dataclass(frozen=True, slots=True)
class GraphIntents:
    """Intents that a graph gets from elsewhere than its corpus, and those whose citations are embedded on their own."""

    source: str
    """What they come from, for the recipe: the hash of an overlay, or how they were read."""

    put: Callable[[CitationGraph], CitationGraph]
    """The graph with these intents on its edges."""

    apart: Mapping[str, int] = field(default_factory=dict)
    """Name -> bits of `Intent`; 0 = the citations of unknown intent."""

    def as_recipe(self) -> dict[str, Any]:
        return {"intents": {"from": self.source, "apart": dict(sorted(self.apart.items()))}}


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What is embedded, and how; the `[graph]` table of a recipe."""

    signal: str = CITATIONS
    """`citations`, or signals with weights such as `connected:1,cocited:0.5,coupled:0.5`."""

    direction: str = "both"
    """Citations without directions, or along (cited) or against (citing) them."""

    weighted: bool = False
    """Citations count by their strength, such as the number of mentions."""

    normalize: bool = True
    """Counts of co-citation and coupling become cosines in a union."""

    strongest: int = 100
    """So many relatives a paper and signal stay in a union; 0 = all."""

    dtype: str = FULL
    """Of the vectors in the folder: float32, or float16, half as large."""

    vectors: NodeVectorOptions = field(default_factory=NodeVectorOptions)
    """Method, dimension and the like: see `node_vectors.py`."""

    def __post_init__(self) -> None:
        choose(self.dtype, DTYPES, "--dtype")
        choose(self.direction, DIRECTIONS, "--direction")
        if self.signal != CITATIONS:
            parse_union(self.signal, strongest=self.strongest)

    @property
    def label(self) -> str:
        """For the vectors' provenance: what they were made of and how."""
        way = "" if self.signal != CITATIONS or self.direction == "both" else f", {self.direction}"
        weights = ", weighted" if self.signal == CITATIONS and self.weighted else ""
        return f"{self.vectors.method}-{self.vectors.dimension} of {self.signal}{way}{weights}"


def graph_options(table: Mapping[str, Any], **more: Any) -> GraphOptions:
    """Read a `[graph]` table: keys of `GraphOptions`, and those of `NodeVectorOptions` among them."""
    own = {entry.name for entry in dataclasses.fields(GraphOptions)} - {"vectors"}
    inner = {entry.name for entry in dataclasses.fields(NodeVectorOptions)}
    values = {**table, **more}
    for key, value in values.items():
        choose(key, own | inner, "graph: key")
        default = getattr(GraphOptions() if key in own else NodeVectorOptions(), key)
        if isinstance(default, bool | int | float | str) and not _same_kind(value, default):
            raise UserError(f"graph.{key} is {value!r}; it must be a {type(default).__name__}")
    vectors = NodeVectorOptions(**{key: value for key, value in values.items() if key in inner})
    return GraphOptions(**{key: value for key, value in values.items() if key in own}, vectors=vectors)


def _same_kind(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float) if isinstance(default, float) else isinstance(value, type(default))


def make_graph(
    corpus: Corpus,
    folder: str | Path,
    options: GraphOptions | None = None,
    *,
    judge: Judge | None = None,
    judged: str = "",
    intents: GraphIntents | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """The graph of a corpus and the vectors of its nodes in one folder; one that is there already is opened.

    `judge` may look at how well the method does on this graph; `judged` names what it did, for the recipe.
    With `intents` the edges carry them, and the citations of some get vectors of their own; one that no citation has
    gets none.

    A run that was stopped goes on where it was when it is started again with the same options: the sorted citations,
    every panel of FastRP and whole vectors are kept. `overwrite` onto a graph of the same corpus keeps its citations.
    """
    options, folder = options or GraphOptions(), Path(folder)
    recipe = {"corpus": corpus.hash, **_plain(options), "judged": judged, **(intents.as_recipe() if intents else {})}
    if not matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            # what it maps of the folder is let go at its end: Windows gives no name to a folder that is in use
            _fill(writer, corpus, options, judge, intents, folder, reporter)
            writer.finish()
    return CitationGraph.open(folder)


def _fill(
    writer: ArtifactWriter,
    corpus: Corpus,
    options: GraphOptions,
    judge: Judge | None,
    intents: GraphIntents | None,
    before: Path,
    reporter: Reporter,
) -> None:
    """The graph, how well the method does on it, and vectors."""
    graph = write_graph(corpus, writer, memory=options.vectors.memory, before=before)
    if not graph.edges:
        raise UserError(f"{corpus.folder} has no citations between its papers; node vectors need some")

    def embed(of: CitationGraph) -> NDArray[np.float32]:
        return embed_nodes(adjacency_of(of, corpus, options, reporter), options.vectors, reporter=reporter)

    if judge is not None:
        writer.facts["links"] = judge(graph, embed)
    write = _VectorMaker(corpus, options, writer, reporter)
    writer.facts["isolated"] = write(graph)
    if options.vectors.device == "cuda" and options.vectors.method == "fastrp":
        writer.facts["device"] = "cuda"  # its numbers are not those of a processor
    if intents is not None:
        told = intents.put(graph)
        _replace_intents(writer.folder, told)
        writer.facts["apart"] = _embed_apart(told, intents, write)


def vectors_folder(folder: Path, intent: str = "") -> Path:
    """Where a graph's folder has its node vectors, or those of one intent's citations."""
    return folder / (f"vectors-{intent}" if intent else "vectors")


@dataclass(frozen=True, slots=True)
class _VectorMaker:
    """Writes the node vectors of a graph, or of one intent's citations, into the artifact."""

    corpus: Corpus
    options: GraphOptions
    writer: ArtifactWriter
    reporter: Reporter

    def __call__(self, graph: CitationGraph, intent: str = "") -> int:
        """The number of papers with the vector 0."""
        corpus, options = self.corpus, self.options
        task = VectorTask(
            corpus.ids,
            lambda: adjacency_of(graph, corpus, options, self.reporter),
            options.vectors,
            options.dtype,
            f"{options.label}, {intent} only" if intent else options.label,
            f"citations of corpus {corpus.hash[:12]}",
        )
        place = vectors_folder(self.writer.folder, intent)
        work = self.writer.work(place.name)
        isolated = write_node_vectors(task, work, self.reporter)
        for path in sorted((work / "vectors").iterdir()):
            link_or_copy(path, place / path.name)
        return isolated


def _embed_apart(graph: CitationGraph, intents: GraphIntents, write: _VectorMaker) -> dict[str, Any]:
    """Vectors of each intent's graph; says how many citations and papers it has."""
    found = {}
    for name, bits in intents.apart.items():
        part = graph.restricted(bits)
        found[name] = {"citations": part.edges, "papers": int((part.degrees() > 0).sum())}
        if part.edges:
            write(part, name)
    return found


def _replace_intents(folder: Path, graph: CitationGraph) -> None:
    """Put another column in the place of one that is memory-mapped, so it must not be written over."""
    place = folder / "edges" / "intents.npy"
    write_numbers(place.with_name("intents.new.npy"), graph.intents, np.uint8)
    move(place.with_name("intents.new.npy"), place)


def check_made_for(folder: Path, wanted: GraphOptions) -> None:
    """Refuse node vectors of another signal than is asked for; method and dimension are free."""
    recipe = read_manifest(folder, KIND, VERSION).recipe
    for name in ("signal", "direction", "weighted", "normalize"):
        made, asked = recipe.get(name), getattr(wanted, name)
        if made is not None and made != asked:
            raise UserError(
                f"{folder} has node vectors with {name} {made!r}, and the recipe asks for {asked!r}; make a graph for "
                f"this recipe with `citeweave graph --recipe`, or take it all the same with --set graph.{name}={made}"
            )


def adjacency_of(graph: CitationGraph, corpus: Corpus, options: GraphOptions, reporter: Reporter = QUIET) -> Adjacency:
    """The matrix that the options ask to embed."""
    if options.signal == CITATIONS:
        return graph.adjacency(options.direction, weighted=options.weighted)
    parts = parse_union(options.signal, strongest=options.strongest)
    union = unite(
        Relations(graph, corpus),
        parts,
        normalize=options.normalize,
        memory=MEMORY,
        workers=options.vectors.workers,
        reporter=reporter,
    )
    return symmetric(union)


def _plain(options: GraphOptions) -> dict[str, Any]:
    """Everything that changes the result."""
    table = dataclasses.asdict(options)
    for name in ("workers", "memory", "device"):
        table["vectors"].pop(name, None)
    if options.dtype == FULL:  # as before there was a choice, so that older graphs are found
        del table["dtype"]
    return table
