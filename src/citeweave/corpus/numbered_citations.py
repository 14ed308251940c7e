"""Citations between numbered ids such as `s2:42`, staged as numbers, and the rows of numbered papers.

A citation takes 8 bytes where its numbers fit in 32 bits and 16 bytes otherwise. Attributes that most shards lack
(intents, strength, influential) take no space where no citation has them. Keys and texts of the ids are computed when
needed:

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

from citeweave.core.columns import NumberWriter, open_numbers, release
from citeweave.core.hash_keys import Keys, hash_numbers
from citeweave.corpus.corpus import IdIndex
from citeweave.corpus.paper import NumberedCitations, OutsideName

STEP = 1 << 20
"""Citations per block."""

ATTRIBUTES = {"intents": np.uint8, "strength": np.float32, "influential": np.bool_}
_DEFAULTS = {"intents": 0, "strength": 1.0, "influential": False}


@dataclass(frozen=True, slots=True)
class NumberedTable:
    """Numbered citations of a staged part: memory-mapped columns of one length."""

    prefix: str
    top: int
    """The largest id number in the table."""

    citing: NDArray[Any]
    cited: NDArray[Any]
    attributes: dict[str, NDArray[Any]]
    """Empty where only citing and cited papers are known."""

    def __len__(self) -> int:
        return len(self.citing)

    def blocks(self) -> Iterator[NumberedTable]:
        """Yield the numbered citations in blocks, releasing the memory of a block before the next one."""
        for start in range(0, len(self), STEP):
            cut = slice(start, start + STEP)
            attributes = {name: column[cut] for name, column in self.attributes.items()}
            yield NumberedTable(self.prefix, self.top, self.citing[cut], self.cited[cut], attributes)
            release(self.citing, self.cited, *self.attributes.values())

    def attribute(self, name: str) -> NDArray[Any]:
        """Return a column of `ATTRIBUTES`, filled with its default where the numbered citations lack it."""
        if name in self.attributes:
            return self.attributes[name]
        return default_of(name, len(self))

    def keys(self) -> tuple[Keys, Keys]:
        """Return the keys of the citing and of the cited ids."""
        return hash_numbers(self.prefix, self.citing), self.cited_keys()

    def cited_keys(self) -> Keys:
        return hash_numbers(self.prefix, self.cited)

    def cited_names(self, rows: list[int]) -> list[OutsideName]:
        """Return the numbered ids that these citations cite, as names of papers outside the corpus."""
        return [OutsideName(f"{self.prefix}{self.cited[row]}") for row in rows]


class NumberedWriter:
    """Writes the numbered citations of a staged part, in tables by size of number, with and without attributes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, dict[str, NumberWriter]] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        """Prefix, largest number and count of every table, by its name."""

    def append(self, block: NumberedCitations) -> None:
        """Append a block of numbered citations to the table that fits it."""
        if not len(block.citing):
            return
        top = int(max(block.citing.max(), block.cited.max()))
        attributes = {name: getattr(block, name) for name in ATTRIBUTES}
        rich = any(column is not None for column in attributes.values())
        name = f"numbers{32 if top < 2**32 else 64}{'-rich' if rich else ''}"
        writers = self._open(name, block.prefix, rich=rich)
        table = self.tables[name]
        assert table["prefix"] == block.prefix, "one file has ids of one kind"
        table["top"] = max(table["top"], top)
        table["count"] += len(block.citing)
        writers["citing"].append(block.citing)
        writers["cited"].append(block.cited)
        for column in ATTRIBUTES if rich else ():
            values = attributes[column]
            writers[column].append(default_of(column, len(block.citing)) if values is None else values)

    def _open(self, name: str, prefix: str, *, rich: bool) -> dict[str, NumberWriter]:
        if name not in self._writers:
            number = np.uint32 if name.startswith("numbers32") else np.int64
            kinds = {"citing": number, "cited": number, **(ATTRIBUTES if rich else {})}
            self._writers[name] = {
                column: NumberWriter(self._folder / name / f"{column}.npy", kind) for column, kind in kinds.items()
            }
            self.tables[name] = {"prefix": prefix, "top": 0, "count": 0}
        return self._writers[name]

    def close(self) -> None:
        for writers in self._writers.values():
            for writer in writers.values():
                writer.close()


def open_tables(folder: Path, described_tables: dict[str, dict[str, Any]]) -> list[NumberedTable]:
    """Open citations between numbered ids, staged as numbers, that a `NumberedWriter` wrote."""
    tables = []
    for name, described in described_tables.items():
        number = np.uint32 if name.startswith("numbers32") else np.int64
        citing, cited = (open_numbers(folder / name / f"{column}.npy", number) for column in ("citing", "cited"))
        rich = ATTRIBUTES if name.endswith("-rich") else {}
        attributes = {column: open_numbers(folder / name / f"{column}.npy", kind) for column, kind in rich.items()}
        tables.append(NumberedTable(described["prefix"], described["top"], citing, cited, attributes))
    return tables


def default_of(name: str, size: int) -> NDArray[Any]:
    """Return a column of the default value of a citation attribute."""
    return np.full(size, _DEFAULTS[name], ATTRIBUTES[name])


class NumberRows:
    """Maps numbered ids to rows of papers, by a table of all numbers where it fits in memory, else by the id index."""

    def __init__(self, index: IdIndex, prefix: str, top: int, *, expected: int, memory: int) -> None:
        self._index, self._prefix = index, prefix
        # 4 bytes per number; not worth building where few of the numbers are ever looked up
        self._rows = self._table(top) if 4 * (top + 1) <= memory and top < 4 * expected else None

    def of(self, numbers: NDArray[Any]) -> NDArray[np.int32]:
        """Return the row of the paper with each id number, -1 where there is none."""
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
    """Return lengths and bytes of the ids `prefix + str(number)`, ready for `TextWriter.append_bytes`."""
    front = np.frombuffer(prefix.encode(), np.uint8)
    out, lengths = np.empty(len(numbers) * (len(front) + 19), np.uint8), np.empty(len(numbers), np.int64)
    end = _write_numbers(front, np.ascontiguousarray(numbers, np.int64), out, lengths)
    return lengths, out[:end]


@numba.njit(cache=True, nogil=True)
def _write_numbers(
    front: NDArray[np.uint8], numbers: NDArray[np.int64], out: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> int:
    """Write the ids of all numbers to `out` one after the other and return the number of bytes."""
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
