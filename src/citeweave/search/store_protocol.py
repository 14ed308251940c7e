"""The protocol of vector stores: columns of a paper in a database, what each database does its own way, filter expressions.

    papers/ or collection     key     63 bits of the hash of the id: the primary key
                              print   fingerprint: hash of all that was stored of the paper, which reveals a change
                              id      the text
                              year    0 where unknown
                              has_abstract, stub     0 or 1
                              venue_keys, field_keys hashes of the folded names
                              vector  float32, length 1 (or zeros)
    about                     one JSON object: `StoreInfo`

Expressions are made of integers only: ids, venues and fields are compared by their hashes, so that no text of a paper or
of a client ever gets into an expression that a database parses.

    >>> filter_expressions(Filter(years=(2015, None), has_abstract=True), Dialect("({})", "array_has_any"))
    ['year >= 2015 and has_abstract in (1)']

Long lists of ids are split into several expressions; no paper passes two of them, so that the best of a search are the
best of its parts. A database takes some 30 microseconds per id of such a list; the index itself has masks and takes none.
Databases are `lance.py` and `milvus.py`; `store.py` opens them, fills them from an index and searches the index by them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import explain_version_mismatch
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.hash_keys import Keys
from citeweave.search.filters import fold_name
from citeweave.search.nearest import check_count
from citeweave.search.query import Filter
from citeweave.vectors.vectors import Provenance, id_keys, unit_rows

FORMAT, VERSION = "citeweave-store", 1
COLUMNS = ("key", "print", "id", "year", "has_abstract", "stub", "venue_keys", "field_keys", "vector")
"""Names of the columns in a database, in the order of `StoredPapers`."""

BATCH_BYTES = 8 << 20
"""Bytes of vectors written to a database at once; a Milvus server refuses much larger messages."""

IDS_PER_EXPRESSION = 5000
_MAX_ID_BYTES, _MAX_NAMES = 60_000, 4000

StoreKeys = NDArray[np.int64]


def as_store_keys(keys: Keys) -> StoreKeys:
    """Drop the lowest bit of hashes: databases have signed integers only, and not all can read the smallest of them."""
    return (keys >> np.uint64(1)).astype(np.int64)


def store_keys(ids: Sequence[str]) -> StoreKeys:
    """Return the primary keys of ids in a store, (ids,).

    >>> store_keys(["doi:10.1/x"]).tolist() == store_keys(["doi:10.1/x"]).tolist(), int(store_keys(["a"])[0]) >= 0
    (True, True)
    """
    return as_store_keys(id_keys(list(ids)))


def name_keys(names: Sequence[str]) -> list[int]:
    """Return venues or fields as the store protocol has databases keep and filter them: hashes of the folded names.

    >>> name_keys([" neurips", "NeurIPS"]) == name_keys(["NeurIPS"])
    True
    """
    return sorted(set(store_keys([fold_name(name) for name in names]).tolist()))


class StoredPapers(NamedTuple):
    """Papers in the store protocol, as every database writes them, one column each."""

    keys: StoreKeys
    prints: StoreKeys
    ids: list[str]
    years: NDArray[np.int16]
    has_abstract: NDArray[np.int8]
    stub: NDArray[np.int8]
    venue_keys: list[list[int]]
    field_keys: list[list[int]]
    vectors: NDArray[np.float32]
    """(papers, dimension), of length 1."""


@dataclass(frozen=True, slots=True)
class SyncMark:
    """The mark that the store protocol keeps of the index generation a store was last synchronized with."""

    index: str = ""
    """Folder of the index, empty where the store was not filled from one."""

    number: int = -1
    """Number of the generation; -1 while the store is being changed."""

    stamp: str = ""
    """Hash of the generation."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store records about itself by the store protocol: its vectors' model and what it was synchronized with."""

    provenance: Provenance
    mark: SyncMark = SyncMark()

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: object, place: str) -> StoreInfo:
        """Parse what the store at a place records about itself by the store protocol."""
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
    """How a database behind the store protocol spells its filter expressions."""

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
        if info is None:
            if provenance is None:
                raise UserError(f"{self.place} holds no store; create one with `citeweave store`")
            info = StoreInfo(provenance)
            self.create(info)
        self.info = info
        if provenance is not None:
            self.check(provenance)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"VectorStore({self.place!r} by {self.info.provenance.label})"

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

        Attributes, each one value per paper and unknown where missing: years, venues, fields, has_abstract, stub, prints.
        """
        dimension = self.info.provenance.dimension
        if matrix.shape != (len(ids), dimension):
            raise UserError(f"{self.place} holds vectors of {dimension} numbers, not {matrix.shape} for {len(ids)} ids")
        batch = max(1, BATCH_BYTES // (4 * dimension))
        for start in range(0, len(ids), batch):
            part = slice(start, start + batch)
            own = {name: column[part] for name, column in attributes.items()}
            self.upsert(_stored_papers(ids[part], matrix[part], **own))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete papers from the store by id; unknown ids are ignored."""
        self.remove(store_keys(ids))

    def listing(self) -> tuple[StoreKeys, StoreKeys]:
        """Return the keys and fingerprints of all papers in the store."""
        empty = np.empty(0, np.int64)
        blocks = [(empty, empty), *self.read_keys()]
        return np.concatenate([keys for keys, _ in blocks]), np.concatenate([prints for _, prints in blocks])

    def search(
        self, queries: NDArray[Any], count: int, where: Filter | None = None, *, exact: bool = True
    ) -> StoreMatches:
        """Search the vector store: the nearest papers that pass a filter, for each of the queries, (queries, dimension)."""
        check_count(count)
        dimension = self.info.provenance.dimension
        if queries.ndim != 2 or queries.shape[1] != dimension:
            raise UserError(f"{self.place} holds vectors of {dimension} numbers, not {queries.shape}")
        best: list[list[tuple[float, str]]] = [[] for _ in queries]
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
    def create(self, info: StoreInfo) -> None: ...
    @abstractmethod
    def write_info(self, info: StoreInfo) -> None: ...
    @abstractmethod
    def upsert(self, papers: StoredPapers) -> None: ...
    @abstractmethod
    def remove(self, keys: StoreKeys) -> None: ...
    @abstractmethod
    def count(self) -> int: ...
    @abstractmethod
    def read_keys(self) -> Iterator[tuple[StoreKeys, StoreKeys]]:
        """Yield the keys and fingerprints of all papers, a block at a time."""

    @abstractmethod
    def nearest(
        self, queries: NDArray[np.float32], count: int, expression: str, *, exact: bool
    ) -> list[list[tuple[float, str]]]:
        """Return scores and ids of the nearest papers for each query of length 1, (queries, dimension)."""

    @abstractmethod
    def compact(self) -> None:
        """Merge what many changes left in the database; build its index for approximate search if it is large."""

    @abstractmethod
    def close(self) -> None: ...


def _stored_papers(
    ids: Sequence[str],
    matrix: NDArray[Any],
    years: NDArray[Any] | None = None,
    venues: Sequence[Sequence[str]] = (),
    fields: Sequence[Sequence[str]] = (),
    has_abstract: NDArray[Any] | None = None,
    stub: NDArray[Any] | None = None,
    prints: Keys | None = None,
) -> StoredPapers:
    """Return a batch of papers as a database writes them; refuse ids and vectors that none takes."""
    # lone surrogates are replaced as everywhere else: no database takes them
    texts = [id if id.isascii() else id.encode("utf-8", "replace").decode() for id in ids]
    keys = store_keys(texts)
    _, last = np.unique(keys[::-1], return_index=True)
    distinct = np.sort(len(keys) - 1 - last)
    rows = distinct.tolist()
    wide = np.asarray(matrix[distinct], np.float64)
    vectors = np.ascontiguousarray(unit_rows(wide), np.float32)
    for at, row in enumerate(rows):
        if not np.isfinite(vectors[at]).all():
            raise UserError(
                f"the vector of {texts[row][:80]!r} has numbers that are not finite; a store takes none of this batch"
            )
        if len(texts[row].encode()) > _MAX_ID_BYTES:
            raise UserError(
                f"the id {texts[row][:40]!r}… is longer than the {_MAX_ID_BYTES:,} bytes that a store takes"
            )
    zeros = np.zeros(len(texts), np.int64)
    years, has_abstract, stub = (zeros if column is None else column for column in (years, has_abstract, stub))
    return StoredPapers(
        keys=keys[distinct],
        prints=as_store_keys(np.asarray(zeros if prints is None else prints, np.uint64)[distinct]),
        ids=[texts[row] for row in rows],
        years=years[distinct].astype(np.int16),
        has_abstract=has_abstract[distinct].astype(np.int8),
        stub=stub[distinct].astype(np.int8),
        venue_keys=[name_keys(venues[row])[:_MAX_NAMES] if venues else [] for row in rows],
        field_keys=[name_keys(fields[row])[:_MAX_NAMES] if fields else [] for row in rows],
        vectors=vectors,
    )


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
