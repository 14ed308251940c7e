"""Edges in any order become sparse rows, in memory that an option sets.

    edges 2->0, 0->2, 0->1, 0->2     rows  0: 1, 2   1: -   2: 0     (one duplicate)

A range of rows is handled at a time: the edges that leave it are gathered by counting sort, each row is
sorted and freed of duplicates, and the range is written. More memory means fewer passes over the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import release

CHUNK = 1 << 22
"""Edges read at a time."""

MOST_EDGES = 2**32
"""Edge numbers are kept in 32 bits beside the target while a row is sorted."""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows first to last of the graph, sorted, each target once."""

    first: int
    counts: NDArray[np.int64]
    """Targets of every row, shape (rows,)."""

    targets: NDArray[np.int32]
    edges: NDArray[np.int64]
    """Number of the first edge with this source and target, shape (targets,)."""

    repeated: NDArray[np.int64]
    """Numbers of the edges that were left out as duplicates ..."""

    repeats: NDArray[np.int64]
    """... and the place in `targets` of the one that stayed for each."""


@dataclass(frozen=True, slots=True)
class EdgeCounts:
    """What is found before sorting."""

    degrees: NDArray[np.int64]
    """Edges that leave every node, duplicates counted; shape (nodes,)."""

    to_itself: int
    dangling: int
    """Edges with an end that is not a node."""


def count_edges(sources: NDArray[np.integer], targets: NDArray[np.integer], nodes: int) -> EdgeCounts:
    """Degrees of the sources, and the edges that cannot be kept."""
    degrees, wrong = np.zeros(nodes, np.int64), np.zeros(2, np.int64)
    for start in range(0, len(sources), CHUNK):
        _count(sources[start : start + CHUNK], targets[start : start + CHUNK], degrees, wrong)
    release(sources, targets)
    return EdgeCounts(degrees, int(wrong[0]), int(wrong[1]))


def sorted_rows(
    sources: NDArray[np.integer], targets: NDArray[np.integer], degrees: NDArray[np.int64], *, memory: int
) -> Iterator[SortedRows]:
    """All rows in order, some at a time; a range holds at most memory / 8 edges, or one row."""
    assert len(sources) < MOST_EDGES
    for first, last in row_ranges(degrees, max(1, memory // 8)):
        starts = np.zeros(last - first + 1, np.int64)
        np.cumsum(degrees[first:last], out=starts[1:])
        packed, at = np.empty(starts[-1], np.uint64), starts[:-1].copy()
        for start in range(0, len(sources), CHUNK):
            span = slice(start, start + CHUNK)
            _gather(sources[span], targets[span], start, first, len(degrees), packed, at)
        release(sources, targets)
        counts, repeats = np.empty(last - first, np.int64), np.empty((2, 0), np.int64)
        kept = _sort_rows(packed, starts, counts)
        if kept < len(packed):
            repeats = _repeats(packed, starts, counts, len(packed) - kept)
            packed = _squeeze(packed, starts, counts, kept)
        found = packed & np.uint64(MOST_EDGES - 1)
        yield SortedRows(
            first, counts, (packed >> np.uint64(32)).astype(np.int32), found.astype(np.int64), repeats[0], repeats[1]
        )


def transposed_rows(
    offsets: NDArray[np.int64], targets: NDArray[np.int32], *, memory: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]]:
    """The other direction: counts, sources (ascending) and edge numbers of some rows at a time."""
    nodes = len(offsets) - 1
    degrees = np.zeros(nodes, np.int64)
    _count_targets(targets, degrees)
    for first, last in row_ranges(degrees, max(1, memory // 12)):
        starts = np.zeros(last - first + 1, np.int64)
        np.cumsum(degrees[first:last], out=starts[1:])
        sources, edges = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int64)
        _scatter_back(offsets, targets, first, starts[:-1].copy(), sources, edges)
        yield degrees[first:last], sources, edges


def row_ranges(sizes: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose sizes add up to at most `most`; a larger row is a range of its own.

    >>> list(row_ranges(np.array([2, 2, 9, 1, 1]), 4))
    [(0, 2), (2, 3), (3, 5)]
    """
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, last
        first = last


@numba.njit(cache=True, nogil=True)
def _count(sources, targets, degrees, wrong):  # type: ignore[no-untyped-def]
    nodes = len(degrees)
    for i in range(len(sources)):
        source, target = sources[i], targets[i]
        if source < 0 or target < 0 or source >= nodes or target >= nodes:
            wrong[1] += 1
        elif source == target:
            wrong[0] += 1
        else:
            degrees[source] += 1


@numba.njit(cache=True, nogil=True)
def _gather(sources, targets, number, first, nodes, packed, at):  # type: ignore[no-untyped-def]
    """Put the edges that leave rows first, first + 1, ... into their places, target and edge number in one word."""
    rows = len(at)
    for i in range(len(sources)):
        row, target = sources[i] - first, targets[i]
        if 0 <= row < rows and 0 <= target < nodes and target != sources[i]:
            packed[at[row]] = (np.uint64(target) << np.uint64(32)) | np.uint64(number + i)
            at[row] += 1


@numba.njit(cache=True, nogil=True)
def _sort_rows(packed, starts, counts):  # type: ignore[no-untyped-def]
    """Sort every row; counts become the number of different targets, whose sum is returned."""
    kept = 0
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
        different = 0
        for i in range(start, end):
            if i == start or packed[i] >> np.uint64(32) != packed[i - 1] >> np.uint64(32):
                different += 1
        counts[row] = different
        kept += different
    return kept


@numba.njit(cache=True, nogil=True)
def _repeats(packed, starts, counts, number):  # type: ignore[no-untyped-def]
    """Edge numbers of duplicates, and the place of the target that stands for them."""
    out, found, place = np.empty((2, number), np.int64), 0, -1
    for row in range(len(counts)):
        for i in range(starts[row], starts[row + 1]):
            if i == starts[row] or packed[i] >> np.uint64(32) != packed[i - 1] >> np.uint64(32):
                place += 1
            else:
                out[0, found], out[1, found] = packed[i] & np.uint64(0xFFFFFFFF), place
                found += 1
    return out


@numba.njit(cache=True, nogil=True)
def _squeeze(packed, starts, counts, kept):  # type: ignore[no-untyped-def]
    out, at = np.empty(kept, np.uint64), 0
    for row in range(len(counts)):
        for i in range(starts[row], starts[row + 1]):
            if i == starts[row] or packed[i] >> np.uint64(32) != packed[i - 1] >> np.uint64(32):
                out[at] = packed[i]
                at += 1
    return out


@numba.njit(cache=True, nogil=True)
def _count_targets(targets, degrees):  # type: ignore[no-untyped-def]
    for target in targets:
        degrees[target] += 1


@numba.njit(cache=True, nogil=True)
def _scatter_back(offsets, targets, first, at, sources, edges):  # type: ignore[no-untyped-def]
    rows = len(at)
    for source in range(len(offsets) - 1):
        for edge in range(offsets[source], offsets[source + 1]):
            row = targets[edge] - first
            if 0 <= row < rows:
                sources[at[row]], edges[at[row]] = source, edge
                at[row] += 1
