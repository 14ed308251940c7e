"""The citations around a paper, and the papers that a library cites but does not have.

    neighbourhood(index, row)      the paper, what it cites and what cites it, and all citations among these
    lacking(index)                 what many papers of the index cite and it lacks, the most cited first

Only citations that the index knows count. Does not fetch anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.layout import STUB
from citeweave.corpus.outside_names import OutsideName
from citeweave.errors import UserError
from citeweave.hashing import Keys
from citeweave.search.index import Index, IndexedPaper
from citeweave.search.writing.records import spread

MOST_NODES, MOST_LACKING = 500, 1000
_LOOKED_AT = 2000
"""Neighbours of a paper whose own references are read."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Papers and the citations among them."""

    nodes: list[IndexedPaper]
    """The paper that was asked for comes first."""

    edges: list[tuple[int, int]]
    """(citing, cited), places in `nodes`."""

    left_out: int
    """Neighbours that are not among the nodes."""

    outside: int
    """References of the paper that the index does not have."""

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": node.id, "title": node.title, "year": node.year, "row": node.row} for node in self.nodes],
            "edges": [{"citing": self.nodes[one].id, "cited": self.nodes[two].id} for one, two in self.edges],
            "left_out": self.left_out,
            "outside": self.outside,
        }


def neighbourhood(index: Index, row: int, most: int = 50) -> Neighbourhood:
    """The paper and at most `most` of its neighbours: those that are linked to most others of them, then by id."""
    _check(most, MOST_NODES)
    cited = index.rows_of_keys(index.references(row))
    around = np.union1d(cited[cited >= 0], index.citing(index.key_of(row)))
    others = around[around != row].tolist()
    # very many: by id, so that it does not show how the index came to be
    looked_at = others if len(others) <= _LOOKED_AT else sorted(others, key=index.id)[:_LOOKED_AT]
    every = [row, *looked_at]
    links = _links(index, every)
    degrees = dict.fromkeys(every, 0)
    for citing, to in links:
        degrees[citing] += 1
        degrees[to] += 1
    kept = [row, *sorted(looked_at, key=lambda one: (-degrees[one], index.id(one)))[:most]]
    places = {one: place for place, one in enumerate(kept)}
    edges = [(places[citing], places[to]) for citing, to in links if citing in places and to in places]
    return Neighbourhood(
        [index.paper(one) for one in kept], sorted(edges), len(others) + 1 - len(kept), int((cited < 0).sum())
    )


def _links(index: Index, rows: list[int]) -> list[tuple[int, int]]:
    """Citations among these papers, (citing, cited)."""
    known, found = set(rows), list[tuple[int, int]]()
    for row in rows:
        cited = index.rows_of_keys(index.references(row)).tolist()
        found += [(row, one) for one in cited if one in known and one != row]
    return found


@dataclass(frozen=True, slots=True)
class Lacking:
    """A paper that is cited and not there."""

    key: int
    """Of the id under which it is cited."""

    count: int
    """Papers of the index that cite it."""

    paper: IndexedPaper | None
    """What the index knows of it all the same, as of a reference."""

    name: OutsideName | None = None
    """What it is called where the index does not have it."""

    def as_json(self) -> dict[str, Any]:
        known = self.paper or self.name
        return {
            "key": f"{self.key:016x}",
            "count": self.count,
            "id": known.id if known else "",
            "title": known.title if known else "",
            "year": (known.year or None) if known else None,
            "in_index": self.paper is not None,
        }


@dataclass(frozen=True, slots=True)
class Lackings:
    """The papers that an index lacks."""

    papers: list[Lacking]

    def as_json(self) -> dict[str, Any]:
        return {"papers": [paper.as_json() for paper in self.papers]}


def lacking(index: Index, most: int = 50, *, fewest: int = 2) -> Lackings:
    """The papers outside that at least `fewest` living papers cite, the most cited first, then those with a title."""
    _check(most, MOST_LACKING)
    keys, counts = _cited(index)
    often = counts >= fewest
    keys, counts, rows = keys[often], counts[often], index.rows_of_keys(keys[often])
    known = rows >= 0
    stub = np.zeros(len(rows), bool)
    for segment, at, own in index.split(rows[known]):
        stub[np.flatnonzero(known)[at]] = (segment.flags[own] & STUB) != 0
    outside = np.flatnonzero(~known | stub)
    order = outside[np.lexsort((keys[outside], ~known[outside], -counts[outside]))][:most]
    return Lackings([_lacking(index, int(keys[at]), int(counts[at]), int(rows[at])) for at in order.tolist()])


def _lacking(index: Index, key: int, count: int, row: int) -> Lacking:
    if row >= 0:
        return Lacking(key, count, index.paper(row))
    names = (name for segment in index.segments if (name := segment.outside_name(key)) is not None)
    return Lacking(key, count, None, next(names, None))


def _cited(index: Index) -> tuple[Keys, NDArray[np.int64]]:
    """Keys of all papers that living papers cite, known ones by their own id, ascending, and how many do."""
    cited, citing = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for segment in index.segments:
        counted = np.diff(segment.reference_offsets) * (segment.alive & ((segment.flags & STUB) == 0))
        own = np.repeat(np.arange(segment.size), counted)
        cited.append(segment.reference_keys[spread(segment.reference_offsets[:-1], counted)])
        citing.append(own + segment.start)
    whole, names = np.concatenate(cited), np.concatenate(citing)
    keys, counts = np.unique(whole, return_counts=True)
    rows, own_keys = index.rows_of_keys(keys), keys.copy()
    own_keys[rows >= 0] = index.keys_of(rows[rows >= 0])
    found, places = np.unique(own_keys, return_inverse=True)
    totals = np.bincount(places, counts, len(found)).astype(np.int64)
    several = np.bincount(places) > 1
    if several.any():  # cited by several ids: who names two of them cites once
        at = places[np.searchsorted(keys, whole)]
        both = np.flatnonzero(several[at])
        pairs = np.unique(np.stack([at[both], names[both]]), axis=1)
        totals[several] = np.bincount(pairs[0], minlength=len(found))[several]
    return found, totals


def _check(most: int, limit: int) -> None:
    if not 1 <= most <= limit:
        raise UserError(f"{most} papers are asked for; ask for 1 to {limit}")
