"""The citation graph beside its peers: building it, counting co-citation and coupling, embedding its nodes.

    python benchmarks/graph.py --papers 1000000 --growth
    python benchmarks/graph.py --papers 100000 --queries 10000 --peers scikit-network

Every line of the table is a process of its own. Peers: plain Python dictionaries, scikit-network (whose matrices are
scipy's), and torchbiggraph with the settings that SciNCL published for 128 dimensions. Lines marked `*` are measured on
a part and multiplied; the label says by what. Nothing here judges the vectors, only what they cost.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from graph_peers import (
    LONGEST,
    build_dicts,
    build_matrix,
    count_in_dicts,
    count_in_matrix,
    embed_in_matrix,
    embed_with_biggraph,
)
from made_edges import Ints, Made, make_literature
from measuring import Clock, Cost, Row, Step, exponent, missing, print_table, run_step, versions

if TYPE_CHECKING:
    from citeweave.graph.citations import CitationGraph

NETWORK = "scikit-network"
"""Its matrices are scipy's, so scipy's products stand under its name in --peers."""

EPOCHS = 20
"""Of torchbiggraph in the paper; one is measured."""


def build(clock: Clock, made: Made) -> dict[str, Any]:
    """Both directions, on disk; the manifest is written after the clock. A tiny graph is made too, for warm-ups."""
    citing, cited = made.edges()
    _write_graph(Clock(), citing[:9000] % 1000, cited[:9000] % 1000, 1000, made.folder / "warm-up")
    graph = _write_graph(clock, citing, cited, made.papers, made.folder / "graph")
    return {"edges": graph.edges, "most_cited": int(np.diff(graph.citing.offsets).max())}


def _write_graph(clock: Clock, citing: Ints, cited: Ints, papers: int, folder: Path) -> CitationGraph:
    from citeweave.core.artifact import new_artifact
    from citeweave.graph.citations import KIND, VERSION, graph_from_edges

    with new_artifact(folder, KIND, VERSION, {}) as writer:
        with clock:
            graph = graph_from_edges(citing, cited, papers, folder=writer.folder)
        writer.facts |= {**asdict(graph.counts), "corpus": ""}
        writer.finish()
        return graph


def count(clock: Clock, made: Made, signal: str) -> dict[str, Any]:
    """Relatives of every query, block by block, from the memory-mapped graph."""
    from citeweave.graph.citations import CitationGraph
    from citeweave.graph.signals import Signal, stream_related

    graph, rows = CitationGraph.open(made.folder / "graph"), made.rows()
    asked = Signal(signal, longest=LONGEST)
    counts = np.zeros(len(rows), np.int64)
    for _ in stream_related(graph, asked, rows[:10]):
        pass
    with clock:
        for span, block in stream_related(graph, asked, rows):
            counts[span] = np.diff(block.offsets)
    return {"pairs": int(counts.sum()), "of_few": int(counts[: made.peer_queries].sum())}


def embed(clock: Clock, made: Made, method: str) -> dict[str, Any]:
    from citeweave.graph.citations import CitationGraph
    from citeweave.graph.node_vectors import embed_nodes
    from citeweave.graph.options import NodeVectorOptions

    options = NodeVectorOptions(method=method, dimension=made.dimension)
    graph, tiny = (CitationGraph.open(made.folder / name) for name in ("graph", "warm-up"))
    embed_nodes(tiny.adjacency("both"), options)
    with clock:
        matrix = embed_nodes(graph.adjacency("both"), options)
    return {"shape": matrix.shape}


def embed_by_edges(clock: Clock, made: Made) -> dict[str, Any]:
    """citeweave's edge model with the settings that torchbiggraph gets: one epoch over citations in one direction."""
    from citeweave.graph.citations import graph_from_edges
    from citeweave.graph.node_vectors import embed_nodes
    from citeweave.graph.options import EdgeModel, NodeVectorOptions

    model = EdgeModel(loss="margin", margin=0.15, rate=0.1, epochs=1, batch=10_000, uniform=0, max_norm=1.0)
    options = NodeVectorOptions(method="edges", dimension=made.dimension, device="cpu", edges=model)
    citing, cited = made.edges()
    embed_nodes(graph_from_edges(citing[:1000], cited[:1000], made.papers).adjacency("cited"), options)
    graph = graph_from_edges(citing, cited, made.papers)
    with clock:
        matrix = embed_nodes(graph.adjacency("cited"), options)
    return {"shape": matrix.shape}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: what is run, and beside which line of ours it stands."""

    key: str
    label: str
    step: Step
    arguments: tuple[str, ...] = ()
    beside: str = ""
    peer: str = ""


def _counting(signal: str, heading: str) -> tuple[str, list[Line]]:
    return heading, [
        Line(signal, "citeweave, memory-mapped", count, (signal,)),
        *(
            Line(
                f"{signal}-{order}",
                f"scipy, sparse product, {order}",
                count_in_matrix,
                (signal, order),
                signal,
                NETWORK,
            )
            for order in ("unordered", "ascending")
        ),
        Line(f"{signal}-dict", "* Python, Counter", count_in_dicts, (signal,), signal, "dict"),
    ]


GROUPS = dict(
    [
        (
            "graph from integer edges, both directions",
            [
                Line("build", "citeweave, on disk", build),
                Line("build-matrix", "scikit-network, in memory", build_matrix, (), "build", NETWORK),
                Line("build-dict", "Python, dict of lists", build_dicts, (), "build", "dict"),
            ],
        ),
        _counting("cocited", "co-citation counts of the queries"),
        _counting("coupled", "coupling counts of the queries"),
        (
            "vectors of the nodes",
            [
                Line("fastrp", "citeweave, fastrp", embed, ("fastrp",)),
                Line(
                    "projection",
                    "scikit-network, RandomProjection",
                    embed_in_matrix,
                    ("RandomProjection",),
                    "fastrp",
                    NETWORK,
                ),
                Line("prone", "citeweave, prone", embed, ("prone",)),
            ],
        ),
    ]
)
SLOW = (
    Line("svd", "scikit-network, SVD", embed_in_matrix, ("SVD",), "prone", NETWORK),
    Line("edges", "citeweave, edges, 1 epoch", embed_by_edges, (), "", "torchbiggraph"),
    Line("biggraph", "torchbiggraph, 1 epoch", embed_with_biggraph, (), "edges", "torchbiggraph"),
)
"""Measured on fewer papers."""

PEERS = {
    "dict": ("collections", ""),
    NETWORK: ("sknetwork", NETWORK),
    "torchbiggraph": ("torchbiggraph", "torchbiggraph==1.0.0 'setuptools<80' h5py"),
}


def asked_peers(names: list[str]) -> tuple[list[str], list[Row]]:
    """Those that are installed, and a line for each that is not."""
    skipped = {name: missing(*PEERS[name]) for name in names}
    return [name for name, line in skipped.items() if line is None], [line for line in skipped.values() if line]


def measure(made: Made, peers: list[str]) -> Iterator[tuple[str, Cost]]:
    """Every line on one literature, in the order of the table."""
    for line in (line for lines in GROUPS.values() for line in lines if not line.peer or line.peer in peers):
        yield line.key, run_step(line.step, made, *line.arguments)


def lines_of(costs: dict[str, Cost], small: dict[str, Cost], size: float) -> dict[str, Row]:
    """A row for every line that was measured; `size` is how much larger the literature is than the small one."""
    rows: dict[str, Row] = {}
    for line in (line for lines in GROUPS.values() for line in lines if line.key in costs):
        cost = costs[line.key]
        times = float(cost.found.get("times", 1.0))
        before = small.get(line.key)
        growth = None
        if before is not None:
            growth = exponent(cost.cpu * times, before.cpu * float(before.found.get("times", 1.0)), size)
        part = f", {cost.found['queries']:,} queries x {times:,.1f} (paths)" if "times" in cost.found else ""
        rows[line.key] = Row(f"  {line.label}{part}", cost, times, rows.get(line.beside), growth)
    return rows


def slow_rows(slow: Made, citations: int, peers: list[str], rows: dict[str, Row]) -> list[Row]:
    """Peers that are measured on a smaller literature: the measured line, then what it comes to on the whole."""
    found, times = [], citations / slow.citations
    for line in (line for line in SLOW if line.peer in peers):
        biggraph = line.key == "biggraph"
        cost = run_step(line.step, slow, *line.arguments, children=biggraph)
        if biggraph:
            cost = _without_start(cost, slow)
        beside = rows.get(line.beside) if biggraph or times == 1 else None
        rows[line.key] = Row(f"  {line.label}, {slow.citations:,} citations", cost, beside=beside)
        found.append(rows[line.key])
        epochs = 1 if line.key == "svd" else EPOCHS
        if times * epochs > 1:
            label = f"  * the same x {times:,.1f} (citations)" + (f" x {EPOCHS} epochs" if epochs > 1 else "")
            found.append(Row(label, cost, times * epochs, rows["prone"], remark="ratio to prone"))
    return found


def _without_start(cost: Cost, slow: Made) -> Cost:
    """Less what torchbiggraph takes for a tiny graph: its start, which an epoch more does not cost again."""
    tiny = replace(slow, folder=slow.folder / "tiny", papers=100)
    start = run_step(embed_with_biggraph, make_literature(tiny, 10.0), children=True)
    return replace(cost, cpu=cost.cpu - start.cpu, wall=cost.wall - start.wall)


def table(rows: dict[str, Row], slow: list[Row], skipped: list[Row]) -> list[Row]:
    out = []
    for heading, lines in GROUPS.items():
        out += [Row(heading), *(rows[line.key] for line in lines if line.key in rows)]
    return [*out, *slow, *skipped]


def notes(costs: dict[str, Cost]) -> list[str]:
    """What the figures mean, and that ours and the peers' counts are the same."""
    found = [
        "CPU s: user and system, all threads and children. ratio: CPU s over those of citeweave's line above.",
        "peak: resident memory with imports and pages of mapped files; at start: what was there before the step.",
        "Compiled code is loaded by a tiny run before the clock; reading edges.npy is not measured.",
        "An epoch of torchbiggraph is without its start, which is measured on 100 papers and taken off.",
        versions("numpy", "scipy", "scikit-network", "torchbiggraph", "torch"),
    ]
    for signal in ("cocited", "coupled"):
        same = []
        for peer, key in (("ascending", "pairs"), ("dict", "of_few")):
            other = costs.get(f"{signal}-{peer}")
            if other is not None:
                equal = other.found[key] == costs[signal].found[key]
                same.append(f"{'scipy' if peer == 'ascending' else peer} {'the same' if equal else 'DIFFERENT'}")
        found.append(f"{signal}: {costs[signal].found['pairs']:,} pairs; by peers: {', '.join(same) or 'not counted'}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=1_000_000)
    parser.add_argument("--citations-per-paper", type=float, default=10.0)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--peer-queries", type=int, default=20_000, help="queries of the Python counter")
    parser.add_argument("--slow-papers", type=int, default=100_000, help="papers for SVD and torchbiggraph")
    parser.add_argument("--growth", action="store_true", help="also at a tenth of the size, for the exponent")
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run(Path(folder), options)


def run(folder: Path, options: argparse.Namespace) -> None:
    peers, skipped = asked_peers(options.peers)

    def literature(name: str, papers: int, queries: int) -> Made:
        made = Made(folder / name, papers, queries, options.dimension, options.peer_queries)
        return make_literature(made, options.citations_per_paper)

    whole = literature("whole", options.papers, options.queries)
    costs, small, size = dict(measure(whole, peers)), {}, 1.0
    if options.growth:
        tenth = literature("tenth", options.papers // 10, options.queries // 10)
        small, size = dict(measure(tenth, peers)), whole.citations / tenth.citations
    rows = lines_of(costs, small, size)
    slow = literature("slow", min(options.slow_papers, options.papers), 1) if peers else whole
    title = (
        f"{whole.papers:,} papers, {whole.citations:,} citations, the most cited {costs['build'].found['most_cited']:,} "
        f"times; {len(whole.rows()):,} queries; {whole.dimension} dimensions; {os.cpu_count()} cores"
    )
    grown = [f"growth: exponent of CPU s by citations, {size:.1f} times more of them and 10 times more queries"]
    print_table(
        title,
        table(rows, slow_rows(slow, whole.citations, peers, rows), skipped),
        [*notes(costs), *(grown if options.growth else [])],
    )


if __name__ == "__main__":
    main()
