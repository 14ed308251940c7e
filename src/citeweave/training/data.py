"""Training data as plain arrays: tokens of papers, groups of positives and negatives, sentences; and batches of them.

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

A batch is a function of seed and step alone. Its papers are distinct, so that each is encoded once; a batch of triplets
keeps the triplets of an anchor together, except where it is full or `training.block` splits them:

    >>> batch = build_batch(make_groups([5, 5], positives=[[7], [7]], negatives=[[9], [8]]))
    >>> batch.papers.tolist(), batch.anchors.tolist(), batch.triplets.tolist()
    ([5, 7, 8, 9], [0, 0], [[0, 1, 3], [0, 1, 2]])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import find_keys
from citeweave.core.ragged import Ragged, count_owners, number_within, owners_of, to_offsets
from citeweave.core.randomness import stream
from citeweave.encoders.tokens import TokenStore
from citeweave.training.options import TrainingOptions

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SentenceSpans(Ragged):
    """Training data of sentences: their token spans, one row per paper."""

    starts: Numbers
    """First token of every sentence, shape (sentences,)."""

    ends: Numbers
    numbers: Numbers
    """Number of the sentence in its abstract, from 0; -1 where the complete text is one sentence."""


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
class BatchRows(Ragged):
    """Row layout of training data in a batch: each paper's own row, followed by the rows of its sentences."""

    @property
    def own(self) -> Numbers:
        """Row of each paper itself, shape (papers,)."""
        return self.offsets[:-1]

    @property
    def counts(self) -> Numbers:
        """Number of sentences of each paper, shape (papers,)."""
        return self.lengths() - 1

    def sentence_rows(self, papers: Numbers) -> Numbers:
        """Return the rows of these papers' sentences, shape (papers, longest), -1 after a paper's last one."""
        counts = self.counts[papers]
        at = np.arange(int(counts.max(initial=0)))  # (longest,)
        return np.where(at < counts[:, None], self.own[papers][:, None] + 1 + at, -1)


def paper_rows(sentences: SentenceSpans | None, papers: Numbers) -> BatchRows:
    """Lay out the rows of a batch of papers in their order; without sentences one row per paper."""
    counts = np.zeros(len(papers), np.int64) if sentences is None else sentences.lengths()[papers]
    return BatchRows(to_offsets(counts + 1))


# Groups of anchors, positives and negatives


@dataclass(frozen=True, slots=True)
class PaperLists(Ragged):
    """Ragged lists of papers in the training data, one list per owner."""

    papers: Numbers

    def take(self, owners: Numbers) -> PaperLists:
        """Return the lists of these owners, in their order."""
        return PaperLists(to_offsets(self.lengths()[owners]), self.papers[self.places(owners)])

    def keep(self, kept: Mask) -> PaperLists:
        """Return the lists with only the papers that are kept, (papers,)."""
        return PaperLists(count_owners(self.owners()[kept], len(self)), self.papers[kept])

    def renumber(self, rows: Numbers) -> PaperLists:
        """Return the lists of corpus rows as lists of papers of the data, whose rows are given."""
        return PaperLists(self.offsets, np.searchsorted(rows, self.papers))

    def padded(self) -> Numbers:
        """Return the training data's lists of papers as a matrix (owners, longest), -1 after a list's end.

        >>> make_lists([[1, 2], [3]]).padded().tolist()
        [[1, 2], [3, -1]]
        """
        counts = self.lengths()
        inside = np.arange(int(counts.max(initial=0))) < counts[:, None]  # (owners, longest)
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

    def papers(self) -> Numbers:
        """Return all papers of the groups: anchors, positives, negatives."""
        return np.concatenate([self.anchors, self.positives.papers, self.negatives.papers])

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
        positives, negatives = self.positives.lengths(), self.negatives.lengths()
        return np.where((positives > 0) & (negatives > 0), np.maximum(positives, negatives), 0)

    def can_train(self, *, pairs_suffice: bool) -> Mask:
        """Return which groups have a positive, and unless pairs suffice also a negative; (groups,)."""
        return self.positives.lengths() > 0 if pairs_suffice else self.triplet_counts() > 0

    def triplet_owners(self) -> Numbers:
        """Return the group of every triplet, (triplets,)."""
        return owners_of(to_offsets(self.triplet_counts()))

    def triplets(self) -> Numbers:
        """Pair the data's positives with negatives of their group, cycling through the shorter list; (triplets, 3)."""
        owner, place = self.triplet_owners(), number_within(self.triplet_counts())  # (triplets,)
        positives, negatives = (
            lists.papers[lists.offsets[owner] + place % lists.lengths()[owner]]
            for lists in (self.positives, self.negatives)
        )
        return np.stack([self.anchors[owner], positives, negatives], axis=1)


@dataclass(frozen=True, slots=True)
class RankingPools:
    """Training data for validation as arrays: queries with candidates to rank."""

    queries: Numbers
    candidates: PaperLists
    relevant: Mask
    """Whether each candidate is relevant to its query."""

    def papers(self) -> Numbers:
        """Return all papers of the pools: queries and candidates."""
        return np.concatenate([self.queries, self.candidates.papers])


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
    return PaperLists(
        to_offsets([*map(len, lists)]), np.array([paper for papers in lists for paper in papers], np.int64)
    )


def make_groups(
    anchors: Sequence[int], positives: Sequence[Sequence[int]], negatives: Sequence[Sequence[int]]
) -> AnchorGroups:
    """Make groups of anchors, positives and negatives from plain lists."""
    return AnchorGroups(np.array(anchors, np.int64), make_lists(positives), make_lists(negatives))


def join_groups(parts: Sequence[AnchorGroups]) -> AnchorGroups:
    """Join training data's groups, without aspects and rules, in the order of their anchors.

    >>> join_groups([make_groups([5], [[1]], [[2]]), make_groups([4, 5], [[1], [3]], [[2], [2]])]).triplets().tolist()
    [[4, 1, 2], [5, 1, 2], [5, 3, 2]]
    """
    positives, negatives = (
        PaperLists(
            to_offsets(np.concatenate([side.lengths() for side in sides])), np.concatenate([s.papers for s in sides])
        )
        for sides in zip(*((part.positives, part.negatives) for part in parts), strict=True)
    )
    anchors = np.concatenate([part.anchors for part in parts])
    return AnchorGroups(anchors, positives, negatives).take(np.argsort(anchors, kind="stable"))


# Batches


@dataclass(frozen=True, slots=True)
class Batch:
    """A training batch: papers with their groups; anchors, positives and negatives are positions in `papers`."""

    papers: Numbers
    """Distinct papers, ascending, shape (papers,)."""

    anchors: Numbers
    """Shape (groups,)."""

    positives: Numbers
    """Shape (groups, longest), repeated where the samples repeat them, -1 where a group has fewer."""

    negatives: Numbers
    """Shape (groups, longest), each paper once, -1 where a group has fewer."""

    triplets: Numbers
    """Shape (triplets, 3): anchor, positive, negative; repeated where the samples repeat them."""

    groups: AnchorGroups
    """The same groups with papers numbered as in the data."""

    rules: Numbers | None = None
    """Mining rules of the negatives, in their shape; None where no loss needs them."""

    def of_aspect(self, aspect: int) -> Batch:
        """Return the training batch with the groups of one aspect only, no triplets; papers keep their positions."""
        assert self.groups.aspects is not None, "load_training_data requires samples with aspects"
        which = np.flatnonzero(self.groups.aspects == aspect)
        return dataclasses.replace(
            self,
            anchors=self.anchors[which],
            positives=self.positives[which],
            negatives=self.negatives[which],
            triplets=self.triplets[:0],
            groups=self.groups.take(which),
            rules=None if self.rules is None else self.rules[which],
        )

    def with_positives_once(self) -> Batch:
        """Return the batch with each positive of a group once, though the samples repeat it."""
        return dataclasses.replace(self, positives=_drop_repeats(self.positives))

    def with_negatives_by(self, rules: Sequence[int]) -> Batch:
        """Return the batch with only the negatives of some mining rules."""
        assert self.rules is not None, "load_training_data keeps the rules where a loss needs them"
        return dataclasses.replace(self, negatives=np.where(np.isin(self.rules, list(rules)), self.negatives, -1))


def build_batch(groups: AnchorGroups) -> Batch:
    """Build the training batch of some groups: number its distinct papers and pad its lists."""
    papers, places = np.unique(groups.papers(), return_inverse=True)
    first, second = len(groups), len(groups) + len(groups.positives.papers)
    return Batch(
        papers=papers,
        anchors=places[:first],
        positives=PaperLists(groups.positives.offsets, places[first:second]).padded(),
        negatives=_drop_repeats(PaperLists(groups.negatives.offsets, places[second:]).padded()),
        triplets=np.searchsorted(papers, groups.triplets()),
        groups=groups,
        rules=None if groups.rules is None else PaperLists(groups.negatives.offsets, groups.rules).padded(),
    )


def _drop_repeats(lists: Numbers) -> Numbers:
    """Replace repeated papers of padded lists by -1; same shape.

    >>> _drop_repeats(np.array([[4, 2, 4], [1, -1, -1]])).tolist()
    [[4, 2, -1], [1, -1, -1]]
    """
    repeated = lists[:, :, None] == lists[:, None, :]  # (owners, places, places)
    return np.where((repeated & np.tri(lists.shape[1], k=-1, dtype=bool)).any(axis=2), -1, lists)


def split_batch(batch: Batch, lengths: Numbers, budget: int) -> list[Batch]:
    """Split a training batch into parts of complete groups with at most `budget` tokens; a larger group is alone.

    `lengths` are those of all papers of the data. The parts depend on lengths and budget alone.
    """
    costs = group_costs(batch.groups, lengths)
    parts, start, total = [], 0, 0
    for number, cost in enumerate(costs.tolist()):
        if number > start and total + cost > budget:
            parts.append(np.arange(start, number))
            start, total = number, 0
        total += cost
    parts.append(np.arange(start, len(batch.groups)))
    return [batch] if len(parts) == 1 else [build_batch(batch.groups.take(part)) for part in parts]


def group_costs(groups: AnchorGroups, lengths: Numbers) -> Numbers:
    """Count the tokens of every group's papers, (groups,)."""
    costs = np.zeros(len(groups), np.int64)
    for number, anchor in enumerate(groups.anchors.tolist()):
        lists = [lists.papers[lists.span(number)].tolist() for lists in (groups.positives, groups.negatives)]
        costs[number] = lengths[list({anchor, *lists[0], *lists[1]})].sum()
    return costs


class Batches:
    """Training batches of all epochs, each a function of the seed and its step; `dropped` counts triplets left over."""

    def __init__(self, groups: AnchorGroups, options: TrainingOptions) -> None:
        self._seed, self._size = options.seed, options.batch
        self._by_triplets = options.unit == "triplets"
        usable = _select_groups(groups, options)
        split = _split_triplets(usable, options.block) if self._by_triplets else _split_positives(usable, options)
        self._groups = _drop_leftovers(split, options)
        self.dropped = int(split.triplet_counts().sum() - self._groups.triplet_counts().sum())
        self._triplets = self._groups.triplet_counts()  # (groups,)
        self.units = int(self._triplets.sum()) if self._by_triplets else len(self._groups)
        self.per_epoch = -(-self.units // self._size)
        self._ends = lru_cache(maxsize=2)(self._order)

    def at(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0 over all epochs."""
        epoch, number = divmod(step, self.per_epoch)
        order, ends = self._ends(epoch)
        first, last = number * self._size, min((number + 1) * self._size, self.units)
        if not self._by_triplets:
            return build_batch(self._groups.take(order[first:last]))
        begin, end = int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last, "left")) + 1
        before = int(ends[begin]) - int(self._triplets[order[begin]])  # triplets of earlier groups
        return build_batch(_slice_triplets(self._groups.take(order[begin:end]), first - before, last - before))

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the training batches of the first epoch."""
        return map(self.at, range(self.per_epoch))

    def count_units(self, batch: Batch) -> int:
        """Count the units of a training batch: triplets or groups."""
        return len(batch.triplets) if self._by_triplets else len(batch.groups)

    def _order(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Return the random order of an epoch's groups, and the cumulative number of triplets."""
        order = stream(self._seed, "training", "order", epoch).permutation(len(self._groups))
        return order, np.cumsum(self._triplets[order])


def count_tokens(data: TrainingData, options: TrainingOptions) -> float:
    """Return about how many tokens a training run encodes: those of its first batch at every step."""
    planned = Batches(data.groups, options)
    if not planned.units:
        return 0.0
    steps = options.steps or options.epochs * planned.per_epoch
    return float(steps * data.tokens.lengths()[planned.at(0).papers].sum())


def _select_groups(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Select the groups that can be trained on, or a random share of them."""
    usable = np.flatnonzero(groups.can_train(pairs_suffice=options.pairs_suffice))
    if options.share >= 1:
        return groups.take(usable)
    count = max(1, round(options.share * len(usable)))
    return groups.take(np.sort(stream(options.seed, "training", "share").permutation(usable)[:count]))


def _split_triplets(groups: AnchorGroups, size: int) -> AnchorGroups:
    """Split groups into groups of at most `size` triplets."""
    counts = groups.triplet_counts()
    if not size or int(counts.max(initial=0)) <= size:
        return groups
    block = groups.triplet_owners() * (int(counts.max()) + 1) + number_within(counts) // size  # (triplets,)
    return _group_triplets(groups.triplets(), block)


def _drop_leftovers(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Drop blocks with fewer triplets than `options.block`, where leftovers are to be dropped."""
    if options.leftovers == "keep":
        return groups
    return groups.take(np.flatnonzero(groups.triplet_counts() >= options.block))


def _split_positives(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Split groups by positives where losses take the batch's negatives; each part keeps all negatives."""
    counts, size = groups.positives.lengths(), options.block
    if not options.splits_positives or int(counts.max(initial=0)) <= size:
        return groups
    starts = np.flatnonzero(number_within(counts) % size == 0)  # (blocks,)
    lists = PaperLists(np.append(starts, counts.sum()), groups.positives.papers)
    return dataclasses.replace(groups.take(groups.positives.owners()[starts]), positives=lists)


def _slice_triplets(groups: AnchorGroups, first: int, last: int) -> AnchorGroups:
    """Return groups with only the triplets from first up to last; complete groups stay as they are."""
    owners = groups.triplet_owners()
    if first == 0 and last == len(owners):
        return groups
    return _group_triplets(groups.triplets()[first:last], owners[first:last])


def _group_triplets(triplets: Numbers, owner: Numbers) -> AnchorGroups:
    """Group consecutive triplets of the same owner."""
    starts = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))  # (groups,)
    ends = np.append(starts, len(owner))
    return AnchorGroups(triplets[starts, 0], PaperLists(ends, triplets[:, 1]), PaperLists(ends, triplets[:, 2]))
