"""External sort of more records or citations than fit in memory.

    sort = ExternalSort(folder, dtype, key="code", top=2**40, expected=10**9, memory=2**30)
    sort.add(records)                  # any number of times
    for block in sort.blocks():        # every record once, by ascending key; equal keys never in two blocks
        ...

    codes = CitationCodes(folder, papers=3, expected=4, memory=2**20)
    codes.add(citations)               # any number of times; a code is the citing row, then the cited row
    for block in codes.blocks():       # every distinct citation once, ascending
        ...

Both scatter what is added over files by key range, then sort file by file. `CitationCodes` is linear in the number of
citations and carries neither intents nor strengths; `ExternalSort` carries any fields. Does not merge records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.ragged import count_owners

Records = NDArray[np.void]

_MAX_FILES = 256


class _Buckets:
    """Arrays in memory where there is one bucket, else in one temporary file for each bucket."""

    def __init__(self, folder: Path, name: str, number: int, dtype: np.dtype[Any]) -> None:
        self.number, self._dtype = number, dtype
        self._held: list[NDArray[Any]] = []
        self._files: list[BinaryIO] = []
        if number > 1:
            folder.mkdir(parents=True, exist_ok=True)
            self._paths = [folder / f"{name}-{bucket:03d}.bin" for bucket in range(number)]
            # most writes are larger than the buffer and bypass it: all of it is written, or an error is raised
            self._files = [path.open("wb", buffering=1 << 12) for path in self._paths]

    def add(
        self, values: NDArray[Any], group: Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[np.int64]]]
    ) -> None:
        """Add values; `group` puts those of one bucket together and returns them with the offsets of the buckets."""
        if not self._files:
            self._held.append(values)
            return
        grouped, offsets = group(values)
        for file, (start, end) in zip(self._files, pairwise(offsets.tolist()), strict=True):
            if end > start:
                file.write(grouped[start:end].view(np.uint8).data)

    def take(self, bucket: int) -> NDArray[Any]:
        """Return the values of a bucket and delete its file."""
        if self._files:
            self._files[bucket].close()
            values = np.fromfile(self._paths[bucket], self._dtype)
            self._paths[bucket].unlink()
            return values
        held, self._held = self._held, []
        return np.concatenate([np.empty(0, self._dtype), *held])


class ExternalSort:
    """External sort of structured records by an unsigned key below `top`.

    Records of equal key keep the order in which they were added. `memory` bounds the bytes in memory at a time if keys
    are evenly distributed; `expected` is an upper bound of the number of records.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], *, key: str, top: int, expected: int, memory: int) -> None:
        self._dtype, self._key, self._top = dtype, key, max(top, 1)
        # sorting holds the records, their order and one sorted copy at the same time
        bytes_needed = expected * (2 * dtype.itemsize + 16)
        self._buckets = _Buckets(folder, key, min(max(1, -(-bytes_needed // max(memory, 1))), _MAX_FILES), dtype)

    def add(self, records: Records) -> None:
        """Add records to be sorted, in memory or to the files of their key ranges."""
        self._buckets.add(records, self._by_bucket)

    def blocks(self) -> Iterator[Records]:
        """Yield all records sorted by key, in blocks; each temporary file is deleted once it is read."""
        for bucket in range(self._buckets.number):
            records = self._buckets.take(bucket)
            if len(records):
                keys = np.ascontiguousarray(records[self._key], np.uint64)
                yield self._take(records, stable_order(keys, self._top))

    def _by_bucket(self, records: Records) -> tuple[Records, NDArray[np.int64]]:
        # in floating point: 64-bit keys times the number of buckets would overflow; still monotone
        share = records[self._key].astype(np.float64) / float(self._top)
        # as 16-bit numbers, which NumPy sorts in linear time
        buckets = np.minimum((share * self._buckets.number).astype(np.uint16), np.uint16(self._buckets.number - 1))
        return self._take(records, np.argsort(buckets, kind="stable")), count_owners(buckets, self._buckets.number)

    def _take(self, records: Records, order: NDArray[np.int64]) -> Records:
        # as opaque bytes: NumPy would move structured records field by field
        return np.take(records.view(f"V{self._dtype.itemsize}"), order).view(self._dtype)


def stable_order(keys: NDArray[np.uint64], top: int) -> NDArray[np.int64]:
    """Return the order that sorts keys below `top`; equal keys keep their order. Three times as fast as argsort.

    The position of a key goes into the low bits that the key leaves free, so that sorting plain numbers sorts both. Where
    too few bits are free, the key loses its lowest bits, and the rare keys that end up in the wrong order are fixed
    afterwards.

    >>> stable_order(np.array([3, 1, 3, 0], np.uint64), 4).tolist()
    [3, 1, 0, 2]
    """
    place_bits = max(len(keys) - 1, 1).bit_length()
    lost = max(0, (top - 1).bit_length() + place_bits - 64)
    packed = keys >> np.uint64(lost) << np.uint64(place_bits) | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64(2**place_bits - 1)).astype(np.int64)
    if lost:
        _fix_order(order, keys, packed >> np.uint64(place_bits))
    return order


def _fix_order(order: NDArray[np.int64], keys: NDArray[np.uint64], shortened: NDArray[np.uint64]) -> None:
    """Sort by full key within each run of equal shortened keys that is out of order."""
    ordered = keys[order]
    wrong = np.flatnonzero(ordered[1:] < ordered[:-1])
    for value in np.unique(shortened[wrong]):
        start, stop = np.searchsorted(shortened, value), np.searchsorted(shortened, value, side="right")
        run = order[start:stop]
        order[start:stop] = run[np.argsort(keys[run], kind="stable")]


# --- bare citations, each one number: citing row, then cited row in `bits` bits --------------------

Codes = NDArray[np.uint64]

_MAX_CODE_FILES = 512
_BYTES = 20
"""Memory per citation while its bucket is sorted: its code, its position, and some of what is written next."""


class CitationCodes:
    """External sort of citations as integer codes, without repeats; `memory` bounds the bytes in memory at a time."""

    def __init__(self, folder: Path, *, papers: int, expected: int, memory: int) -> None:
        self.bits = code_bits(papers)
        self._papers = max(papers, 1)
        # twice as many as an even distribution needs: later papers cite more
        wanted = 1 if expected * _BYTES <= memory else -(-2 * expected * _BYTES // memory)
        number = min(wanted, _MAX_CODE_FILES, self._papers)
        self._width = -(-self._papers // number)
        self._buckets = _Buckets(folder, "codes", number, np.dtype(np.uint64))
        self.repeats = 0
        """Repeated citations that were dropped; final once all blocks were read."""

    def add(self, codes: Codes) -> None:
        """Add citation codes to be sorted, in memory or to the files of their citing rows."""
        self._buckets.add(codes, self._by_bucket)

    def blocks(self) -> Iterator[Codes]:
        """Yield every distinct citation code once, ascending, in blocks."""
        for bucket in range(self._buckets.number):
            codes = self._buckets.take(bucket)
            if len(codes):
                first = bucket * self._width
                count = _sort_rows(codes, self.bits, first, min(self._width, self._papers - first))
                self.repeats += len(codes) - count
                yield codes[:count]

    def _by_bucket(self, codes: Codes) -> tuple[Codes, NDArray[np.int64]]:
        ends, out = np.empty(self._buckets.number + 1, np.int64), np.empty(len(codes), np.uint64)
        _scatter(codes, self.bits, self._width, ends, out)
        return out, ends


def code_bits(papers: int) -> int:
    """Return the bits of the cited row in a citation's code, which is the citing row, then the cited row."""
    return max(papers - 1, 1).bit_length()


@compiled()
def _scatter(codes: Codes, bits: int, width: int, ends: NDArray[np.int64], out: Codes) -> None:
    """Group citation codes by bucket, keeping their order; those of bucket b go to out[ends[b]:ends[b + 1]]."""
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


@compiled()
def _sort_rows(codes: Codes, bits: int, first: int, rows: int) -> int:
    """Sort the codes of citing rows first .. first + rows - 1 in place, drop repeats, and return how many remain."""
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


@compiled()
def _sort(codes: Codes, start: int, stop: int) -> None:
    """Sort codes[start:stop] in place, by insertion where the reference list is short."""
    if stop - start > 64:
        codes[start:stop].sort()
        return
    for i in range(start + 1, stop):
        code, at = codes[i], i
        while at > start and codes[at - 1] > code:
            codes[at] = codes[at - 1]
            at -= 1
        codes[at] = code
