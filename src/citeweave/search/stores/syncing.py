"""Bringing a store to the state of an index: what is new or changed is stored, what is gone is deleted.

    with open_store("lance:papers.lance", index.provenance) as store:
        sync_store(index, store)             Synced(added=12, updated=1, deleted=3, unchanged=99_984)

The keys and prints of both sides are compared, 16 bytes a paper each: nothing depends on what happened in between, so that
a run that broke off is simply run again, and papers that only moved when the index was compacted are not written. While
it works the store's mark says so; a store whose mark is that of the index is not even looked at. Copies the encoder's
space, not those of the aspects. Papers that have no vector yet are not in the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.layout import STUB
from citeweave.errors import UserError
from citeweave.files import hash_json
from citeweave.hashing import hash_spans, mix
from citeweave.progress import QUIET, Reporter
from citeweave.search.index import Index
from citeweave.search.segment import Segment
from citeweave.search.stores.protocol import Attributes, Mark, StoreKeys, as_store_keys
from citeweave.search.stores.store import VectorStore
from citeweave.similarity.provenance import Provenance

BLOCK = 4096
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


def mark_of(index: Index) -> Mark:
    """The state of an index, as a store remembers it."""
    stamp = hash_json([[entry.name, entry.hash, entry.deleted_in, entry.deleted] for entry in index.state.segments])
    return Mark(str(index.folder.resolve()), index.number, stamp)


def is_synced(index: Index, store: VectorStore) -> bool:
    """Whether the store holds the very papers of this state."""
    return store.mark == mark_of(index)


def sync_store(
    index: Index, store: VectorStore, *, overwrite: bool = False, block: int = BLOCK, reporter: Reporter = QUIET
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
