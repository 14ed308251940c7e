"""From ids to rows: a sorted table of id keys, memory-mapped, one or two cache misses a lookup.

Keys are spread evenly (`hashing.py`), so their leading bits tell where to look: `starts[b]` is the
position of the first key whose leading bits are at least b.
"""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import open_numbers, write_numbers
from citeweave.errors import ArtefactError
from citeweave.hashing import Keys

Rows = NDArray[np.int32]
NOT_FOUND = -1


class IdIndex:
    """Sorted keys with the row each leads to."""

    def __init__(self, keys: Keys, rows: Rows, starts: NDArray[np.int64]) -> None:
        self.keys, self.rows, self._starts = keys, rows, starts

    @classmethod
    def open(cls, folder: Path) -> IdIndex:
        keys = open_numbers(folder / "key.npy", np.uint64)
        rows = open_numbers(folder / "row.npy", np.int32)
        starts = open_numbers(folder / "starts.npy", np.int64)
        # compiled code follows these numbers without looking: a damaged table must stop here
        buckets = len(starts) - 1
        sound = buckets > 1 and buckets & (buckets - 1) == 0 and len(keys) == len(rows)
        if not sound or starts[0] != 0 or starts[-1] != len(keys) or (np.diff(starts) < 0).any():
            raise ArtefactError(f"{folder} is damaged: its tables do not fit together; make the corpus again")
        return cls(keys, rows, starts)

    @classmethod
    def of(cls, keys: Keys, rows: Rows) -> IdIndex:
        """An index of sorted, distinct keys."""
        return cls(keys, rows, _starts_of(keys))

    def save(self, folder: Path) -> None:
        write_numbers(folder / "key.npy", self.keys)
        write_numbers(folder / "row.npy", self.rows, np.int32)
        write_numbers(folder / "starts.npy", self._starts)

    def rows_of(self, keys: Keys) -> Rows:
        """The row of every key, or -1."""
        out = np.empty(len(keys), np.int32)
        _look_up(np.ascontiguousarray(keys), self.keys, self.rows, self._starts, _shift(len(self._starts)), out)
        return out


def _starts_of(keys: Keys) -> NDArray[np.int64]:
    """About four keys a bucket; a power of two of buckets and one more entry for the end."""
    bits = max(1, min(32, int(np.log2(max(len(keys), 8) / 4))))
    edges = np.arange(1, 2**bits, dtype=np.uint64) << np.uint64(64 - bits)
    inner = np.searchsorted(keys, edges).astype(np.int64)
    return np.concatenate([[0], inner, [len(keys)]]).astype(np.int64)


def _shift(starts: int) -> np.uint64:
    return np.uint64(64 - (starts - 1).bit_length() + 1)


@numba.njit(cache=True, nogil=True)
def _look_up(wanted: Keys, keys: Keys, rows: Rows, starts: NDArray[np.int64], shift: np.uint64, out: Rows) -> None:
    for i in range(len(wanted)):
        key = wanted[i]
        bucket = key >> shift
        out[i] = NOT_FOUND
        for at in range(starts[bucket], starts[bucket + np.uint64(1)]):
            if keys[at] >= key:
                if keys[at] == key:
                    out[i] = rows[at]
                break
