"""What a store is made of: the columns of a paper, what a search finds, and the few things a back end must do.

    papers/ or collection     key     63 bits of the hash of the id: the primary key
                              print   hash of all that was stored of the paper: has it changed?
                              id      the text
                              year    0 where unknown
                              has_abstract, stub     0 or 1
                              venue_keys, field_keys hashes of the folded names
                              vector  float32, length 1 (or zeros)
    about                     one JSON object: `StoreInfo`

Conditions are made of whole numbers only: ids, venues and fields are compared by their hashes, so that no text of a paper
or of a client ever gets into an expression that a database parses.

    >>> store_keys(["doi:10.1/x"]).tolist() == store_keys(["doi:10.1/x"]).tolist(), int(store_keys(["a"])[0]) >= 0
    (True, True)

Filters as conditions that databases understand: whole numbers only, long lists of ids in blocks.

    >>> expression(Conditions(first_year=2015, keys=(3, 5)), Spelling("({})", "array_has_any"))
    'year >= 2015 and key in (3,5)'

    >>> [(part.first_key, part.last_key, part.not_keys) for part in in_blocks(Conditions(not_keys=(7, 3, 5)), block=2)]
    [(None, 5, (3, 5)), (6, None, (7,))]

The parts that `in_blocks` gives have no paper in common, and together they have all: the best of a search are the best of
its parts. A database takes some 30 microseconds for each id of such a list; the index itself has masks and takes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import another_version
from citeweave.core.errors import ArtifactError
from citeweave.core.randomness import Keys
from citeweave.search.filters import Filter, fold_name
from citeweave.vectors.vectors import Provenance, id_keys

FORMAT, VERSION = "citeweave-store", 1

StoreKeys = NDArray[np.int64]


def as_store_keys(keys: Keys) -> StoreKeys:
    """Hashes without their lowest bit: databases know signed numbers only, and not all read the smallest of them."""
    return (keys >> np.uint64(1)).astype(np.int64)


def store_keys(ids: Sequence[str]) -> StoreKeys:
    """The primary keys of ids, (ids,)."""
    return as_store_keys(id_keys(list(ids)))


def name_keys(names: Sequence[str]) -> list[int]:
    """Venues or fields as they are stored and asked for.

    >>> name_keys([" neurips", "NeurIPS"]) == name_keys(["NeurIPS"])
    True
    """
    return sorted(set(store_keys([fold_name(name) for name in names]).tolist()))


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is known of papers beside their ids and vectors, a column each."""

    years: NDArray[np.int16]
    """(papers,), 0 where unknown."""

    venues: Sequence[Sequence[str]]
    fields: Sequence[Sequence[str]]
    has_abstract: NDArray[np.bool_]
    stub: NDArray[np.bool_]
    """Known only as a reference of others."""

    prints: Keys
    """Hash of all that is stored of a paper."""

    def __len__(self) -> int:
        return len(self.years)

    @classmethod
    def unknown(cls, papers: int) -> Attributes:
        """Nothing is known of so many papers."""
        none = np.zeros(papers, bool)
        return cls(np.zeros(papers, np.int16), [()] * papers, [()] * papers, none, none, np.zeros(papers, np.uint64))

    def part(self, start: int, end: int) -> Attributes:
        return Attributes(
            self.years[start:end],
            self.venues[start:end],
            self.fields[start:end],
            self.has_abstract[start:end],
            self.stub[start:end],
            self.prints[start:end],
        )


class StoredPapers(NamedTuple):
    """Papers as a back end stores them."""

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
    """Every paper of a store."""

    keys: StoreKeys
    prints: StoreKeys


@dataclass(frozen=True, slots=True)
class StoreMatches:
    """What a search found, a list for each query: the best first, of equal ones by id."""

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]
    """Cosines."""


@dataclass(frozen=True, slots=True)
class SyncMark:
    """The state of an index that a store was brought to."""

    index: str = ""
    """Where the index was, empty where the store was filled by hand."""

    number: int = -1
    """Of the state; -1 while the store is being changed."""

    stamp: str = ""
    """Hash of the state's segments and deletions."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store tells of itself."""

    provenance: Provenance
    mark: SyncMark = SyncMark()

    def as_json(self) -> dict[str, Any]:
        told = {"provenance": asdict(self.provenance), "mark": asdict(self.mark)}
        return {"format": FORMAT, "version": VERSION, **told}

    @classmethod
    def from_json(cls, value: object, place: str) -> StoreInfo:
        try:
            if not isinstance(value, dict) or value["format"] != FORMAT:
                raise ArtifactError(f"{place} is no store of citeweave; name another place, or one that is empty")
            if value["version"] != VERSION:
                again = "make it again in another place with `citeweave store`"
                raise ArtifactError(f"{place} is a store {another_version(value['version'], VERSION, again)}")
            return cls(Provenance(**value["provenance"]), SyncMark(**value["mark"]))
        except (KeyError, TypeError):
            raise ArtifactError(f"{place} does not say what made its vectors; make it again") from None


class BackEnd(Protocol):
    """A database that holds one table of papers. Everything that databases do alike is in `store.py`."""

    place: str
    """For messages; holds no secret."""

    def about(self) -> StoreInfo | None:
        """None where there is nothing yet; a foreign table is refused."""

    def create(self, about: StoreInfo) -> None: ...
    def tell(self, about: StoreInfo) -> None:
        """Replace what the store tells of itself."""

    def upsert(self, papers: StoredPapers) -> None: ...
    def remove(self, keys: StoreKeys) -> None: ...
    def count(self) -> int: ...
    def listing(self) -> Iterator[StoreListing]:
        """All papers, a block at a time."""

    def nearest(
        self, queries: NDArray[np.float32], count: int, numbers: Conditions | None, *, exact: bool
    ) -> list[list[tuple[float, str]]]:
        """Scores and ids for each query of length 1 (queries, dimension)."""

    def compact(self) -> None:
        """Make room and speed: merge, build what approximate searches need."""

    def close(self) -> None: ...


class Conditions(NamedTuple):
    """A filter in whole numbers; empty lists and None ask for nothing."""

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


# Filters as conditions that databases understand: whole numbers only, long lists of ids in blocks.

BLOCK = 5000
"""Ids in one expression."""


class Spelling(NamedTuple):
    """How two databases differ."""

    numbers: str
    """A list of numbers behind `in`, with {} for them."""

    any_of: str
    """The function that tells whether an array holds any of some numbers."""


def conditions_of(where: Filter | None) -> Conditions | None:
    """None where no paper can fulfill the filter."""
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


def in_blocks(asked: Conditions, *, block: int = BLOCK) -> Iterator[Conditions]:
    """Conditions with at most `block` ids each, whose papers together are those asked for."""
    if len(asked.keys) > block:
        for start in range(0, len(asked.keys), block):
            yield asked._replace(keys=asked.keys[start : start + block])
    elif len(asked.not_keys) > block:
        keys = np.sort(np.array(asked.not_keys, np.int64))
        starts = range(0, len(keys), block)
        for start in starts:
            left_out = keys[start : start + block].tolist()
            first = None if start == 0 else int(keys[start - 1]) + 1
            last = None if start == starts[-1] else left_out[-1]
            yield asked._replace(not_keys=tuple(left_out), first_key=first, last_key=last)
    else:
        yield asked


def expression(asked: Conditions, spelling: Spelling) -> str:
    """One block of conditions as a text, empty where there are none; made of numbers and our own words only."""
    parts = [
        f"{column} {sign} {int(value)}"
        for column, sign, value in (
            ("year", ">=", asked.first_year),
            ("year", "<=", asked.last_year),
            ("key", ">=", asked.first_key),
            ("key", "<=", asked.last_key),
        )
        if value is not None
    ]
    for column, wanted in (("has_abstract", asked.has_abstract), ("stub", asked.stub)):
        if wanted is not None:
            parts.append(f"{column} in {spelling.numbers.format(int(wanted))}")
    for column, names in (("venue_keys", asked.venues), ("field_keys", asked.fields)):
        if names:
            parts.append(f"{spelling.any_of}({column}, [{_listed(names)}])")
    if asked.keys:
        parts.append(f"key in {spelling.numbers.format(_listed(asked.keys))}")
    if asked.not_keys:
        parts.append(f"key not in {spelling.numbers.format(_listed(asked.not_keys))}")
    return " and ".join(parts)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(str(int(number)) for number in numbers)
