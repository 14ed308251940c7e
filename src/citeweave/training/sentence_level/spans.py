"""Where the sentences of papers are among their tokens, and which sentences of two papers are aligned.

    paper 0   [CLS] title [SEP] sentence sentence [SEP]        starts 4, 9   ends 9, 15
    rows of a batch of papers 0 and 1:   0: paper 0   1, 2: its sentences   3: paper 1   4: its sentence

    >>> spans = SentenceSpans(np.array([0, 2, 3]), np.array([4, 9, 1]), np.array([9, 15, 5]), np.array([0, 1, 0]))
    >>> rows = paper_rows(spans, np.array([0, 1]))
    >>> rows.own.tolist(), rows.sentences(np.array([1, 0])).tolist()
    ([0, 3], [[4, -1], [1, 2]])

Plain arrays, needs numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentenceSpans:
    """The sentences of every paper of the data; those of paper i are from offsets[i] up to offsets[i + 1]."""

    offsets: Numbers
    """Shape (papers + 1,)."""

    starts: Numbers
    """First token of every sentence, shape (sentences,)."""

    ends: Numbers
    numbers: Numbers
    """Which sentence of its abstract it is, from 0; -1 where the whole text stands for its sentences."""

    def counts(self) -> Numbers:
        return np.diff(self.offsets)

    def places(self, papers: Numbers) -> Numbers:
        """Which sentences are those of these papers, one paper after the other."""
        counts = self.counts()[papers]
        ends = np.cumsum(counts)
        within: Numbers = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        return within + np.repeat(self.offsets[papers], counts)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of papers with the sentence of each that is treated as aligned to the other's."""

    keys: NDArray[np.uint64]
    """The pairs, ascending, see `pair_keys`."""

    sentences: Numbers
    """Shape (pairs, 2): places among the sentences of the anchor and of the positive."""

    def find(self, anchors: Numbers, positives: Numbers) -> Numbers:
        """The aligned sentences of these pairs, shape (pairs, 2), -1 where there are none."""
        found = np.full((len(anchors), 2), -1, np.int64)
        if len(self.keys):
            wanted = pair_keys(anchors, positives)
            at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
            known = self.keys[at] == wanted
            found[known] = self.sentences[at[known]]
        return found


def pair_keys(anchors: Numbers, positives: Numbers) -> NDArray[np.uint64]:
    """One number for two papers."""
    return (anchors.astype(np.uint64) << np.uint64(32)) | positives.astype(np.uint64)


def make_alignment(anchors: Numbers, positives: Numbers, sentences: Numbers) -> Alignment:
    """Of pairs in any order; a pair that comes again keeps its first sentences.

    >>> make_alignment(np.array([7, 2]), np.array([1, 3]), np.array([[0, 4], [5, 6]])).find(np.array([2]), np.array([3]))
    array([[5, 6]])
    """
    keys, first = np.unique(pair_keys(anchors, positives), return_index=True)
    return Alignment(keys, sentences[first])


@dataclass(frozen=True, slots=True)
class PaperRows:
    """Rows of a matrix that has for each of some papers its own vector and then, maybe, those of its sentences."""

    own: Numbers
    """Shape (papers,)."""

    counts: Numbers
    """Sentences of every paper, shape (papers,)."""

    @property
    def total(self) -> int:
        return len(self.counts) + int(self.counts.sum())

    def of(self, papers: Numbers) -> Numbers:
        """All rows of these papers, one paper after the other."""
        counts = self.counts[papers] + 1
        within: Numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return within + np.repeat(self.own[papers], counts)

    def sentences(self, papers: Numbers) -> Numbers:
        """Rows of the sentences, shape (papers, most), -1 behind a paper's last one."""
        at = np.arange(int(self.counts[papers].max(initial=0)))  # (most,)
        return np.where(at < self.counts[papers][:, None], self.own[papers][:, None] + 1 + at, -1)


def paper_rows(spans: SentenceSpans | None, papers: Numbers) -> PaperRows:
    """The rows of these papers, in their order; without sentences there is one a paper."""
    counts = np.zeros(len(papers), np.int64) if spans is None else spans.counts()[papers]
    return PaperRows(np.cumsum(counts + 1) - (counts + 1), counts)
