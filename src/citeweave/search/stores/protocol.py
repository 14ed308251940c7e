"""What a store is made of: the columns of a paper, what a search finds, and the few things a back end must do.

    papers/ or collection     key     63 bits of the hash of the id: the primary key
                              print   hash of all that was stored of the paper: has it changed?
                              id      the text
                              year    0 where unknown
                              has_abstract, stub     0 or 1
                              venue_keys, field_keys hashes of the folded names
                              vector  float32, length 1 (or zeros)
    about                     one JSON object: `About`

Conditions are made of whole numbers only: ids, venues and fields are compared by their hashes, so that no text of a paper
or of a client ever gets into an expression that a database parses.

    >>> store_keys(["doi:10.1/x"]).tolist() == store_keys(["doi:10.1/x"]).tolist(), int(store_keys(["a"])[0]) >= 0
    (True, True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.manifest import another_version
from citeweave.errors import ArtefactError
from citeweave.hashing import Keys
from citeweave.search.naming import fold_name
from citeweave.similarity.provenance import Provenance, id_keys

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


class Columns(NamedTuple):
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


class Listing(NamedTuple):
    """Every paper of a store."""

    keys: StoreKeys
    prints: StoreKeys


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, a list for each query: the best first, of equal ones by id."""

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]
    """Cosines."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of an index that a store was brought to."""

    index: str = ""
    """Where the index was, empty where the store was filled by hand."""

    number: int = -1
    """Of the state; -1 while the store is being changed."""

    stamp: str = ""
    """Hash of the state's segments and deletions."""


@dataclass(frozen=True, slots=True)
class About:
    """What a store tells of itself."""

    provenance: Provenance
    mark: Mark = Mark()

    def as_json(self) -> dict[str, Any]:
        told = {"provenance": asdict(self.provenance), "mark": asdict(self.mark)}
        return {"format": FORMAT, "version": VERSION, **told}

    @classmethod
    def from_json(cls, value: object, place: str) -> About:
        try:
            if not isinstance(value, dict) or value["format"] != FORMAT:
                raise ArtefactError(f"{place} is no store of citeweave; name another place, or one that is empty")
            if value["version"] != VERSION:
                again = "make it again in another place with `citeweave store`"
                raise ArtefactError(f"{place} is a store {another_version(value['version'], VERSION, again)}")
            return cls(Provenance(**value["provenance"]), Mark(**value["mark"]))
        except (KeyError, TypeError):
            raise ArtefactError(f"{place} does not say what made its vectors; make it again") from None


class BackEnd(Protocol):
    """A database that holds one table of papers. Everything that databases do alike is in `store.py`."""

    place: str
    """For messages; holds no secret."""

    def about(self) -> About | None:
        """None where there is nothing yet; a foreign table is refused."""

    def create(self, about: About) -> None: ...
    def tell(self, about: About) -> None:
        """Replace what the store tells of itself."""

    def upsert(self, papers: Columns) -> None: ...
    def remove(self, keys: StoreKeys) -> None: ...
    def count(self) -> int: ...
    def listing(self) -> Iterator[Listing]:
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
