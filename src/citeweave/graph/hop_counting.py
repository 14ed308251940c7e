"""Counting over one and two hops, compiled; one query after the other, so no order of work can matter.

A counter of the size of the graph is kept for each worker and cleaned after every query by its own touches:
counting costs the number of paths, whatever the size of the graph.
"""

from __future__ import annotations

import numba
import numpy as np

from citeweave.graph.adjacency import Csr

EMPTY = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
"""Stands for a second direction that is not used."""


class Counter:
    """What one worker needs: a count for every node, and the nodes touched."""

    def __init__(self, nodes: int) -> None:
        self.counts = np.zeros(nodes, np.float32)
        self.touched = np.empty(nodes, np.int32)
        self.levels = np.zeros(0, np.int8)


@numba.njit(cache=True, nogil=True)
def one_hop(first_offsets, first, second_offsets, second, rows, offsets, targets):  # type: ignore[no-untyped-def]
    """Neighbours in one or two directions, each once, ascending; `offsets` get the true ends. Returns how many."""
    at = 0
    for number in range(len(rows)):
        row = rows[number]
        i, end = first_offsets[row], first_offsets[row + 1]
        j, stop = np.int64(0), np.int64(0)
        if len(second_offsets) > 1:
            j, stop = second_offsets[row], second_offsets[row + 1]
        while i < end or j < stop:
            if j >= stop or (i < end and first[i] < second[j]):
                targets[at] = first[i]
                i += 1
            elif i >= end or second[j] < first[i]:
                targets[at] = second[j]
                j += 1
            else:
                targets[at] = first[i]
                i += 1
                j += 1
            at += 1
        offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def count_paths(first_offsets, first, second_offsets, longest, rows, out):  # type: ignore[no-untyped-def]
    """Adds to `out` for every query the number of two-hop paths that its counting takes."""
    for number in range(len(rows)):
        for i in range(first_offsets[rows[number]], first_offsets[rows[number] + 1]):
            middle = first[i]
            length = second_offsets[middle + 1] - second_offsets[middle]
            if length <= longest:
                out[number] += length


@numba.njit(cache=True, nogil=True)
def add_two_hops(first_offsets, first, second_offsets, second, longest, row, counts, touched, found):  # type: ignore[no-untyped-def]
    """Count the ends of all paths row -> middle -> end; middles with longer lists than `longest` do not count."""
    for i in range(first_offsets[row], first_offsets[row + 1]):
        middle = first[i]
        start, end = second_offsets[middle], second_offsets[middle + 1]
        if end - start > longest:
            continue
        for j in range(start, end):
            target = second[j]
            if counts[target] == 0:
                touched[found] = target
                found += 1
            counts[target] += 1
    return found


@numba.njit(cache=True, nogil=True)
def flush(row, least, most, counts, touched, found, at, targets, weights):  # type: ignore[no-untyped-def]
    """Write the counted nodes except `row`, ascending, and clean the counter.

    Kept are counts of at least `least`, and where `most` > 0 only that many of the largest, of equal ones
    the lowest rows.
    """
    start = at
    for i in range(found):
        target = touched[i]
        if target != row and counts[target] >= least:
            targets[at] = target
            at += 1
    if 0 < most < at - start:
        at = start + _keep_largest(targets[start:at], counts, most)
    targets[start:at].sort()
    for i in range(start, at):
        weights[i] = counts[targets[i]]
    for i in range(found):
        counts[touched[i]] = 0
    return at


@numba.njit(cache=True, nogil=True)
def _keep_largest(targets, counts, most):  # type: ignore[no-untyped-def]
    values = np.empty(len(targets), np.float32)
    for i in range(len(targets)):
        values[i] = counts[targets[i]]
    limit = np.partition(values, len(values) - most)[len(values) - most]
    above = 0
    for value in values:
        if value > limit:
            above += 1
    level = np.empty(len(targets), np.int32)
    equal = kept = 0
    for i in range(len(targets)):
        if values[i] > limit:
            targets[kept] = targets[i]
            kept += 1
        elif values[i] == limit:
            level[equal] = targets[i]
            equal += 1
    level[:equal].sort()
    targets[above:most] = level[: most - above]
    return most


@numba.njit(cache=True, nogil=True)
def two_hops(
    first_offsets, first, second_offsets, second, longest, rows, least, most, counts, touched, offsets, targets, weights
):  # type: ignore[no-untyped-def]
    """Ends of two-hop paths of every row with their number of paths."""
    at = 0
    for number in range(len(rows)):
        found = add_two_hops(first_offsets, first, second_offsets, second, longest, rows[number], counts, touched, 0)
        at = flush(rows[number], least, most, counts, touched, found, at, targets, weights)
        offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def two_hops_undirected(
    out_offsets, out, in_offsets, into, longest, rows, least, most, counts, touched, offsets, targets, weights
):  # type: ignore[no-untyped-def]
    """The same over edges in either direction."""
    at = 0
    for number in range(len(rows)):
        row = rows[number]
        found = add_two_hops(out_offsets, out, out_offsets, out, longest, row, counts, touched, 0)
        found = add_two_hops(out_offsets, out, in_offsets, into, longest, row, counts, touched, found)
        found = add_two_hops(in_offsets, into, out_offsets, out, longest, row, counts, touched, found)
        found = add_two_hops(in_offsets, into, in_offsets, into, longest, row, counts, touched, found)
        at = flush(row, least, most, counts, touched, found, at, targets, weights)
        offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def near_hops(
    out_offsets,
    out,
    in_offsets,
    into,
    mention_offsets,
    mentioned,
    contexts,
    sections,
    worth,
    longest,
    rows,
    least,
    most,
    counts,
    touched,
    levels,
    offsets,
    targets,
    weights,
):  # type: ignore[no-untyped-def]
    """Co-citations weighted by how near the two mentions stand: worth[0] same paper, [1] section, [2] sentence."""
    at = 0
    for number in range(len(rows)):
        row, found = rows[number], 0
        for i in range(in_offsets[row], in_offsets[row + 1]):
            paper = into[i]
            start, end = out_offsets[paper], out_offsets[paper + 1]
            if end - start > longest:
                continue
            _mark_nearness(
                row, mention_offsets[paper], mention_offsets[paper + 1], mentioned, contexts, sections, levels
            )
            for j in range(start, end):
                target = out[j]
                if counts[target] == 0:
                    touched[found] = target
                    found += 1
                counts[target] += worth[levels[target]]
            for j in range(mention_offsets[paper], mention_offsets[paper + 1]):
                levels[mentioned[j]] = 0
        at = flush(row, least, most, counts, touched, found, at, targets, weights)
        offsets[number + 1] = at
    return at


@numba.njit(cache=True, nogil=True)
def _mark_nearness(row, start, end, mentioned, contexts, sections, levels):  # type: ignore[no-untyped-def]
    """levels[paper] = 2 where it is mentioned in a sentence that mentions `row`, 1 in a section that does."""
    for i in range(start, end):
        if mentioned[i] != row:
            continue
        for j in range(start, end):
            if contexts[j] == contexts[i]:
                levels[mentioned[j]] = 2
            elif sections[i] != 0 and sections[j] == sections[i] and levels[mentioned[j]] == 0:
                levels[mentioned[j]] = 1
