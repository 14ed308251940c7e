"""Vector stores: papers of an index in a database (LanceDB, Milvus), kept in sync and searched with filters.

    with open_store("lance:papers.lance", index.provenance) as store:      created if missing; another model is refused
        sync_store(index, store)             ChangeCounts(added=12, updated=1, deleted=3, unchanged=99_984)
        store.search(queries, 10, Filter(years=(2015, None)), exact=False)
        nearest_in_store(store, index, queries, 10, Filter(years=(2015, None)))       as rows of the index

    open_store("milvus:papers.db", provenance)           a file of milvus-lite
    open_store("milvus:https://host:19530#mine")         the collection `mine` of a Milvus server

Exact searches compare every vector, approximate ones use what `compact` built; papers added later are compared one by
one, deleted papers are never found, and under a filter every search is exact: all that is near in a database's index may
be filtered away. Equal scores are ordered by id; which of several equal ones at the end of a list are left out is the
database's choice. One writer at a time.

Synchronizing compares keys and fingerprints of both sides, 16 bytes per paper each: nothing depends on what happened in
between, so that an interrupted run is simply run again, and papers that only moved when the index was compacted are not
written. Meanwhile the store's mark says so; a store with the mark of the index is not even read. Only the encoder's
space is copied, and only papers that have a vector.

A store may be behind its index. What it finds is checked against the index: papers that were deleted, or no longer pass
the filter, are skipped and the store is asked for more; papers that the store does not have yet are not found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.hash_keys import hash_spans, mix_keys
from citeweave.core.key_lookup import find_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import STUB
from citeweave.search.answer import NearestSearch
from citeweave.search.filters import filter_rows
from citeweave.search.generation import ChangeCounts
from citeweave.search.index import Index
from citeweave.search.lance import LanceStore
from citeweave.search.milvus import MilvusStore
from citeweave.search.nearest import MAX_COUNT, check_count
from citeweave.search.query import Filter
from citeweave.search.store_protocol import StoreKeys, SyncMark, VectorStore, as_store_keys
from citeweave.vectors.topk import Neighbors
from citeweave.vectors.vectors import Provenance

KINDS = ("lance", "milvus")


def open_store(name: str, provenance: Provenance | None = None) -> VectorStore:
    """Open the store of this name; created if it is missing and `provenance` says whose vectors it will hold."""
    return _parse_store_name(name).open(provenance)


def _parse_store_name(name: str) -> VectorStore:
    """Return the store that a name means, not yet opened.

    >>> _parse_store_name("lance:papers.lance").place, _parse_store_name("milvus:papers.db#mine").place
    ('lance:papers.lance', 'milvus:papers.db (mine)')
    """
    kind, colon, where = name.partition(":")
    if not (colon and where):
        raise UserError(f"--store is {name!r}; it must be lance:FOLDER or milvus:ADDRESS, such as lance:papers.lance")
    choose(kind, KINDS, "the kind of --store")
    if kind == "lance":
        return LanceStore(where)
    address, _, collection = where.partition("#")
    return MilvusStore(address, collection or "papers")


SYNC_BLOCK = 4096
"""Papers of the index that are read at a time."""


def provenance_for_store(index: Index) -> Provenance:
    """Return the provenance of an index's vectors; refuse an index without vectors."""
    if index.provenance is None or not index.with_vector.any():
        raise UserError(f"{index.folder} has no vectors yet; make them with `citeweave change {index.folder} --fill`")
    return index.provenance


def _mark_of(index: Index) -> SyncMark:
    """Return the mark by which a store records the state of an index."""
    return SyncMark(str(index.folder.resolve()), index.number, index.manifest.hash)


def is_synced(index: Index, store: VectorStore) -> bool:
    """Return whether a store holds exactly the papers of this state of an index."""
    return store.info.mark == _mark_of(index)


def sync_store(
    index: Index, store: VectorStore, *, overwrite: bool = False, block: int = SYNC_BLOCK, reporter: Reporter = QUIET
) -> ChangeCounts:
    """Synchronize a vector store with the papers of an index that have a vector.

    With `overwrite` also a store that was filled from another index.
    """
    store.check(provenance_for_store(index))
    mark, papers = _mark_of(index), int(index.with_vector.sum())
    if store.info.mark == mark:
        return ChangeCounts(0, 0, 0, papers)
    if store.info.mark.index not in ("", mark.index) and not overwrite:
        raise UserError(
            f"{store.place} was filled from {store.info.mark.index}, not from {mark.index}; name another store, or give "
            "--overwrite to replace its papers"
        )
    keys, prints, rows = _keys_and_prints(index, block)
    stored, stored_prints = store.listing()
    store.set_mark(replace(mark, number=-1, stamp=""))
    at = find_keys(keys, stored)  # (papers,)
    same = at >= 0
    same[same] = stored_prints[at[same]] == prints[same]
    deleted = stored[~np.isin(stored, keys)]
    store.remove(deleted)
    changed = rows[~same]
    with reporter.task("storing", len(changed), "papers") as advance:
        for start in range(0, len(changed), block):
            part = changed[start : start + block]
            store.add(index.ids.take(part), index.take(part), **_attributes_of(index, part))
            advance(len(part))
    store.set_mark(mark)
    return ChangeCounts(int((at < 0).sum()), int(((at >= 0) & ~same).sum()), len(deleted), int(same.sum()))


def _attributes_of(index: Index, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the attributes of papers of an index that a store keeps besides their vectors."""
    return {
        "years": index.years[rows],
        "venues": [text.splitlines() for text in index.venues.take(rows)],
        "fields": [text.splitlines() for text in index.fields.take(rows)],
        "has_abstract": index.abstracts.lengths()[rows] > 0,
        "stub": (index.flags[rows] & STUB) != 0,
        "prints": _prints(index, rows),
    }


def _prints(index: Index, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return fingerprints of papers of an index: hashes of their records and vectors, (rows,)."""
    assert index.matrix is not None
    vectors = np.ascontiguousarray(index.matrix[rows])  # (rows, dimension)
    ends = np.arange(1, len(rows) + 1, dtype=np.int64) * vectors.itemsize * vectors.shape[1]
    vector_hashes = hash_spans(vectors.reshape(-1).view(np.uint8), np.concatenate([[0], ends[:-1]]), ends)
    return mix_keys(np.asarray(index.record_keys[rows]), vector_hashes)


def _keys_and_prints(index: Index, block: int) -> tuple[StoreKeys, StoreKeys, NDArray[np.int64]]:
    """Return the key, fingerprint and row of every paper of an index that has a vector."""
    rows = np.flatnonzero(index.with_vector)
    prints = [_prints(index, rows[start : start + block]) for start in range(0, len(rows), block)]
    joined = np.concatenate([np.empty(0, np.uint64), *prints])
    return as_store_keys(index.keys[rows]), as_store_keys(joined), rows


# --- searching an index by its store ---------------------------------------------------------------------


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
    """Return the nearest papers of an index as found by its store, as rows and scores, (queries, count).

    `itself` is each query's own row, which is left out, or -1; `allowed`, (size,), masks the rows that may be found besides
    the filter, which the store applies itself. Ids of the filter may be any ids of a paper. Where there are fewer
    papers, rows are -1 and scores NaN. The encoder's space only.
    """
    check_count(count)
    store.check(provenance_for_store(index))
    queries = np.atleast_2d(np.asarray(queries, np.float32))  # (queries, dimension)
    rows = np.full((len(queries), count), -1, np.int32)
    scores = np.full((len(queries), count), np.nan, np.float32)
    valid = index.with_vector if where is None else index.with_vector & filter_rows(index, where)  # (size,)
    valid = valid if allowed is None else valid & allowed
    own = np.full(len(queries), -1) if itself is None else np.asarray(itself)
    unfinished = np.arange(len(queries)) if valid.any() else np.empty(0, np.int64)
    depth = min(count + (itself is not None), MAX_COUNT)
    own_filter = _filter_by_own_ids(index, where)
    while len(unfinished):
        matches = store.search(queries[unfinished], depth, own_filter, exact=exact)
        short = []
        for query, ids, values in zip(unfinished.tolist(), matches.ids, matches.scores, strict=True):
            valid_rows, valid_scores = _valid_matches(index, ids, values, valid, int(own[query]))
            filled = min(count, len(valid_rows))
            rows[query, :filled], scores[query, :filled] = valid_rows[:filled], valid_scores[:filled]
            if filled < count and len(ids) == depth < MAX_COUNT:
                short.append(query)
        unfinished, depth = np.array(short, np.int64), min(2 * depth, MAX_COUNT)
    return Neighbors(rows, scores)


def _valid_matches(
    index: Index, ids: list[str], scores: NDArray[np.float32], allowed: NDArray[np.bool_], itself: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows and scores of a store's matches that the index still has and allows, in their order."""
    rows = index.rows(ids)
    valid = rows >= 0
    valid[valid] = allowed[rows[valid]] & (rows[valid] != itself)
    # the id of a deleted paper may have become a further id of another one
    valid[valid] = [
        index.id(row) == ids[at] for at, row in zip(np.flatnonzero(valid).tolist(), rows[valid].tolist(), strict=True)
    ]
    return rows[valid], scores[valid]


def _filter_by_own_ids(index: Index, where: Filter | None) -> Filter | None:
    """Return the same filter with every paper named by its own id, under which stores know it."""
    if where is None:
        return None

    def own(ids: tuple[str, ...]) -> tuple[str, ...]:
        rows = index.rows(ids).tolist() if ids else []
        return tuple(index.id(row) if row >= 0 else id for id, row in zip(ids, rows, strict=True))

    return replace(where, ids=own(where.ids), not_ids=own(where.not_ids))


def nearest_by_store(store: VectorStore, where: Filter) -> NearestSearch:
    """Return a search that uses a store instead of the index's own vectors, for `answer(..., near=...)`."""

    def near(
        index: Index, queries: NDArray[np.float32], count: int, aspect: str, *, allowed: NDArray[np.bool_], exact: bool
    ) -> Neighbors:
        refuse_aspect(aspect)
        return nearest_in_store(store, index, queries, count, where or None, allowed=allowed, exact=exact)

    return near


def refuse_aspect(aspect: str) -> None:
    """Refuse an aspect where a store is searched, which has the encoder's space only."""
    if aspect:
        raise UserError(f"--aspect is {aspect!r}, but a store holds the encoder's space only; leave out --store")
