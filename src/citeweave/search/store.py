"""Vector stores: papers of an index in a database, kept in sync with it and searched with filters.

    with open_store("lance:papers.lance", index.provenance) as store:      `databases.py`: LanceDB and Milvus
        sync_store(index, store)             ChangeCounts(added=12, updated=1, deleted=3, unchanged=99_984)
        store.search(queries, 10, Filter(years=(2015, None)), exact=False)
        nearest_in_store(store, index, queries, 10, where=Filter(years=(2015, None)))       as rows of the index

    papers/ or collection     a row per paper: `store_columns.py`
    about                     one JSON object: `StoreInfo`

Exact searches compare every vector, approximate ones use what `compact` built; papers added later are compared one by
one, deleted papers are never found, and under a filter every search is exact: all that is near in a database's index may
be filtered away. Equal scores are ordered by id; which of several equal ones at the end of a list are left out is the
database's choice. One writer at a time.

Expressions are made of integers only: ids, venues and fields are compared by their hashes, so that no text of a paper or
of a client ever gets into an expression that a database parses.

    >>> filter_expressions(Filter(years=(2015, None), has_abstract=True), Dialect("({})", "array_has_any"))
    ['year >= 2015 and has_abstract in (1)']

Long lists of ids are split into several expressions; no paper passes two of them, so that the best of a search are the
best of its parts. A database takes some 30 microseconds per id of such a list; the index itself has masks and takes none.

Synchronizing compares keys and fingerprints of both sides, 16 bytes per paper each: nothing depends on what happened in
between, so that an interrupted run is simply run again. Meanwhile the store's mark says so; a store with the mark of the
index is not even read. Only the encoder's space is copied, and only papers that have a vector. A store may be behind its
index. What it finds is checked against the index: papers that were deleted, or no longer pass the filter, are skipped and
the store is asked for more; papers that the store does not have yet are not found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import explain_version_mismatch
from citeweave.core.columns import find_keys
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.hash_keys import hash_spans, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import STUB
from citeweave.search.filters import filter_rows
from citeweave.search.generation import ChangeCounts
from citeweave.search.index import Index
from citeweave.search.nearest import MAX_COUNT, check_count
from citeweave.search.query import Filter
from citeweave.search.store_columns import (
    MAX_TEXT_BYTES,
    StoreKeys,
    as_store_keys,
    name_keys,
    store_keys,
    stored_columns,
)
from citeweave.vectors.topk import Neighbors
from citeweave.vectors.vectors import Provenance, unit_rows

FORMAT, VERSION = "citeweave-store", 2
BATCH_BYTES = 8 << 20
"""Bytes of vectors and texts written to a database at once; a Milvus server refuses much larger messages."""

_NOT_STORED = ("authors", "keywords", "collections")
"""Conditions of a filter that only the index can check."""

IDS_PER_EXPRESSION = 5000

ScoredIds = list[list[tuple[float, str]]]
"""Scores and ids of papers, one list per query."""


@dataclass(frozen=True, slots=True)
class SyncMark:
    """The mark that a store keeps of the index generation it was last synchronized with."""

    index: str = ""
    """Folder of the index, empty where the store was not filled from one."""

    number: int = -1
    """Number of the generation; -1 while the store is being changed."""

    stamp: str = ""
    """Hash of the generation."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store records about itself: its vectors' model and what it was synchronized with."""

    provenance: Provenance
    mark: SyncMark = SyncMark()

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: object, place: str) -> StoreInfo:
        """Parse what the store at a place records about itself."""
        try:
            if not isinstance(value, dict) or value["format"] != FORMAT:
                raise ArtifactError(f"{place} is not a store of citeweave; name another place, or an empty one")
            if value["version"] != VERSION:
                again = "make it again in another place with `citeweave store`"
                raise ArtifactError(f"{place} is a store {explain_version_mismatch(value['version'], VERSION, again)}")
            return cls(Provenance(**value["provenance"]), SyncMark(**value["mark"]))
        except (KeyError, TypeError):
            raise ArtifactError(f"{place} does not say what made its vectors; make it again") from None


class StoreMatches(NamedTuple):
    """Nearest papers in a store, one list per query: the best first, ties by id."""

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]
    """Cosines."""


class Dialect(NamedTuple):
    """How the database of a store spells its filter expressions."""

    numbers: str
    """A list of numbers after `in`, with {} for them."""

    any_of: str
    """The function that checks whether an array has any of some numbers."""


class VectorStore(ABC):
    """A vector store: a table of papers with their vectors and attributes in a database."""

    dialect: Dialect
    place: str
    """For messages; holds no secret."""

    info: StoreInfo

    def open(self, provenance: Provenance | None = None) -> Self:
        """Open the store, or create it where there is none and `provenance` says whose vectors it will hold."""
        info = self.read_info()
        if info is not None:
            self.info = info
        elif provenance is not None:
            self.info = StoreInfo(provenance)
            self.create()
        else:
            raise UserError(f"{self.place} holds no store; create one with `citeweave store`")
        if provenance is not None:
            self.check(provenance)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def set_mark(self, mark: SyncMark) -> None:
        """Record the generation of an index that the store now holds."""
        info = replace(self.info, mark=mark)
        self.write_info(info)
        self.info = info

    def check(self, provenance: Provenance) -> None:
        """Refuse a store whose vectors are of another model, revision, text recipe or dimension."""
        try:
            self.info.provenance.check_same(provenance)
        except UserError as error:
            raise UserError(f"{self.place}: {error}, or name another store") from None

    def add(self, ids: Sequence[str], matrix: NDArray[Any], **attributes: Any) -> None:
        """Add papers in batches, replacing those it already has; of an id given twice the last counts.

        Attributes, each one value per paper and unknown where missing: years, venues, fields, has_abstract, stub, prints,
        titles, abstracts, authors, other_ids.
        """
        dimension = self.info.provenance.dimension
        if matrix.shape != (len(ids), dimension):
            raise UserError(f"{self.place} holds vectors of {dimension} numbers, not {matrix.shape} for {len(ids)} ids")
        texts = attributes.get("abstracts", [""] * len(ids))
        sizes = np.cumsum([4 * dimension + min(len(text), MAX_TEXT_BYTES) for text in texts], dtype=np.int64)
        starts = np.unique((sizes - 1) // max(BATCH_BYTES, 4 * dimension), return_index=True)[1].tolist()
        for part in map(slice, starts, [*starts[1:], len(ids)]):
            own = {name: column[part] for name, column in attributes.items()}
            self.upsert(stored_columns(ids[part], matrix[part], own))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete papers from the store by id; unknown ids are ignored."""
        self.remove(store_keys(ids))

    def search(
        self, queries: NDArray[Any], count: int, where: Filter | None = None, *, exact: bool = True
    ) -> StoreMatches:
        """Search the vector store: the nearest papers that pass a filter, for each of the queries, (queries, dimension)."""
        check_count(count)
        dimension = self.info.provenance.dimension
        if queries.ndim != 2 or queries.shape[1] != dimension:
            raise UserError(f"{self.place} holds vectors of {dimension} numbers, not {queries.shape}")
        best: ScoredIds = [[] for _ in queries]
        units = np.ascontiguousarray(unit_rows(np.asarray(queries, np.float32)))
        for expression in filter_expressions(where, self.dialect) if len(queries) else ():
            near = self.nearest(units, count, expression, exact=exact or bool(where))
            for matches, more in zip(best, near, strict=True):
                matches += more
        ranked = [sorted(matches, key=lambda match: (-match[0], match[1]))[:count] for matches in best]
        return StoreMatches(
            [[id for _, id in matches] for matches in ranked],
            [np.array([score for score, _ in matches], np.float32) for matches in ranked],
        )

    # what each database does its own way

    @abstractmethod
    def read_info(self) -> StoreInfo | None:
        """Read what the store records about itself; None where there is none yet; a foreign table is refused."""

    @abstractmethod
    def create(self) -> None: ...
    @abstractmethod
    def write_info(self, info: StoreInfo) -> None: ...
    @abstractmethod
    def upsert(self, papers: dict[str, Any]) -> None:
        """Add or replace papers, given as one column per name; their vectors are (papers, dimension)."""

    @abstractmethod
    def remove(self, keys: StoreKeys) -> None: ...
    @abstractmethod
    def count(self) -> int: ...
    @abstractmethod
    def listing(self) -> tuple[StoreKeys, StoreKeys]:
        """Return the keys and fingerprints of all papers in the store."""

    @abstractmethod
    def nearest(self, queries: NDArray[np.float32], count: int, expression: str, *, exact: bool) -> ScoredIds:
        """Return scores and ids of the nearest papers for each query of length 1, (queries, dimension)."""

    @abstractmethod
    def compact(self) -> None:
        """Merge what many changes left in the database; build its index for approximate search if it is large."""

    @abstractmethod
    def close(self) -> None: ...


def filter_expressions(where: Filter | None, dialect: Dialect, *, block: int = IDS_PER_EXPRESSION) -> list[str]:
    """Write a filter as expressions of a database, of which a paper passes at most one; none where no paper can pass.

    >>> filter_expressions(None, Dialect("({})", "any")), filter_expressions(Filter(ids=("a",), not_ids=("a",)), Dialect("({})", "any"))
    ([''], [])
    """
    if where is None:
        return [""]
    parts, numbers = _conditions(where, dialect), dialect.numbers
    keys, not_keys = sorted(store_keys(where.ids).tolist()), sorted(store_keys(where.not_ids).tolist())
    if where.ids:
        chunks = _chunks(sorted({*keys} - {*not_keys}), block)
        return [" and ".join([*parts, f"key in {numbers.format(_listed(chunk))}"]) for chunk in chunks]
    chunks, expressions = _chunks(not_keys, block), []
    for number, chunk in enumerate(chunks):
        first = [f"key > {chunks[number - 1][-1]}"] if number else []
        last = [f"key <= {chunk[-1]}"] if number + 1 < len(chunks) else []
        expressions.append(" and ".join([*parts, *first, *last, f"key not in {numbers.format(_listed(chunk))}"]))
    return expressions or [" and ".join(parts)]


def _conditions(where: Filter, dialect: Dialect) -> list[str]:
    """Return a filter's conditions on years, names and marks; integers and fixed words only."""
    if unstored := [name for name in _NOT_STORED if getattr(where, name)]:
        raise UserError(f"where has {unstored[0]}, which a store does not know; search the index itself")
    first, last = where.years
    if (first is not None or last is not None) and not first:
        first = 1  # 0 stands for an unknown year, which is in no range
    stub = None if where.local is None else not where.local
    ranges = (("year >=", first), ("year <=", last))
    marks = (("has_abstract", where.has_abstract), ("stub", stub))
    names = (("venue_keys", where.venues), ("field_keys", where.fields))
    return [
        *(f"{start} {int(year)}" for start, year in ranges if year is not None),
        *(f"{column} in {dialect.numbers.format(int(mark))}" for column, mark in marks if mark is not None),
        *(f"{dialect.any_of}({column}, [{_listed(name_keys(wanted))}])" for column, wanted in names if wanted),
    ]


def _chunks(keys: list[int], block: int) -> list[list[int]]:
    return [keys[start : start + block] for start in range(0, len(keys), block)]


def _listed(numbers: list[int]) -> str:
    return ",".join(str(int(number)) for number in numbers)


# --- a store that follows its index ----------------------------------------------------------------------


def provenance_for_store(index: Index) -> Provenance:
    """Return the provenance of an index's vectors; refuse an index without vectors."""
    if index.provenance is None or not index.with_vector.any():
        raise UserError(f"{index.folder} has no vectors yet; make them with `citeweave change {index.folder} --fill`")
    return index.provenance


def sync_store(
    index: Index, store: VectorStore, *, overwrite: bool = False, block: int = 4096, reporter: Reporter = QUIET
) -> ChangeCounts:
    """Synchronize a vector store with the papers of an index that have a vector.

    With `overwrite` also a store that was filled from another index. `block` papers are read at a time.
    """
    store.check(provenance_for_store(index))
    mark = SyncMark(str(index.folder.resolve()), index.number, index.manifest.hash)
    rows = np.flatnonzero(index.with_vector)
    if store.info.mark == mark:
        return ChangeCounts(unchanged=len(rows))
    if store.info.mark.index not in ("", mark.index) and not overwrite:
        raise UserError(
            f"{store.place} was filled from {store.info.mark.index}, not from {mark.index}; name another store, or give "
            "--overwrite to replace its papers"
        )
    parts = [rows[start : start + block] for start in range(0, len(rows), block)]
    prints = np.concatenate([np.empty(0, np.uint64), *(_prints(index, part) for part in parts)])
    keys = as_store_keys(index.keys[rows])
    stored, stored_prints = store.listing()
    store.set_mark(replace(mark, number=-1, stamp=""))
    at = find_keys(keys, stored)  # (papers,)
    same = at >= 0
    same[same] = stored_prints[at[same]] == as_store_keys(prints)[same]
    deleted = stored[~np.isin(stored, keys)]
    store.remove(deleted)
    changed = np.flatnonzero(~same)
    with reporter.task("storing", len(changed), "papers") as advance:
        for start in range(0, len(changed), block):
            part = changed[start : start + block]
            store.add(**_stored_fields(index, rows[part]), prints=prints[part])
            advance(len(part))
    store.set_mark(mark)
    return ChangeCounts(int((at < 0).sum()), int(((at >= 0) & ~same).sum()), len(deleted), int(same.sum()))


def _stored_fields(index: Index, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return what a store keeps of papers of an index, as `VectorStore.add` takes it."""
    return {
        "ids": index.ids.take(rows),
        "matrix": index.take(rows),
        "years": index.years[rows],
        "venues": [text.splitlines() for text in index.venues.take(rows)],
        "fields": [text.splitlines() for text in index.fields.take(rows)],
        "has_abstract": index.abstracts.lengths()[rows] > 0,
        "stub": (index.flags[rows] & STUB) != 0,
        "titles": index.titles.take(rows),
        "abstracts": index.abstracts.take(rows),
        "authors": [text.splitlines() for text in index.authors.take(rows)],
        "other_ids": [text.splitlines() for text in index.other_ids.take(rows)],
    }


def _prints(index: Index, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return fingerprints of papers of an index: hashes of their records and vectors, (rows,)."""
    assert index.matrix is not None
    vectors = np.ascontiguousarray(index.matrix[rows])  # (rows, dimension)
    size = vectors.itemsize * vectors.shape[1]
    starts = np.arange(len(rows), dtype=np.int64) * size
    vector_hashes = hash_spans(vectors.reshape(-1).view(np.uint8), starts, starts + size)
    return mix_keys(np.asarray(index.record_keys[rows]), vector_hashes)


def nearest_in_store(
    store: VectorStore,
    index: Index,
    queries: NDArray[Any],
    count: int,
    aspect: str = "",
    *,
    where: Filter | None = None,
    allowed: NDArray[np.bool_] | None = None,
    exact: bool = True,
) -> Neighbors:
    """Return the nearest papers of an index as found by its store, as rows and scores, (queries, count).

    `allowed`, (size,), masks the rows that may be found besides the filter, which the store applies itself. Ids of the
    filter may be any ids of a paper. Where there are fewer papers, rows are -1 and scores NaN. The encoder's space only.
    """
    refuse_aspect(aspect)
    check_count(count)
    store.check(provenance_for_store(index))
    queries = np.atleast_2d(np.asarray(queries, np.float32))  # (queries, dimension)
    rows = np.full((len(queries), count), -1, np.int32)
    scores = np.full((len(queries), count), np.nan, np.float32)
    valid = index.with_vector & filter_rows(index, where or Filter())  # (size,)
    valid = valid if allowed is None else valid & allowed
    own_filter = _filter_by_own_ids(index, where) if where else None
    unfinished, depth = np.arange(len(queries)) if valid.any() else np.empty(0, np.int64), count
    while len(unfinished):
        matches = store.search(queries[unfinished], depth, own_filter, exact=exact)
        short = []
        for query, ids, values in zip(unfinished.tolist(), matches.ids, matches.scores, strict=True):
            valid_rows, valid_scores = _valid_matches(index, ids, values, valid)
            filled = min(count, len(valid_rows))
            rows[query, :filled], scores[query, :filled] = valid_rows[:filled], valid_scores[:filled]
            if filled < count and len(ids) == depth < MAX_COUNT:
                short.append(query)
        unfinished, depth = np.array(short, np.int64), min(2 * depth, MAX_COUNT)
    return Neighbors(rows, scores)


def _valid_matches(
    index: Index, ids: list[str], scores: NDArray[np.float32], allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows and scores of a store's matches that the index still has and allows, in their order."""
    rows = index.rows(ids)
    valid = rows >= 0
    valid[valid] = allowed[rows[valid]]
    # the id of a deleted paper may have become a further id of another one
    valid[valid] = [index.id(int(rows[at])) == ids[at] for at in np.flatnonzero(valid).tolist()]
    return rows[valid], scores[valid]


def _filter_by_own_ids(index: Index, where: Filter) -> Filter:
    """Return the part of a filter that a store knows, with every paper named by its own id, under which stores know it."""

    def own(ids: tuple[str, ...]) -> tuple[str, ...]:
        rows = index.rows(ids).tolist() if ids else []
        return tuple(index.id(row) if row >= 0 else id for id, row in zip(ids, rows, strict=True))

    return replace(where, ids=own(where.ids), not_ids=own(where.not_ids), authors=(), keywords=(), collections=())


def refuse_aspect(aspect: str) -> None:
    """Refuse an aspect where a store is searched, which has the encoder's space only."""
    if aspect:
        raise UserError(f"--aspect is {aspect!r}, but a store holds the encoder's space only; leave out --store")
