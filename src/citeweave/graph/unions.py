"""Weighted unions of signals: direct citations, co-citations and coupling in one weighted graph.

    weight(a, b) = sum over parts of part.weight * strength(a, b) / sqrt(size(a) * size(b))

where size is the number of citations a paper received (co-citation) or of references it gives (coupling):
Salton's cosine, so that a much cited paper is not near to everything. Signals over one hop count as they are.
With `normalise=False` strengths are added as counted, which is the co-citation graph of the continuous
co-citations (Oldenburg thesis, 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import GrowingColumn
from citeweave.errors import UserError
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sorting import row_ranges
from citeweave.graph.hop_counting import Found
from citeweave.graph.signals import MEMORY, Related, Relations, Signal, join_related, largest_sizes, stream_related
from citeweave.progress import QUIET, Reporter


@dataclass(frozen=True, slots=True)
class Part:
    """One signal of a union and how much it counts."""

    signal: Signal
    weight: float = 1.0


def parse_union(text: str, *, strongest: int = 100) -> list[Part]:
    """Read `connected:1,cocited:0.5`.

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
        parts.append(Part(Signal(name, strongest=strongest), value))
    return parts


def unite(
    relations: Relations,
    parts: Sequence[Part],
    *,
    normalise: bool = True,
    folder: Path | None = None,
    memory: int = MEMORY,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> Csr:
    """The union as sparse rows with weights, in memory or as plain files in a folder."""
    counts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    targets = GrowingColumn(None if folder is None else folder / "targets.npy", np.int32)
    weights = GrowingColumn(None if folder is None else folder / "weights.npy", np.float32)
    with reporter.task("uniting signals", relations.graph.nodes, "papers") as advance:
        for block in _blocks(relations, parts, normalise=normalise, memory=memory, workers=workers):
            counts.append(np.diff(block.offsets))
            targets.append(block.targets)
            weights.append(block.strengths)
            advance(len(block))
    union = Csr(np.cumsum(np.concatenate(counts)), targets.close(), weights.close())
    if not union.edges:
        names = ", ".join(part.signal.name for part in parts)
        raise UserError(f"no two papers are related by {names}; the union has no edges: choose another --signal")
    return union


def symmetric(union: Csr) -> Adjacency:
    """The union and its transpose: where only the strongest were kept, an edge may be in one row and not in the other."""
    return Adjacency((union, union.transposed()))


def cosine_strengths(block: Related, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Salton's cosine: strength / sqrt(size of the one * size of the other)."""
    own = np.repeat(sizes[rows], np.diff(block.offsets))  # (targets,)
    other = sizes[block.targets]  # (targets,)
    result: NDArray[np.float32] = (block.strengths / np.sqrt(own.astype(np.float64) * other)).astype(np.float32)
    return result


def _blocks(
    relations: Relations, parts: Sequence[Part], *, normalise: bool, memory: int, workers: int
) -> Iterator[Related]:
    """All parts of some rows after the other merged, a target once a row; a block takes at most `memory`, or one row."""
    every = np.arange(relations.graph.nodes)
    sizes = np.zeros(len(every), np.int64)
    for part in parts:
        sizes += largest_sizes(relations.restricted(part.signal.intent), part.signal, every)
    for first, last in row_ranges(sizes, max(1, memory // 32)):
        rows, merged = every[first:last], None
        for part in parts:
            pieces = [
                block for _, block in stream_related(relations, part.signal, rows, memory=memory, workers=workers)
            ]
            block = _weighted(relations.graph, part, rows, join_related(pieces), normalise)
            merged = block if merged is None else _merge(merged, block)
        assert merged is not None
        yield merged


def _weighted(graph: CitationGraph, part: Part, rows: NDArray[np.int64], block: Related, normalise: bool) -> Related:
    sizes = {
        "cocited": graph.citing,
        "cocited_nearby": graph.citing,
        "coupled": graph.cited,
    }
    strengths = block.strengths
    if normalise and part.signal.name in sizes:
        strengths = cosine_strengths(block, rows, np.diff(sizes[part.signal.name].offsets))
    return Related(block.offsets, block.targets, (strengths * np.float32(part.weight)).astype(np.float32))


def _merge(first: Related, second: Related) -> Related:
    most = len(first.targets) + len(second.targets)
    found = Found(np.zeros(len(first) + 1, np.int64), np.empty(most, np.int32), np.empty(most, np.float32))
    one, other = (Found(block.offsets, block.targets, block.strengths) for block in (first, second))
    end = _merge_rows(one, other, found)
    return Related(found.offsets, found.targets[:end].copy(), found.strengths[:end].copy())


@numba.njit(cache=True, nogil=True)
def _merge_rows(a, b, found):  # type: ignore[no-untyped-def]
    """Merge two sorted lists of every row; strengths of a target in both are added. Returns how many."""
    at = 0
    for row in range(len(found.offsets) - 1):
        i, i_end, j, j_end = a.offsets[row], a.offsets[row + 1], b.offsets[row], b.offsets[row + 1]
        while i < i_end or j < j_end:
            if j >= j_end or (i < i_end and a.targets[i] < b.targets[j]):
                found.targets[at], found.strengths[at] = a.targets[i], a.strengths[i]
                i += 1
            elif i >= i_end or b.targets[j] < a.targets[i]:
                found.targets[at], found.strengths[at] = b.targets[j], b.strengths[j]
                j += 1
            else:
                found.targets[at], found.strengths[at] = a.targets[i], a.strengths[i] + b.strengths[j]
                i += 1
                j += 1
            at += 1
        found.offsets[row + 1] = at
    return at
