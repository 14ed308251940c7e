"""The citation neighborhood of a paper in an index, and the papers that a library cites but does not have.

    find_neighborhood(index, row)      the paper, what it cites and what cites it, and all citations among these
    find_missing_papers(index)         what many papers of the index cite and it lacks, the most cited first

Only citations that the index knows count. Does not download anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.hash_keys import Keys
from citeweave.core.ragged import spans
from citeweave.corpus.corpus import STUB
from citeweave.corpus.paper import OutsideName
from citeweave.search.index import Index, IndexedPaper

MAX_NEIGHBORS, MAX_MISSING = 500, 1000
_MAX_READ = 2000
"""Neighbors of a paper whose own references are read."""


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """The citation neighborhood of a paper: its citation neighbors, and the citations among them."""

    nodes: list[IndexedPaper]
    """The paper itself comes first."""

    edges: list[tuple[int, int]]
    """(citing, cited), places in `nodes`."""

    left_out: int
    """Neighbors that are not among the nodes."""

    outside: int
    """References of the paper that the index does not have."""

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": node.id, "title": node.title, "year": node.year, "row": node.row} for node in self.nodes],
            "edges": [{"citing": self.nodes[a].id, "cited": self.nodes[b].id} for a, b in self.edges],
            "left_out": self.left_out,
            "outside": self.outside,
        }


def find_neighborhood(index: Index, row: int, max_papers: int = 50) -> Neighborhood:
    """Return a paper's neighborhood: at most `max_papers` citation neighbors, those with the most links among them first."""
    _check_number(max_papers, MAX_NEIGHBORS)
    cited = index.rows_of_keys(index.references(row))
    around = np.union1d(cited[cited >= 0], index.citing(index.key_of(row)))
    others = around[around != row].tolist()
    # of very many the first by id, so that the result does not depend on the index's history
    read = others if len(others) <= _MAX_READ else sorted(others, key=index.id)[:_MAX_READ]
    papers = [row, *read]
    links = _citations_among(index, papers)
    degrees = dict.fromkeys(papers, 0)
    for citing, cited_row in links:
        degrees[citing] += 1
        degrees[cited_row] += 1
    shown = [row, *sorted(read, key=lambda other: (-degrees[other], index.id(other)))[:max_papers]]
    places = {each: place for place, each in enumerate(shown)}
    edges = [(places[a], places[b]) for a, b in links if a in places and b in places]
    return Neighborhood(
        [index.paper(each) for each in shown], sorted(edges), len(others) + 1 - len(shown), int((cited < 0).sum())
    )


def _citations_among(index: Index, rows: list[int]) -> list[tuple[int, int]]:
    """Return the citations among the papers in these rows, (citing, cited)."""
    known, links = set(rows), list[tuple[int, int]]()
    for row in rows:
        cited = index.rows_of_keys(index.references(row)).tolist()
        links += [(row, other) for other in cited if other in known and other != row]
    return links


@dataclass(frozen=True, slots=True)
class MissingPaper:
    """A paper missing from the citation neighborhood: papers of the index cite it, but it does not have it."""

    key: int
    """Key of the id under which it is cited."""

    count: int
    """Papers of the index that cite it."""

    paper: IndexedPaper | None
    """What the index knows of it as a reference; None where nothing."""

    name: OutsideName | None = None
    """Its name where the index does not have it."""

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
class MissingPapers:
    """The papers missing from an index's citation neighborhood: cited by it, but not in it; the most cited first."""

    papers: list[MissingPaper]

    def as_json(self) -> dict[str, Any]:
        return {"papers": [paper.as_json() for paper in self.papers]}


def find_missing_papers(index: Index, max_papers: int = 50, *, min_citing: int = 2) -> MissingPapers:
    """Return citation neighbors that an index lacks and at least `min_citing` of its papers cite, the most cited first."""
    _check_number(max_papers, MAX_MISSING)
    keys, counts = _count_cited(index)
    often = counts >= min_citing
    keys, counts, rows = keys[often], counts[often], index.rows_of_keys(keys[often])
    known = rows >= 0
    stub = known.copy()
    stub[known] = (index.flags[rows[known]] & STUB) != 0
    outside = np.flatnonzero(~known | stub)
    order = outside[np.lexsort((keys[outside], ~known[outside], -counts[outside]))][:max_papers]
    return MissingPapers(
        [_missing_paper(index, int(keys[at]), int(counts[at]), int(rows[at])) for at in order.tolist()]
    )


def _missing_paper(index: Index, key: int, count: int, row: int) -> MissingPaper:
    """Return a missing paper with what the index knows of it."""
    if row >= 0:
        return MissingPaper(key, count, index.paper(row))
    return MissingPaper(key, count, None, index.outside_name(key))


def _count_cited(index: Index) -> tuple[Keys, NDArray[np.int64]]:
    """Return the keys of all papers that papers cite, known ones by their own id, and how many cite each."""
    counted = np.diff(index.reference_offsets) * ((index.flags & STUB) == 0)
    all_citing = np.repeat(np.arange(index.size), counted)
    all_cited = index.reference_keys[spans(index.reference_offsets[:-1], counted)]
    keys, counts = np.unique(all_cited, return_counts=True)
    rows, own_keys = index.rows_of_keys(keys), keys.copy()
    own_keys[rows >= 0] = index.keys_of(rows[rows >= 0])
    distinct, places = np.unique(own_keys, return_inverse=True)
    totals = np.bincount(places, counts, len(distinct)).astype(np.int64)
    several = np.bincount(places) > 1
    if several.any():  # cited by several ids: a paper that names two of them counts once
        at = places[np.searchsorted(keys, all_cited)]
        both = np.flatnonzero(several[at])
        pairs = np.unique(np.stack([at[both], all_citing[both]]), axis=1)
        totals[several] = np.bincount(pairs[0], minlength=len(distinct))[several]
    return distinct, totals


def _check_number(papers: int, limit: int) -> None:
    if not 1 <= papers <= limit:
        raise UserError(f"{papers} papers are asked for; ask for 1 to {limit}")
