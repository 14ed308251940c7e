"""Vector stores: papers of an index in a database (LanceDB, Milvus), kept in sync and searched with filters.

    with open_store("lance:papers.lance", index.provenance) as store:      created if missing; another model is refused
        sync_store(index, store)             SyncCounts(added=12, updated=1, deleted=3, unchanged=99_984)
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

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import hash_spans, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import STUB
from citeweave.search.answer import NearestSearch
from citeweave.search.filters import Filter, filter_rows
from citeweave.search.index import Index
from citeweave.search.lance import LanceTable
from citeweave.search.milvus import MilvusCollection
from citeweave.search.nearest import MAX_COUNT, check_count, nearest_papers
from citeweave.search.segment import Segment
from citeweave.search.store_protocol import (
    Attributes,
    BackEnd,
    StoredPapers,
    StoreInfo,
    StoreKeys,
    StoreListing,
    StoreMatches,
    SyncMark,
    as_store_keys,
    conditions_of,
    name_keys,
    split_conditions,
    store_keys,
)
from citeweave.vectors.topk import Neighbors
from citeweave.vectors.vectors import Provenance

KINDS = ("lance", "milvus")


def open_store(name: str, provenance: Provenance | None = None) -> VectorStore:
    """Open the store of this name; created if it is missing and `provenance` says whose vectors it will hold."""
    return VectorStore.open(_parse_store_name(name), provenance)


def _parse_store_name(name: str) -> BackEnd:
    """Return the back end that a store's name means.

    >>> _parse_store_name("lance:papers.lance").place, _parse_store_name("milvus:papers.db#mine").place
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


BATCH_BYTES = 8 << 20
"""Bytes of vectors written to a database at once; a Milvus server refuses much larger messages."""

_DELETE_BATCH = 5000
_MAX_ID_BYTES, _MAX_NAMES = 60_000, 4000


class VectorStore:
    """A vector store: a table of papers with their vectors and attributes in a database."""

    def __init__(self, back_end: BackEnd, info: StoreInfo) -> None:
        self._back_end, self._info = back_end, info

    @classmethod
    def open(cls, back_end: BackEnd, provenance: Provenance | None = None) -> VectorStore:
        """Open a vector store, or create one where there is none and `provenance` says whose vectors it will hold."""
        info = back_end.read_info()
        if info is None:
            if provenance is None:
                raise UserError(f"{back_end.place} holds no store; create one with `citeweave store`")
            info = StoreInfo(provenance)
            back_end.create(info)
        store = cls(back_end, info)
        if provenance is not None:
            store.check(provenance)
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"VectorStore({self.place!r} by {self.provenance.label})"

    @property
    def place(self) -> str:
        return self._back_end.place

    @property
    def provenance(self) -> Provenance:
        return self._info.provenance

    @property
    def mark(self) -> SyncMark:
        """The state of an index that the store was last synchronized with."""
        return self._info.mark

    def set_mark(self, mark: SyncMark) -> None:
        """Record the state of an index that the store now holds."""
        info = replace(self._info, mark=mark)
        self._back_end.write_info(info)
        self._info = info

    def check(self, provenance: Provenance) -> None:
        """Refuse a store whose vectors are of another model, revision, text recipe or dimension."""
        try:
            self.provenance.check_same(provenance)
        except UserError as error:
            raise UserError(f"{self.place}: {error}, or name another store") from None

    def add(self, ids: Sequence[str], matrix: NDArray[Any], attributes: Attributes) -> None:
        """Add papers to the vector store in batches, replacing those it already has; of an id given twice the last counts."""
        if matrix.ndim != 2 or len(matrix) != len(ids) or len(attributes) != len(ids):
            raise ValueError(f"{len(ids)} ids, {matrix.shape} numbers and {len(attributes)} attributes")
        dimension = self.provenance.dimension
        if matrix.shape[1] != dimension:
            raise UserError(f"{self.place} holds vectors of {dimension} numbers, not of {matrix.shape[1]}")
        batch = max(1, BATCH_BYTES // (4 * dimension))
        for start in range(0, len(ids), batch):
            end = start + batch
            self._back_end.upsert(_columns(ids[start:end], matrix[start:end], attributes.part(start, end), self.place))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete papers from the store by id; unknown ids are ignored."""
        self.delete_keys(store_keys(ids))

    def delete_keys(self, keys: StoreKeys) -> None:
        """Delete papers from the store by primary key, in batches."""
        for start in range(0, len(keys), _DELETE_BATCH):
            self._back_end.remove(keys[start : start + _DELETE_BATCH])

    def count(self) -> int:
        """Return the number of papers in the store."""
        return self._back_end.count()

    def listing(self) -> StoreListing:
        """Return the keys and fingerprints of all papers in the vector store."""
        blocks = list(self._back_end.listing())
        empty = np.empty(0, np.int64)
        return (
            StoreListing(*(np.concatenate([empty, *column]) for column in zip(*blocks, strict=True)))
            if blocks
            else StoreListing(empty, empty)
        )

    def search(
        self, queries: NDArray[Any], count: int, where: Filter | None = None, *, exact: bool = True
    ) -> StoreMatches:
        """Search the vector store: the nearest papers that pass a filter, for each of the queries, (queries, dimension)."""
        check_count(count)
        if queries.ndim != 2 or queries.shape[1] != self.provenance.dimension:
            raise UserError(f"{self.place} holds vectors of {self.provenance.dimension} numbers, not {queries.shape}")
        conditions, exact = conditions_of(where), exact or bool(where)
        best: list[list[tuple[float, str]]] = [[] for _ in queries]
        for part in split_conditions(conditions) if conditions is not None and len(queries) else ():
            near = self._back_end.nearest(_unit(queries), count, part, exact=exact)
            for matches, more in zip(best, near, strict=True):
                matches += more
        ranked = [sorted(matches, key=lambda match: (-match[0], match[1]))[:count] for matches in best]
        return StoreMatches(
            [[id for _, id in matches] for matches in ranked],
            [np.array([score for score, _ in matches], np.float32) for matches in ranked],
        )

    def compact(self) -> None:
        """Merge what many changes left in the database; build its index for approximate search if it is large."""
        self._back_end.compact()

    def close(self) -> None:
        self._back_end.close()


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Scale rows to length 1, (rows, dimension); rows of zeros stay."""
    rows = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.where(lengths == 0, 1.0, lengths), np.float32)


def _columns(ids: Sequence[str], matrix: NDArray[Any], attributes: Attributes, place: str) -> StoredPapers:
    """Return a batch of papers as a back end writes them; refuse ids and vectors that no database takes."""
    # lone surrogates are replaced as everywhere else: no database takes them
    texts = [id if id.isascii() else id.encode("utf-8", "replace").decode() for id in ids]
    keys = store_keys(texts)
    _, last = np.unique(keys[::-1], return_index=True)
    distinct = np.sort(len(keys) - 1 - last)
    vectors = _unit(matrix[distinct])
    if not np.isfinite(vectors).all():
        bad = texts[int(distinct[np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0]])]
        raise UserError(f"the vector of {bad[:80]!r} has numbers that are not finite; {place} takes none of this batch")
    for row in distinct.tolist():
        if len(texts[row].encode()) > _MAX_ID_BYTES:
            raise UserError(
                f"the id {texts[row][:40]!r}… is longer than the {_MAX_ID_BYTES:,} bytes that a store takes"
            )
    rows = distinct.tolist()
    return StoredPapers(
        keys=keys[distinct],
        prints=as_store_keys(attributes.prints[distinct]),
        ids=[texts[row] for row in rows],
        years=attributes.years[distinct],
        has_abstract=attributes.has_abstract[distinct].astype(np.int8),
        stub=attributes.stub[distinct].astype(np.int8),
        venue_keys=[name_keys(attributes.venues[row])[:_MAX_NAMES] for row in rows],
        field_keys=[name_keys(attributes.fields[row])[:_MAX_NAMES] for row in rows],
        vectors=vectors,
    )


# --- synchronizing a store with an index -----------------------------------------------------------------

SYNC_BLOCK = 4096
"""Papers of the index that are read at a time."""


@dataclass(frozen=True, slots=True)
class SyncCounts:
    """How many papers of a vector store a synchronization added, updated, deleted and left unchanged."""

    added: int
    updated: int
    deleted: int
    unchanged: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def provenance_for_store(index: Index) -> Provenance:
    """Return the provenance of an index's vectors; refuse an index without vectors."""
    if index.provenance is None or not index.with_vector.any():
        raise UserError(f"{index.folder} has no vectors yet; make them with `citeweave change {index.folder} --fill`")
    return index.provenance


def _mark_of(index: Index) -> SyncMark:
    """Return the mark by which a store records the state of an index."""
    stamp = hash_json([[entry.name, entry.hash, entry.deleted_in, entry.deleted] for entry in index.state.segments])
    return SyncMark(str(index.folder.resolve()), index.number, stamp)


def is_synced(index: Index, store: VectorStore) -> bool:
    """Return whether a store holds exactly the papers of this state of an index."""
    return store.mark == _mark_of(index)


def sync_store(
    index: Index, store: VectorStore, *, overwrite: bool = False, block: int = SYNC_BLOCK, reporter: Reporter = QUIET
) -> SyncCounts:
    """Synchronize a vector store with the papers of an index that have a vector.

    With `overwrite` also a store that was filled from another index.
    """
    store.check(provenance_for_store(index))
    mark, papers = _mark_of(index), int(index.with_vector.sum())
    if store.mark == mark:
        return SyncCounts(0, 0, 0, papers)
    if store.mark.index not in ("", mark.index) and not overwrite:
        raise UserError(
            f"{store.place} was filled from {store.mark.index}, not from {mark.index}; name another store, or give "
            "--overwrite to replace its papers"
        )
    keys, prints, rows = _keys_and_prints(index, block)
    stored = store.listing()
    store.set_mark(replace(mark, number=-1, stamp=""))
    known, same = _compare(keys, prints, stored.keys, stored.prints)
    deleted = stored.keys[~np.isin(stored.keys, keys)]
    store.delete_keys(deleted)
    changed = rows[~same]
    with reporter.task("storing", len(changed), "papers") as advance:
        for segment, own in _blocks(index, changed, block):
            assert segment.matrix is not None
            ids = segment.ids.take(own)
            store.add(ids, np.asarray(segment.matrix[own], np.float32), _attributes_of(segment, own))
            advance(len(own))
    store.set_mark(mark)
    return SyncCounts(int((~known).sum()), int((known & ~same).sum()), len(deleted), int(same.sum()))


def _attributes_of(segment: Segment, rows: NDArray[np.int64]) -> Attributes:
    """Return the attributes of papers of a segment that a store keeps besides their vectors."""
    venues, fields = (
        [tuple(text.splitlines()) for text in column.take(rows)] for column in (segment.venues, segment.fields)
    )
    return Attributes(
        years=np.asarray(segment.years[rows]),
        venues=venues,
        fields=fields,
        has_abstract=segment.abstracts.lengths()[rows] > 0,
        stub=(segment.flags[rows] & STUB) != 0,
        prints=_prints(segment, rows),
    )


def _prints(segment: Segment, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return fingerprints of papers of a segment: hashes of their records and vectors, (rows,)."""
    assert segment.matrix is not None
    vectors = np.ascontiguousarray(segment.matrix[rows])  # (rows, dimension)
    ends = np.arange(1, len(rows) + 1, dtype=np.int64) * vectors.itemsize * vectors.shape[1]
    vector_hashes = hash_spans(vectors.reshape(-1).view(np.uint8), np.concatenate([[0], ends[:-1]]), ends)
    return mix_keys(np.asarray(segment.record_keys[rows]), vector_hashes)


def _keys_and_prints(index: Index, block: int) -> tuple[StoreKeys, StoreKeys, NDArray[np.int64]]:
    """Return the key, fingerprint and row of every live paper of an index that has a vector."""
    rows = np.flatnonzero(index.with_vector)
    keys, prints = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    done = 0
    for segment, own in _blocks(index, rows, block):
        part = slice(done, done + len(own))
        keys[part], prints[part] = as_store_keys(segment.keys[own]), as_store_keys(_prints(segment, own))
        done = part.stop
    return keys, prints, rows


def _blocks(index: Index, rows: NDArray[np.int64], block: int) -> Iterator[tuple[Segment, NDArray[np.int64]]]:
    """Yield ascending rows of an index as rows of one segment at a time, at most `block` of them."""
    for segment in index.segments:
        first, last = np.searchsorted(rows, [segment.start, segment.start + segment.size])
        for start in range(first, last, block):
            yield segment, rows[start : min(start + block, last)] - segment.start


def _compare(
    keys: StoreKeys, prints: StoreKeys, stored: StoreKeys, stored_prints: StoreKeys
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which papers of an index a store has under their key, and which of them with the same fingerprint.

    >>> known, same = _compare(*(np.array(part) for part in ([1, 2, 3], [7, 8, 9], [3, 1], [9, 5])))
    >>> known.tolist(), same.tolist()
    ([True, False, True], [False, False, True])
    """
    if not len(stored):
        return np.zeros(len(keys), bool), np.zeros(len(keys), bool)
    order = np.argsort(stored)
    at = order[np.minimum(np.searchsorted(stored, keys, sorter=order), len(stored) - 1)]
    known = stored[at] == keys
    return known, known & (stored_prints[at] == prints)


# --- searching an index by its store ---------------------------------------------------------------------


class IndexStore:
    """An index with the search method of a vector store, to compare a store's matches with."""

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
            [[self.index.id(int(row)) for row in rows[mask]] for rows, mask in zip(near.rows, known, strict=True)],
            [scores[mask] for scores, mask in zip(near.scores, known, strict=True)],
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
