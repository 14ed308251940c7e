"""Pairs of several signals become a batch: left papers, right papers, further negatives, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weaving.bundle import WHOLE, Ints
from weaving.plan import Plan
from weaving.signals import Signals


class Start(Protocol):
    """What the start model knows of all papers."""

    def along(self, direction: NDArray[np.float64]) -> NDArray[np.float32]:
        """Where every paper lies in this direction, (papers,)."""

    @property
    def dimension(self) -> int: ...

    @property
    def nearest(self) -> NDArray[np.int32]:
        """(papers, neighbours), nearest first."""


@dataclass(frozen=True)
class Batch:
    """Text i and text i + pairs belong together."""

    papers: Ints
    """(texts,)"""

    views: Ints
    """(texts,) which part of the paper is read."""

    pairs: int


def shares_of(mix: Mapping[str, float], grouped: bool, random: np.random.Generator) -> NDArray[np.float64]:
    """The share of every signal of the mix in one batch; `grouped` draws a corpus and leaves its signals alone.

    >>> shares_of({"cite:p": 3, "cite:e": 1}, False, np.random.default_rng(0)).tolist()
    [0.75, 0.25]
    """
    shares = np.array(list(mix.values()), float)
    if grouped:
        corpora = np.array([name.partition(":")[2] for name in mix])
        names, place = np.unique(corpora, return_inverse=True)
        chances = np.bincount(place, shares) / shares.sum()
        shares = np.where(corpora == random.choice(names, p=chances), shares, 0)
    found: NDArray[np.float64] = shares / shares.sum()
    return found


def draw(plan: Plan, signals: Signals, start: Start, random: np.random.Generator) -> Batch:
    """A batch by seed alone: of every pair either paper may be the left one."""
    count = plan.batch * max(1, plan.topical)
    sizes = random.multinomial(count, shares_of(plan.mix, plan.grouped, random)).tolist()
    drawn = [_draw_signal(signals, name, size, random) for name, size in zip(plan.mix, sizes, strict=True)]
    papers, views = (np.concatenate(parts, axis=1) for parts in zip(*drawn, strict=True))  # (2, pairs) each
    if plan.topical > 1:
        line = start.along(random.standard_normal(start.dimension))[papers[0]]
        chosen = stretch(line, plan.batch, random)
        papers, views = papers[:, chosen], views[:, chosen]
    near = _near_papers(plan, start, papers[0], random)
    whole = np.full(len(near), WHOLE)
    return Batch(np.concatenate([*papers, near]), np.concatenate([*views, whole]), papers.shape[1])


def _draw_signal(signals: Signals, name: str, size: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    pairs = signals[name]
    at = pairs.draw(size, random)
    papers = np.stack([pairs.left[at], pairs.right[at]])  # (2, size)
    views = np.repeat(np.array(pairs.views)[:, None], size, axis=1)  # (2, size)
    swapped = random.random(size) < 0.5
    return np.where(swapped, papers[::-1], papers), np.where(swapped, views[::-1], views)


def stretch(line: NDArray[np.float32], size: int, random: np.random.Generator) -> Ints:
    """Places of `size` neighbouring numbers.

    >>> sorted(stretch(np.array([3.0, 1.0, 2.0]), 3, np.random.default_rng(0)).tolist())
    [0, 1, 2]
    """
    low = random.integers(0, len(line) - size + 1)
    return np.argsort(line, kind="stable")[low : low + size]


def _near_papers(plan: Plan, start: Start, left: Ints, random: np.random.Generator) -> Ints:
    """Papers at random ranks of the band, (pairs * hard,)."""
    if not plan.hard:
        return np.zeros(0, np.int64)
    ranks = random.integers(*plan.hard_band, (len(left), plan.hard))
    return start.nearest[left[:, None], ranks].astype(np.int64).ravel()
