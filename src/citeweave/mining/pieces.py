"""Pieces of a mining run: each is a file as soon as it is mined, and small enough not to take long.

    pieces = Pieces(work, units)
    parts = list(pieces.fill([(0, 16_384), (16_384, 20_000)], mine, Pace(30.0), advance))

    000000000000-000000000064-<hash of these units>.npz      named by what it holds: another memory makes other pieces

How large a piece is the clock decides, within the spans that fit the memory. What is mined of a unit does not depend on
its piece, so neither does the result. Knows nothing of anchors and rules.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.files import write_whole
from citeweave.progress import Advance

FIRST, SMALLEST = 64, 16
"""Units of the first piece, and of the smallest: beyond that a piece is mostly preparation."""


class Pace:
    """How many units take about a third of the time after which work is saved.

    >>> seconds = iter([0.0, 5.0, 5.0, 25.0])
    >>> pace = Pace(30.0, lambda: next(seconds))
    >>> sizes = [pace.size]
    >>> for _ in range(2):
    ...     pace.begin()
    ...     pace.end()
    ...     sizes.append(pace.size)
    >>> sizes
    [64, 128, 64]
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.size, self._every, self._clock, self._begun = FIRST, every, clock, 0.0

    def begin(self) -> None:
        self._begun = self._clock()

    def end(self) -> None:
        """A piece of this size is done: the next one is larger or smaller."""
        seconds = self._clock() - self._begun
        if seconds < self._every / 4:
            self.size *= 2
        elif seconds > self._every / 2:
            self.size = max(SMALLEST, self.size // 2)


class Pieces:
    """The files of a run over some units, (units,)."""

    def __init__(self, folder: Path, units: NDArray[np.int64]) -> None:
        self._folder, self._units = folder, units

    def path(self, first: int, last: int) -> Path:
        """The file of the units from `first` up to `last`."""
        name = hashlib.sha256(self._units[first:last].tobytes()).hexdigest()[:32]
        return self._folder / f"{first:012d}-{last:012d}-{name}.npz"

    def divided(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Spans in the same order, cut so that each is a piece which an earlier run has left, or lacks completely."""
        saved, found = self._saved(), list[tuple[int, int]]()
        starts = sorted(saved)
        for start, end in spans:
            while start < end:
                following = bisect_right(starts, start)
                last = saved.get(start, 0)
                if not start < last <= end:
                    last = min([end, *starts[following : following + 1]])
                found.append((start, last))
                start = last
        return found

    def fill(
        self, spans: list[tuple[int, int]], mine: Callable[[NDArray[np.int64]], bytes], pace: Pace, advance: Advance
    ) -> Iterator[Path]:
        """The files of all units in order; what no earlier run has left is mined now, within the spans."""
        for start, end in self.divided(spans):
            while start < end:
                last = end
                if not self.path(start, end).exists():
                    last = min(end, start + pace.size)
                    pace.begin()
                    write_whole(self.path(start, last), mine(self._units[start:last]))
                    pace.end()
                yield self.path(start, last)
                advance(last - start)
                start = last

    def _saved(self) -> dict[int, int]:
        """First and last unit of the pieces that an earlier run has left; of several that begin alike, the longest."""
        names = sorted(path.name.split("-") for path in self._folder.glob("*-*-*.npz"))
        spans = [(int(first), int(last)) for first, last, _ in names if first.isdecimal() and last.isdecimal()]
        return {first: last for first, last in spans if self.path(first, last).exists()}
