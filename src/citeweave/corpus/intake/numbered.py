"""Citations between numbered ids (`s2:42`, or just `42`), staged as the numbers themselves.

A citation takes 8 bytes where its numbers fit 32 bits, and 16 where not; what most shards do not say (intents,
strength, influential) takes nothing. Keys and texts of the ids are made when they are asked for:

    >>> lengths, data = texts_of_numbers("s2:", np.array([7, 42]))
    >>> lengths.tolist(), data.tobytes()
    ([4, 5], b's2:7s2:42')
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import NumberWriter, open_numbers, release
from citeweave.corpus.index import IdIndex
from citeweave.corpus.outside_names import OutsideName
from citeweave.corpus.paper import NumberedCitations
from citeweave.hashing import Keys, hash_numbers

STEP = 1 << 20
"""Citations handled at a time."""

ATTRIBUTES = {"intents": np.uint8, "strength": np.float32, "influential": np.bool_}
_DEFAULTS = {"intents": 0, "strength": 1.0, "influential": False}


@dataclass(frozen=True, slots=True)
class NumberedTable:
    """Some citations of a part: columns of one length, memory-mapped."""

    prefix: str
    top: int
    """The largest number in it."""

    citing: NDArray[Any]
    cited: NDArray[Any]
    attributes: dict[str, NDArray[Any]]
    """Empty where nothing but who cites whom is known."""

    def __len__(self) -> int:
        return len(self.citing)

    def blocks(self) -> Iterator[NumberedTable]:
        """The same in pieces; the memory of a piece is given back when the next is asked for."""
        for start in range(0, len(self), STEP):
            cut = slice(start, start + STEP)
            attributes = {name: column[cut] for name, column in self.attributes.items()}
            yield NumberedTable(self.prefix, self.top, self.citing[cut], self.cited[cut], attributes)
            release(self.citing, self.cited, *self.attributes.values())

    def attribute(self, name: str) -> NDArray[Any]:
        """One of `ATTRIBUTES`, with what holds where nothing is said."""
        if name in self.attributes:
            return self.attributes[name]
        return default_of(name, len(self))

    def keys(self) -> tuple[Keys, Keys]:
        """Keys of the citing and of the cited ids."""
        return hash_numbers(self.prefix, self.citing), self.cited_keys()

    def cited_keys(self) -> Keys:
        return hash_numbers(self.prefix, self.cited)

    def cited_names(self, rows: list[int]) -> list[OutsideName]:
        return [OutsideName(f"{self.prefix}{self.cited[row]}") for row in rows]


class NumberedWriter:
    """Writes the numbered citations of one part; small and large numbers, bare and rich citations go apart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[str, dict[str, NumberWriter]] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def append(self, block: NumberedCitations) -> None:
        if not len(block.citing):
            return
        top = int(max(block.citing.max(), block.cited.max()))
        given = {name: getattr(block, name) for name in ATTRIBUTES}
        rich = any(column is not None for column in given.values())
        name = f"numbers{32 if top < 2**32 else 64}{'-rich' if rich else ''}"
        writers = self._open(name, block.prefix, rich=rich)
        facts = self.facts[name]
        assert facts["prefix"] == block.prefix, "one file has ids of one kind"
        facts["top"] = max(facts["top"], top)
        facts["count"] += len(block.citing)
        writers["citing"].append(block.citing)
        writers["cited"].append(block.cited)
        for column in ATTRIBUTES if rich else ():
            values = given[column]
            writers[column].append(default_of(column, len(block.citing)) if values is None else values)

    def _open(self, name: str, prefix: str, *, rich: bool) -> dict[str, NumberWriter]:
        if name not in self._tables:
            number = np.uint32 if name.startswith("numbers32") else np.int64
            kinds = {"citing": number, "cited": number, **(ATTRIBUTES if rich else {})}
            self._tables[name] = {
                column: NumberWriter(self._folder / name / f"{column}.npy", kind) for column, kind in kinds.items()
            }
            self.facts[name] = {"prefix": prefix, "top": 0, "count": 0}
        return self._tables[name]

    def close(self) -> None:
        for writers in self._tables.values():
            for writer in writers.values():
                writer.close()


def open_tables(folder: Path, facts: dict[str, dict[str, Any]]) -> list[NumberedTable]:
    """The tables that a `NumberedWriter` with these facts wrote."""
    tables = []
    for name, described in facts.items():
        number = np.uint32 if name.startswith("numbers32") else np.int64
        citing, cited = (open_numbers(folder / name / f"{column}.npy", number) for column in ("citing", "cited"))
        rich = ATTRIBUTES if name.endswith("-rich") else {}
        attributes = {column: open_numbers(folder / name / f"{column}.npy", kind) for column, kind in rich.items()}
        tables.append(NumberedTable(described["prefix"], described["top"], citing, cited, attributes))
    return tables


def default_of(name: str, size: int) -> NDArray[Any]:
    """A column of what holds of a citation where nothing is said."""
    return np.full(size, _DEFAULTS[name], ATTRIBUTES[name])


class NumberRows:
    """From a number to the row of its paper: one look into a table, where memory holds a table of all numbers."""

    def __init__(self, index: IdIndex, prefix: str, top: int, *, expected: int, memory: int) -> None:
        self._index, self._prefix = index, prefix
        # a table of 4 bytes a number; not worth its making where few of its numbers are ever asked for
        self._rows = self._table(top) if 4 * (top + 1) <= memory and top < 4 * expected else None

    def of(self, numbers: NDArray[Any]) -> NDArray[np.int32]:
        """The row of every number, or -1."""
        if self._rows is None:
            return self._index.rows_of(hash_numbers(self._prefix, numbers))
        rows: NDArray[np.int32] = self._rows[numbers]
        return rows

    def _table(self, top: int) -> NDArray[np.int32]:
        rows = np.empty(top + 1, np.int32)
        for start in range(0, top + 1, STEP):
            numbers = np.arange(start, min(start + STEP, top + 1))
            rows[start : start + STEP] = self._index.rows_of(hash_numbers(self._prefix, numbers))
        return rows


def texts_of_numbers(prefix: str, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Lengths and bytes of `prefix + str(number)`, ready for `TextWriter.append_bytes`."""
    front = np.frombuffer(prefix.encode(), np.uint8)
    out, lengths = np.empty(len(numbers) * (len(front) + 19), np.uint8), np.empty(len(numbers), np.int64)
    end = _write_numbers(front, np.ascontiguousarray(numbers, np.int64), out, lengths)
    return lengths, out[:end]


@numba.njit(cache=True, nogil=True)
def _write_numbers(
    front: NDArray[np.uint8], numbers: NDArray[np.int64], out: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> int:
    end = 0
    for i in range(len(numbers)):
        digits, rest = 1, numbers[i] // 10
        while rest:
            rest //= 10
            digits += 1
        for at in range(len(front)):
            out[end + at] = front[at]
        lengths[i] = len(front) + digits
        end += lengths[i]
        rest = numbers[i]
        for back in range(digits):
            out[end - 1 - back] = 48 + rest % 10
            rest //= 10
    return end
