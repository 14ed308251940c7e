"""What is known of papers that are cited and are not there: the id they are cited by, and a title where a source gave one.

    outside_names/    key (of the cited id, ascending), id, title (texts), year

`references_outside` of a corpus and the references of an index know such papers by their keys alone; this says what to call
them. Names are kept of up to 16,777,216 references that lead outside; a corpus with more has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK, NumberWriter, TextColumn, TextWriter, open_numbers
from citeweave.corpus.paper import CitationBlock
from citeweave.errors import ArtefactError
from citeweave.hashing import Keys

FOLDER = "outside_names"
MAX_REFERENCES = 1 << 24


class OutsideName(NamedTuple):
    """What a paper outside is called."""

    id: str
    title: str = ""
    year: int = 0
    """0 where it is not known."""


Take = Callable[[list[int]], list[OutsideName]]
"""From rows of a source to their names."""


@dataclass(frozen=True, slots=True)
class OutsideNames:
    """The names, memory-mapped."""

    keys: Keys
    ids: TextColumn
    titles: TextColumn
    years: NDArray[np.int16]

    @classmethod
    def open(cls, folder: Path) -> OutsideNames | None:
        """The names below the folder of a corpus or a segment, None where it has none."""
        place = folder / FOLDER
        if not place.is_dir():
            return None
        keys, years = open_numbers(place / "key.npy", np.uint64), open_numbers(place / "year.npy", np.int16)
        names = cls(keys, TextColumn(place, "id"), TextColumn(place, "title"), years)
        if not len(keys) == len(names.ids) == len(names.titles) == len(years):
            raise ArtefactError(f"{place} is damaged: its columns do not fit together; make it again")
        return names

    def find(self, key: int) -> OutsideName | None:
        at = int(np.searchsorted(self.keys, np.uint64(key)))
        return self.take([at])[0] if at < len(self.keys) and int(self.keys[at]) == key else None

    def take(self, rows: list[int]) -> list[OutsideName]:
        years = [int(self.years[row]) for row in rows]
        ids, titles = self.ids.take(np.array(rows)), self.titles.take(np.array(rows))
        return [OutsideName(*name) for name in zip(ids, titles, years, strict=True)]


class NameCollector:
    """Collects names for keys, the first one offered for each, and writes them."""

    def __init__(self, wanted: NDArray[Any]) -> None:
        self._wanted: Keys = np.unique(wanted)
        self._source = np.full(len(self._wanted), -1, np.int32)
        self._row = np.zeros(len(self._wanted), np.int64)
        self._takes: list[Take] = []

    def offer(self, keys: NDArray[Any], take: Take) -> None:
        """Names of a source; `take` gets rows of `keys`."""
        if not len(self._wanted) or not len(keys):
            return
        at = np.minimum(np.searchsorted(self._wanted, keys), len(self._wanted) - 1)
        rows = np.flatnonzero((self._wanted[at] == keys) & (self._source[at] < 0))
        places, first = np.unique(at[rows], return_index=True)
        if len(places):
            self._source[places], self._row[places] = len(self._takes), rows[first]
            self._takes.append(take)

    def write(self, folder: Path) -> int:
        """Write what was found below the folder of a corpus or a segment; says how many names there are."""
        place, named = folder / FOLDER, np.flatnonzero(self._source >= 0)
        keys, years = NumberWriter(place / "key.npy", np.uint64), NumberWriter(place / "year.npy", np.int16)
        ids, titles = TextWriter(place, "id"), TextWriter(place, "title")
        for start in range(0, len(named), BLOCK):
            block = named[start : start + BLOCK]
            names = self._names(block)
            keys.append(self._wanted[block])
            years.append([name.year for name in names])
            ids.append([name.id for name in names])
            titles.append([name.title for name in names])
        for writer in (keys, years, ids, titles):
            writer.close()
        return len(named)

    def _names(self, block: NDArray[np.int64]) -> list[OutsideName]:
        found = [OutsideName("")] * len(block)
        for source in np.unique(self._source[block]).tolist():
            own = np.flatnonzero(self._source[block] == source)
            for place, name in zip(own.tolist(), self._takes[source](self._row[block[own]].tolist()), strict=True):
                found[place] = name
        return found


class CitedIds:
    """Keeps the cited ids of a staged part as texts, of its first 1,048,576 citations."""

    def __init__(self, folder: Path) -> None:
        self._keys, self._ids = NumberWriter(folder / "key.npy", np.uint64), TextWriter(folder, "id")
        self._left = 1 << 20

    def append(self, block: CitationBlock) -> None:
        """The cited ids of a block, each once."""
        if self._left <= 0:
            return
        self._left -= len(block.cited)
        _, cited = block.ids()
        if cited:  # made-up and derived citations have keys alone
            keys, first = np.unique(block.cited, return_index=True)
            self._keys.append(keys)
            self._ids.append([cited[at] for at in first.tolist()])

    def close(self) -> None:
        self._keys.close()
        self._ids.close()


def offer_cited_ids(folder: Path, names: NameCollector) -> None:
    """Offer what `CitedIds` kept in a folder."""
    keys, ids = open_numbers(folder / "key.npy", np.uint64), TextColumn(folder, "id")
    names.offer(keys, lambda rows: [OutsideName(id) for id in ids.take(np.array(rows))])
