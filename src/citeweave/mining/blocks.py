"""Blocks of mined samples: their files, counts of skipped anchors and unmet rules, mixtures of tasks.

    files = BlockFiles(work, units)
    parts = list(files.fill([(0, 16_384), (16_384, 20_000)], mine, BlockPace(30.0), advance))

    000000000000-000000000064-<hash of these units>.npz      named by its units: another memory makes other blocks

A block is a file as soon as it is mined. Its size is set by the clock, within the spans that fit the memory, so that an
interruption costs little. The samples of an anchor do not depend on its block, so neither does the result.

>>> counts = MiningCounts()
>>> counts.skip("no positive", 3)
>>> counts.add(MiningCounts(used=2, skipped={"no positive": 1}))
>>> counts.used, counts.skipped
(2, {'no positive': 4})

Knows nothing of how rules select papers.
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

from citeweave.core.columns import read_saved_arrays
from citeweave.core.files import write_atomically
from citeweave.core.hash_keys import mix_keys
from citeweave.core.progress import Advance
from citeweave.mining.draw import derive_salt
from citeweave.mining.samples import Picks, SampleBlock


@dataclass
class MiningCounts:
    """Counts of mined blocks: anchors used and skipped by reason, papers requested and selected by each rule."""

    used: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    """Papers that each rule was to select, for the samples that were made ..."""

    got: dict[str, int] = field(default_factory=dict)
    """... and papers that it selected."""

    aspects: dict[str, dict[str, int]] = field(default_factory=dict)
    """Aspect -> reason -> anchors without a sample in this aspect."""

    def skip(self, reason: str, number: int) -> None:
        """Count anchors that were skipped for a reason."""
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number

    def add(self, other: MiningCounts) -> None:
        """Add the counts of another mined block or task."""
        self.used += other.used
        for reason, number in other.skipped.items():
            self.skip(reason, number)
        pairs = [(self.asked, other.asked), (self.got, other.got)]
        pairs += [(self.aspects.setdefault(aspect, {}), reasons) for aspect, reasons in other.aspects.items()]
        for own, others in pairs:
            for name, number in others.items():
                own[name] = own.get(name, 0) + number


# One saved block of samples.

_PICKS = ("offsets", "rows", "rules", "scores")
_PLAIN = ("anchors", "aspects", "tasks", "context_offsets", "contexts")


def encode_part(block: SampleBlock, counts: MiningCounts) -> bytes:
    """Encode a mined block of samples and its counts as the bytes of its file."""
    columns = {name: getattr(block, name) for name in _PLAIN}
    columns |= {f"up_{name}": getattr(block.positives, name) for name in _PICKS}
    columns |= {f"down_{name}": getattr(block.negatives, name) for name in _PICKS}
    columns["account"] = np.frombuffer(json.dumps(asdict(counts)).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


def read_part(path: Path) -> tuple[SampleBlock, MiningCounts]:
    """Read a saved block of mined samples and its counts."""
    picked = [f"{side}_{name}" for side in ("up", "down") for name in _PICKS]
    columns = read_saved_arrays(path, [*_PLAIN, *picked, "account"])
    positives, negatives = (Picks(*(columns[f"{side}_{name}"] for name in _PICKS)) for side in ("up", "down"))
    plain = {name: columns[name] for name in _PLAIN}
    counts = MiningCounts(**json.loads(columns["account"].tobytes()))
    return SampleBlock(positives=positives, negatives=negatives, **plain), counts


# Mixtures of several tasks.


def mixture_counts(available: list[int], weights: list[float]) -> list[int]:
    """Return how many samples of each task's blocks make the requested mixture, as many as the scarcest allows.

    >>> mixture_counts([100, 40], [0.5, 0.5]), mixture_counts([100, 40], [0.8, 0.2]), mixture_counts([7], [1.0])
    ([40, 40], [100, 25], [7])
    """
    if len(available) == 1:
        return list(available)
    scale = min(count / weight for count, weight in zip(available, weights, strict=True))
    return [min(count, round(weight * scale)) for count, weight in zip(available, weights, strict=True)]


def key_limit(parts: Sequence[Path], seed: int, count: int) -> np.uint64 | None:
    """Return the largest key of the `count` samples of a task that stay in a mixture, None if all do."""
    keys = np.concatenate([np.zeros(0, np.uint64), *(sample_keys(read_part(part)[0], seed) for part in parts)])
    if count >= len(keys):
        return None
    return np.uint64(np.sort(keys)[count - 1] if count else 0)


def sample_keys(block: SampleBlock, seed: int) -> NDArray[np.uint64]:
    """Return a random key per sample of a block, by which the samples of a mixture are drawn."""
    salt = np.full(len(block), derive_salt(seed, "mining", "mixture"), np.uint64)
    first = block.positives.rows[np.minimum(block.positives.offsets[:-1], max(len(block.positives.rows) - 1, 0))]
    return mix_keys(
        mix_keys(salt, block.anchors.astype(np.uint64)),
        mix_keys(block.aspects.astype(np.uint64), first.astype(np.uint64)),
    )


def renumber(block: SampleBlock, base: int, places: Sequence[int]) -> SampleBlock:
    """Renumber rules and aspects in a task's block of samples: rules from `base` on, aspect i as places[i]."""
    up, down = (
        dataclasses.replace(picks, rules=(picks.rules + base).astype(np.uint8))
        for picks in (block.positives, block.negatives)
    )
    aspects = np.array(places, np.uint8)[block.aspects]
    return dataclasses.replace(block, positives=up, negatives=down, aspects=aspects)


# The files of all blocks.

FIRST_SIZE, MIN_SIZE = 64, 16
"""Units of the first block, and of the smallest: below that a block is mostly overhead."""


class BlockPace:
    """Chooses the size of the next block to mine so that it takes about a third of the time after which work is saved.

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
        self.size, self._every, self._clock, self._begun = FIRST_SIZE, every, clock, 0.0

    def begin(self) -> None:
        self._begun = self._clock()

    def end(self) -> None:
        """Make the next block to mine larger or smaller, by the time this one took."""
        seconds = self._clock() - self._begun
        if seconds < self._every / 4:
            self.size *= 2
        elif seconds > self._every / 2:
            self.size = max(MIN_SIZE, self.size // 2)


class BlockFiles:
    """The block files of a mining run over some units (anchors or pairs), (units,)."""

    def __init__(self, folder: Path, units: NDArray[np.int64]) -> None:
        self._folder, self._units = folder, units

    def path(self, first: int, last: int) -> Path:
        """Return the block file of the units from `first` up to `last`."""
        name = hashlib.sha256(self._units[first:last].tobytes()).hexdigest()[:32]
        return self._folder / f"{first:012d}-{last:012d}-{name}.npz"

    def split(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Split spans of units so that each is a block of samples that an earlier run saved, or is missing completely."""
        saved, parts = self._saved(), list[tuple[int, int]]()
        starts = sorted(saved)
        for start, end in spans:
            while start < end:
                following = bisect_right(starts, start)
                last = saved.get(start, 0)
                if not start < last <= end:
                    last = min([end, *starts[following : following + 1]])
                parts.append((start, last))
                start = last
        return parts

    def fill(
        self,
        spans: list[tuple[int, int]],
        mine: Callable[[NDArray[np.int64]], bytes],
        pace: BlockPace,
        advance: Advance,
    ) -> Iterator[Path]:
        """Yield the block files of all units in order; blocks that no earlier run has saved are mined now."""
        for start, end in self.split(spans):
            while start < end:
                last = end
                if not self.path(start, end).exists():
                    last = min(end, start + pace.size)
                    pace.begin()
                    write_atomically(self.path(start, last), mine(self._units[start:last]))
                    pace.end()
                yield self.path(start, last)
                advance(last - start)
                start = last

    def _saved(self) -> dict[int, int]:
        """Return first and last unit of the saved blocks; of several with the same start, the longest."""
        names = sorted(path.name.split("-") for path in self._folder.glob("*-*-*.npz"))
        spans = [(int(first), int(last)) for first, last, _ in names if first.isdecimal() and last.isdecimal()]
        return {first: last for first, last in spans if self.path(first, last).exists()}
