"""The protocol of vector stores: columns of a paper in a database, back-end operations, filter expressions.

    papers/ or collection     key     63 bits of the hash of the id: the primary key
                              print   fingerprint: hash of all that was stored of the paper, which reveals a change
                              id      the text
                              year    0 where unknown
                              has_abstract, stub     0 or 1
                              venue_keys, field_keys hashes of the folded names
                              vector  float32, length 1 (or zeros)
    about                     one JSON object: `StoreInfo`

Conditions are made of integers only: ids, venues and fields are compared by their hashes, so that no text of a paper or
of a client ever gets into an expression that a database parses.

    >>> store_keys(["doi:10.1/x"]).tolist() == store_keys(["doi:10.1/x"]).tolist(), int(store_keys(["a"])[0]) >= 0
    (True, True)

    >>> filter_expression(Conditions(first_year=2015, keys=(3, 5)), Dialect("({})", "array_has_any"))
    'year >= 2015 and key in (3,5)'

    >>> [(part.first_key, part.last_key, part.not_keys) for part in split_conditions(Conditions(not_keys=(7, 3, 5)), block=2)]
    [(None, 5, (3, 5)), (6, None, (7,))]

The parts of `split_conditions` have no paper in common, and together they have all: the best of a search are the best of
its parts. A database takes some 30 microseconds per id of such a list; the index itself has masks and takes none. What
databases have in common is in `store.py`; the back ends are `lance.py` and `milvus.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import explain_version_mismatch
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import Keys
from citeweave.search.filters import Filter, fold_name
from citeweave.vectors.vectors import Provenance, id_keys

FORMAT, VERSION = "citeweave-store", 1

StoreKeys = NDArray[np.int64]


def as_store_keys(keys: Keys) -> StoreKeys:
    """Drop the lowest bit of hashes: databases have signed integers only, and not all can read the smallest of them."""
    return (keys >> np.uint64(1)).astype(np.int64)


def store_keys(ids: Sequence[str]) -> StoreKeys:
    """Return the primary keys of ids in a store, (ids,)."""
    return as_store_keys(id_keys(list(ids)))


def name_keys(names: Sequence[str]) -> list[int]:
    """Return venues or fields as the store protocol has databases keep and filter them: hashes of the folded names.

    >>> name_keys([" neurips", "NeurIPS"]) == name_keys(["NeurIPS"])
    True
    """
    return sorted(set(store_keys([fold_name(name) for name in names]).tolist()))


@dataclass(frozen=True, slots=True)
class Attributes:
    """Columns of papers in the store protocol besides ids and vectors: what filters compare."""

    years: NDArray[np.int16]
    """(papers,), 0 where unknown."""

    venues: Sequence[Sequence[str]]
    fields: Sequence[Sequence[str]]
    has_abstract: NDArray[np.bool_]
    stub: NDArray[np.bool_]
    """Known only as a reference of others."""

    prints: Keys
    """Fingerprint: hash of all that is stored of a paper."""

    def __len__(self) -> int:
        return len(self.years)

    @classmethod
    def unknown(cls, papers: int) -> Attributes:
        """Return empty attributes for so many papers."""
        none = np.zeros(papers, bool)
        return cls(np.zeros(papers, np.int16), [()] * papers, [()] * papers, none, none, np.zeros(papers, np.uint64))

    def part(self, start: int, end: int) -> Attributes:
        """Return the columns of the store protocol for a slice of the papers."""
        return Attributes(
            self.years[start:end],
            self.venues[start:end],
            self.fields[start:end],
            self.has_abstract[start:end],
            self.stub[start:end],
            self.prints[start:end],
        )


class StoredPapers(NamedTuple):
    """Papers in the store protocol, as every back end of a store writes them, one column each."""

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


class StoreListing(NamedTuple):
    """Keys and fingerprints of papers in a store."""

    keys: StoreKeys
    prints: StoreKeys


@dataclass(frozen=True, slots=True)
class StoreMatches:
    """Nearest papers in a store, one list per query: the best first, ties by id."""

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]
    """Cosines."""


@dataclass(frozen=True, slots=True)
class SyncMark:
    """The mark that the store protocol keeps of the index state a store was last synchronized with."""

    index: str = ""
    """Folder of the index, empty where the store was not filled from one."""

    number: int = -1
    """Number of the state; -1 while the store is being changed."""

    stamp: str = ""
    """Hash of the state's segments and deletions."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store records about itself by the store protocol: its vectors' model and the state it was synchronized with."""

    provenance: Provenance
    mark: SyncMark = SyncMark()

    def as_json(self) -> dict[str, Any]:
        parts = {"provenance": asdict(self.provenance), "mark": asdict(self.mark)}
        return {"format": FORMAT, "version": VERSION, **parts}

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


class BackEnd(Protocol):
    """The protocol of a store's back end, a database with one table of papers: operations that differ between databases."""

    place: str
    """For messages; holds no secret."""

    def read_info(self) -> StoreInfo | None:
        """Read what the store records about itself; None where there is none yet; a foreign table is refused."""

    def create(self, info: StoreInfo) -> None: ...
    def write_info(self, info: StoreInfo) -> None:
        """Replace what the store records about itself."""

    def upsert(self, papers: StoredPapers) -> None: ...
    def remove(self, keys: StoreKeys) -> None: ...
    def count(self) -> int: ...
    def listing(self) -> Iterator[StoreListing]:
        """Yield the keys and fingerprints of all papers, a block at a time."""

    def nearest(
        self, queries: NDArray[np.float32], count: int, conditions: Conditions | None, *, exact: bool
    ) -> list[list[tuple[float, str]]]:
        """Return scores and ids of the nearest papers for each query of length 1, (queries, dimension)."""

    def compact(self) -> None:
        """Merge what many changes left, and build what approximate searches need."""

    def close(self) -> None: ...


class Conditions(NamedTuple):
    """A filter in the store protocol: integers that a database compares; empty lists and None are no condition."""

    first_year: int | None = None
    last_year: int | None = None
    venues: tuple[int, ...] = ()
    fields: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    not_keys: tuple[int, ...] = ()
    first_key: int | None = None
    last_key: int | None = None
    has_abstract: bool | None = None
    stub: bool | None = None


# --- filters as database expressions ---------------------------------------------------------------------

BLOCK = 5000
"""Ids in one expression."""


class Dialect(NamedTuple):
    """How a database behind the store protocol spells its filter expressions."""

    numbers: str
    """A list of numbers after `in`, with {} for them."""

    any_of: str
    """The function that checks whether an array has any of some numbers."""


def conditions_of(where: Filter | None) -> Conditions | None:
    """Translate a filter into conditions of the store protocol; None where no paper can satisfy it."""
    if where is None:
        return Conditions()
    first, last = where.years
    if (first is not None or last is not None) and not first:
        first = 1  # 0 stands for an unknown year, which is in no range
    keys, not_keys = set(store_keys(where.ids).tolist()), set(store_keys(where.not_ids).tolist())
    if where.ids:
        keys, not_keys = keys - not_keys, set()
        if not keys:
            return None
    return Conditions(
        first_year=first,
        last_year=last,
        venues=tuple(name_keys(where.venues)),
        fields=tuple(name_keys(where.fields)),
        keys=tuple(sorted(keys)),
        not_keys=tuple(sorted(not_keys)),
        has_abstract=where.has_abstract,
        stub=None if where.local is None else not where.local,
    )


def split_conditions(conditions: Conditions, *, block: int = BLOCK) -> Iterator[Conditions]:
    """Split conditions of the store protocol into parts with at most `block` ids each that together select the same."""
    if len(conditions.keys) > block:
        for start in range(0, len(conditions.keys), block):
            yield conditions._replace(keys=conditions.keys[start : start + block])
    elif len(conditions.not_keys) > block:
        keys = np.sort(np.array(conditions.not_keys, np.int64))
        starts = range(0, len(keys), block)
        for start in starts:
            excluded = keys[start : start + block].tolist()
            first = None if start == 0 else int(keys[start - 1]) + 1
            last = None if start == starts[-1] else excluded[-1]
            yield conditions._replace(not_keys=tuple(excluded), first_key=first, last_key=last)
    else:
        yield conditions


def filter_expression(conditions: Conditions, dialect: Dialect) -> str:
    """Write conditions of the store protocol as a database's filter expression, of numbers and fixed words; empty if none."""
    parts = [
        f"{column} {comparison} {int(value)}"
        for column, comparison, value in (
            ("year", ">=", conditions.first_year),
            ("year", "<=", conditions.last_year),
            ("key", ">=", conditions.first_key),
            ("key", "<=", conditions.last_key),
        )
        if value is not None
    ]
    for column, wanted in (("has_abstract", conditions.has_abstract), ("stub", conditions.stub)):
        if wanted is not None:
            parts.append(f"{column} in {dialect.numbers.format(int(wanted))}")
    for column, names in (("venue_keys", conditions.venues), ("field_keys", conditions.fields)):
        if names:
            parts.append(f"{dialect.any_of}({column}, [{_listed(names)}])")
    if conditions.keys:
        parts.append(f"key in {dialect.numbers.format(_listed(conditions.keys))}")
    if conditions.not_keys:
        parts.append(f"key not in {dialect.numbers.format(_listed(conditions.not_keys))}")
    return " and ".join(parts)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(str(int(number)) for number in numbers)
