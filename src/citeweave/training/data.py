"""Training data as plain arrays: tokens of papers, groups of positives and negatives, sentences, related papers.

    >>> groups = make_groups([0], positives=[[1, 2]], negatives=[[3]])
    >>> groups.triplets().tolist()
    [[0, 1, 3], [0, 2, 3]]

Papers are numbered from 0 within the data; `rows` has the corpus row of each. Needs only numpy, so that it can be sent
to machines with little else installed. Reads no samples: `load_data.py` does.

Losses on sentences need to know where the sentences are among the tokens, and which rows of a batch are theirs:

    paper 0   [CLS] title [SEP] sentence sentence [SEP]        starts 4, 9   ends 9, 15
    rows of a batch of papers 0 and 1:   0: paper 0   1, 2: its sentences   3: paper 1   4: its sentence

    >>> spans = SentenceSpans(np.array([0, 2, 3]), np.array([4, 9, 1]), np.array([9, 15, 5]), np.array([0, 1, 0]))
    >>> rows = paper_rows(spans, np.array([0, 1]))
    >>> rows.own.tolist(), rows.sentence_rows(np.array([1, 0])).tolist()
    ([0, 3], [[4, -1], [1, 2]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import find_keys
from citeweave.encoders.tokens import TokenStore

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.citations import CitationGraph


Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentenceSpans:
    """Training data of sentences: their token spans; those of paper i are from offsets[i] up to offsets[i + 1]."""

    offsets: Numbers
    """Shape (papers + 1,)."""

    starts: Numbers
    """First token of every sentence, shape (sentences,)."""

    ends: Numbers
    numbers: Numbers
    """Number of the sentence in its abstract, from 0; -1 where the complete text is one sentence."""

    def counts(self) -> Numbers:
        return np.diff(self.offsets)

    def indices(self, papers: Numbers) -> Numbers:
        """Return the indices of these papers' sentences, one paper after the other."""
        counts = self.counts()[papers]
        ends = np.cumsum(counts)
        within: Numbers = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        return within + np.repeat(self.offsets[papers], counts)


@dataclass(frozen=True, slots=True)
class AlignedPairs:
    """Training data of aligned sentences: per anchor-positive pair a sentence of the anchor and one of the positive."""

    keys: NDArray[np.uint64]
    """Keys of the pairs, ascending, see `_paper_pair_keys`."""

    sentences: Numbers
    """Shape (pairs, 2): sentence of the anchor and of the positive."""

    def find(self, anchors: Numbers, positives: Numbers) -> Numbers:
        """Return the training data's aligned sentences of these pairs, shape (pairs, 2), -1 where there are none."""
        sentences = np.full((len(anchors), 2), -1, np.int64)
        at = find_keys(_paper_pair_keys(anchors, positives), self.keys)
        sentences[at >= 0] = self.sentences[at[at >= 0]]
        return sentences


def _paper_pair_keys(anchors: Numbers, positives: Numbers) -> NDArray[np.uint64]:
    """Combine two paper numbers into one key per pair."""
    return (anchors.astype(np.uint64) << np.uint64(32)) | positives.astype(np.uint64)


def make_alignment(anchors: Numbers, positives: Numbers, sentences: Numbers) -> AlignedPairs:
    """Index the training data's aligned sentences by pair; a repeated pair keeps its first sentences.

    >>> make_alignment(np.array([7, 2]), np.array([1, 3]), np.array([[0, 4], [5, 6]])).find(np.array([2]), np.array([3]))
    array([[5, 6]])
    """
    keys, first = np.unique(_paper_pair_keys(anchors, positives), return_index=True)
    return AlignedPairs(keys, sentences[first])


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Row layout of training data in a batch: each paper's own row, followed by the rows of its sentences."""

    own: Numbers
    """Row of each paper itself, shape (papers,)."""

    counts: Numbers
    """Number of sentences of each paper, shape (papers,)."""

    @property
    def total(self) -> int:
        return len(self.counts) + int(self.counts.sum())

    def all_rows(self, papers: Numbers) -> Numbers:
        """Return all rows of these papers, one paper after the other."""
        counts = self.counts[papers] + 1
        within: Numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return within + np.repeat(self.own[papers], counts)

    def sentence_rows(self, papers: Numbers) -> Numbers:
        """Return the rows of these papers' sentences, shape (papers, longest), -1 after a paper's last one."""
        at = np.arange(int(self.counts[papers].max(initial=0)))  # (longest,)
        return np.where(at < self.counts[papers][:, None], self.own[papers][:, None] + 1 + at, -1)


def paper_rows(spans: SentenceSpans | None, papers: Numbers) -> BatchRows:
    """Lay out the rows of a batch of papers in their order; without sentences one row per paper."""
    counts = np.zeros(len(papers), np.int64) if spans is None else spans.counts()[papers]
    return BatchRows(np.cumsum(counts + 1) - (counts + 1), counts)


# Groups of anchors, positives and negatives


@dataclass(frozen=True, slots=True)
class PaperLists:
    """Ragged lists of papers in the training data, one list per owner."""

    offsets: Numbers
    """Shape (owners + 1,)."""

    papers: Numbers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def counts(self) -> Numbers:
        return np.diff(self.offsets)

    def take(self, owners: Numbers) -> PaperLists:
        """Return the lists of these owners, in their order."""
        counts = self.counts()[owners]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        places = np.arange(int(ends[-1])) - np.repeat(ends[:-1], counts) + np.repeat(self.offsets[owners], counts)
        return PaperLists(ends, self.papers[places])

    def padded(self) -> Numbers:
        """Return the training data's lists of papers as a matrix (owners, longest), -1 after a list's end.

        >>> make_lists([[1, 2], [3]]).padded().tolist()
        [[1, 2], [3, -1]]
        """
        counts = self.counts()
        places = np.arange(int(counts.max(initial=0)))[None, :]  # (1, longest)
        inside = places < counts[:, None]  # (owners, longest)
        matrix = np.full(inside.shape, -1, np.int64)
        matrix[inside] = self.papers
        return matrix


@dataclass(frozen=True, slots=True)
class AnchorGroups:
    """Training data of groups: anchors with their positives and negatives, as papers of the data."""

    anchors: Numbers
    positives: PaperLists
    negatives: PaperLists
    aspects: Numbers | None = None
    """Aspect of every group, an index into `TrainingData.aspects`; None for samples without aspects."""

    rules: Numbers | None = None
    """Mining rule of every negative, an index into `TrainingData.rules`; None where no loss needs it."""

    def __len__(self) -> int:
        return len(self.anchors)

    def take(self, which: Numbers) -> AnchorGroups:
        """Return the training data's groups of these numbers, in their order."""
        return AnchorGroups(
            self.anchors[which],
            self.positives.take(which),
            self.negatives.take(which),
            None if self.aspects is None else self.aspects[which],
            None if self.rules is None else PaperLists(self.negatives.offsets, self.rules).take(which).papers,
        )

    def triplet_counts(self) -> Numbers:
        """Count the triplets of every group, (groups,): its longer list, none where a list is empty."""
        positives, negatives = self.positives.counts(), self.negatives.counts()
        return np.where((positives > 0) & (negatives > 0), np.maximum(positives, negatives), 0)

    def triplets(self) -> Numbers:
        """Pair the data's positives with negatives of their group, cycling through the shorter list; (triplets, 3)."""
        counts = self.triplet_counts()
        owner = np.repeat(np.arange(len(self)), counts)  # (triplets,)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        positives, negatives = (
            lists.papers[lists.offsets[owner] + place % lists.counts()[owner]]
            for lists in (self.positives, self.negatives)
        )
        return np.stack([self.anchors[owner], positives, negatives], axis=1)


@dataclass(frozen=True, slots=True)
class RankingPools:
    """Training data for validation as arrays: queries with candidates to rank."""

    queries: Numbers
    candidates: PaperLists
    relevant: NDArray[np.bool_]
    """Whether each candidate is relevant to its query."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Everything a training run reads besides its start model: tokens, groups, validation, related papers."""

    rows: Numbers
    """Corpus row of every paper."""

    tokens: TokenStore
    groups: AnchorGroups
    validation: AnchorGroups
    related: PaperLists | None = None
    """Papers known to be related to each paper, which must not be in-batch negatives."""

    sentences: SentenceSpans | None = None
    """Token spans of the sentences, for losses that read them."""

    alignment: AlignedPairs | None = None
    """Aligned sentences of anchors and positives, where the samples have them."""

    aspects: tuple[str, ...] = ()
    """Names of the aspects of groups, where a loss acts in their spaces."""

    rules: tuple[str, ...] = ()
    """Names of the mining rules of negatives, where a loss uses only those of some."""

    teacher: NDArray[np.float32] | None = None
    """Teacher's vector of every paper, shape (papers, its dimension)."""

    pools: Mapping[str, RankingPools] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Hashes and counts of the data, and what was left out; for the model's card."""


def make_lists(lists: Sequence[Sequence[int]]) -> PaperLists:
    """Make ragged lists of papers from plain lists."""
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return PaperLists(ends, np.array([paper for papers in lists for paper in papers], np.int64))


def make_groups(
    anchors: Sequence[int], positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]]
) -> AnchorGroups:
    """Make groups of anchors, positives and negatives from plain lists."""
    return AnchorGroups(np.array(anchors, np.int64), make_lists(positives), make_lists(negatives))


# Related papers


def find_related_papers(corpus: Corpus, graph: CitationGraph, rows: Numbers) -> PaperLists:
    """Find the training data's related papers, which must not be in-batch negatives of each other.

    Related are papers by citation, co-citation, shared references, or equal titles.
    """
    from citeweave.graph.signals import Signal, related  # not on machines that train from a bundle

    owners, others = _find_same_titles(corpus, rows)
    # two shared references may be chance
    for signal in (Signal("connected"), Signal("cocited"), Signal("coupled", least=3)):
        neighbors = related(graph, signal, rows)
        owner = np.repeat(np.arange(len(rows)), np.diff(neighbors.offsets))
        place = np.minimum(np.searchsorted(rows, neighbors.targets), len(rows) - 1)
        inside = rows[place] == neighbors.targets
        owners, others = np.concatenate([owners, owner[inside]]), np.concatenate([others, place[inside]])
    pairs = np.unique(np.stack([owners, others], axis=1), axis=0)  # (pairs, 2)
    counts = np.bincount(pairs[:, 0], minlength=len(rows))
    return PaperLists(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), pairs[:, 1])


def _find_same_titles(corpus: Corpus, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Find pairs of papers with equal titles up to case and whitespace, in both directions."""
    from citeweave.core.hash_keys import hash_texts  # needs numba, which training from a bundle does not

    titles = [" ".join(title.lower().split()) for title in corpus.titles.take(rows)]
    keys = np.where([bool(title) for title in titles], hash_texts(titles), np.arange(len(rows), dtype=np.uint64))
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    twins = [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)], strict=True) if b - a > 1]
    pairs = [(int(left), int(right)) for same in twins for left in same for right in same if left != right]
    owners, others = np.array(pairs, np.int64).reshape(-1, 2).T
    return owners, others
