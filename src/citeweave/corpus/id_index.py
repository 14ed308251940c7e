"""From ids to rows: a sorted, memory-mapped table of id keys, with one or two cache misses per lookup.

    >>> index = IdIndex.of(np.array([3, 7, 2**63], np.uint64), np.array([2, 0, 1], np.int32))
    >>> index.rows_of(np.array([7, 8, 2**63], np.uint64)).tolist()
    [0, -1, 1]

Keys are hashes of ids (`core/hash_keys.py`). Corpora and indexes have one such table each, which `merge.py` and
`search/generation.py` write. Does not know the ids themselves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import offsets_fit, open_numbers, write_numbers
from citeweave.core.compiled import compiled, numba_is_loaded
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import Keys

Rows = NDArray[np.int32]
NOT_FOUND = -1
_FEW_KEYS, _MANY_KEYS = 200, 1_000_000
"""Keys that Python, and that NumPy, looks up sooner than numba is loaded."""


class IdIndex:
    """Maps paper ids to rows: sorted keys of ids, each with the row of its paper.

    Keys are evenly distributed (`core/hash_keys.py`), so their leading bits say where to look: `starts[b]` is the
    position of the first key whose leading bits are at least b.
    """

    def __init__(self, keys: Keys, rows: Rows, starts: NDArray[np.int64]) -> None:
        self.keys, self.rows, self._starts = keys, rows, starts

    @classmethod
    def open(cls, folder: Path) -> IdIndex:
        """Open the id index in the folder `index/` of a corpus, memory-mapped."""
        keys = open_numbers(folder / "key.npy", np.uint64)
        rows = open_numbers(folder / "row.npy", np.int32)
        starts = open_numbers(folder / "starts.npy", np.int64)
        # compiled code uses these numbers unchecked: a damaged table must be refused here
        buckets = len(starts) - 1
        sound = buckets > 1 and buckets & (buckets - 1) == 0 and len(keys) == len(rows)
        if not (sound and offsets_fit(starts, buckets, len(keys))):
            raise ArtifactError(f"{folder} is damaged: its tables do not fit together; make the corpus again")
        return cls(keys, rows, starts)

    @classmethod
    def of(cls, keys: Keys, rows: Rows) -> IdIndex:
        """Build an id index from sorted, distinct keys and their rows."""
        # about four keys per bucket, a power of two of buckets, and the end
        bits = max(1, min(32, int(np.log2(max(len(keys), 8) / 4))))
        edges = np.arange(1, 2**bits, dtype=np.uint64) << np.uint64(64 - bits)
        return cls(keys, rows, np.concatenate([[0], np.searchsorted(keys, edges), [len(keys)]]))

    def save(self, folder: Path) -> None:
        write_numbers(folder / "key.npy", self.keys)
        write_numbers(folder / "row.npy", self.rows, np.int32)
        write_numbers(folder / "starts.npy", self._starts)

    def rows_of(self, keys: Keys) -> Rows:
        """Return the row of every id key, -1 where the index does not have it."""
        out = np.empty(len(keys), np.int32)
        shift = np.uint64(65 - (len(self._starts) - 1).bit_length())
        if len(self.keys) and _FEW_KEYS < len(keys) <= _MANY_KEYS and not numba_is_loaded():
            places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            return np.where(self.keys[places] == keys, self.rows[places], np.int32(NOT_FOUND))
        run = _look_up.small if len(keys) <= _FEW_KEYS else _look_up
        run(np.ascontiguousarray(keys), self.keys, self.rows, self._starts, shift, out)
        return out


@compiled()
def _look_up(wanted: Keys, keys: Keys, rows: Rows, starts: NDArray[np.int64], shift: np.uint64, out: Rows) -> None:
    """Write the row of every wanted id key to `out`, -1 where there is none."""
    for i in range(len(wanted)):
        key = wanted[i]
        bucket = key >> shift
        out[i] = NOT_FOUND
        for at in range(starts[bucket], starts[bucket + np.uint64(1)]):
            if keys[at] >= key:
                if keys[at] == key:
                    out[i] = rows[at]
                break
