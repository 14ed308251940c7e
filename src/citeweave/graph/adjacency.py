"""Sparse adjacency matrices (CSR) of a graph: products with dense blocks, counts of one-hop and two-hop paths.

    row 0 -> 1, 2        offsets [0, 2, 3, 3]
    row 1 -> 2           targets [1, 2, 2]
    row 2 -> nothing     weights [1.0, 1.0, 0.5], or None where every edge counts 1

    >>> forward = Csr(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32))
    >>> both = Adjacency((forward, forward.transposed()))
    >>> both.times(np.array([[1.0], [10.0], [100.0]], np.float32)).tolist(), both.degrees().tolist()
    ([[110.0], [101.0], [11.0]], [2.0, 2.0, 2.0])

An adjacency is a sum of such parts, so that an undirected graph needs no copy of its edges. The hop counts are compiled;
each worker keeps one counter per node and clears only the entries it touched, so a query costs the number of its paths,
whatever the size of the graph. Knows nothing of papers, citations or what an edge means.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import release
from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError
from citeweave.core.progress import Advance
from citeweave.core.ragged import Ragged, count_owners
from citeweave.graph.kernels import add_rows, add_weights, hash_entries, transpose

CHUNK = 2048
"""Rows that a thread sums at a time: few enough to stay in a core's cache, enough to hide the cost of a call."""

RELEASE_AFTER = 1 << 26
"""Edges read before the pages of memory-mapped columns are released."""

ChunkSink = Callable[[int, NDArray[np.float32]], None]
"""Receives the first row of a chunk and the sums of its rows, (rows, width), which are overwritten afterwards."""


@dataclass(frozen=True, slots=True)
class Csr(Ragged):
    """One sparse matrix in compressed rows: the neighbors of row i are targets[offsets[i]:offsets[i + 1]]."""

    targets: NDArray[np.int32]
    """Shape (edges,), ascending within a row."""

    weights: NDArray[np.float32] | None = None
    """Shape (edges,); None where every edge counts 1."""

    @property
    def nodes(self) -> int:
        return len(self)

    @property
    def edges(self) -> int:
        return len(self.targets)

    def row(self, node: int) -> NDArray[np.int32]:
        """Return the neighbors of one node of the sparse matrix."""
        return self.targets[self.span(node)]

    def transposed(self) -> Csr:
        """Return the transpose of the sparse matrix as a new one."""
        offsets = count_owners(self.targets, self.nodes)  # (nodes + 1,)
        sources = np.empty(self.edges, np.int32)  # (edges,)
        weights = None if self.weights is None else np.empty(self.edges, np.float32)
        transpose(self.offsets, self.targets, self.weights, offsets[:-1].copy(), sources, weights)
        return Csr(offsets, sources, weights)


@dataclass(frozen=True, slots=True)
class Adjacency:
    """A graph's adjacency as a sum of sparse matrices of one size; undirected citations are forward + backward."""

    parts: tuple[Csr, ...]

    @property
    def nodes(self) -> int:
        return self.parts[0].nodes

    @property
    def edges(self) -> int:
        """Number of entries in all parts of the adjacency."""
        return sum(part.edges for part in self.parts)

    @property
    def is_symmetric(self) -> bool:
        """Whether every entry (i, j) has an entry (j, i) of the same weight; by 64-bit hashes, in one pass."""
        sums = [hash_entries(part.offsets, part.targets, part.weights) for part in self.parts]
        forward, backward = (sum(int(pair[side]) for pair in sums) % 2**64 for side in (0, 1))
        return forward == backward

    def degrees(self) -> NDArray[np.float64]:
        """Return the sum of the edge weights of every node, (nodes,); 0 for a node without neighbors."""
        sums = np.zeros(self.nodes)  # (nodes,)
        valid = [add_weights(part.offsets, part.targets, part.weights, sums) for part in self.parts]
        if not all(valid):
            raise UserError("an edge weight of the graph is negative or not finite; edge weights are numbers from 0 up")
        return sums

    def transposed(self) -> Adjacency:
        """Return the transposed adjacency, part by part."""
        return Adjacency(tuple(part.transposed() for part in self.parts))

    def times(
        self,
        block: NDArray[Any],
        out: NDArray[np.float32] | None = None,
        workers: int = 0,
        advance: Advance = lambda rows: None,
    ) -> NDArray[np.float32]:
        """Multiply the adjacency with a dense block of shape (nodes, width).

        `out` must not be `block`; both may be columns of a wider array.
        """
        product = np.empty(block.shape, np.float32) if out is None else out

        def store(first: int, sums: NDArray[np.float32]) -> None:
            product[first : first + len(sums)] = sums

        self.sweep(block, store, workers, advance)
        return product

    def sweep(self, block: NDArray[Any], sink: ChunkSink, workers: int, advance: Advance) -> None:
        """Sum the neighbors' rows of a dense block for every node, and hand the sums to `sink`, chunk by chunk.

        Runs on threads. `block` is float32, or bfloat16 as uint16; sums are float32 and never depend on the workers.
        """
        local = threading.local()

        def work(first: int) -> int:
            if not hasattr(local, "sums"):
                local.sums = np.empty((CHUNK, block.shape[1]), np.float32)
            sums = local.sums[: min(CHUNK, self.nodes - first)]  # (rows, width)
            sums[:] = 0
            for part in self.parts:
                add_rows(part.offsets, part.targets, part.weights, block, first, sums)
            sink(first, sums)
            return len(sums)

        unreleased, limit = 0, self.nodes * RELEASE_AFTER // max(1, self.edges)
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            for rows in pool.map(work, range(0, self.nodes, CHUNK)):
                advance(rows)
                unreleased += rows
                if unreleased > limit:
                    unreleased = 0
                    self.release()

    def release(self) -> None:
        """Release the memory pages in which the mapped columns of the graph were cached."""
        for part in self.parts:
            release(part.offsets, part.targets, *(() if part.weights is None else (part.weights,)))


# Counting neighbors over one and two hops, compiled.


class Edges(NamedTuple):
    """Edges of a graph in one direction, as the compiled hop counts read them."""

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]


NO_EDGES = Edges(np.zeros(1, np.int64), np.zeros(0, np.int32))
"""Passed where a hop count uses only one direction."""


class HopWorkspace(NamedTuple):
    """Counters of one worker for two-hop paths in an adjacency, all zero between two queries."""

    counts: NDArray[np.float32]
    """Shape (nodes,), zero."""

    touched: NDArray[np.int32]
    """Shape (nodes,): the nodes whose count is not zero, at the front."""

    levels: NDArray[np.int8]
    """Shape (nodes,), zero: how close by a node is mentioned; only for nearby co-citations."""


class HopLimits(NamedTuple):
    """Limits of counting two-hop paths in a sparse adjacency: which middle nodes count, and which results stay."""

    longest: int
    """Nodes in the middle with longer lists do not count."""

    min_strength: np.float32
    max_targets: int
    """Only so many of the strongest results per query; 0 = all."""


class HopResults(NamedTuple):
    """Output arrays of a hop count: for every query the nodes it reached and how strongly."""

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    strengths: NDArray[np.float32]


class CitationMentions(NamedTuple):
    """Sparse adjacency rows of mentions: in which sentence and section a citing paper mentions each paper it cites."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): the mentions made by each paper."""

    cited: NDArray[np.int32]
    contexts: NDArray[np.int64]
    """Number of the citing sentence of every mention."""

    sections: NDArray[np.uint64]
    """Key of the section's name, 0 where it has none."""


def new_workspace(nodes: int, *, levels: bool = False) -> HopWorkspace:
    """Return zeroed counters for two-hop counts over so many nodes."""
    return HopWorkspace(
        np.zeros(nodes, np.float32), np.empty(nodes, np.int32), np.zeros(nodes if levels else 0, np.int8)
    )


@compiled()
def list_one_hop(first, second, rows, results):  # type: ignore[no-untyped-def]
    """List every row's neighbors in an adjacency, in one or two directions, each once, ascending. Returns how many."""
    at = 0
    for number in range(len(rows)):
        row = rows[number]
        i, end = first.offsets[row], first.offsets[row + 1]
        j, stop = np.int64(0), np.int64(0)
        if len(second.offsets) > 1:
            j, stop = second.offsets[row], second.offsets[row + 1]
        while i < end or j < stop:
            if j >= stop or (i < end and first.targets[i] < second.targets[j]):
                results.targets[at] = first.targets[i]
                i += 1
            elif i >= end or second.targets[j] < first.targets[i]:
                results.targets[at] = second.targets[j]
                j += 1
            else:
                results.targets[at] = first.targets[i]
                i += 1
                j += 1
            at += 1
        results.offsets[number + 1] = at
    return at


@compiled()
def count_paths(first, second, longest, rows, out):  # type: ignore[no-untyped-def]
    """Add to `out` for every query the number of two-hop paths of the adjacency that its count will follow."""
    for number in range(len(rows)):
        for i in range(first.offsets[rows[number]], first.offsets[rows[number] + 1]):
            middle = first.targets[i]
            length = second.offsets[middle + 1] - second.offsets[middle]
            if length <= longest:
                out[number] += length


@compiled()
def _add_paths(first, second, longest, row, counter, touched):  # type: ignore[no-untyped-def]
    """Count the ends of all two-hop paths row -> middle -> end. Returns how many nodes were touched."""
    for i in range(first.offsets[row], first.offsets[row + 1]):
        middle = first.targets[i]
        start, end = second.offsets[middle], second.offsets[middle + 1]
        if end - start > longest:
            continue
        for j in range(start, end):
            target = second.targets[j]
            if counter.counts[target] == 0:
                counter.touched[touched] = target
                touched += 1
            counter.counts[target] += 1
    return touched


@compiled()
def _write_counts(row, limits, counter, touched, at, results):  # type: ignore[no-untyped-def]
    """Write the counted nodes except `row`, ascending, and clear the counter. Returns the new end."""
    start = at
    for i in range(touched):
        target = counter.touched[i]
        if target != row and counter.counts[target] >= limits.min_strength:
            results.targets[at] = target
            at += 1
    if 0 < limits.max_targets < at - start:
        _keep_largest(results.targets[start:at], counter.counts, limits.max_targets)
        at = start + limits.max_targets
    results.targets[start:at].sort()
    for i in range(start, at):
        results.strengths[i] = counter.counts[results.targets[i]]
    for i in range(touched):
        counter.counts[counter.touched[i]] = 0
    return at


@compiled()
def _select(values, place):  # type: ignore[no-untyped-def]
    """Return the value that sorting would put at a place, by Hoare's quickselect; reorders the values.

    As fast as `np.partition`, which numba compiles for seven seconds.
    """
    low, high = 0, len(values) - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if j < place < i:
            break
        low, high = (low, j) if place <= j else (i, high)
    return values[place]


@compiled()
def _keep_largest(targets, counts, number):  # type: ignore[no-untyped-def]
    """Move the targets with the largest counts to the front; of equal counts the lowest rows."""
    values = np.empty(len(targets), np.float32)
    for i in range(len(targets)):
        values[i] = counts[targets[i]]
    limit = _select(values.copy(), len(values) - number)
    tied = np.empty(len(targets), np.int32)
    equal = above = 0
    for i in range(len(targets)):
        if values[i] > limit:
            targets[above] = targets[i]
            above += 1
        elif values[i] == limit:
            tied[equal] = targets[i]
            equal += 1
    tied[:equal].sort()
    targets[above:number] = tied[: number - above]


@compiled()
def count_two_hops(hops, limits, rows, counter, results):  # type: ignore[no-untyped-def]
    """Count two-hop paths of an adjacency from every row to the nodes they end at. Returns how many nodes.

    `hops` is a tuple of pairs: the edges of the first and of the second hop, for every kind of path.
    """
    at = 0
    for number in range(len(rows)):
        touched = 0
        for first, second in hops:
            touched = _add_paths(first, second, limits.longest, rows[number], counter, touched)
        at = _write_counts(rows[number], limits, counter, touched, at, results)
        results.offsets[number + 1] = at
    return at


@compiled()
def count_nearby_cocitations(out, into, mentions, worth, limits, rows, counter, results):  # type: ignore[no-untyped-def]
    """Count co-citations in adjacency rows by proximity of mentions: worth[0] same paper, [1] section, [2] sentence."""
    at = 0
    for number in range(len(rows)):
        row, touched = rows[number], 0
        for i in range(into.offsets[row], into.offsets[row + 1]):
            paper = into.targets[i]
            start, end = out.offsets[paper], out.offsets[paper + 1]
            if end - start > limits.longest:
                continue
            _mark_proximity(row, paper, mentions, counter.levels)
            for j in range(start, end):
                target = out.targets[j]
                if counter.counts[target] == 0:
                    counter.touched[touched] = target
                    touched += 1
                counter.counts[target] += worth[counter.levels[target]]
            for j in range(mentions.offsets[paper], mentions.offsets[paper + 1]):
                counter.levels[mentions.cited[j]] = 0
        at = _write_counts(row, limits, counter, touched, at, results)
        results.offsets[number + 1] = at
    return at


@compiled()
def _mark_proximity(row, paper, mentions, levels):  # type: ignore[no-untyped-def]
    """Set levels[other] = 2 where a citing paper mentions it in a sentence with `row`, 1 in a section with it."""
    start, end = mentions.offsets[paper], mentions.offsets[paper + 1]
    for i in range(start, end):
        if mentions.cited[i] != row:
            continue
        for j in range(start, end):
            other = mentions.cited[j]
            if mentions.contexts[j] == mentions.contexts[i]:
                levels[other] = 2
            elif mentions.sections[i] != 0 and mentions.sections[j] == mentions.sections[i] and levels[other] == 0:
                levels[other] = 1
