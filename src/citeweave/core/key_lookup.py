"""Lookup of 64-bit keys: the places of some keys among others.

    lookup = KeyLookup(keys)         sorted once
    lookup.find(wanted)              places, -1 where a key is not there

Keys of ids and texts are made by `hash_keys.py`. Needs numpy only, so that a bundle of training data can use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def find_keys(wanted: NDArray[Any], keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each wanted key among some keys, -1 where it is not among them.

    >>> find_keys(np.array([7, 9], np.uint64), np.array([9, 8], np.uint64)).tolist()
    [-1, 0]
    """
    return KeyLookup(keys).find(wanted)


class KeyLookup:
    """Looks up the places of keys; of equal keys the first place is found."""

    def __init__(self, keys: NDArray[Any]) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, wanted: NDArray[Any]) -> NDArray[np.int64]:
        """Return the place of each wanted key, -1 where it is not there."""
        if not len(self._keys):
            return np.full(wanted.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[at] == wanted, self._order[at], -1)
