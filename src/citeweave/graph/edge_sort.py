"""Sorting of edges in any order into sparse rows (CSR) without duplicates, in bounded memory.

    edges 2->0, 0->2, 0->1, 0->2     rows  0: 1, 2   1: -   2: 0     (one duplicate)

One range of rows is handled at a time: the edges that leave it are collected by counting sort, each row is sorted and
freed of duplicates, and the range is written. More memory means fewer passes over the edges; edges that come in the
order of their sources, as those of a corpus do, take one pass in any memory. Columns may be memory maps, whose pages
are released once they were read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import release
from citeweave.core.compiled import compiled
from citeweave.core.ragged import to_offsets

CHUNK = 1 << 22
"""Edges read at a time."""

RELEASE_AFTER = 1 << 26
"""Edges read before the pages of memory-mapped columns are released."""

SORTING, TRANSPOSING = 24, 12
"""Bytes that one edge of a range takes while rows are sorted with their attributes, and while they are transposed."""

MAX_EDGES = 2**32
"""Edge numbers take 32 bits beside the target while a row is sorted."""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """A range of rows of the graph with their edges sorted, each target once."""

    first: int
    counts: NDArray[np.int64]
    """Targets of every row, shape (rows,)."""

    targets: NDArray[np.int32]
    edges: NDArray[np.uint32]
    """Number of the first edge with this source and target, shape (targets,)."""

    repeated: NDArray[np.int64]
    """Numbers of the edges that were dropped as duplicates ..."""

    repeats: NDArray[np.int64]
    """... and for each the position in `targets` of the edge that stayed."""


@dataclass(frozen=True, slots=True)
class EdgeCounts:
    """Degrees of the sources and counts of unusable edges, taken before the edges are sorted."""

    degrees: NDArray[np.int64]
    """Edges that leave every node, duplicates counted; shape (nodes,)."""

    to_itself: int
    dangling: int
    """Edges with an end that is not a node."""

    ascending: bool
    """Whether the edges are in ascending order of their sources."""


def count_edges(sources: NDArray[np.integer], targets: NDArray[np.integer], nodes: int) -> EdgeCounts:
    """Count the edges to sort that leave every node, and those that cannot be sorted into rows."""
    degrees, wrong = np.zeros(nodes, np.int64), np.zeros(3, np.int64)
    for span in _spans(len(sources), sources, targets):
        _count(sources[span], targets[span], degrees, wrong)
        if span.start and sources[span.start] < sources[span.start - 1]:
            wrong[2] += 1
    return EdgeCounts(degrees, int(wrong[0]), int(wrong[1]), not wrong[2])


def sorted_rows(
    sources: NDArray[np.integer], targets: NDArray[np.integer], counts: EdgeCounts, *, memory: int
) -> Iterator[SortedRows]:
    """Yield the edges sorted into rows, a range of rows at a time, of at most memory / SORTING edges or of one row."""
    assert len(sources) < MAX_EDGES
    degrees = counts.degrees
    for first, last in row_ranges(degrees, max(1, memory // SORTING)):
        starts = to_offsets(degrees[first:last])
        packed, at = np.empty(starts[-1], np.uint64), starts[:-1].copy()
        begin, end = 0, len(sources)
        if counts.ascending:  # not with numpy: its searchsorted copies a 32-bit column to a 64-bit one
            begin, end = bisect_left(sources, first), bisect_left(sources, last)
        for span in _spans(end, sources, targets, begin=begin):
            _collect(sources[span], targets[span], span.start, first, len(degrees), packed, at)
        del at
        sizes, repeats = np.empty(last - first, np.int64), np.empty((2, 0), np.int64)
        distinct = _sort_rows(packed, starts, sizes)
        if distinct < len(packed):
            repeats = _list_duplicates(packed, starts, sizes, len(packed) - distinct)
            _drop_duplicates(packed, starts)
        ends, edges = np.empty(distinct, np.int32), np.empty(distinct, np.uint32)
        _unpack(packed, ends, edges)
        del packed
        yield SortedRows(first, sizes, ends, edges, repeats[0], repeats[1])


def transposed_rows(
    offsets: NDArray[np.int64], targets: NDArray[np.int32], *, memory: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint32]]]:
    """Yield the transposed rows of sorted edges, a range at a time: counts, sources (ascending) and edge numbers."""
    nodes = len(offsets) - 1
    degrees = np.zeros(nodes, np.int64)
    for span in _spans(len(targets), targets):
        _count_targets(targets[span], degrees)
    for first, last in row_ranges(degrees, max(1, memory // TRANSPOSING)):
        starts = to_offsets(degrees[first:last])
        sources, edges = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint32)
        at = starts[:-1].copy()
        for rows in _spans(nodes, offsets, targets, every=CHUNK):
            _scatter_sources(offsets, targets, rows.start, rows.stop, first, at, sources, edges)
        yield degrees[first:last], sources, edges


def take_edges(column: NDArray[Any], edges: NDArray[np.uint32]) -> NDArray[Any]:
    """Return a column's values for sorted edges; unlike numpy's indexing it makes no 64-bit copy of their numbers.

    >>> take_edges(np.array([5, 6, 7], np.uint8), np.array([2, 0], np.uint32)).tolist()
    [7, 5]
    """
    out = np.empty(len(edges), column.dtype)
    _take(column, edges, out)
    return out


def _spans(size: int, *columns: NDArray[Any], begin: int = 0, every: int = RELEASE_AFTER) -> Iterator[slice]:
    """Yield spans of edges to read in turn; now and then, and at the end, release the pages of the columns."""
    for start in range(begin, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))
        if (start - begin) % every == every - CHUNK:
            release(*columns)
    release(*columns)


def row_ranges(sizes: NDArray[np.int64], max_size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, as edges are sorted in, whose sizes sum to at most `max_size`; a larger row is alone.

    >>> list(row_ranges(np.array([2, 2, 9, 1, 1]), 4))
    [(0, 2), (2, 3), (3, 5)]
    """
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + max_size, side="right")))
        yield first, last
        first = last


@compiled()
def _count(sources, targets, degrees, wrong):  # type: ignore[no-untyped-def]
    nodes = len(degrees)
    for i in range(len(sources)):
        source, target = sources[i], targets[i]
        if i and source < sources[i - 1]:
            wrong[2] += 1
        if source < 0 or target < 0 or source >= nodes or target >= nodes:
            wrong[1] += 1
        elif source == target:
            wrong[0] += 1
        else:
            degrees[source] += 1


@compiled()
def _collect(sources, targets, number, first, nodes, packed, at):  # type: ignore[no-untyped-def]
    """Collect the edges that leave rows first, first + 1, ...: target and edge number packed into one word."""
    rows = len(at)
    for i in range(len(sources)):
        row, target = sources[i] - first, targets[i]
        if 0 <= row < rows and 0 <= target < nodes and target != sources[i]:
            packed[at[row]] = (np.uint64(target) << np.uint64(32)) | np.uint64(number + i)
            at[row] += 1


@compiled()
def _sort_rows(packed, starts, counts):  # type: ignore[no-untyped-def]
    """Sort the packed edges of every row and count its distinct targets; returns their sum."""
    total = 0
    for row in range(len(counts)):
        start, end = starts[row], starts[row + 1]
        if end - start > 24:
            packed[start:end].sort()
        else:
            for i in range(start + 1, end):
                word, j = packed[i], i
                while j > start and packed[j - 1] > word:
                    packed[j] = packed[j - 1]
                    j -= 1
                packed[j] = word
        distinct = 0
        for i in range(start, end):
            if i == start or packed[i] >> np.uint64(32) != packed[i - 1] >> np.uint64(32):
                distinct += 1
        counts[row] = distinct
        total += distinct
    return total


@compiled()
def _list_duplicates(packed, starts, counts, number):  # type: ignore[no-untyped-def]
    """Return the numbers of duplicate edges, and the position of the edge that stands for each."""
    out, count, place = np.empty((2, number), np.int64), 0, -1
    for row in range(len(counts)):
        for i in range(starts[row], starts[row + 1]):
            if i == starts[row] or packed[i] >> np.uint64(32) != packed[i - 1] >> np.uint64(32):
                place += 1
            else:
                out[0, count], out[1, count] = packed[i] & np.uint64(0xFFFFFFFF), place
                count += 1
    return out


@compiled()
def _drop_duplicates(packed, starts):  # type: ignore[no-untyped-def]
    """Move the first edge of every target to the front of the packed edges."""
    at, before = 0, np.uint64(0)
    for row in range(len(starts) - 1):
        for i in range(starts[row], starts[row + 1]):
            word = packed[i]
            if i == starts[row] or word >> np.uint64(32) != before >> np.uint64(32):
                packed[at] = word
                at += 1
            before = word


@compiled()
def _unpack(packed, targets, edges):  # type: ignore[no-untyped-def]
    for i in range(len(targets)):
        targets[i], edges[i] = packed[i] >> np.uint64(32), packed[i] & np.uint64(0xFFFFFFFF)


@compiled()
def _take(column, edges, out):  # type: ignore[no-untyped-def]
    for i in range(len(edges)):
        out[i] = column[edges[i]]


@compiled()
def _count_targets(targets, degrees):  # type: ignore[no-untyped-def]
    for target in targets:
        degrees[target] += 1


@compiled()
def _scatter_sources(offsets, targets, begin, end, first, at, sources, edges):  # type: ignore[no-untyped-def]
    rows = len(at)
    for source in range(begin, end):
        for edge in range(offsets[source], offsets[source + 1]):
            row = targets[edge] - first
            if 0 <= row < rows:
                sources[at[row]], edges[at[row]] = source, edge
                at[row] += 1
