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
            yield records[np.argsort(records[self._key], kind="stable")]

    def _bucket_of(self, keys: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.int64]:
        # in floating point: 64-bit keys times the number of buckets would overflow integers; monotone either way
        share = keys.astype(np.float64) / float(self._top)
        return np.minimum((share * self._buckets).astype(np.int64), self._buckets - 1)
