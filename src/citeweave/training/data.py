"""What training reads: tokens of papers, and groups of papers that belong together or do not, as plain arrays.

    >>> groups = groups_of([0], positives=[[1, 2]], negatives=[[3]])
    >>> groups.triplets().tolist()
    [[0, 1, 3], [0, 2, 3]]

Papers are numbered from 0 within the data; `rows` says which row of the corpus each is. Needs numpy alone, so that it
travels to machines that have little else. Chooses nothing: `gathering.py` fills it from a corpus and samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.token_store import TokenStore
from citeweave.training.sentence_level.spans import Alignment, Numbers, SentenceSpans

__all__ = ["Groups", "Lists", "Numbers", "RankingPools", "TrainingData", "groups_of", "lists_of"]


@dataclass(frozen=True, slots=True)
class Lists:
    """A list of papers for each of some owners, one after the other."""

    offsets: Numbers
    """Shape (owners + 1,)."""

    papers: Numbers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def counts(self) -> Numbers:
        return np.diff(self.offsets)

    def take(self, owners: Numbers) -> Lists:
        """The lists of these owners, in their order."""
        counts = self.counts()[owners]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        places = np.arange(int(ends[-1])) - np.repeat(ends[:-1], counts) + np.repeat(self.offsets[owners], counts)
        return Lists(ends, self.papers[places])

    def padded(self) -> Numbers:
        """Shape (owners, longest), -1 behind a list's end.

        >>> lists_of([[1, 2], [3]]).padded().tolist()
        [[1, 2], [3, -1]]
        """
        counts = self.counts()
        places = np.arange(int(counts.max(initial=0)))[None, :]  # (1, longest)
        inside = places < counts[:, None]  # (owners, longest)
        found = np.full(inside.shape, -1, np.int64)
        found[inside] = self.papers
        return found


@dataclass(frozen=True, slots=True)
class Groups:
    """Anchors, each with papers it should be near to and papers it should be far from."""

    anchors: Numbers
    positives: Lists
    negatives: Lists
    aspects: Numbers | None = None
    """Number of every group's aspect, see `TrainingData.aspects`; None where samples know none."""

    rules: Numbers | None = None
    """Number of the rule behind every negative, see `TrainingData.rules`; None where it does not matter."""

    def __len__(self) -> int:
        return len(self.anchors)

    def take(self, which: Numbers) -> Groups:
        return Groups(
            self.anchors[which],
            self.positives.take(which),
            self.negatives.take(which),
            None if self.aspects is None else self.aspects[which],
            None if self.rules is None else Lists(self.negatives.offsets, self.rules).take(which).papers,
        )

    def triplet_counts(self) -> Numbers:
        """Triplets of every group: its longer list, none where a list is empty; shape (groups,)."""
        ups, downs = self.positives.counts(), self.negatives.counts()
        return np.where((ups > 0) & (downs > 0), np.maximum(ups, downs), 0)

    def triplets(self) -> Numbers:
        """Every positive with a negative of its group, the shorter list begun anew; shape (triplets, 3)."""
        counts = self.triplet_counts()
        owner = np.repeat(np.arange(len(self)), counts)  # (triplets,)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        ups, downs = self.positives.counts()[owner], self.negatives.counts()[owner]
        up = self.positives.papers[self.positives.offsets[owner] + place % ups]
        down = self.negatives.papers[self.negatives.offsets[owner] + place % downs]
        return np.stack([self.anchors[owner], up, down], axis=1)


@dataclass(frozen=True, slots=True)
class RankingPools:
    """Queries with candidates to rank: a quick look at what the trained vectors are for."""

    queries: Numbers
    candidates: Lists
    relevant: NDArray[np.bool_]
    """Of every candidate."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Everything a training run reads beside its start model."""

    rows: Numbers
    """Row of the corpus of every paper."""

    tokens: TokenStore
    groups: Groups
    validation: Groups
    relatives: Lists | None = None
    """Papers that are known to be related to each paper: never negatives by accident."""

    sentences: SentenceSpans | None = None
    """Where the sentences are among the tokens, for losses that read them."""

    alignment: Alignment | None = None
    """Which sentences of an anchor and its positive belong together, where the samples say it."""

    aspects: tuple[str, ...] = ()
    """Names of the aspects of groups, where a loss acts in their spaces."""

    rules: tuple[str, ...] = ()
    """Names of the rules behind negatives, where a loss takes only those of some."""

    teacher: NDArray[np.float32] | None = None
    """A vector of another model for every paper, shape (papers, its dimension)."""

    pools: Mapping[str, RankingPools] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where the data come from: hashes, counts, what was left out; for the model's card."""


def lists_of(lists: Sequence[Sequence[int]]) -> Lists:
    """Lists from plain ones."""
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Lists(ends, np.array([paper for papers in lists for paper in papers], np.int64))


def groups_of(anchors: Sequence[int], positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]]) -> Groups:
    """Groups from plain lists."""
    return Groups(np.array(anchors, np.int64), lists_of(positives), lists_of(negatives))
