"""Some samples in memory: anchors, and ragged lists of what was picked for them.

>>> block = block_of([7, 8], positives=[[1, 2], [3]], negatives=[[4], []])
>>> block.positives.of(0).tolist(), take_samples(block, np.array([False, True])).anchors.tolist()
([1, 2], [8])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Picks:
    """The papers picked for each of some samples, ragged."""

    offsets: NDArray[np.int64]
    """Shape (samples + 1,)."""

    rows: NDArray[np.int32]
    rules: NDArray[np.uint8]
    """Which rule chose it: index into `Names.rules`."""

    scores: NDArray[np.float32]
    """What the rule ranked by (similarity, co-citation count, ...), higher is nearer; NaN where it did not rank."""

    def of(self, sample: int) -> NDArray[np.int32]:
        return self.rows[self.offsets[sample] : self.offsets[sample + 1]]

    def owners(self) -> NDArray[np.int64]:
        """The sample of every pick, shape (picks,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True, slots=True)
class Alignment:
    """The sentences in which an anchor and its positive are alike; all parallel to the positives' picks, (picks,).

    Where a pair is not aligned sentences and contexts are -1, similarities NaN.
    """

    anchor_sentences: NDArray[np.int16]
    """Number of the sentence of the anchor's abstract, as `corpus.text.sentence_texts` splits it."""

    sentences: NDArray[np.int16]
    """The same of the positive's abstract."""

    anchor_contexts: NDArray[np.int64]
    """The context to which the anchor's sentence is nearest, -1 also where alignment is by abstracts."""

    contexts: NDArray[np.int64]
    """The same of the positive's sentence."""

    anchor_similarities: NDArray[np.float32]
    """What the anchor's sentence reached: dot product with its context, or with the other sentence."""

    similarities: NDArray[np.float32]

    @property
    def aligned(self) -> NDArray[np.bool_]:
        """Which picks have sentences."""
        return self.sentences >= 0


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Some samples in memory."""

    anchors: NDArray[np.int32]
    positives: Picks
    negatives: Picks
    aspects: NDArray[np.uint8]
    tasks: NDArray[np.uint8]
    context_offsets: NDArray[np.int64]
    contexts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.anchors)


def take_samples(block: SampleBlock, mask: NDArray[np.bool_]) -> SampleBlock:
    """Only some samples of a block; shape of the mask (samples,)."""

    def ragged(offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        counts = np.diff(offsets)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[mask])]), np.repeat(mask, counts)

    def picks(old: Picks) -> Picks:
        offsets, kept = ragged(old.offsets)
        return Picks(offsets, old.rows[kept], old.rules[kept], old.scores[kept])

    offsets, kept = ragged(block.context_offsets)
    return SampleBlock(
        anchors=block.anchors[mask],
        positives=picks(block.positives),
        negatives=picks(block.negatives),
        aspects=block.aspects[mask],
        tasks=block.tasks[mask],
        context_offsets=offsets,
        contexts=block.contexts[kept],
    )


def block_of(
    anchors: Sequence[int],
    positives: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[int]],
    *,
    positive_rule: int = 0,
    negative_rule: int = 0,
) -> SampleBlock:
    """Samples from plain lists, where one rule chose all positives and another all negatives."""
    number = len(anchors)
    return SampleBlock(
        anchors=np.array(anchors, np.int32),
        positives=_picks_of(positives, positive_rule),
        negatives=_picks_of(negatives, negative_rule),
        aspects=np.zeros(number, np.uint8),
        tasks=np.zeros(number, np.uint8),
        context_offsets=np.zeros(number + 1, np.int64),
        contexts=np.zeros(0, np.int64),
    )


def _picks_of(lists: Sequence[Sequence[int]], rule: int) -> Picks:
    rows = np.array([row for picks in lists for row in picks], np.int32)
    offsets = np.cumsum([0, *(len(picks) for picks in lists)]).astype(np.int64)
    return Picks(offsets, rows, np.full(len(rows), rule, np.uint8), np.full(len(rows), np.nan, np.float32))
