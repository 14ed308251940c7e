"""Ids that look like one that an index does not have: those around its place among the sorted ids of each segment.

    near_ids([(segment.ids, segment.alive)], "doi:10.1/xz")        "; did you mean 'doi:10.1/x'?"

A few hundred are looked at, whatever the number of papers. An id that is wrong in its first signs finds nothing.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_NEAR, _AROUND = 3, 200
"""Ids that are told, and how many are looked at before and behind the place."""


def near_ids(segments: Iterable[tuple[Sequence[str], NDArray[np.bool_]]], id: str) -> str:
    """The end of a message about an id that is not there; of every segment its sorted ids, and which of them are alive."""
    around: list[str] = []
    for ids, alive in segments:
        place = bisect_left(ids, id)
        low, high = max(0, place - _AROUND), min(len(ids), place + _AROUND)
        around += [known for known, is_there in zip(ids[low:high], alive[low:high].tolist(), strict=True) if is_there]
    near = difflib.get_close_matches(id[:200], around, _NEAR)
    if near:
        return f"; did you mean {', '.join(map(repr, near))}?"
    return f" with ids such as {min(around)!r}" if around else ""
