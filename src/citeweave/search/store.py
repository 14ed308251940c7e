"""A store: vectors and attributes of papers in a database, found by the cosine under a filter.

    store = open_store("lance:papers.lance", provenance)         made where there is none; another model is refused
    store.add(ids, matrix, Attributes.unknown(len(ids)))         papers that are there are replaced
    store.search(queries, 10, Filter(years=(2015, None)), exact=False)
    store.delete(["doi:10.1/x"])
    store.compact()

Exact searches compare every vector, approximate ones use what `compact` built; papers that came later are compared one by
one, papers that were deleted do not come back, and under a filter every search is exact: what is near in an index may all
be filtered away. Equal scores stand by id; which of several equal ones at the end of a list
are left out is the database's choice. One writer at a time. Knows no index: that is `syncing.py`.

Bringing a store to the state of an index: what is new or changed is stored, what is gone is deleted.

    with open_store("lance:papers.lance", index.provenance) as store:
        sync_store(index, store)             Synced(added=12, updated=1, deleted=3, unchanged=99_984)

The keys and prints of both sides are compared, 16 bytes a paper each: nothing depends on what happened in between, so that
a run that broke off is simply run again, and papers that only moved when the index was compacted are not written. While
it works the store's mark says so; a store whose mark is that of the index is not even looked at. Copies the encoder's
space, not those of the aspects. Papers that have no vector yet are not in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import hash_spans, mix
from citeweave.corpus.corpus import STUB
from citeweave.search.filters import Filter
from citeweave.search.index import Index
from citeweave.search.nearest import check_count
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
    in_blocks,
    name_keys,
    store_keys,
)
from citeweave.vectors.vectors import Provenance

BATCH_BYTES = 8 << 20
"""Vectors that are handed to a database at once; a Milvus server refuses messages that are much larger."""

_REMOVED_AT_ONCE = 5000
_LONGEST_ID, _MOST_NAMES = 60_000, 4000


class VectorStore:
    """A table of papers behind a back end."""

    def __init__(self, back_end: BackEnd, about: StoreInfo) -> None:
        self._back_end, self._about = back_end, about

    @classmethod
    def open(cls, back_end: BackEnd, provenance: Provenance | None = None) -> VectorStore:
        """Open a store, or make one where there is none and it is said whose vectors it will hold."""
        about = back_end.about()
        if about is None:
            if provenance is None:
                raise UserError(f"{back_end.place} holds no store; make one with `citeweave store`")
            about = StoreInfo(provenance)
            back_end.create(about)
        store = cls(back_end, about)
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
        return self._about.provenance

    @property
    def mark(self) -> SyncMark:
        """The state of an index that the store was brought to."""
        return self._about.mark

    def set_mark(self, mark: SyncMark) -> None:
        about = replace(self._about, mark=mark)
        self._back_end.tell(about)
        self._about = about

    def check(self, provenance: Provenance) -> None:
        """Refuse vectors of another model, revision, text or dimension."""
        try:
            self.provenance.check_same(provenance)
        except UserError as error:
            raise UserError(f"{self.place}: {error}, or name another store") from None

    def add(self, ids: Sequence[str], matrix: NDArray[Any], attributes: Attributes) -> None:
        """Store papers, in batches; those that are there already are replaced. Of an id given twice the last counts."""
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
        """Ids that are not there are passed over."""
        self.delete_keys(store_keys(ids))

    def delete_keys(self, keys: StoreKeys) -> None:
        for start in range(0, len(keys), _REMOVED_AT_ONCE):
            self._back_end.remove(keys[start : start + _REMOVED_AT_ONCE])

    def count(self) -> int:
        return self._back_end.count()

    def listing(self) -> StoreListing:
        """Keys and prints of all papers, 16 bytes each."""
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
        """The nearest papers that fulfill a filter, for each of the queries (queries, dimension)."""
        check_count(count)
        if queries.ndim != 2 or queries.shape[1] != self.provenance.dimension:
            raise UserError(f"{self.place} holds vectors of {self.provenance.dimension} numbers, not {queries.shape}")
        asked, exact = conditions_of(where), exact or bool(where)
        best: list[list[tuple[float, str]]] = [[] for _ in queries]
        for part in in_blocks(asked) if asked is not None and len(queries) else ():
            for line, found in zip(best, self._back_end.nearest(_unit(queries), count, part, exact=exact), strict=True):
                line += found
        kept = [sorted(line, key=lambda hit: (-hit[0], hit[1]))[:count] for line in best]
        return StoreMatches(
            [[id for _, id in line] for line in kept],
            [np.array([score for score, _ in line], np.float32) for line in kept],
        )

    def compact(self) -> None:
        """Merge what many changes left, and build what approximate searches need where there are enough papers."""
        self._back_end.compact()

    def close(self) -> None:
        self._back_end.close()


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Rows at length 1 (rows, dimension); rows of zeros stay."""
    rows = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.where(lengths == 0, 1.0, lengths), np.float32)


def _columns(ids: Sequence[str], matrix: NDArray[Any], attributes: Attributes, place: str) -> StoredPapers:
    # lone surrogates are replaced as everywhere else: no database takes them
    texts = [id if id.isascii() else id.encode("utf-8", "replace").decode() for id in ids]
    keys = store_keys(texts)
    _, last = np.unique(keys[::-1], return_index=True)
    kept = np.sort(len(keys) - 1 - last)
    vectors = _unit(matrix[kept])
    if not np.isfinite(vectors).all():
        bad = texts[int(kept[np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0]])]
        raise UserError(f"the vector of {bad[:80]!r} has numbers that are not finite; {place} takes none of this batch")
    for row in kept.tolist():
        if len(texts[row].encode()) > _LONGEST_ID:
            raise UserError(f"the id {texts[row][:40]!r}… is longer than the {_LONGEST_ID:,} bytes that a store takes")
    rows = kept.tolist()
    return StoredPapers(
        keys=keys[kept],
        prints=as_store_keys(attributes.prints[kept]),
        ids=[texts[row] for row in rows],
        years=attributes.years[kept],
        has_abstract=attributes.has_abstract[kept].astype(np.int8),
        stub=attributes.stub[kept].astype(np.int8),
        venue_keys=[name_keys(attributes.venues[row])[:_MOST_NAMES] for row in rows],
        field_keys=[name_keys(attributes.fields[row])[:_MOST_NAMES] for row in rows],
        vectors=vectors,
    )


# Bringing a store to the state of an index: what is new or changed is stored, what is gone is deleted.

SYNC_BLOCK = 4096
"""Papers that are read at a time."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What was done to a store."""

    added: int
    updated: int
    deleted: int
    unchanged: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def provenance_for_store(index: Index) -> Provenance:
    if index.provenance is None or not index.with_vector.any():
        raise UserError(f"{index.folder} has no vectors yet; make them with `citeweave change {index.folder} --fill`")
    return index.provenance


def mark_of(index: Index) -> SyncMark:
    """The state of an index, as a store remembers it."""
    stamp = hash_json([[entry.name, entry.hash, entry.deleted_in, entry.deleted] for entry in index.state.segments])
    return SyncMark(str(index.folder.resolve()), index.number, stamp)


def is_synced(index: Index, store: VectorStore) -> bool:
    """Whether the store holds the very papers of this state."""
    return store.mark == mark_of(index)


def sync_store(
    index: Index, store: VectorStore, *, overwrite: bool = False, block: int = SYNC_BLOCK, reporter: Reporter = QUIET
) -> Synced:
    """Make the store hold the papers of the index that have a vector. With `overwrite` also one that another index filled."""
    store.check(provenance_for_store(index))
    mark, papers = mark_of(index), int(index.with_vector.sum())
    if store.mark == mark:
        return Synced(0, 0, 0, papers)
    if store.mark.index not in ("", mark.index) and not overwrite:
        raise UserError(
            f"{store.place} was filled from {store.mark.index}, not from {mark.index}; name another store, or give "
            "--overwrite to replace its papers"
        )
    keys, prints, rows = _keys_and_prints(index, block)
    there = store.listing()
    store.set_mark(replace(mark, number=-1, stamp=""))
    known, same = _compare(keys, prints, there.keys, there.prints)
    gone = there.keys[~np.isin(there.keys, keys)]
    store.delete_keys(gone)
    changed = rows[~same]
    with reporter.task("storing", len(changed), "papers") as advance:
        for segment, own in _blocks(index, changed, block):
            assert segment.matrix is not None
            ids = segment.ids.take(own)
            store.add(ids, np.asarray(segment.matrix[own], np.float32), attributes_of(segment, own))
            advance(len(own))
    store.set_mark(mark)
    return Synced(int((~known).sum()), int((known & ~same).sum()), len(gone), int(same.sum()))


def attributes_of(segment: Segment, rows: NDArray[np.int64]) -> Attributes:
    """What a store keeps of papers of a segment beside their vectors."""
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
    """Hashes of all that is known of papers and of their vectors, (rows,)."""
    assert segment.matrix is not None
    vectors = np.ascontiguousarray(segment.matrix[rows])  # (rows, dimension)
    ends = np.arange(1, len(rows) + 1, dtype=np.int64) * vectors.itemsize * vectors.shape[1]
    of_vectors = hash_spans(vectors.reshape(-1).view(np.uint8), np.concatenate([[0], ends[:-1]]), ends)
    return mix(np.asarray(segment.record_keys[rows]), of_vectors)


def _keys_and_prints(index: Index, block: int) -> tuple[StoreKeys, StoreKeys, NDArray[np.int64]]:
    """Of every living paper with a vector, and its row."""
    rows = np.flatnonzero(index.with_vector)
    keys, prints = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    done = 0
    for segment, own in _blocks(index, rows, block):
        part = slice(done, done + len(own))
        keys[part], prints[part] = as_store_keys(segment.keys[own]), as_store_keys(_prints(segment, own))
        done = part.stop
    return keys, prints, rows


def _blocks(index: Index, rows: NDArray[np.int64], block: int) -> Iterator[tuple[Segment, NDArray[np.int64]]]:
    """Ascending rows of the index as rows of one segment at a time, at most `block` of them."""
    for segment in index.segments:
        first, last = np.searchsorted(rows, [segment.start, segment.start + segment.size])
        for start in range(first, last, block):
            yield segment, rows[start : min(start + block, last)] - segment.start


def _compare(
    keys: StoreKeys, prints: StoreKeys, there: StoreKeys, there_prints: StoreKeys
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which papers the store has under their key, and which of them with the same print.

    >>> known, same = _compare(*(np.array(part) for part in ([1, 2, 3], [7, 8, 9], [3, 1], [9, 5])))
    >>> known.tolist(), same.tolist()
    ([True, False, True], [False, False, True])
    """
    if not len(there):
        return np.zeros(len(keys), bool), np.zeros(len(keys), bool)
    order = np.argsort(there)
    at = order[np.minimum(np.searchsorted(there, keys, sorter=order), len(there) - 1)]
    known = there[at] == keys
    return known, known & (there_prints[at] == prints)
