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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.search.exact import check_count
from citeweave.search.filters import Filter
from citeweave.search.stores.conditions import conditions_of, in_blocks
from citeweave.search.stores.protocol import (
    About,
    Attributes,
    BackEnd,
    Columns,
    Found,
    Listing,
    Mark,
    StoreKeys,
    as_store_keys,
    name_keys,
    store_keys,
)
from citeweave.similarity.provenance import Provenance

BATCH_BYTES = 8 << 20
"""Vectors that are handed to a database at once; a Milvus server refuses messages that are much larger."""

_REMOVED_AT_ONCE = 5000
_LONGEST_ID, _MOST_NAMES = 60_000, 4000


class VectorStore:
    """A table of papers behind a back end."""

    def __init__(self, back_end: BackEnd, about: About) -> None:
        self._back_end, self._about = back_end, about

    @classmethod
    def open(cls, back_end: BackEnd, provenance: Provenance | None = None) -> VectorStore:
        """Open a store, or make one where there is none and it is said whose vectors it will hold."""
        about = back_end.about()
        if about is None:
            if provenance is None:
                raise UserError(f"{back_end.place} holds no store; make one with `citeweave store`")
            about = About(provenance)
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
    def mark(self) -> Mark:
        """The state of an index that the store was brought to."""
        return self._about.mark

    def set_mark(self, mark: Mark) -> None:
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

    def listing(self) -> Listing:
        """Keys and prints of all papers, 16 bytes each."""
        blocks = list(self._back_end.listing())
        empty = np.empty(0, np.int64)
        return (
            Listing(*(np.concatenate([empty, *column]) for column in zip(*blocks, strict=True)))
            if blocks
            else Listing(empty, empty)
        )

    def search(self, queries: NDArray[Any], count: int, where: Filter | None = None, *, exact: bool = True) -> Found:
        """The nearest papers that fulfil a filter, for each of the queries (queries, dimension)."""
        check_count(count)
        if queries.ndim != 2 or queries.shape[1] != self.provenance.dimension:
            raise UserError(f"{self.place} holds vectors of {self.provenance.dimension} numbers, not {queries.shape}")
        asked, exact = conditions_of(where), exact or bool(where)
        best: list[list[tuple[float, str]]] = [[] for _ in queries]
        for part in in_blocks(asked) if asked is not None and len(queries) else ():
            for line, found in zip(best, self._back_end.nearest(_unit(queries), count, part, exact=exact), strict=True):
                line += found
        kept = [sorted(line, key=lambda hit: (-hit[0], hit[1]))[:count] for line in best]
        return Found(
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


def _columns(ids: Sequence[str], matrix: NDArray[Any], attributes: Attributes, place: str) -> Columns:
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
    return Columns(
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
