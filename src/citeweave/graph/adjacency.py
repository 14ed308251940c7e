"""Adjacency: who is next to whom, as sparse rows; a sum of parts, so that both directions need no copy.

    row 0 -> 1, 2        offsets [0, 2, 3, 3]
    row 1 -> 2           targets [1, 2, 2]
    row 2 -> nobody      weights [1.0, 1.0, 0.5], or None where every edge counts 1

    >>> there = Csr(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32))
    >>> both = Adjacency((there, there.transposed()))
    >>> both.times(np.array([[1.0], [10.0], [100.0]], np.float32)).tolist(), both.degrees().tolist()
    ([[110.0], [101.0], [11.0]], [2.0, 2.0, 2.0])

Knows nothing of papers, citations or what an edge means.

Counting over one and two hops, compiled; one query after the other, so no order of work can matter.

A counter of the size of the graph is kept for each worker and cleaned after every query by its own touches:
counting costs the number of paths, whatever the size of the graph.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import release
from citeweave.core.errors import UserError
from citeweave.core.progress import Advance
from citeweave.graph.kernels import (
    add_rows,
    add_weights,
    hash_entries,
    store_scaled,
    transpose,
)

CHUNK = 2048
"""Rows that a thread sums at a time: few enough to stay in a core's cache, enough to hide what a call costs."""

WALKED = 1 << 26
"""Entries after which the memory of mapped columns is given back."""

Use = Callable[[int, NDArray[np.float32]], None]
"""Gets the first row of a chunk and the sums of its rows, (rows, width), which are overwritten afterwards."""


@dataclass(frozen=True, slots=True)
class Csr:
    """Compressed sparse rows: the neighbors of row i are targets[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    """Shape (nodes + 1,)."""

    targets: NDArray[np.int32]
    """Shape (edges,), ascending within a row."""

    weights: NDArray[np.float32] | None = None
    """Shape (edges,); None where every edge counts 1."""

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.targets)

    def row(self, node: int) -> NDArray[np.int32]:
        """The neighbors of one node."""
        return self.targets[self.offsets[node] : self.offsets[node + 1]]

    def transposed(self) -> Csr:
        """Rows become columns; a new matrix of the same size."""
        offsets = np.zeros(self.nodes + 1, np.int64)  # (nodes + 1,)
        np.cumsum(np.bincount(self.targets, minlength=self.nodes), out=offsets[1:])
        sources = np.empty(self.edges, np.int32)  # (edges,)
        weights = None if self.weights is None else np.empty(self.edges, np.float32)
        transpose(self.offsets, self.targets, self.weights, offsets[:-1].copy(), sources, weights)
        return Csr(offsets, sources, weights)


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The sum of sparse matrices of one size; a citation graph without directions is forward + backward."""

    parts: tuple[Csr, ...]

    @property
    def nodes(self) -> int:
        return self.parts[0].nodes

    @property
    def edges(self) -> int:
        """Entries of all parts."""
        return sum(part.edges for part in self.parts)

    @property
    def is_symmetric(self) -> bool:
        """Whether every entry (i, j) has its (j, i) of the same weight; by 64-bit hashes, in one pass."""
        sums = [hash_entries(part.offsets, part.targets, part.weights) for part in self.parts]
        there, back = (sum(int(pair[side]) for pair in sums) % 2**64 for side in (0, 1))
        return there == back

    def degrees(self) -> NDArray[np.float64]:
        """Sum of the weights of every row, (nodes,); 0 is a node without neighbors."""
        sums = np.zeros(self.nodes)  # (nodes,)
        good = [add_weights(part.offsets, part.targets, part.weights, sums) for part in self.parts]
        if not all(good):
            raise UserError("a weight of the graph is negative or not finite; weights of edges are numbers from 0 up")
        return sums

    def transposed(self) -> Adjacency:
        """Rows become columns, part by part."""
        return Adjacency(tuple(part.transposed() for part in self.parts))

    def times(
        self,
        block: NDArray[np.float32],
        out: NDArray[np.float32] | None = None,
        *,
        scale: NDArray[np.float32] | None = None,
        workers: int = 0,
    ) -> NDArray[np.float32]:
        """The product with a dense block of shape (nodes, width), its row i times scale[i] where there is a scale.

        `out` must not be `block`; both may be columns of a wider array.
        """
        out = np.empty(block.shape, np.float32) if out is None else out
        self.sweep(block, lambda first, sums: store_scaled(sums, scale, first, out), workers)
        return out

    def sweep(self, block: NDArray[Any], use: Use, workers: int = 0, advance: Advance = lambda rows: None) -> None:
        """Sum the neighbors' rows of `block` for every node, and hand the sums to `use`, chunk by chunk, on threads.

        `block` is float32, or bfloat16 as uint16; sums are float32 and never depend on the workers.
        """
        local = threading.local()

        def work(first: int) -> int:
            if not hasattr(local, "sums"):
                local.sums = np.empty((CHUNK, block.shape[1]), np.float32)
            sums = local.sums[: min(CHUNK, self.nodes - first)]  # (rows, width)
            sums[:] = 0
            for part in self.parts:
                add_rows(part.offsets, part.targets, part.weights, block, first, sums)
            use(first, sums)
            return len(sums)

        walked, most = 0, self.nodes * WALKED // max(1, self.edges)
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            for rows in pool.map(work, range(0, self.nodes, CHUNK)):
                advance(rows)
                walked += rows
                if walked > most:
                    walked = 0
                    self.release()

    def release(self) -> None:
        """Give back the memory in which mapped columns were cached."""
        for part in self.parts:
            release(part.offsets, part.targets, *(() if part.weights is None else (part.weights,)))


# Counting over one and two hops, compiled; one query after the other, so no order of work can matter.


class Edges(NamedTuple):
    """One direction of a graph, as compiled code reads it."""

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]


NO_EDGES = Edges(np.zeros(1, np.int64), np.zeros(0, np.int32))
"""Stands for a second direction that is not used."""


class HopWorkspace(NamedTuple):
    """What one worker needs, clean between two queries."""

    counts: NDArray[np.float32]
    """Shape (nodes,), zero."""

    touched: NDArray[np.int32]
    """Shape (nodes,): the nodes whose count is not zero, as many as were found."""

    levels: NDArray[np.int8]
    """Shape (nodes,), zero: how near a node was mentioned; only for proximity."""


class Keep(NamedTuple):
    """What of a count is kept."""

    longest: int
    """Nodes in the middle with longer lists do not count."""

    least: np.float32
    most: int
    """0 = all."""


class HopResults(NamedTuple):
    """Where results go."""

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    strengths: NDArray[np.float32]


class Mentioned(NamedTuple):
    """Where in each citing paper others are mentioned; see `mentions.py`."""

    offsets: NDArray[np.int64]
    cited: NDArray[np.int32]
    contexts: NDArray[np.int64]
    sections: NDArray[np.uint64]


def new_counter(nodes: int, *, levels: bool = False) -> HopWorkspace:
    return HopWorkspace(
        np.zeros(nodes, np.float32), np.empty(nodes, np.int32), np.zeros(nodes if levels else 0, np.int8)
    )


@numba.njit(cache=True, nogil=True)
def one_hop(first, second, rows, found):  # type: ignore[no-untyped-def]
    """Neighbors in one or two directions, each once, ascending. Returns how many."""
    at = 0
    for number in range(len(rows)):
        row = rows[number]
        i, end = first.offsets[row], first.offsets[row + 1]
        j, stop = np.int64(0), np.int64(0)
        if len(second.offsets) > 1:
            j, stop = second.offsets[row], second.offsets[row + 1]
        while i < end or j < stop:
            if j >= stop or (i < end and first.targets[i] < second.targets[j]):
                found.targets[at] = first.targets[i]
                i += 1
            elif i >= end or second.targets[j] < first.targets[i]:
                found.targets[at] = second.targets[j]
                j += 1
            else:
                found.targets[at] = first.targets[i]
                i += 1
                j += 1
            at += 1
        found.offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def count_paths(first, second, longest, rows, out):  # type: ignore[no-untyped-def]
    """Adds to `out` for every query the number of two-hop paths that its counting takes."""
    for number in range(len(rows)):
        for i in range(first.offsets[rows[number]], first.offsets[rows[number] + 1]):
            middle = first.targets[i]
            length = second.offsets[middle + 1] - second.offsets[middle]
            if length <= longest:
                out[number] += length


@numba.njit(cache=True, nogil=True)
def _add_paths(first, second, longest, row, counter, touched):  # type: ignore[no-untyped-def]
    """Count the ends of all paths row -> middle -> end. Returns how many nodes are touched."""
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


@numba.njit(cache=True, nogil=True)
def _write(row, keep, counter, touched, at, found):  # type: ignore[no-untyped-def]
    """Write the counted nodes except `row`, ascending, and clean the counter. Returns the new end."""
    start = at
    for i in range(touched):
        target = counter.touched[i]
        if target != row and counter.counts[target] >= keep.least:
            found.targets[at] = target
            at += 1
    if 0 < keep.most < at - start:
        _keep_largest(found.targets[start:at], counter.counts, keep.most)
        at = start + keep.most
    found.targets[start:at].sort()
    for i in range(start, at):
        found.strengths[i] = counter.counts[found.targets[i]]
    for i in range(touched):
        counter.counts[counter.touched[i]] = 0
    return at


@numba.njit(cache=True, nogil=True)
def _keep_largest(targets, counts, most):  # type: ignore[no-untyped-def]
    """Move the targets of the largest counts to the front, of equal ones the lowest."""
    values = np.empty(len(targets), np.float32)
    for i in range(len(targets)):
        values[i] = counts[targets[i]]
    limit = np.partition(values, len(values) - most)[len(values) - most]
    level = np.empty(len(targets), np.int32)
    equal = above = 0
    for i in range(len(targets)):
        if values[i] > limit:
            targets[above] = targets[i]
            above += 1
        elif values[i] == limit:
            level[equal] = targets[i]
            equal += 1
    level[:equal].sort()
    targets[above:most] = level[: most - above]


@numba.njit(cache=True, nogil=True)
def two_hops(first, second, keep, rows, counter, found):  # type: ignore[no-untyped-def]
    """Ends of two-hop paths of every row with their number of paths. Returns how many."""
    at = 0
    for number in range(len(rows)):
        touched = _add_paths(first, second, keep.longest, rows[number], counter, 0)
        at = _write(rows[number], keep, counter, touched, at, found)
        found.offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def two_hops_undirected(out, into, keep, rows, counter, found):  # type: ignore[no-untyped-def]
    """The same over edges in either direction."""
    at = 0
    for number in range(len(rows)):
        row = rows[number]
        touched = _add_paths(out, out, keep.longest, row, counter, 0)
        touched = _add_paths(out, into, keep.longest, row, counter, touched)
        touched = _add_paths(into, out, keep.longest, row, counter, touched)
        touched = _add_paths(into, into, keep.longest, row, counter, touched)
        at = _write(row, keep, counter, touched, at, found)
        found.offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def near_hops(out, into, mentioned, worth, keep, rows, counter, found):  # type: ignore[no-untyped-def]
    """Co-citations weighted by how near the two mentions stand: worth[0] same paper, [1] section, [2] sentence."""
    at = 0
    for number in range(len(rows)):
        row, touched = rows[number], 0
        for i in range(into.offsets[row], into.offsets[row + 1]):
            paper = into.targets[i]
            start, end = out.offsets[paper], out.offsets[paper + 1]
            if end - start > keep.longest:
                continue
            _mark_nearness(row, paper, mentioned, counter.levels)
            for j in range(start, end):
                target = out.targets[j]
                if counter.counts[target] == 0:
                    counter.touched[touched] = target
                    touched += 1
                counter.counts[target] += worth[counter.levels[target]]
            for j in range(mentioned.offsets[paper], mentioned.offsets[paper + 1]):
                counter.levels[mentioned.cited[j]] = 0
        at = _write(row, keep, counter, touched, at, found)
        found.offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def _mark_nearness(row, paper, mentioned, levels):  # type: ignore[no-untyped-def]
    """levels[other] = 2 where the paper mentions it in a sentence that mentions `row`, 1 in a section that does."""
    start, end = mentioned.offsets[paper], mentioned.offsets[paper + 1]
    for i in range(start, end):
        if mentioned.cited[i] != row:
            continue
        for j in range(start, end):
            other = mentioned.cited[j]
            if mentioned.contexts[j] == mentioned.contexts[i]:
                levels[other] = 2
            elif mentioned.sections[i] != 0 and mentioned.sections[j] == mentioned.sections[i] and levels[other] == 0:
                levels[other] = 1
