"""Citation signals: papers related by citation, co-citation, coupling or two hops; weighted unions of them.

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

Any signal can be restricted to citations of one intent. A paper is never related to itself. A union adds signals up:

    weight(a, b) = sum over parts of part.weight * strength(a, b) / sqrt(size(a) * size(b))

where size is the number of citations a paper received (co-citation) or of references it makes (coupling): Salton's
cosine, so that a much cited paper is not near to everything. Signals over one hop count as they are. With
`normalize=False` strengths are added as counted. With `equal=True` every related pair weighs the same, which is the
co-citation graph of the continuous co-citations (Oldenburg thesis, 2024, section 7.3: strength is not considered).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import Ragged, count_owners, owners_of, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.graph.adjacency import (
    NO_EDGES,
    Adjacency,
    CitationMentions,
    Csr,
    Edges,
    HopLimits,
    HopResults,
    HopWorkspace,
    count_nearby_cocitations,
    count_paths,
    count_two_hops,
    list_one_hop,
    new_workspace,
)
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sort import row_ranges

ONE_HOP = ("cited", "citing", "connected")
TWO_HOPS = ("second_hop", "connected_of_connected", "cocited", "cocited_nearby", "coupled")
SIGNALS = (*ONE_HOP, *TWO_HOPS)
MEMORY = 256 << 20
_BYTES_PER_TARGET = 8


@dataclass(frozen=True, slots=True)
class Signal:
    """One citation signal: a way in which papers are related by citations, and its limits."""

    name: str
    """One of SIGNALS."""

    intent: int | None = None
    """Only citations with one of these intents (bits of `Intent`) count; 0 = only those of unknown intent."""

    longest: int = 1000
    """Papers in the middle with longer lists do not count: the reference lists of co-citing papers, the citing
    papers of a shared reference. One survey of 100,000 references would otherwise make five billion pairs."""

    least: float = 0.0
    """Minimum strength, for signals over two hops; 0 = any."""

    strongest: int = 0
    """Keep only so many of the strongest relations of every paper, of equal ones the lowest rows; 0 = all."""

    worth: tuple[float, float, float] = (0.125, 0.25, 1.0)
    """What a co-citing paper counts in `cocited_nearby`: both in the paper, in one section, in one sentence."""

    def __post_init__(self) -> None:
        choose(self.name, SIGNALS, "signal")
        if self.longest < 1 or self.strongest < 0:
            raise UserError(f"signal {self.name}: longest is {self.longest} and strongest {self.strongest}; "
                            "longest must be 1 or more, strongest 0 or more")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Related(Ragged):
    """The papers that a citation signal relates to each of some papers, with strengths, ascending within a row."""

    targets: NDArray[np.int32]
    strengths: NDArray[np.float32]
    """Shape (targets,); 1 for signals over one hop."""

    def row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the related papers and strengths of the n-th query."""
        return self.targets[self.span(number)], self.strengths[self.span(number)]


@dataclass
class Relations:
    """A citation graph and what signals derive from it: mentions and graphs of single intents, made on first use."""

    graph: CitationGraph
    corpus: Corpus | None = None
    """Only `cocited_nearby` needs it: proximity comes from the citing sentences."""

    _by_intent: dict[int, CitationGraph] = field(default_factory=dict)

    @cached_property
    def mentions(self) -> CitationMentions:
        """Where the citing sentences mention papers, for the signal cocited_nearby."""
        if self.corpus is None or not len(self.corpus.contexts):
            raise UserError("signal cocited_nearby needs citing sentences, and the corpus has none; use cocited")
        return collect_mentions(self.corpus)

    def restricted(self, intent: int | None) -> CitationGraph:
        """Return the citation graph that signals of one intent read, made once; None = all citations."""
        if intent is None:
            return self.graph
        if intent not in self._by_intent:
            self._by_intent[intent] = self.graph.restricted(intent)
        return self._by_intent[intent]


def collect_mentions(corpus: Corpus) -> CitationMentions:
    """Collect the citation signal of one sentence: where papers mention the papers they cite, without citing papers outside.

    paper 7, section "Method", sentence 0: cites 3, 5        mentions by 7:  3 (0, Method), 5 (0, Method),
    paper 7, section "Method", sentence 1: cites 4                           4 (1, Method)
    """
    table = corpus.contexts
    numbers = owners_of(table.cited_offsets)  # (mentions,)
    citing = table.citing[numbers]
    keys = table.sections.keys()
    keys[table.sections.lengths() == 0] = 0
    order = np.argsort(citing, kind="stable")
    order = order[int(np.searchsorted(citing[order], 0)) :]
    offsets = count_owners(citing[order], len(corpus))
    return CitationMentions(offsets, table.cited[order], numbers[order], keys[numbers[order]])


def related(
    graph: CitationGraph | Relations, signal: Signal, rows: NDArray[np.integer], *, workers: int = 1
) -> Related:
    """Return the papers that a signal relates to each of these rows, all at once."""
    return join_related([block for _, block in stream_related(graph, signal, rows, workers=workers)])


def join_related(blocks: Sequence[Related]) -> Related:
    """Concatenate blocks of papers that a citation signal relates into one."""
    if len(blocks) == 1:
        return blocks[0]
    return Related(
        to_offsets(np.concatenate([np.zeros(0, np.int64), *(block.lengths() for block in blocks)])),
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
    """Yield the papers that a signal relates to these rows, in blocks of rows, in order.

    Results in flight take at most `memory`, or what one row needs. Each worker also holds 8 bytes per node. The
    result does not depend on workers or memory.
    """
    relations = graph if isinstance(graph, Relations) else Relations(graph)
    queries: NDArray[np.int64] = np.ascontiguousarray(rows, np.int64)
    outside = queries[(queries < 0) | (queries >= relations.graph.nodes)]
    if len(outside):
        raise UserError(
            f"row {int(outside[0])} is not in a graph of {relations.graph.nodes:,} nodes; give rows of this graph"
        )
    restricted = relations.restricted(signal.intent)
    if signal.name == "cocited_nearby":
        _ = relations.mentions  # made before workers start
    number = workers or os.cpu_count() or 1
    sizes = np.minimum(largest_sizes(restricted, signal, queries), restricted.nodes)
    spans = [slice(*span) for span in row_ranges(sizes, max(1, memory // ((number + 1) * _BYTES_PER_TARGET)))]
    counted = restricted.nodes if signal.name in TWO_HOPS else 0
    counters = [new_workspace(counted, levels=signal.name == "cocited_nearby") for _ in range(number)]

    def work(span: slice) -> Related:
        counter = counters.pop()
        try:
            return _count_related(relations, restricted, signal, queries[span], int(sizes[span].sum()), counter)
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
    """Return for every row an upper bound on the papers that a signal relates: its edges, or its two-hop paths."""
    out = np.zeros(len(rows), np.int64)
    if signal.name in ONE_HOP:
        for side in _directions(graph, signal.name):
            out += side.offsets[rows + 1] - side.offsets[rows]
        return out
    for first, second in _hops(graph, signal.name):
        count_paths(first, second, signal.longest, rows, out)
    return out


def count_capped_papers(graph: CitationGraph, signal: Signal) -> int:
    """Count the middle papers of a two-hop signal that are ignored because their lists are longer than its cap."""
    if signal.name in ONE_HOP:
        return 0
    seconds = {id(second.targets): second for _, second in _hops(graph, signal.name)}.values()
    return sum(int((np.diff(second.offsets) > signal.longest).sum()) for second in seconds)


def _sides(graph: CitationGraph) -> tuple[Edges, Edges]:
    return Edges(graph.cited.offsets, graph.cited.targets), Edges(graph.citing.offsets, graph.citing.targets)


def _directions(graph: CitationGraph, name: str) -> list[Edges]:
    out, into = _sides(graph)
    return {"cited": [out], "citing": [into], "connected": [out, into]}[name]


def _hops(graph: CitationGraph, name: str) -> tuple[tuple[Edges, Edges], ...]:
    """Return the first and second hop of every kind of path that a two-hop signal follows."""
    out, into = _sides(graph)
    hops = {
        "second_hop": ((out, out),),
        "cocited": ((into, out),),
        "cocited_nearby": ((into, out),),
        "coupled": ((out, into),),
        "connected_of_connected": ((out, out), (out, into), (into, out), (into, into)),
    }
    return hops[name]


def _count_related(
    relations: Relations,
    graph: CitationGraph,
    signal: Signal,
    rows: NDArray[np.int64],
    size: int,
    counter: HopWorkspace,
) -> Related:
    """Run the compiled count of a signal for some rows; `size` bounds the number of results."""
    two_hops = signal.name in TWO_HOPS
    results = HopResults(
        np.zeros(len(rows) + 1, np.int64), np.empty(size, np.int32), np.empty(size if two_hops else 0, np.float32)
    )
    limits = HopLimits(signal.longest, np.float32(signal.least), signal.strongest)
    if not two_hops:
        first, second = [*_directions(graph, signal.name), NO_EDGES][:2]
        end = list_one_hop(first, second, rows, results)
        return Related(results.offsets, results.targets[:end].copy(), np.ones(end, np.float32))
    if signal.name == "cocited_nearby":
        worth, (out, into) = np.array(signal.worth, np.float32), _sides(graph)
        end = count_nearby_cocitations(out, into, relations.mentions, worth, limits, rows, counter, results)
    else:
        end = count_two_hops(_hops(graph, signal.name), limits, rows, counter, results)
    return Related(results.offsets, results.targets[:end].copy(), results.strengths[:end].copy())


# Weighted unions of signals.


@dataclass(frozen=True, slots=True)
class UnionPart:
    """One signal of a weighted union and its weight."""

    signal: Signal
    weight: float = 1.0


def parse_union(text: str, *, strongest: int = 100) -> list[UnionPart]:
    """Parse a weighted union of citation signals such as `connected:1,cocited:0.5`.

    >>> [(part.signal.name, part.weight) for part in parse_union("connected:1, cocited:0.5,coupled")]
    [('connected', 1.0), ('cocited', 0.5), ('coupled', 1.0)]
    """
    parts = []
    for entry in text.split(","):
        name, _, weight = entry.strip().partition(":")
        try:
            value = float(weight or 1)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UserError(f"--signal has {entry.strip()!r}; a weight is a number over 0, such as cocited:0.5")
        parts.append(UnionPart(Signal(name, strongest=strongest), value))
    return parts


def unite_signals(
    relations: Relations,
    parts: Sequence[UnionPart],
    *,
    normalize: bool = True,
    equal: bool = False,
    memory: int = MEMORY,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> Csr:
    """Compute the weighted union of signals as a sparse matrix; if `equal`, strengths within a signal do not count."""
    blocks, scale = [], "equal" if equal else "cosine" if normalize else "count"
    with reporter.task("uniting signals", relations.graph.nodes, "papers") as advance:
        for block in _blocks(relations, parts, scale=scale, memory=memory, workers=workers):
            blocks.append(block)
            advance(len(block))
    joined = join_related(blocks)
    union = Csr(joined.offsets, joined.targets, joined.strengths)
    if not union.edges:
        names = ", ".join(part.signal.name for part in parts)
        raise UserError(f"no two papers are related by {names}; the union has no edges: choose another --signal")
    return union


def symmetrize(union: Csr) -> Adjacency:
    """Add the transpose of a union of signals: with only the strongest kept, an edge may be missing in one direction.

    A union that is symmetric already, such as all co-citations, stays as it is: every pair counts once in each direction.
    """
    alone = Adjacency((union,))
    return alone if alone.is_symmetric else Adjacency((union, union.transposed()))


@dataclass(frozen=True, slots=True)
class SignalLinks:
    """The links that signals make between papers, such as co-citations; held out like citations, both directions at once.

    >>> links = link_papers(Csr(np.array([0, 1, 1, 1]), np.array([1], np.int32), np.array([2.0], np.float32)))
    >>> links.sources().tolist(), links.cited.targets.tolist(), links.cited.weights.tolist()
    ([0, 1], [1, 0], [2.0, 2.0])
    """

    cited: Csr
    """Every link in both directions."""

    def sources(self) -> NDArray[np.int64]:
        """Return the paper at which each link between papers begins; shape (links,)."""
        return self.cited.owners()

    def degrees(self) -> NDArray[np.int64]:
        """Return the number of linked papers of every paper; shape (nodes,)."""
        return self.cited.lengths()

    def keep_edges(self, edges: NDArray[np.bool_]) -> SignalLinks:
        """Return only these of the links between papers; shape of the mask (links,)."""
        weights = None if self.cited.weights is None else self.cited.weights[edges]
        return SignalLinks(
            Csr(count_owners(self.sources()[edges], len(self.cited)), self.cited.targets[edges], weights)
        )

    def adjacency(self) -> Adjacency:
        return Adjacency((self.cited,))


def link_papers(union: Csr) -> SignalLinks:
    """Return the links of a union of signals in both directions, with the weights of `symmetrize`."""
    back = union.transposed()
    pairs = [side.owners() * union.nodes + side.targets for side in (union, back)]  # (edges,) each
    keys, place = np.unique(np.concatenate(pairs), return_inverse=True)
    both = [np.ones(side.edges) if side.weights is None else side.weights for side in (union, back)]
    weights = np.bincount(place, np.concatenate(both)).astype(np.float32)  # (links,)
    return SignalLinks(
        Csr(count_owners(keys // union.nodes, union.nodes), (keys % union.nodes).astype(np.int32), weights)
    )


def _cosine_strengths(block: Related, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Normalize strengths to Salton's cosine: strength / sqrt(size of one paper * size of the other)."""
    own = np.repeat(sizes[rows], block.lengths())  # (targets,)
    other = sizes[block.targets]  # (targets,)
    result: NDArray[np.float32] = (block.strengths / np.sqrt(own.astype(np.float64) * other)).astype(np.float32)
    return result


def _blocks(
    relations: Relations, parts: Sequence[UnionPart], *, scale: str, memory: int, workers: int
) -> Iterator[Related]:
    """Yield the union of all signals in blocks of rows; a block takes at most `memory`, or one row."""
    nodes = np.arange(relations.graph.nodes)
    sizes = np.zeros(len(nodes), np.int64)
    for part in parts:
        sizes += largest_sizes(relations.restricted(part.signal.intent), part.signal, nodes)
    for first, last in row_ranges(sizes, max(1, memory // 32)):
        rows, merged = nodes[first:last], None
        for part in parts:
            pieces = [
                block for _, block in stream_related(relations, part.signal, rows, memory=memory, workers=workers)
            ]
            block = _weighted(relations.graph, part, rows, join_related(pieces), scale)
            merged = block if merged is None else _merge(merged, block)
        assert merged is not None
        yield merged


def _weighted(graph: CitationGraph, part: UnionPart, rows: NDArray[np.int64], block: Related, scale: str) -> Related:
    """Weight the strengths of one signal of a union: as counted, as cosines (signals over two hops), or as all equal."""
    sizes = {"cocited": graph.citing, "cocited_nearby": graph.citing, "coupled": graph.cited}
    strengths = block.strengths
    if scale == "equal":
        strengths = np.ones_like(strengths)
    elif scale == "cosine" and part.signal.name in sizes:
        strengths = _cosine_strengths(block, rows, sizes[part.signal.name].lengths())
    return Related(block.offsets, block.targets, (strengths * np.float32(part.weight)).astype(np.float32))


def _merge(first: Related, second: Related) -> Related:
    """Merge the related papers of two signals, row by row."""
    size = len(first.targets) + len(second.targets)
    merged = HopResults(np.zeros(len(first) + 1, np.int64), np.empty(size, np.int32), np.empty(size, np.float32))
    one, other = (HopResults(block.offsets, block.targets, block.strengths) for block in (first, second))
    end = _merge_rows(one, other, merged)
    return Related(merged.offsets, merged.targets[:end].copy(), merged.strengths[:end].copy())


@compiled()
def _merge_rows(a, b, merged):  # type: ignore[no-untyped-def]
    """Merge the sorted targets of every row of two signals; strengths are added. Returns how many."""
    at = 0
    for row in range(len(merged.offsets) - 1):
        i, i_end, j, j_end = a.offsets[row], a.offsets[row + 1], b.offsets[row], b.offsets[row + 1]
        while i < i_end or j < j_end:
            if j >= j_end or (i < i_end and a.targets[i] < b.targets[j]):
                merged.targets[at], merged.strengths[at] = a.targets[i], a.strengths[i]
                i += 1
            elif i >= i_end or b.targets[j] < a.targets[i]:
                merged.targets[at], merged.strengths[at] = b.targets[j], b.strengths[j]
                j += 1
            else:
                merged.targets[at], merged.strengths[at] = a.targets[i], a.strengths[i] + b.strengths[j]
                i += 1
                j += 1
            at += 1
        merged.offsets[row + 1] = at
    return at
