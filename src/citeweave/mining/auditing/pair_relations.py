"""How the two papers of given pairs are related in the citation graph; asks about pairs, never lists a neighbourhood.

    >>> from citeweave.graph.citations import graph_from_edges
    >>> graph = graph_from_edges(np.array([0, 0, 1]), np.array([1, 2, 2]), nodes=4)     # 0 cites 1 and 2, 1 cites 2
    >>> [names_of(bits) for bits in relate_pairs(graph, np.array([0, 1, 1]), np.array([2, 2, 3]))]
    [['cited', 'second_hop'], ['cited', 'cocited'], []]

The meanings are those of `graph/signals.py`, the first paper asking. A pair costs its two lists, so a million of
them take seconds where all papers two hops away would take hours.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.graph.citations import CitationGraph

RELATIONS = ("cited", "citing", "cocited", "coupled", "second_hop")
"""Bit 1 is the first of them, bit 2 the second, bit 4 the third, ..."""

LONGEST = 1000
"""Papers in the middle with longer lists do not count; the default of signals and rules."""

_BLOCK = 1 << 14


def relate_pairs(
    graph: CitationGraph,
    first: NDArray[np.integer[Any]],
    second: NDArray[np.integer[Any]],
    *,
    longest: int = LONGEST,
    workers: int = 0,
) -> NDArray[np.uint8]:
    """What each second paper is to the first one, as bits; shape (pairs,)."""
    out = np.zeros(len(first), np.uint8)
    rows = np.asarray(first, np.int64), np.asarray(second, np.int64)
    lists = graph.cited.offsets, graph.cited.targets, graph.citing.offsets, graph.citing.targets
    edges = [*range(0, len(out), _BLOCK), len(out)]

    def work(span: tuple[int, int]) -> None:
        part = slice(*span)
        _relate(*lists, longest, rows[0][part], rows[1][part], out[part])

    number = min(workers or os.cpu_count() or 1, max(1, len(edges) - 1))
    with ThreadPoolExecutor(number) as pool:
        list(pool.map(work, pairwise(edges)))
    return out


def bit_of(name: str) -> int:
    """
    >>> bit_of("cited"), bit_of("cocited")
    (1, 4)
    """
    return 1 << RELATIONS.index(name)


def names_of(bits: int) -> list[str]:
    """The relations that are set."""
    return [name for place, name in enumerate(RELATIONS) if bits >> place & 1]


@numba.njit(cache=True, nogil=True)
def _place(targets, low, high, target):  # type: ignore[no-untyped-def]
    """The first place from low to high whose target is not smaller."""
    while low < high:
        middle = (low + high) // 2
        if targets[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def _has(offsets, targets, row, target):  # type: ignore[no-untyped-def]
    end = offsets[row + 1]
    at = _place(targets, offsets[row], end, target)
    return at < end and targets[at] == target


@numba.njit(cache=True, nogil=True)
def _meet(targets, i, end, others, j, stop, middles, longest):  # type: ignore[no-untyped-def]
    """Whether two ascending lists share a paper whose own list (by the offsets `middles`) is not too long."""
    while i < end and j < stop:
        one, other = targets[i], others[j]
        if one == other:
            if middles[one + 1] - middles[one] <= longest:
                return True
            i += 1
            j += 1
        elif one < other:
            # a leap where the other list is much shorter: a survey's references beside a short list's
            i = i + 1 if end - i < 8 * (stop - j) else _place(targets, i + 1, end, other)
        else:
            j = j + 1 if stop - j < 8 * (end - i) else _place(others, j + 1, stop, one)
    return False


@numba.njit(cache=True, nogil=True)
def _relate(out, cited, into, citing, longest, first, second, bits):  # type: ignore[no-untyped-def]
    # out, into: offsets of the lists of cited and of citing papers
    for at in range(len(bits)):
        a, b = first[at], second[at]
        if a == b:
            continue
        found = 0
        if _has(out, cited, a, b):
            found |= 1
        if _has(out, cited, b, a):
            found |= 2
        if _meet(citing, into[a], into[a + 1], citing, into[b], into[b + 1], out, longest):
            found |= 4
        if _meet(cited, out[a], out[a + 1], cited, out[b], out[b + 1], into, longest):
            found |= 8
        if _meet(cited, out[a], out[a + 1], citing, into[b], into[b + 1], out, longest):
            found |= 16
        bits[at] = found
