"""One task of a mining run: which anchors it has, and the samples of a block of them.

    run = TaskRun(rules, material, number=0, name="", asked=None)
    units, pairs = run.units()
    mine_block(run, units[:16_384], pairs)        bytes: the part of a run, as its file holds it

Knows no files and no workers: `mine.py` and `remote.py` do.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.hashing import mix
from citeweave.mining.contexts import CocitedPairs, cocited_pairs
from citeweave.mining.drawing import Lists, salt_of
from citeweave.mining.following import follow
from citeweave.mining.material import Material
from citeweave.mining.parts import part_bytes
from citeweave.mining.rules import MiningRules
from citeweave.mining.sample_blocks import SampleBlock
from citeweave.mining.shortfall import Shortfall
from citeweave.mining.sources import Block


@dataclass
class TaskRun:
    """One task: its rules followed over all its anchors."""

    rules: MiningRules
    material: Material
    number: int
    name: str
    asked: NDArray[np.int64] | None
    before: Corpus | None = None
    account: Shortfall = field(default_factory=Shortfall)
    parts: list[Path] = field(default_factory=list)
    samples: int = 0
    contexts: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"mining {self.name}".strip()

    def units(self) -> tuple[NDArray[np.int64], CocitedPairs | None]:
        """The anchors in order; with the pairs where they come from contexts."""
        material, rules = self.material, self.rules
        if rules.anchors_per == "contexts":
            pairs = cocited_pairs(
                material.corpus, material.in_pool, rules.contexts, seed=material.seed, before=self.before
            )
            self.contexts = {"contexts kept": pairs.kept, "contexts rejected": pairs.rejected}
            keep = np.arange(len(pairs.anchors)) if self.asked is None else np.flatnonzero(np.isin(pairs.anchors, self.asked))  # fmt: skip
            self.account.skip("anchor was not asked for", len(pairs.anchors) - len(keep))
            return self._drawn(keep), pairs
        if self.asked is None:
            anchors = material.pool.astype(np.int64)
            self.account.skip("no text", material.asked_for - len(anchors))
        else:
            anchors = self.asked[material.has_text[self.asked]]
            self.account.skip("no text", len(self.asked) - len(anchors))
        return self._drawn(anchors), None

    def _drawn(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """As many as the rules ask for."""
        drawn = _draw_units(units, self.rules.anchors, self.material.seed)
        self.account.skip("not drawn: mining.anchors has a number", len(units) - len(drawn))
        return drawn


def _draw_units(units: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """All of them, or so many drawn by key, in ascending order."""
    units = np.sort(units)
    if not count or count >= len(units):
        return units
    keys = mix(units.astype(np.uint64), np.full(len(units), salt_of(seed, "mining", "anchors"), np.uint64))
    return np.sort(units[np.argsort(keys, kind="stable")[:count]])


def mine_block(run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None) -> bytes:
    """Follow a task's rules for some of its anchors, or of its pairs: a part as its file holds it."""
    return part_bytes(*_follow_span(run, units, pairs))


def _follow_span(run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None) -> tuple[SampleBlock, Shortfall]:
    if pairs is None:
        return follow(run.rules, Block(units, run.material, task=run.name), task=run.number)
    positives = pairs.positives[units]
    given = Lists(
        np.arange(len(units) + 1, dtype=np.int64), positives, np.diff(pairs.offsets)[units].astype(np.float32)
    )
    block, account = follow(
        run.rules,
        Block(pairs.anchors[units].astype(np.int64), run.material, task=run.name, given=given),
        task=run.number,
    )
    return _with_contexts(block, units, pairs), account


def _with_contexts(block: SampleBlock, units: NDArray[np.int64], pairs: CocitedPairs) -> SampleBlock:
    """Put the citing sentences of each pair beside its sample; samples keep the order of their pairs."""
    ends = {(int(pairs.anchors[unit]), int(pairs.positives[unit])): int(unit) for unit in units}
    found = [
        ends[int(anchor), int(block.positives.rows[block.positives.offsets[i]])]
        for i, anchor in enumerate(block.anchors)
    ]
    used = np.array(found, np.int64)
    counts = np.diff(pairs.offsets)[used]
    places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return dataclasses.replace(
        block,
        context_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        contexts=pairs.contexts[np.repeat(pairs.offsets[used], counts) + places],
    )
