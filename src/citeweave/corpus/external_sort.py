"""Sorting more records than memory holds: scatter them over files by key range, then sort file by file.

    spill = Spill(folder, dtype, key="code", top=2**40, expected=10**9, memory=2**30)
    spill.add(records)                 # any number of times
    for block in spill.blocks():       # every record once, by ascending key; equal keys never in two blocks
        ...

Does not merge or count anything; its users do.

Sorting bare citations, each one number: citing row, then cited row in `bits` bits.

    codes = CitationCodes(folder, papers=3, expected=4, memory=2**20)
    codes.add(citing, cited)           # any number of times
    for block in codes.blocks():       # every distinct citation once, ascending
        ...

Linear in their number: scattered over files by citing row, then to their row's place, then each short row sorted.
Does not carry intents or strengths; `citation_links.py` sorts citations that have any.

Citations between numbered ids (`s2:42`, or just `42`), staged as the numbers themselves.

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
from typing import Any, BinaryIO

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import NumberWriter, open_numbers, release
from citeweave.core.randomness import Keys, hash_numbers
from citeweave.corpus.corpus import IdIndex
from citeweave.corpus.paper import NumberedCitations, OutsideName

Records = NDArray[np.void]

_MAX_FILES = 256


class Spill:
    """Structured records with an unsigned key below `top`, handed back in order of that key.

    Records of equal key keep the order in which they were added. `memory` bounds the bytes held at a
    time if keys are spread evenly; `expected` is an upper bound of the number of records.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], *, key: str, top: int, expected: int, memory: int) -> None:
        self._dtype, self._key, self._top = dtype, key, max(top, 1)
        # sorting needs the records, their order and one sorted copy at the same time
        bytes_needed = expected * (2 * dtype.itemsize + 16)
        self._buckets = min(max(1, -(-bytes_needed // max(memory, 1))), _MAX_FILES)
        self._held: list[Records] = []
        self._files: list[BinaryIO] = []
        if self._buckets > 1:
            folder.mkdir(parents=True, exist_ok=True)
            self._paths = [
                folder / f"{dtype.names[0] if dtype.names else 'x'}-{i:03d}.bin" for i in range(self._buckets)
            ]
            self._files = [path.open("wb", buffering=1 << 16) for path in self._paths]

    def add(self, records: Records) -> None:
        if not self._files:
            self._held.append(records)
            return
        buckets = self._bucket_of(records[self._key])
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=self._buckets))
        for bucket, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start:
                self._files[bucket].write(records[order[start:end]].tobytes())

    def blocks(self) -> Iterator[Records]:
        """All records in order of their key, in blocks; the temporary files go as they are read."""
        if not self._files:
            held, self._held = self._held, []
            yield from self._sorted(np.concatenate(held) if held else np.empty(0, self._dtype))
            return
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            records = np.fromfile(path, self._dtype)
            path.unlink()
            yield from self._sorted(records)

    def _sorted(self, records: Records) -> Iterator[Records]:
        if len(records):
            order = stable_order(np.ascontiguousarray(records[self._key], np.uint64), self._top)
            # as opaque bytes: NumPy moves structured records field by field otherwise
            yield np.take(records.view(f"V{self._dtype.itemsize}"), order).view(self._dtype)

    def _bucket_of(self, keys: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint16]:
        # in floating point: 64-bit keys times the number of buckets would overflow integers; monotone either way
        share = keys.astype(np.float64) / float(self._top)
        # as 16-bit numbers, which NumPy sorts in linear time
        return np.minimum((share * self._buckets).astype(np.uint16), np.uint16(self._buckets - 1))


def stable_order(keys: NDArray[np.uint64], top: int) -> NDArray[np.int64]:
    """The order that sorts keys below `top`; equal keys keep their order. Three times as fast as argsort.

    The place of a key goes into the low bits that the key leaves free, so that sorting plain numbers
    sorts both. Where too few bits are free the key loses its lowest ones, and the rare keys that then
    stand in the wrong order are put right afterwards.

    >>> stable_order(np.array([3, 1, 3, 0], np.uint64), 4).tolist()
    [3, 1, 0, 2]
    """
    place_bits = max(len(keys) - 1, 1).bit_length()
    lost = max(0, (top - 1).bit_length() + place_bits - 64)
    packed = keys >> np.uint64(lost) << np.uint64(place_bits) | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64(2**place_bits - 1)).astype(np.int64)
    if lost:
        _put_right(order, keys, packed >> np.uint64(place_bits))
    return order


def _put_right(order: NDArray[np.int64], keys: NDArray[np.uint64], shortened: NDArray[np.uint64]) -> None:
    """Sort within the runs of equal shortened keys that hold keys out of order."""
    ordered = keys[order]
    wrong = np.flatnonzero(ordered[1:] < ordered[:-1])
    for value in np.unique(shortened[wrong]):
        start, stop = np.searchsorted(shortened, value), np.searchsorted(shortened, value, side="right")
        run = order[start:stop]
        order[start:stop] = run[np.argsort(keys[run], kind="stable")]


# Sorting bare citations, each one number: citing row, then cited row in `bits` bits.

Codes = NDArray[np.uint64]

_MAX_CODE_FILES = 512
_BYTES = 20
"""Held for a citation while its bucket is sorted: its code, its place, and some of what is written next."""


class CitationCodes:
    """Citations as codes, handed back sorted and each once; `memory` bounds what is held at a time."""

    def __init__(self, folder: Path, *, papers: int, expected: int, memory: int) -> None:
        self.bits = max(papers - 1, 1).bit_length()
        self._papers = max(papers, 1)
        # twice as many as an even spread needs: later papers cite more
        wanted = 1 if expected * _BYTES <= memory else -(-2 * expected * _BYTES // memory)
        self._buckets = min(wanted, _MAX_CODE_FILES, self._papers)
        self._width = -(-self._papers // self._buckets)
        self._held: list[Codes] = []
        self._files: list[BinaryIO] = []
        self.repeats = 0
        """Citations that were given again; known when all blocks were taken."""
        if self._buckets > 1:
            folder.mkdir(parents=True, exist_ok=True)
            self._paths = [folder / f"codes-{bucket:03d}.bin" for bucket in range(self._buckets)]
            # what is written at a time is larger than the buffer and goes past it; all of it, or an error
            self._files = [path.open("wb", buffering=1 << 12) for path in self._paths]

    def add(self, codes: Codes) -> None:
        if not self._files:
            self._held.append(codes)
            return
        ends, out = np.empty(self._buckets + 1, np.int64), np.empty(len(codes), np.uint64)
        _scatter(codes, self.bits, self._width, ends, out)
        for bucket, file in enumerate(self._files):
            if ends[bucket + 1] > ends[bucket]:
                file.write(out[ends[bucket] : ends[bucket + 1]].data)

    def blocks(self) -> Iterator[Codes]:
        for bucket in range(self._buckets):
            codes = self._take(bucket)
            if len(codes):
                first = bucket * self._width
                kept = _sort_rows(codes, self.bits, first, min(self._width, self._papers - first))
                self.repeats += len(codes) - kept
                yield codes[:kept]

    def _take(self, bucket: int) -> Codes:
        if self._files:
            self._files[bucket].close()
            codes = np.fromfile(self._paths[bucket], np.uint64)
            self._paths[bucket].unlink()
            return codes
        held, self._held = self._held, []
        return np.concatenate([np.empty(0, np.uint64), *held])


@numba.njit(cache=True, nogil=True)
def _scatter(codes: Codes, bits: int, width: int, ends: NDArray[np.int64], out: Codes) -> None:
    """Codes by bucket, in their order; those of bucket b end up in out[ends[b]:ends[b + 1]]."""
    shift = np.uint64(bits)
    ends[:] = 0
    for i in range(len(codes)):
        ends[int(codes[i] >> shift) // width + 1] += 1
    for bucket in range(1, len(ends)):
        ends[bucket] += ends[bucket - 1]
    place = ends[:-1].copy()
    for i in range(len(codes)):
        bucket = int(codes[i] >> shift) // width
        out[place[bucket]] = codes[i]
        place[bucket] += 1


@numba.njit(cache=True, nogil=True)
def _sort_rows(codes: Codes, bits: int, first: int, rows: int) -> int:
    """Codes of citing rows first .. first + rows - 1, sorted in place and each once; gives their number."""
    shift, out = np.uint64(bits), np.empty(len(codes), np.uint64)
    starts = np.zeros(rows + 1, np.int64)
    for i in range(len(codes)):
        starts[int(codes[i] >> shift) - first + 1] += 1
    for row in range(1, rows + 1):
        starts[row] += starts[row - 1]
    place = starts[:-1].copy()
    for i in range(len(codes)):
        row = int(codes[i] >> shift) - first
        out[place[row]] = codes[i]
        place[row] += 1
    end = 0
    for row in range(rows):
        start, stop = starts[row], starts[row + 1]
        _sort(out, start, stop)
        for i in range(start, stop):
            if i == start or out[i] != out[i - 1]:
                codes[end] = out[i]  # every code is in `out` by now
                end += 1
    return end


@numba.njit(cache=True, nogil=True)
def _sort(codes: Codes, start: int, stop: int) -> None:
    """Sort codes[start:stop]: most rows are short."""
    if stop - start > 64:
        codes[start:stop].sort()
        return
    for i in range(start + 1, stop):
        code, at = codes[i], i
        while at > start and codes[at - 1] > code:
            codes[at] = codes[at - 1]
            at -= 1
        codes[at] = code


# Citations between numbered ids (`s2:42`, or just `42`), staged as the numbers themselves.

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
