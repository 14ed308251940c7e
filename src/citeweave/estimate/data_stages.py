"""What import, graph, node vectors and mining cost: every figure is a constant times a number that the sizes give.

    import          records of citations, records of papers, bytes of text
    graph           citations, sorted twice
    node vectors    citations x dimension x steps, gathered row by row; papers x dimension (`walking.py`)
    mining          anchors x papers met over two hops; anchors x pool x dimension for ranks; picks

Constants: `constants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from citeweave.estimate.constants import value
from citeweave.estimate.machines import GIB
from citeweave.estimate.networks import BYTES_PER_TOKEN
from citeweave.estimate.samples import deepest_of, groups_of, hops_of, picks_of, searches_of
from citeweave.estimate.walking import memory_asked, panel_of
from citeweave.estimate.work import Work
from citeweave.graph.adjacency import WALKED
from citeweave.graph.signals import TWO_HOPS

if TYPE_CHECKING:
    from citeweave.estimate.sizes import Sizes
    from citeweave.graph.making import GraphOptions
    from citeweave.mining.rules import MiningRules

Costs = tuple[float, float, float, tuple[str, ...]]
"""CPU seconds, bytes gathered, bytes held, names of constants."""

GRAPH_MEMORY, MINING_MEMORY = 1 << 30, 512 << 20
"""What `citeweave graph` and `citeweave mine` may hold, by default."""


def import_work(sizes: Sizes, cores: int) -> Work:
    """Reading records as Semantic Scholar's shards have them, or a table of edges; merging, and writing columns."""
    text_bytes = sizes.texts * sizes.tokens * BYTES_PER_TOKEN
    memory = value("import.memory") + value("import.memory.worker") * cores
    size = f"{sizes.citations:,} citations, {sizes.papers:,} papers"
    fits_by = "import --memory 128MB and fewer --workers hold less at a time"
    if sizes.only_edges:
        return Work(
            "import",
            f"{size}, a table of edges",
            cpu=value("import.edge") * sizes.citations,
            parallel=value("import.edge.parallel"),
            memory=memory + value("import.memory.paper") * sizes.papers,
            disk=value("import.disk.edge") * sizes.citations,
            constants=("import.edge", "import.disk.edge"),
            fits_by=fits_by,
        )
    names = ("import.citation", "import.paper", "import.text")
    amounts = (sizes.citations, sizes.papers, text_bytes)
    return Work(
        "import",
        f"{size}, {sizes.texts:,} with text",
        cpu=sum(value(name) * amount for name, amount in zip(names, amounts, strict=True)),
        parallel=value("import.parallel"),
        memory=memory + value("import.memory.paper") * sizes.papers,
        disk=value("import.disk.citation") * sizes.citations
        + value("import.disk.paper") * sizes.papers
        + 1.02 * text_bytes,
        constants=names,
        fits_by=fits_by,
    )


def graph_work(sizes: Sizes, memory: int = GRAPH_MEMORY) -> Work:
    """Citations as sparse rows, in both directions, sorted in `memory` bytes."""
    names = ("graph.citation",)
    return Work(
        "graph",
        f"{sizes.citations:,} citations, both directions",
        cpu=value(names[0]) * sizes.citations,
        parallel=value("graph.parallel"),
        memory=value("process.memory") + min(memory, 24 * sizes.citations) + 24 * sizes.papers,
        disk=value("graph.disk.citation") * sizes.citations + 16 * sizes.papers,
        constants=(*names, "graph.disk.citation"),
        fits_by="--memory sorts in narrower ranges",
    )


def vectors_work(sizes: Sizes, options: GraphOptions, parts: Sequence[str] = ()) -> list[Work]:
    """The union that is embedded, where it is one, and the vectors; of `parts`, intents, each has vectors too."""
    if options.signal == "citations":
        first, entries = [], float(sizes.citations * (2 if options.direction == "both" else 1))
    else:
        entries, union = _union(
            sizes, [part.partition(":")[0] for part in options.signal.split(",")], options.strongest
        )
        first = [union]
    apart = [replace(_embedding(sizes, options, entries / len(parts)), name=f"node vectors, {part}") for part in parts]
    return [*first, _embedding(sizes, options, entries), *apart]


def _union(sizes: Sizes, signals: list[str], strongest: int) -> tuple[float, Work]:
    """How many entries the matrix of a union has, and the work of counting it."""
    entries = 0.0
    cpu = 0.0
    for signal in signals:
        paths = sizes.paths_of(signal) if signal in TWO_HOPS else 2 * sizes.references
        entries += 2 * sizes.papers * min(paths, strongest or paths)
        cpu += value("relatives.path") * sizes.papers * paths
    cpu += value("union.entry") * entries
    work = Work(
        "relatives",
        f"{', '.join(signals)} of {sizes.papers:,} papers",
        cpu=cpu,
        parallel=value("relatives.parallel"),
        memory=value("process.memory") + 20 * entries,
        constants=("relatives.path", "union.entry"),
        fits_by="--set graph.strongest=25 keeps fewer relatives of a paper",
    )
    return entries, work


def _embedding(sizes: Sizes, options: GraphOptions, entries: float) -> Work:
    chosen = options.vectors
    numbers, method = float(sizes.papers * chosen.dimension), chosen.method
    result = numbers * (2 if options.dtype == "float16" else 4)
    cpu, moved, held, names = _METHODS[method](sizes.papers, options, entries)
    asked = memory_asked(sizes.papers, options)
    given = f", --memory {-(-asked // GIB)}GB" if asked > chosen.memory else ""
    return Work(
        "node vectors",
        f"{method}, {chosen.dimension} numbers, {entries:,.0f} entries{given}",
        cpu=cpu,
        parallel=value(f"{method}.parallel"),
        moved=moved,
        memory=value("process.memory") + held + 4 * min(entries, WALKED) + 16 * sizes.papers,
        disk=result + value("vectors.disk.id") * sizes.papers,
        constants=names,
        fits_by=_FITS_BY[method],
    )


_FITS_BY = {
    "fastrp": "less --memory walks in narrower panels, --dim 128 and --dtype float16 are smaller",
    "prone": "method fastrp never holds its result; --dim 128 is smaller",
    "edges": "method fastrp never holds its result; --dim 128 is smaller",
}


def _fastrp(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Walks in panels that the memory allows; the result goes to files."""
    chosen, panel = options.vectors, panel_of(papers, options)
    walks = len(chosen.fastrp.weights)
    gathered = entries * chosen.dimension * walks
    cpu = value(panel.gathered_at) * gathered + value("fastrp.number") * papers * chosen.dimension * walks
    return cpu, 2.0 * gathered, panel.held, (panel.gathered_at, "fastrp.number")


def _prone(papers: int, options: GraphOptions, entries: float) -> Costs:
    """The result and two matrices as large, or what the memory allows of these."""
    chosen = options.vectors
    numbers = float(papers * chosen.dimension)
    cpu = value("prone.gather") * entries * chosen.dimension + value("prone.number") * numbers
    held = 4 * numbers + min(8 * numbers, float(chosen.memory))
    return cpu, 0.0, held, ("prone.gather", "prone.number")


def _edges(papers: int, options: GraphOptions, entries: float) -> Costs:
    """The vectors and what the optimizer keeps of them."""
    chosen = options.vectors
    cpu = value("edges.number") * entries / 2 * chosen.dimension * chosen.edges.epochs
    return cpu, 0.0, 8.0 * papers * chosen.dimension, ("edges.number",)


_METHODS = {"fastrp": _fastrp, "prone": _prone, "edges": _edges}


def mining_work(sizes: Sizes, rules: MiningRules, dimension: int, anchors: int) -> list[Work]:
    """Counting relatives, searching bands, and drawing samples."""
    found = []
    if signals := hops_of(rules):
        found.append(_relatives_work(sizes, signals, anchors))
    if rules.from_contexts:
        found.append(_pairs_work(sizes))
    if searches := searches_of(rules):
        asked = anchors * len(searches)
        about = f"{anchors:,} anchors among {sizes.texts:,} papers, {dimension} numbers"
        found.append(_bands_work(sizes.texts, dimension, asked, asked * deepest_of(rules, sizes.texts), about))
    return [*found, _samples_work(sizes, anchors * groups_of(rules), picks_of(rules))]


def _relatives_work(sizes: Sizes, signals: list[str], anchors: int) -> Work:
    paths = anchors * sum(sizes.paths_of(signal) for signal in signals)
    held = min(MINING_MEMORY, 12 * paths) + 8 * sizes.papers + 8 * sizes.citations
    return Work(
        "relatives",
        f"{', '.join(signals)} of {anchors:,} anchors",
        cpu=value("relatives.path") * paths,
        parallel=value("relatives.parallel"),
        memory=value("process.memory") + held,
        constants=("relatives.path",),
        fits_by="mine --memory 256MB and fewer --workers, or mine --on ray",
    )


def _pairs_work(sizes: Sizes) -> Work:
    return Work(
        "pairs",
        f"{sizes.contexts:,} citing sentences",
        cpu=value("contexts.sentence") * sizes.contexts,
        parallel=0.0,
        memory=value("process.memory") + 64.0 * sizes.contexts,
        constants=("contexts.sentence",),
    )


def _bands_work(pool: int, dimension: int, asked: int, kept: int, about: str) -> Work:
    """Every question is compared with all of the pool; `kept` are the ranks down to the deepest, of all questions."""
    pairs = asked * pool
    return Work(
        "bands",
        about,
        cpu=(value("bands.pair") + value("bands.number") * dimension) * pairs + value("bands.rank") * kept,
        parallel=value("bands.parallel"),
        on_gpu=value("bands.number.gpu") * dimension * pairs,
        gpus=1,
        memory=value("process.memory") + min(MINING_MEMORY, 8 * pairs) + 8 * pool * dimension,
        gpu_memory=4 * pool * dimension + (1 << 30),
        constants=("bands.pair", "bands.number", "bands.rank", "bands.number.gpu"),
        fits_by="mine --memory 256MB searches in smaller blocks, mine --on ray over several machines",
    )


def _samples_work(sizes: Sizes, groups: int, each: int) -> Work:
    picks = groups * (each + 1)
    return Work(
        "samples",
        f"{groups:,} samples of {each} papers",
        cpu=value("samples.pick") * picks,
        parallel=value("samples.parallel"),
        memory=value("process.memory") + min(MINING_MEMORY, 50 * picks) + 8 * sizes.papers + 8 * sizes.citations,
        disk=value("samples.disk.pick") * picks,
        constants=("samples.pick",),
        fits_by="mine --memory 256MB",
    )
