"""Papers that no record describes: ids that occur only in citations become rows (`--outside keep`).

Numbered ids come first, by number; then all others, by their key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import release
from citeweave.corpus.index import IdIndex
from citeweave.corpus.intake.numbered import NumberedTable
from citeweave.corpus.intake.spill import Spill
from citeweave.corpus.intake.staging import Part, PartWriter, is_complete
from citeweave.corpus.paper import NumberedPapers, Paper
from citeweave.hashing import Keys, hash_numbers

_STEP = 1 << 20
_SEEN = np.dtype([("key", "<u8"), ("at", "<i8"), ("part", "<i4"), ("cited", "?")])
_NUMBER = np.dtype([("number", "<u8")])


def stage_outside(parts: Sequence[Part], folder: Path, *, memory: int) -> Part:
    """A part with one stub for every id that citations name and no record has."""
    target = folder / "part"
    if not is_complete(target):
        writer = PartWriter(target, keep_ids=True)
        known = _Known(parts)
        for prefix in sorted({table.prefix for part in parts for table in part.numbered()}):
            writer.add(_unknown_numbers(parts, prefix, known, folder, memory))
        for ids in _unknown_ids(parts, known, folder, memory):
            writer.add(Paper(id, stub=True) for id in ids)
        writer.finish({"name": "papers outside", "format": "outside", "distinct": True})
    return Part(target)


class _Known:
    """The keys under which records describe papers, and those of the numbers that became papers."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._keys = np.unique(np.concatenate([np.empty(0, np.uint64), *(_known_keys(part) for part in parts)]))
        self._index = self._indexed()

    def misses(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of the keys are not known."""
        return np.ones(len(keys), np.bool_) if self._index is None else self._index.rows_of(keys) < 0

    def learn(self, keys: list[Keys]) -> None:
        self._keys = np.unique(np.concatenate([self._keys, *keys]))
        self._index = self._indexed()

    def _indexed(self) -> IdIndex | None:
        return IdIndex.of(self._keys, np.zeros(len(self._keys), np.int32)) if len(self._keys) else None


def _known_keys(part: Part) -> Keys:
    titles = part.paper_numbers("title_key")
    keys: Keys = np.concatenate([part.paper_numbers("key"), titles[titles != 0]])
    return keys


def _unknown_numbers(
    parts: Sequence[Part], prefix: str, known: _Known, folder: Path, memory: int
) -> Iterator[NumberedPapers]:
    """Every number of these ids once, ascending, without those that a record describes."""
    tables = [table for part in parts for table in part.numbered() if table.prefix == prefix]
    by_key = any(part.keyed_count for part in parts)
    found = []
    for numbers in _distinct_numbers(tables, folder, memory):
        keys = hash_numbers(prefix, numbers)
        missed = known.misses(keys)
        yield NumberedPapers(prefix, numbers[missed], stub=True)
        if by_key:
            found.append(keys[missed])
    if by_key:
        known.learn(found)


def _distinct_numbers(tables: Sequence[NumberedTable], folder: Path, memory: int) -> Iterator[NDArray[np.int64]]:
    """Ascending, in blocks: by one bit a number where memory holds so many, else sorted through files."""
    top = max(table.top for table in tables)
    if top // 8 <= memory:
        seen = np.zeros(top // 8 + 1, np.uint8)
        for block in (block for table in tables for block in table.blocks()):
            _mark(block.citing, seen)
            _mark(block.cited, seen)
        for start in range(0, len(seen), _STEP):
            bits = np.unpackbits(seen[start : start + _STEP], bitorder="little")
            yield np.flatnonzero(bits) + 8 * start
        return
    expected = 2 * sum(len(table) for table in tables)
    spill = Spill(folder / "numbers", _NUMBER, key="number", top=top + 1, expected=expected, memory=memory)
    for block in (block for table in tables for block in table.blocks()):
        for column in (block.citing, block.cited):
            spill.add(np.unique(column).astype(np.uint64).view(_NUMBER))
    for sorted_block in spill.blocks():
        yield np.unique(sorted_block["number"]).astype(np.int64)


@numba.njit(cache=True, nogil=True)
def _mark(numbers: NDArray[Any], seen: NDArray[np.uint8]) -> None:
    for i in range(len(numbers)):
        number = np.uint64(numbers[i])
        seen[number >> np.uint64(3)] |= np.uint8(1) << np.uint8(number & np.uint64(7))


def _unknown_ids(parts: Sequence[Part], known: _Known, folder: Path, memory: int) -> Iterator[list[str]]:
    expected = 2 * sum(part.keyed_count for part in parts)
    if not expected:
        return
    spill = Spill(folder / "sort", _SEEN, key="key", top=2**64, expected=expected, memory=memory)
    for number, part in enumerate(parts):
        for cited, name in enumerate(("citing", "cited")):
            column = part.citations(name)
            for start in range(0, len(column), _STEP):
                keys, at = np.unique(column[start : start + _STEP], return_index=True)
                missed = known.misses(keys)
                records = np.empty(int(missed.sum()), _SEEN)
                records["key"], records["at"], records["part"], records["cited"] = (
                    keys[missed],
                    at[missed] + start,
                    number,
                    cited,
                )
                spill.add(records)
                release(column)
    columns = [{flag: part.citation_ids(name) for flag, name in enumerate(("citing_id", "cited_id"))} for part in parts]
    for block in spill.blocks():
        first = block[np.concatenate([[True], block["key"][1:] != block["key"][:-1]])]
        rows = zip(first["part"].tolist(), first["cited"].tolist(), first["at"].tolist(), strict=True)
        yield [columns[part][int(cited)][at] for part, cited, at in rows]
        release(*(column for pair in columns for column in pair.values()))
