"""The account of mining: how many anchors were used, why others were not, and how far each rule got.

>>> account = Shortfall()
>>> account.skip("no positive", 3)
>>> account.add(Shortfall(used=2, skipped={"no positive": 1}))
>>> account.used, account.skipped
(2, {'no positive': 4})

Parts: blocks of samples that are done, kept on disk until the whole run is.

Mixing sources: how many samples of each make the asked mixture, which ones, and their rules' numbers.

Pieces of a mining run: each is a file as soon as it is mined, and small enough not to take long.

    pieces = Pieces(work, units)
    parts = list(pieces.fill([(0, 16_384), (16_384, 20_000)], mine, Pace(30.0), advance))

    000000000000-000000000064-<hash of these units>.npz      named by what it holds: another memory makes other pieces

How large a piece is the clock decides, within the spans that fit the memory. What is mined of a unit does not depend on
its piece, so neither does the result. Knows nothing of anchors and rules.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import read_kept
from citeweave.core.files import write_whole
from citeweave.core.progress import Advance
from citeweave.core.randomness import mix
from citeweave.mining.draw import salt_of
from citeweave.mining.samples import Picks, SampleBlock


@dataclass
class Shortfall:
    """What became of the anchors, and how far each rule got."""

    used: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    """Papers that each rule was to choose, for the samples that were made ..."""

    got: dict[str, int] = field(default_factory=dict)
    """... and that it chose."""

    aspects: dict[str, dict[str, int]] = field(default_factory=dict)
    """Aspect -> reason -> anchors that have no sample in it."""

    def skip(self, reason: str, number: int) -> None:
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number

    def add(self, other: Shortfall) -> None:
        self.used += other.used
        for reason, number in other.skipped.items():
            self.skip(reason, number)
        pairs = [(self.asked, other.asked), (self.got, other.got)]
        pairs += [(self.aspects.setdefault(aspect, {}), reasons) for aspect, reasons in other.aspects.items()]
        for mine, theirs in pairs:
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number


# Parts: blocks of samples that are done, kept on disk until the whole run is.

_PICKS = ("offsets", "rows", "rules", "scores")
_PLAIN = ("anchors", "aspects", "tasks", "context_offsets", "contexts")


def part_bytes(block: SampleBlock, account: Shortfall) -> bytes:
    """A part as its file holds it."""
    columns = {name: getattr(block, name) for name in _PLAIN}
    columns |= {f"up_{name}": getattr(block.positives, name) for name in _PICKS}
    columns |= {f"down_{name}": getattr(block.negatives, name) for name in _PICKS}
    columns["account"] = np.frombuffer(json.dumps(asdict(account)).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


def read_part(path: Path) -> tuple[SampleBlock, Shortfall]:
    picked = [f"{side}_{name}" for side in ("up", "down") for name in _PICKS]
    columns = read_kept(path, [*_PLAIN, *picked, "account"])
    positives, negatives = (Picks(*(columns[f"{side}_{name}"] for name in _PICKS)) for side in ("up", "down"))
    plain = {name: columns[name] for name in _PLAIN}
    account = Shortfall(**json.loads(columns["account"].tobytes()))
    return SampleBlock(positives=positives, negatives=negatives, **plain), account


# Mixing sources: how many samples of each make the asked mixture, which ones, and their rules' numbers.


def mixture_counts(available: list[int], weights: list[float]) -> list[int]:
    """How many samples of every source make the asked mixture, as many as the scarcest allows.

    >>> mixture_counts([100, 40], [0.5, 0.5]), mixture_counts([100, 40], [0.8, 0.2]), mixture_counts([7], [1.0])
    ([40, 40], [100, 25], [7])
    """
    if len(available) == 1:
        return list(available)
    scale = min(count / weight for count, weight in zip(available, weights, strict=True))
    return [min(count, round(weight * scale)) for count, weight in zip(available, weights, strict=True)]


def key_limit(parts: Sequence[Path], seed: int, share: int) -> np.uint64 | None:
    """The largest key of the samples that stay in a mixture, None where all do."""
    keys = np.concatenate([np.zeros(0, np.uint64), *(sample_keys(read_part(part)[0], seed) for part in parts)])
    if share >= len(keys):
        return None
    return np.uint64(np.sort(keys)[share - 1] if share else 0)


def sample_keys(block: SampleBlock, seed: int) -> NDArray[np.uint64]:
    salt = np.full(len(block), salt_of(seed, "mining", "mixture"), np.uint64)
    first = block.positives.rows[np.minimum(block.positives.offsets[:-1], max(len(block.positives.rows) - 1, 0))]
    return mix(
        mix(salt, block.anchors.astype(np.uint64)), mix(block.aspects.astype(np.uint64), first.astype(np.uint64))
    )


def renumber(block: SampleBlock, base: int, places: Sequence[int]) -> SampleBlock:
    """Rule numbers and aspects of one task among those of all: rules begin at `base`, aspect i is at places[i]."""
    up, down = (
        dataclasses.replace(picks, rules=(picks.rules + base).astype(np.uint8))
        for picks in (block.positives, block.negatives)
    )
    aspects = np.array(places, np.uint8)[block.aspects]
    return dataclasses.replace(block, positives=up, negatives=down, aspects=aspects)


# Pieces of a mining run: each is a file as soon as it is mined, and small enough not to take long.

FIRST, SMALLEST = 64, 16
"""Units of the first piece, and of the smallest: beyond that a piece is mostly preparation."""


class BlockPace:
    """How many units take about a third of the time after which work is saved.

    >>> seconds = iter([0.0, 5.0, 5.0, 25.0])
    >>> pace = BlockPace(30.0, lambda: next(seconds))
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
        self,
        spans: list[tuple[int, int]],
        mine: Callable[[NDArray[np.int64]], bytes],
        pace: BlockPace,
        advance: Advance,
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
