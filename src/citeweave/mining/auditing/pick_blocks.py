"""Walking through samples of any number: some samples at a time, their picks as flat columns.

    for block in walk(samples, "negatives"):
        block.anchors, block.rows, block.rules      one entry a pick

A block holds whole samples. What is computed over blocks must not depend on where they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.hashing import mix
from citeweave.mining.drawing import salt_of
from citeweave.mining.sample_blocks import Picks
from citeweave.mining.samples import Samples

PICKS = 1 << 20
"""Picks of a block, unless one sample has more."""


@dataclass(frozen=True, slots=True)
class PickBlock:
    """The picks of one side of some samples; every column of shape (picks,)."""

    first: int
    """Number of the first pick among all of its side."""

    samples: NDArray[np.int64]
    """The sample of each pick."""

    anchors: NDArray[np.int64]
    rows: NDArray[np.int64]
    rules: NDArray[np.uint8]
    scores: NDArray[np.float32]
    aspects: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Some of the picks, by a share for every rule, shape (rules,); which ones depends on their places alone."""
        if (shares >= 1).all():
            return np.arange(len(self))
        places = np.arange(self.first, self.first + len(self), dtype=np.uint64)
        keys = mix(places, np.full(len(self), salt_of(0, "picks to look at"), np.uint64))
        return np.flatnonzero(keys.astype(np.float64) / 2.0**64 <= shares[self.rules])


def spans(samples: Samples) -> Iterator[tuple[int, int]]:
    """Parts of the samples that hold at most `PICKS` picks of both sides, or one sample."""
    ends = samples.positives.offsets + samples.negatives.offsets  # (samples + 1,)
    first = 0
    while first < len(samples):
        last = int(np.searchsorted(ends, ends[first] + PICKS, "right")) - 1
        last = min(max(last, first + 1), len(samples))
        yield first, last
        first = last


def walk(samples: Samples, side: str) -> Iterator[PickBlock]:
    """All picks of one side, block by block, in order."""
    for first, last in spans(samples):
        yield take_span(samples, side, first, last)


def take_span(samples: Samples, side: str, first: int, last: int) -> PickBlock:
    """The picks of one side of the samples first to last, the last not among them."""
    picks: Picks = getattr(samples, side)
    ends = picks.offsets[first : last + 1]
    owners = np.repeat(np.arange(first, last), np.diff(ends))
    span = slice(int(ends[0]), int(ends[-1]))
    return PickBlock(
        first=span.start,
        samples=owners,
        anchors=samples.anchors[owners].astype(np.int64),
        rows=picks.rows[span].astype(np.int64),
        rules=np.asarray(picks.rules[span]),
        scores=np.asarray(picks.scores[span]),
        aspects=samples.aspects[owners],
    )
