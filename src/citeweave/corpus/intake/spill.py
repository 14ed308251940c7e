"""Sorting more records than memory holds: scatter them over files by key range, then sort file by file.

    spill = Spill(folder, dtype, key="code", top=2**40, expected=10**9, memory=2**30)
    spill.add(records)                 # any number of times
    for block in spill.blocks():       # every record once, by ascending key; equal keys never in two blocks
        ...

Does not merge or count anything; its users do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Records = NDArray[np.void]

_MOST_FILES = 256


class Spill:
    """Structured records with an unsigned key below `top`, handed back in order of that key.

    Records of equal key keep the order in which they were added. `memory` bounds the bytes held at a
    time if keys are spread evenly; `expected` is an upper bound of the number of records.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], *, key: str, top: int, expected: int, memory: int) -> None:
        self._dtype, self._key, self._top = dtype, key, max(top, 1)
        # sorting needs the records, their order and one sorted copy at the same time
        bytes_needed = expected * (2 * dtype.itemsize + 16)
        self._buckets = min(max(1, -(-bytes_needed // max(memory, 1))), _MOST_FILES)
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
