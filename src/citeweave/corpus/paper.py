"""Records of a literature: papers, citations, citing sentences, and names of cited papers outside the corpus.

These are the records that readers yield and that a person looks at. A corpus of millions does not hold them as objects:
`corpus.py` has columns and creates a `Paper` only for a row that is requested.

Papers that are only cited are outside the corpus. `references_outside` of a corpus and the references of an index have
their keys alone; their names (the id they are cited by, and a title where a source has one) are stored in

    outside_names/    key (of the cited id, ascending), id, title (texts), year

for up to 16,777,216 references that lead outside; a corpus with more has no names.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK, TableWriter, TextColumn, find_sorted, open_numbers
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import Keys, hash_numbers


class Intent(enum.IntFlag):
    """Citation intents: why a paper is cited. A citation can have several; 0 means unknown."""

    UNKNOWN = 0
    BACKGROUND = 1
    METHOD = 2
    RESULT = 4
    MOTIVATION = 8
    USES = 16
    EXTENDS = 32
    COMPARES = 64
    FUTURE = 128


_INTENT_WORDS = {
    "background": Intent.BACKGROUND,
    "method": Intent.METHOD,
    "methodology": Intent.METHOD,
    "result": Intent.RESULT,
    "results": Intent.RESULT,
    "resultcomparison": Intent.RESULT,
    "motivation": Intent.MOTIVATION,
    "uses": Intent.USES,
    "extends": Intent.EXTENDS,
    "extension": Intent.EXTENDS,
    "compareorcontrast": Intent.COMPARES,
    "comparison": Intent.COMPARES,
    "future": Intent.FUTURE,
    "futurework": Intent.FUTURE,
}


def parse_intents(value: object) -> Intent:
    """Parse citation intents in any common spelling; unknown words are ignored.

    >>> parse_intents(["methodology", "background"])
    <Intent.BACKGROUND|METHOD: 3>
    >>> parse_intents([["result"], None])
    <Intent.RESULT: 4>
    >>> parse_intents(None)
    <Intent.UNKNOWN: 0>
    """
    if isinstance(value, str):
        return _INTENT_WORDS.get(value.replace("_", "").replace(" ", "").lower(), Intent.UNKNOWN)
    intents = Intent.UNKNOWN
    if isinstance(value, list | tuple):
        for item in value:
            # one level of nesting: recent releases have a list of intents for every context
            words = item if isinstance(item, list | tuple) else [item]
            for word in words:
                if isinstance(word, str):
                    intents |= parse_intents(word)
    return intents


@dataclass(slots=True)
class Paper:
    """A paper: title, abstract, year, venue, authors and ids, as a source has them; `corpus[0]` is one.

    Several records may describe the same paper; see `identity.py` for when, and which one wins.
    """

    id: str
    """The id by which the paper is known: `s2:1234`, `doi:10.1/x`, or whatever the source uses."""

    title: str = ""
    abstract: str = ""
    year: int | None = None
    """Year of publication, None where unknown."""

    venue: str = ""
    """Journal or conference."""

    authors: tuple[str, ...] = ()
    """Full names, in the order of the paper."""

    fields: tuple[str, ...] = ()
    """Fields of study, topics or subjects, most important first."""

    ids: tuple[str, ...] = ()
    """Other ids of the same paper, prefixed: `doi:`, `arxiv:`, `pmid:`, `s2:`, `openalex:`, ..."""

    citation_count: int | None = None
    """Number of citations in the entire literature, where the source has it."""

    updated: int = 0
    """Day of the record's last change at its source, as YYYYMMDD; 0 where unknown."""

    extra: dict[str, object] = field(default_factory=dict)
    """Further metadata from the source, as plain JSON values: labels, flags, keywords."""

    local_id: bool = False
    """True where `id` is only a name inside one file (a BibTeX key): it identifies nothing elsewhere."""

    stub: bool = False
    """True where the paper is known only as a reference of another one."""


@dataclass(slots=True)
class Citation:
    """A citation of one paper by another. The ids are any of the papers' ids."""

    citing: str
    """Id of the paper that cites."""

    cited: str
    """Id of the paper that is cited."""

    intents: Intent = Intent.UNKNOWN
    """Why it is cited, where known."""

    strength: float = 1.0
    """How strong the link is, such as the number of mentions in the text."""

    influential: bool = False
    """Whether the source calls the citation highly influential."""


@dataclass(slots=True)
class Context:
    """A citing sentence (or passage), with every paper that it cites."""

    citing: str
    """Id of the paper in which the sentence is."""

    text: str
    cited: tuple[str, ...]
    """Ids of all papers that the sentence cites."""

    section: str = ""
    """Heading of the section, where known."""

    intents: Intent = Intent.UNKNOWN
    extra: dict[str, object] = field(default_factory=dict)


Record: TypeAlias = Paper | Citation | Context


@dataclass(frozen=True, slots=True)
class CitationBlock:
    """A block of citations as arrays of one length, for readers that create no object per citation."""

    citing: NDArray[np.uint64]
    cited: NDArray[np.uint64]
    intents: NDArray[np.uint8]
    strength: NDArray[np.float32]
    influential: NDArray[np.bool_]
    ids: Callable[[], tuple[list[str], list[str]]]
    """Returns the citing and cited ids as text; called only where the ids are needed."""


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """A block of citing sentences as arrays. `texts` is (lengths, bytes); `cited` is ragged by `cited_counts`."""

    citing: NDArray[np.uint64]
    texts: tuple[NDArray[np.int64], NDArray[np.uint8]]
    cited_counts: NDArray[np.int64]
    cited: NDArray[np.uint64]
    intents: NDArray[np.uint8]


ATTRIBUTES: dict[str, Any] = {"intents": np.uint8, "strength": np.float32, "influential": np.bool_}
"""Columns of citations beside citing and cited paper."""

_DEFAULTS = {"intents": 0, "strength": 1.0, "influential": False}


@dataclass(frozen=True, slots=True)
class NumberedCitations:
    """A block of citations between ids that are a prefix and a number, such as `s2:42`, as arrays of one length."""

    prefix: str
    citing: NDArray[np.integer[Any]]
    """Numbers from 0 to 2**63 - 1."""

    cited: NDArray[np.integer[Any]]
    intents: NDArray[np.uint8] | None = None
    """None = unknown for all; None in the next two = 1 and False for all."""

    strength: NDArray[np.float32] | None = None
    influential: NDArray[np.bool_] | None = None

    @property
    def is_bare(self) -> bool:
        """Whether these citations have no attributes."""
        return all(getattr(self, name) is None for name in ATTRIBUTES)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, filled with its default where the numbered citations lack it."""
        values: NDArray[Any] | None = getattr(self, name)
        return default_attribute(name, len(self.citing)) if values is None else values

    def keys(self, side: str) -> Keys:
        """Return the keys of the `citing` or of the `cited` ids."""
        return hash_numbers(self.prefix, getattr(self, side))

    def cited_names(self, rows: list[int]) -> list[OutsideName]:
        """Return the numbered ids that these citations cite, as names of papers outside the corpus."""
        return [OutsideName(f"{self.prefix}{self.cited[row]}") for row in rows]


def default_attribute(name: str, size: int) -> NDArray[Any]:
    """Return a column of the default value of a citation attribute."""
    return np.full(size, _DEFAULTS[name], ATTRIBUTES[name])


@dataclass(frozen=True, slots=True)
class NumberedPapers:
    """A block of papers with numbered ids of which at most the year is known."""

    prefix: str
    numbers: NDArray[np.int64]
    years: NDArray[np.int16] | None = None
    """0 where unknown."""

    stub: bool = False


StagedRecord: TypeAlias = Record | CitationBlock | ContextBlock | NumberedCitations | NumberedPapers


# --- names of cited papers outside the corpus --------------------------------------------------------

OUTSIDE_NAMES = "outside_names"
MAX_REFERENCES = 1 << 24


class OutsideName(NamedTuple):
    """The name of a cited paper outside the corpus: the id it is cited by, and title and year where known."""

    id: str
    title: str = ""
    year: int = 0
    """0 where unknown."""


TakeNames = Callable[[list[int]], list[OutsideName]]
"""Returns the names at some rows of a source of names."""


@dataclass(frozen=True, slots=True)
class OutsideNames:
    """Records of cited papers outside a corpus or an index, by name, memory-mapped, sorted by key."""

    keys: Keys
    ids: TextColumn
    titles: TextColumn
    years: NDArray[np.int16]

    @classmethod
    def open(cls, folder: Path) -> OutsideNames | None:
        """Open the names of papers outside in the folder of a corpus or an index, None where it has none."""
        place = folder / OUTSIDE_NAMES
        if not place.is_dir():
            return None
        keys, years = open_numbers(place / "key.npy", np.uint64), open_numbers(place / "year.npy", np.int16)
        names = cls(keys, TextColumn(place, "id"), TextColumn(place, "title"), years)
        if not len(keys) == len(names.ids) == len(names.titles) == len(years):
            raise ArtifactError(f"{place} is damaged: its columns do not fit together; make it again")
        return names

    def find(self, key: int) -> OutsideName | None:
        """Return the name of the paper outside with this id key, None where it has no name."""
        at = int(find_sorted(np.array([key], np.uint64), self.keys)[0])
        return None if at < 0 else self.take([at])[0]

    def take(self, rows: list[int]) -> list[OutsideName]:
        """Return the names of papers outside at these rows."""
        years = [int(self.years[row]) for row in rows]
        ids, titles = self.ids.take(np.array(rows)), self.titles.take(np.array(rows))
        return [OutsideName(*name) for name in zip(ids, titles, years, strict=True)]


class NameCollector:
    """Collects names for cited papers outside the corpus, the first one offered for each key, and writes them."""

    def __init__(self, wanted: NDArray[Any]) -> None:
        self._wanted: Keys = np.unique(wanted)
        self._source = np.full(len(self._wanted), -1, np.int32)
        self._row = np.zeros(len(self._wanted), np.int64)
        self._sources: list[TakeNames] = []

    def offer(self, keys: NDArray[Any], take: TakeNames) -> None:
        """Offer a source of names for these id keys; `take` is called with positions in `keys`."""
        if not len(self._wanted) or not len(keys):
            return
        at = find_sorted(keys, self._wanted)
        rows = np.flatnonzero((at >= 0) & (self._source[at] < 0))
        places, first = np.unique(at[rows], return_index=True)
        if len(places):
            self._source[places], self._row[places] = len(self._sources), rows[first]
            self._sources.append(take)

    def write(self, folder: Path) -> int:
        """Write the collected names of papers outside to the folder of a corpus or an index; return their number."""
        table = TableWriter(folder / OUTSIDE_NAMES, {"key": np.uint64, "year": np.int16, "id": str, "title": str})
        named = np.flatnonzero(self._source >= 0)
        for start in range(0, len(named), BLOCK):
            block = named[start : start + BLOCK]
            ids, titles, years = zip(*self._names(block), strict=True)
            table.append(key=self._wanted[block], year=years, id=ids, title=titles)
        table.close()
        return len(named)

    def _names(self, block: NDArray[np.int64]) -> list[OutsideName]:
        """Take the names of a block of cited papers from their sources."""
        names = [OutsideName("")] * len(block)
        for source in np.unique(self._source[block]).tolist():
            own = np.flatnonzero(self._source[block] == source)
            for place, name in zip(own.tolist(), self._sources[source](self._row[block[own]].tolist()), strict=True):
                names[place] = name
        return names
