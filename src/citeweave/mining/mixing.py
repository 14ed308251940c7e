"""Mixing sources: how many samples of each make the asked mixture, which ones, and their rules' numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.hashing import mix
from citeweave.mining.drawing import salt_of
from citeweave.mining.parts import read_part
from citeweave.mining.sample_blocks import SampleBlock


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
