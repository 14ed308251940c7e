"""Signals: what "related" can mean in a citation graph, each with a strength where it has one.

    cited                   papers that it cites
    citing                  papers that cite it
    connected               either of the two
    second_hop              cited by papers that it cites; strength = number of such paths
    connected_of_connected  two edges away, in any direction
    cocited                 cited together with it; strength = number of papers that do (Small, 1973)
    cocited_nearby          the same, a paper counting more if both stand in one section or sentence (Gipp and Beel, 2009)
    coupled                 citing the same papers; strength = number of shared references (Kessler, 1963)

    >>> from citeweave.graph.citations import graph_from_edges
    >>> graph = graph_from_edges(np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]), nodes=4)
    >>> related(graph, Signal("cocited"), np.array([2])).row(0)
    (array([3], dtype=int32), array([2.], dtype=float32))

Any signal can be restricted to citations of one intent. A paper is never related to itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError, choose
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sorting import row_ranges
from citeweave.graph.hop_counting import (
    NO_EDGES,
    Counter,
    Edges,
    Found,
    Keep,
    Mentioned,
    count_paths,
    near_hops,
    new_counter,
    one_hop,
    two_hops,
    two_hops_undirected,
)
from citeweave.graph.mentions import Mentions, mentions_of

ONE_HOP = ("cited", "citing", "connected")
TWO_HOPS = ("second_hop", "connected_of_connected", "cocited", "cocited_nearby", "coupled")
SIGNALS = (*ONE_HOP, *TWO_HOPS)
MEMORY = 256 << 20
_BYTES_A_TARGET = 8


@dataclass(frozen=True, slots=True)
class Signal:
    """One meaning of "related"."""

    name: str
    """One of SIGNALS."""

    intent: int | None = None
    """Only citations with one of these intents (bits of `Intent`) count; 0 = only those of unknown intent."""

    longest: int = 1000
    """Papers in the middle with longer lists do not count: the reference lists of co-citing papers, the citing
    papers of a shared reference. One survey of 100,000 references would otherwise make five billion pairs."""

    least: float = 0.0
    """Weakest strength kept, for signals over two hops; 0 = all."""

    strongest: int = 0
    """Keep only so many of the strongest of every paper, of equal ones the lowest rows; 0 = all."""

    worth: tuple[float, float, float] = (0.125, 0.25, 1.0)
    """What a co-citing paper counts in `cocited_nearby`: both in the paper, in one section, in one sentence."""

    def __post_init__(self) -> None:
        choose(self.name, SIGNALS, "signal")
        if self.longest < 1 or self.strongest < 0:
            raise UserError(f"signal {self.name}: longest is {self.longest} and strongest {self.strongest}; "
                            "longest must be 1 or more, strongest 0 or more")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Related:
    """The papers related to each of some rows, ascending within a row."""

    offsets: NDArray[np.int64]
    """Shape (rows + 1,)."""

    targets: NDArray[np.int32]
    strengths: NDArray[np.float32]
    """Shape (targets,); 1 for signals over one hop."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        span = slice(self.offsets[number], self.offsets[number + 1])
        return self.targets[span], self.strengths[span]


@dataclass
class Relations:
    """A graph and what signals need beside it, made once when first used."""

    graph: CitationGraph
    corpus: Corpus | None = None
    """Only `cocited_nearby` needs it: proximity comes from the citing sentences."""

    _by_intent: dict[int, CitationGraph] = field(default_factory=dict)

    @cached_property
    def mentions(self) -> Mentions:
        if self.corpus is None or not len(self.corpus.contexts):
            raise UserError("signal cocited_nearby needs citing sentences, and the corpus has none; use cocited")
        return mentions_of(self.corpus)

    def restricted(self, intent: int | None) -> CitationGraph:
        if intent is None:
            return self.graph
        if intent not in self._by_intent:
            self._by_intent[intent] = self.graph.restricted(intent)
        return self._by_intent[intent]


def related(
    graph: CitationGraph | Relations, signal: Signal, rows: NDArray[np.integer], *, workers: int = 1
) -> Related:
    """What is related to each of these rows, all at once."""
    return join_related([block for _, block in stream_related(graph, signal, rows, workers=workers)])


def join_related(blocks: Sequence[Related]) -> Related:
    """Blocks of rows one after the other as one."""
    if len(blocks) == 1:
        return blocks[0]
    counts = [np.zeros(1, np.int64), *(np.diff(block.offsets) for block in blocks)]
    return Related(
        np.cumsum(np.concatenate(counts)),
        np.concatenate([np.zeros(0, np.int32), *(block.targets for block in blocks)]),
        np.concatenate([np.zeros(0, np.float32), *(block.strengths for block in blocks)]),
    )


def stream_related(
    graph: CitationGraph | Relations,
    signal: Signal,
    rows: NDArray[np.integer],
    *,
    memory: int = MEMORY,
    workers: int = 0,
) -> Iterator[tuple[slice, Related]]:
    """The same in blocks of rows, in order; results in flight take at most `memory`, or what one row needs.

    Each worker also holds a counter of 8 bytes a node. The result does not depend on workers or memory.
    """
    relations = graph if isinstance(graph, Relations) else Relations(graph)
    queries: NDArray[np.int64] = np.ascontiguousarray(rows, np.int64)
    outside = queries[(queries < 0) | (queries >= relations.graph.nodes)]
    if len(outside):
        raise UserError(f"row {int(outside[0])} is not in a graph of {relations.graph.nodes:,} nodes; ask for its rows")
    restricted = relations.restricted(signal.intent)
    if signal.name == "cocited_nearby":
        _ = relations.mentions  # made before workers start
    number = workers or os.cpu_count() or 1
    sizes = np.minimum(largest_sizes(restricted, signal, queries), restricted.nodes)
    spans = [slice(*span) for span in row_ranges(sizes, max(1, memory // ((number + 1) * _BYTES_A_TARGET)))]
    counted = restricted.nodes if signal.name in TWO_HOPS else 0
    counters = [new_counter(counted, levels=signal.name == "cocited_nearby") for _ in range(number)]

    def work(span: slice) -> Related:
        counter = counters.pop()
        try:
            return _count(relations, restricted, signal, queries[span], int(sizes[span].sum()), counter)
        finally:
            counters.append(counter)

    if number == 1 or len(spans) == 1:
        yield from ((span, work(span)) for span in spans)
        return
    with ThreadPoolExecutor(number) as pool:
        for start in range(0, len(spans), number):
            group = spans[start : start + number]
            yield from zip(group, pool.map(work, group), strict=True)


def largest_sizes(graph: CitationGraph, signal: Signal, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For every row a number that its related papers cannot exceed: edges, or paths over two hops."""
    out = np.zeros(len(rows), np.int64)
    if signal.name in ONE_HOP:
        for side in _directions(graph, signal.name):
            if side is not NO_EDGES:
                out += side.offsets[rows + 1] - side.offsets[rows]
        return out
    for first, second in _hops(graph, signal.name):
        count_paths(first, second, signal.longest, rows, out)
    return out


def left_out(graph: CitationGraph, signal: Signal) -> int:
    """How many papers in the middle have lists longer than the signal's cap, and so do not count."""
    if signal.name in ONE_HOP:
        return 0
    seconds = {id(second.targets): second for _, second in _hops(graph, signal.name)}.values()
    return sum(int((np.diff(second.offsets) > signal.longest).sum()) for second in seconds)


def _sides(graph: CitationGraph) -> tuple[Edges, Edges]:
    return Edges(graph.cited.offsets, graph.cited.targets), Edges(graph.citing.offsets, graph.citing.targets)


def _directions(graph: CitationGraph, name: str) -> tuple[Edges, Edges]:
    out, into = _sides(graph)
    return {"cited": (out, NO_EDGES), "citing": (into, NO_EDGES), "connected": (out, into)}[name]


def _hops(graph: CitationGraph, name: str) -> list[tuple[Edges, Edges]]:
    """First and second hop of every kind of path."""
    out, into = _sides(graph)
    hops = {
        "second_hop": [(out, out)],
        "cocited": [(into, out)],
        "cocited_nearby": [(into, out)],
        "coupled": [(out, into)],
        "connected_of_connected": [(out, out), (out, into), (into, out), (into, into)],
    }
    return hops[name]


def _count(
    relations: Relations, graph: CitationGraph, signal: Signal, rows: NDArray[np.int64], most: int, counter: Counter
) -> Related:
    hops = signal.name in TWO_HOPS
    found = Found(
        np.zeros(len(rows) + 1, np.int64), np.empty(most, np.int32), np.empty(most if hops else 0, np.float32)
    )
    keep = Keep(signal.longest, np.float32(signal.least), signal.strongest)
    out, into = _sides(graph)
    if not hops:
        end = one_hop(*_directions(graph, signal.name), rows, found)
        return Related(found.offsets, found.targets[:end].copy(), np.ones(end, np.float32))
    if signal.name == "cocited_nearby":
        m = relations.mentions
        mentioned = Mentioned(m.offsets, m.cited, m.contexts, m.sections)
        end = near_hops(out, into, mentioned, np.array(signal.worth, np.float32), keep, rows, counter, found)
    elif signal.name == "connected_of_connected":
        end = two_hops_undirected(out, into, keep, rows, counter, found)
    else:
        [(first, second)] = _hops(graph, signal.name)
        end = two_hops(first, second, keep, rows, counter, found)
    return Related(found.offsets, found.targets[:end].copy(), found.strengths[:end].copy())
