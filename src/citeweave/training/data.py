"""Where the sentences of papers are among their tokens, and which sentences of two papers are aligned.

    paper 0   [CLS] title [SEP] sentence sentence [SEP]        starts 4, 9   ends 9, 15
    rows of a batch of papers 0 and 1:   0: paper 0   1, 2: its sentences   3: paper 1   4: its sentence

    >>> spans = SentenceSpans(np.array([0, 2, 3]), np.array([4, 9, 1]), np.array([9, 15, 5]), np.array([0, 1, 0]))
    >>> rows = paper_rows(spans, np.array([0, 1]))
    >>> rows.own.tolist(), rows.sentences(np.array([1, 0])).tolist()
    ([0, 3], [[4, -1], [1, 2]])

Plain arrays, needs numpy alone.

What training reads: tokens of papers, and groups of papers that belong together or do not, as plain arrays.

    >>> groups = groups_of([0], positives=[[1, 2]], negatives=[[3]])
    >>> groups.triplets().tolist()
    [[0, 1, 3], [0, 2, 3]]

Papers are numbered from 0 within the data; `rows` says which row of the corpus each is. Needs numpy alone, so that it
travels to machines that have little else. Chooses nothing: `gathering.py` fills it from a corpus and samples.

Papers that are known to be related: they must not become negatives because they happen to be in one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.randomness import hash_texts
from citeweave.encoders.tokens import TokenStore
from citeweave.graph.signals import Signal, related

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.citations import CitationGraph


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
class AlignedPairs:
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


def make_alignment(anchors: Numbers, positives: Numbers, sentences: Numbers) -> AlignedPairs:
    """Of pairs in any order; a pair that comes again keeps its first sentences.

    >>> make_alignment(np.array([7, 2]), np.array([1, 3]), np.array([[0, 4], [5, 6]])).find(np.array([2]), np.array([3]))
    array([[5, 6]])
    """
    keys, first = np.unique(pair_keys(anchors, positives), return_index=True)
    return AlignedPairs(keys, sentences[first])


@dataclass(frozen=True, slots=True)
class BatchRows:
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


def paper_rows(spans: SentenceSpans | None, papers: Numbers) -> BatchRows:
    """The rows of these papers, in their order; without sentences there is one a paper."""
    counts = np.zeros(len(papers), np.int64) if spans is None else spans.counts()[papers]
    return BatchRows(np.cumsum(counts + 1) - (counts + 1), counts)


# What training reads: tokens of papers, and groups of papers that belong together or do not, as plain arrays.

__all__ = ["AnchorGroups", "Numbers", "PaperLists", "RankingPools", "TrainingData", "groups_of", "lists_of"]


@dataclass(frozen=True, slots=True)
class PaperLists:
    """A list of papers for each of some owners, one after the other."""

    offsets: Numbers
    """Shape (owners + 1,)."""

    papers: Numbers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def counts(self) -> Numbers:
        return np.diff(self.offsets)

    def take(self, owners: Numbers) -> PaperLists:
        """The lists of these owners, in their order."""
        counts = self.counts()[owners]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        places = np.arange(int(ends[-1])) - np.repeat(ends[:-1], counts) + np.repeat(self.offsets[owners], counts)
        return PaperLists(ends, self.papers[places])

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
class AnchorGroups:
    """Anchors, each with papers it should be near to and papers it should be far from."""

    anchors: Numbers
    positives: PaperLists
    negatives: PaperLists
    aspects: Numbers | None = None
    """Number of every group's aspect, see `TrainingData.aspects`; None where samples know none."""

    rules: Numbers | None = None
    """Number of the rule behind every negative, see `TrainingData.rules`; None where it does not matter."""

    def __len__(self) -> int:
        return len(self.anchors)

    def take(self, which: Numbers) -> AnchorGroups:
        return AnchorGroups(
            self.anchors[which],
            self.positives.take(which),
            self.negatives.take(which),
            None if self.aspects is None else self.aspects[which],
            None if self.rules is None else PaperLists(self.negatives.offsets, self.rules).take(which).papers,
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
    candidates: PaperLists
    relevant: NDArray[np.bool_]
    """Of every candidate."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Everything a training run reads beside its start model."""

    rows: Numbers
    """Row of the corpus of every paper."""

    tokens: TokenStore
    groups: AnchorGroups
    validation: AnchorGroups
    relatives: PaperLists | None = None
    """Papers that are known to be related to each paper: never negatives by accident."""

    sentences: SentenceSpans | None = None
    """Where the sentences are among the tokens, for losses that read them."""

    alignment: AlignedPairs | None = None
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


def lists_of(lists: Sequence[Sequence[int]]) -> PaperLists:
    """Lists from plain ones."""
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return PaperLists(ends, np.array([paper for papers in lists for paper in papers], np.int64))


def groups_of(
    anchors: Sequence[int], positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]]
) -> AnchorGroups:
    """Groups from plain lists."""
    return AnchorGroups(np.array(anchors, np.int64), lists_of(positives), lists_of(negatives))


# Papers that are known to be related: they must not become negatives because they happen to be in one batch.

RELATIVES = (Signal("connected"), Signal("cocited"), Signal("coupled", least=3))
"""Signals of the citation graph that make a paper no random negative; two shared references may be chance."""


def find_relatives(corpus: Corpus, graph: CitationGraph, rows: Numbers) -> PaperLists:
    """Related papers of every paper among those that take part: by citations, by co-citation, by references in
    common, and by equal titles."""
    owners, others = _same_titles(corpus, rows)
    for signal in RELATIVES:
        found = related(graph, signal, rows)
        owner = np.repeat(np.arange(len(rows)), np.diff(found.offsets))
        place = np.minimum(np.searchsorted(rows, found.targets), len(rows) - 1)
        inside = rows[place] == found.targets
        owners, others = np.concatenate([owners, owner[inside]]), np.concatenate([others, place[inside]])
    pairs = np.unique(np.stack([owners, others], axis=1), axis=0)  # (pairs, 2)
    counts = np.bincount(pairs[:, 0], minlength=len(rows))
    return PaperLists(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), pairs[:, 1])


def _same_titles(corpus: Corpus, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Pairs of papers whose titles are the same but for case and blanks, both ways."""
    titles = [" ".join(title.lower().split()) for title in corpus.titles.take(rows)]
    keys = np.where([bool(title) for title in titles], hash_texts(titles), np.arange(len(rows), dtype=np.uint64))
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    twins = [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)], strict=True) if b - a > 1]
    pairs = [(int(left), int(right)) for same in twins for left in same for right in same if left != right]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
