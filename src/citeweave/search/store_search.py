"""Questions to a store, answered as questions to the index that it was filled from: rows and cosines.

    nearest_in_store(store, index, queries, 10, Filter(years=(2015, None)), exact=False)

A store may be behind its index. What it finds is checked against the index: papers that are gone, or no longer fulfill the
filter, are passed over and the store is asked for more; papers that the store does not have yet are not found. Ids of
the filter may be any ids of a paper. Searches the encoder's space only.

Stores by their names, as options give them.

open_store("lance:papers.lance")                     a folder of LanceDB
open_store("milvus:papers.db", provenance)           a file of milvus-lite, made where there is none
open_store("milvus:https://host:19530#mine")         the collection `mine` of a Milvus server
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.search.filters import Filter, filter_rows
from citeweave.search.hits import NearestSearch
from citeweave.search.index import Index
from citeweave.search.lance import LanceTable
from citeweave.search.milvus import MilvusCollection
from citeweave.search.nearest import MOST, check_count, nearest_papers
from citeweave.search.store import VectorStore, provenance_for_store
from citeweave.search.store_protocol import BackEnd, StoreMatches
from citeweave.vectors.topk import Neighbors
from citeweave.vectors.vectors import Provenance


class IndexStore:
    """An index under the questions of a store: what `VectorStore.search` is compared with. Changes are the index's own."""

    def __init__(self, index: Index) -> None:
        self.index, self.place = index, str(index.folder)

    @property
    def provenance(self) -> Provenance:
        return provenance_for_store(self.index)

    def count(self) -> int:
        return int(self.index.with_vector.sum())

    def search(
        self, queries: NDArray[Any], count: int, where: Filter | None = None, *, exact: bool = True
    ) -> StoreMatches:
        allowed = None if where is None else filter_rows(self.index, where)
        near = nearest_papers(self.index, queries, count, allowed=allowed, exact=exact)
        known = near.rows >= 0
        return StoreMatches(
            [[self.index.id(int(row)) for row in rows[kept]] for rows, kept in zip(near.rows, known, strict=True)],
            [scores[kept] for scores, kept in zip(near.scores, known, strict=True)],
        )


def nearest_in_store(
    store: VectorStore,
    index: Index,
    queries: NDArray[Any],
    count: int,
    where: Filter | None = None,
    *,
    itself: NDArray[Any] | None = None,
    allowed: NDArray[np.bool_] | None = None,
    exact: bool = True,
) -> Neighbors:
    """The nearest papers of an index by its store, rows and scores (queries, count); -1 and NaN where there are fewer.

    `itself` is each query's own row, which is no neighbor of it, or -1; `allowed`, (size,), are rows that may be found,
    beside the filter, which the store itself knows.
    """
    check_count(count)
    store.check(provenance_for_store(index))
    queries = np.atleast_2d(np.asarray(queries, np.float32))  # (queries, dimension)
    rows = np.full((len(queries), count), -1, np.int32)
    scores = np.full((len(queries), count), np.nan, np.float32)
    may = index.with_vector if where is None else index.with_vector & filter_rows(index, where)  # (size,)
    may = may if allowed is None else may & allowed
    own = np.full(len(queries), -1) if itself is None else np.asarray(itself)
    open_ = np.arange(len(queries)) if may.any() else np.empty(0, np.int64)
    asked = min(count + (itself is not None), MOST)
    narrowed = _own_ids(index, where)
    while len(open_):
        found = store.search(queries[open_], asked, narrowed, exact=exact)
        short = []
        for query, ids, values in zip(open_.tolist(), found.ids, found.scores, strict=True):
            kept_rows, kept_scores = _known(index, ids, values, may, int(own[query]))
            kept = min(count, len(kept_rows))
            rows[query, :kept], scores[query, :kept] = kept_rows[:kept], kept_scores[:kept]
            if kept < count and len(ids) == asked < MOST:
                short.append(query)
        open_, asked = np.array(short, np.int64), min(2 * asked, MOST)
    return Neighbors(rows, scores)


def _known(
    index: Index, ids: list[str], scores: NDArray[np.float32], allowed: NDArray[np.bool_], itself: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows of those found that the index allows, in their order."""
    rows = index.rows(ids)
    good = rows >= 0
    good[good] = allowed[rows[good]] & (rows[good] != itself)
    # the id of a paper that is gone may have become another id of a paper that is there
    good[good] = [
        index.id(row) == ids[at] for at, row in zip(np.flatnonzero(good).tolist(), rows[good].tolist(), strict=True)
    ]
    return rows[good], scores[good]


def _own_ids(index: Index, where: Filter | None) -> Filter | None:
    """The same filter with every paper by its own id, under which stores know it."""
    if where is None:
        return None

    def own(given: tuple[str, ...]) -> tuple[str, ...]:
        rows = index.rows(given).tolist() if given else []
        return tuple(index.id(row) if row >= 0 else id for id, row in zip(given, rows, strict=True))

    return replace(where, ids=own(where.ids), not_ids=own(where.not_ids))


def near_in(store: VectorStore, where: Filter) -> NearestSearch:
    """A store in the place of an index's own vectors: `answer(index, reader, query, near=near_in(store, query.where))`."""

    def near(
        index: Index, queries: NDArray[np.float32], count: int, aspect: str, *, allowed: NDArray[np.bool_], exact: bool
    ) -> Neighbors:
        refuse_aspect(aspect)
        return nearest_in_store(store, index, queries, count, where or None, allowed=allowed, exact=exact)

    return near


def refuse_aspect(aspect: str) -> None:
    """A store has one space."""
    if aspect:
        raise UserError(f"--aspect is {aspect!r}, but a store holds the encoder's space only; leave out --store")


# Stores by their names, as options give them.

KINDS = ("lance", "milvus")


def open_store(name: str, provenance: Provenance | None = None) -> VectorStore:
    """The store of this name; made where there is none and `provenance` says whose vectors it will hold."""
    return VectorStore.open(back_end(name), provenance)


def back_end(name: str) -> BackEnd:
    """
    >>> back_end("lance:papers.lance").place, back_end("milvus:papers.db#mine").place
    ('lance:papers.lance', 'milvus:papers.db (mine)')
    """
    kind, colon, where = name.partition(":")
    if not (colon and where):
        raise UserError(f"--store is {name!r}; it must be lance:FOLDER or milvus:ADDRESS, such as lance:papers.lance")
    choose(kind, KINDS, "the kind of --store")
    if kind == "lance":
        return LanceTable(where)
    address, _, collection = where.partition("#")
    return MilvusCollection(address, collection or "papers")
