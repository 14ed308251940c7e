"""Batches: which groups meet in which step, and every paper of a step once.

    batches = Batches(groups, options)
    batches.at(0)           the batch of step 0: a function of seed and step, whatever ran before

    >>> batch = assemble(groups_of([5, 5], positives=[[7], [7]], negatives=[[9], [8]]))
    >>> batch.papers.tolist(), batch.anchors.tolist(), batch.triplets.tolist()
    ([5, 7, 8, 9], [0, 0], [[0, 1, 3], [0, 1, 2]])

A batch of triplets keeps the triplets of an anchor together, so that the anchor is encoded once; it is cut where it is
full. Encodes nothing.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from citeweave.randomness import stream
from citeweave.training.data import Groups, Lists, Numbers, groups_of
from citeweave.training.options import TrainingOptions

__all__ = ["Batch", "Batches", "are_pairs", "assemble", "deal", "group_costs", "groups_of", "split"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The papers of a step, and who is whose; anchors, positives and negatives are places in `papers`."""

    papers: Numbers
    """Different papers, ascending, shape (papers,)."""

    anchors: Numbers
    """Shape (groups,)."""

    positives: Numbers
    """Shape (groups, most positives), each paper once, -1 where a group has fewer."""

    negatives: Numbers
    """Shape (groups, most negatives), each paper once, -1 where a group has fewer."""

    triplets: Numbers
    """Shape (triplets, 3): anchor, positive, negative; repeated where the samples repeat them."""

    groups: Groups
    """The same with papers as in the data."""

    rules: Numbers | None = None
    """Rules behind the negatives, shape as theirs; None where it does not matter."""

    def of_aspect(self, aspect: int) -> Batch:
        """Only the groups of one aspect; papers keep their places, and triplets are left out."""
        assert self.groups.aspects is not None, "training_options asks for samples with aspects"
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

    def with_negatives_by(self, rules: Sequence[int]) -> Batch:
        """Only the negatives that some rules chose."""
        assert self.rules is not None, "gather keeps the rules where a loss asks for them"
        return dataclasses.replace(self, negatives=np.where(np.isin(self.rules, list(rules)), self.negatives, -1))


def assemble(groups: Groups) -> Batch:
    """Number the different papers of some groups."""
    triplets = groups.triplets()
    mentioned = np.concatenate([groups.anchors, groups.positives.papers, groups.negatives.papers])
    papers, places = np.unique(mentioned, return_inverse=True)
    first, second = len(groups), len(groups) + len(groups.positives.papers)
    return Batch(
        papers=papers,
        anchors=places[:first],
        positives=_once(Lists(groups.positives.offsets, places[first:second]).padded()),
        negatives=_once(Lists(groups.negatives.offsets, places[second:]).padded()),
        triplets=np.searchsorted(papers, triplets),
        groups=groups,
        rules=None if groups.rules is None else Lists(groups.negatives.offsets, groups.rules).padded(),
    )


def _once(lists: Numbers) -> Numbers:
    """Lists without what they name again; shape as given, -1 in its place.

    >>> _once(np.array([[4, 2, 4], [1, -1, -1]])).tolist()
    [[4, 2, -1], [1, -1, -1]]
    """
    again = (lists[:, :, None] == lists[:, None, :]) & np.tri(
        lists.shape[1], k=-1, dtype=bool
    )  # (owners, places, places)
    return np.where(again.any(axis=2), -1, lists)


def are_pairs(batch: Batch, anchors: Numbers, candidates: Numbers) -> NDArray[np.bool_]:
    """Which candidates are positives of which anchors in some group of the batch, by places; (anchors, candidates).

    >>> batch = assemble(groups_of([5, 5], positives=[[7], [8]], negatives=[[], []]))
    >>> are_pairs(batch, np.array([0]), np.array([0, 1, 2])).tolist()  # 5 with 5, 7 and 8
    [[False, True, True]]
    """
    pairs: NDArray[np.bool_] = np.zeros((len(batch.papers), len(batch.papers) + 1), bool)  # the last takes the -1
    pairs[batch.anchors[:, None], batch.positives] = True
    return pairs[anchors[:, None], candidates]


def split(batch: Batch, lengths: Numbers, budget: int) -> list[Batch]:
    """Whole groups in parts whose papers have at most `budget` tokens together; a larger group is a part of its own.

    `lengths` are those of all papers of the data. Which parts there are depends on lengths and budget alone.
    """
    costs = group_costs(batch.groups, lengths)
    parts, start, total = [], 0, 0
    for number, cost in enumerate(costs.tolist()):
        if number > start and total + cost > budget:
            parts.append(np.arange(start, number))
            start, total = number, 0
        total += cost
    parts.append(np.arange(start, len(batch.groups)))
    return [batch] if len(parts) == 1 else [assemble(batch.groups.take(part)) for part in parts]


def deal(costs: Numbers, count: int) -> list[Numbers]:
    """What each of `count` processes takes, about the same cost on each: the dearest first, to whom has least (Graham
    1969); in the order given, nothing twice.

    >>> [mine.tolist() for mine in deal(np.array([1, 5, 2, 3]), 2)]
    [[0, 1], [2, 3]]
    """
    if count == 1:
        return [np.arange(len(costs))]
    loads = [(0, rank) for rank in range(count)]
    taken: list[list[int]] = [[] for _ in range(count)]
    for number in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        taken[rank].append(number)
        heapq.heapreplace(loads, (load + int(costs[number]), rank))
    return [np.array(sorted(mine), np.int64) for mine in taken]


def group_costs(groups: Groups, lengths: Numbers) -> Numbers:
    """Tokens of every group's papers, (groups,)."""
    return np.array([_cost(groups, number, lengths) for number in range(len(groups))], np.int64)


def _cost(groups: Groups, number: int, lengths: Numbers) -> int:
    ups, downs = groups.positives, groups.negatives
    papers = {
        int(groups.anchors[number]),
        *ups.papers[ups.offsets[number] : ups.offsets[number + 1]].tolist(),
        *downs.papers[downs.offsets[number] : downs.offsets[number + 1]].tolist(),
    }
    return int(lengths[list(papers)].sum())


class Batches:
    """The batches of all epochs, each a function of the seed and its number."""

    def __init__(self, groups: Groups, options: TrainingOptions) -> None:
        self._seed, self._size = options.seed, options.batch
        self._by_triplets = options.unit == "triplets"
        drawn = _draw(groups, options)
        self._groups = _blocks(drawn, options.block) if self._by_triplets else _positive_blocks(drawn, options)
        self._triplets = self._groups.triplet_counts()  # (groups,)
        units = int(self._triplets.sum()) if self._by_triplets else len(self._groups)
        self.units = units
        self.per_epoch = -(-units // self._size)
        self._ends = lru_cache(maxsize=2)(self._order)

    def at(self, step: int) -> Batch:
        """The batch of a step, from 0 on over all epochs."""
        epoch, number = divmod(step, self.per_epoch)
        order, ends = self._ends(epoch)
        first, last = number * self._size, min((number + 1) * self._size, self.units)
        if not self._by_triplets:
            return assemble(self._groups.take(order[first:last]))
        begin, end = int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last, "left")) + 1
        before = int(ends[begin]) - int(self._triplets[order[begin]])  # triplets of earlier groups
        return assemble(_range_of_triplets(self._groups.take(order[begin:end]), first - before, last - before))

    def _order(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Groups of an epoch in their order, and how many triplets there are up to the end of each."""
        order = stream(self._seed, "training", "order", epoch).permutation(len(self._groups))
        return order, np.cumsum(self._triplets[order])


def _draw(groups: Groups, options: TrainingOptions) -> Groups:
    """Groups that can be trained on, or a share of them."""
    fits = groups.positives.counts() > 0 if options.pairs_suffice else groups.triplet_counts() > 0
    usable = np.flatnonzero(fits)
    if options.share >= 1:
        return groups.take(usable)
    count = max(1, round(options.share * len(usable)))
    return groups.take(np.sort(stream(options.seed, "training", "share").permutation(usable)[:count]))


def _blocks(groups: Groups, size: int) -> Groups:
    """Groups of at most so many triplets each."""
    counts = groups.triplet_counts()
    if not size or int(counts.max(initial=0)) <= size:
        return groups
    owner = np.repeat(np.arange(len(groups)), counts)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _of_triplets(groups.triplets(), owner * (int(counts.max()) + 1) + place // size)


def _positive_blocks(groups: Groups, options: TrainingOptions) -> Groups:
    """Groups of at most so many positives each, where pairs suffice; each has all negatives of its anchor."""
    counts, size = groups.positives.counts(), options.block
    if not size or not options.pairs_suffice or int(counts.max(initial=0)) <= size:
        return groups
    owner = np.repeat(np.arange(len(groups)), counts)  # (positives,)
    place = np.arange(len(owner)) - np.repeat(groups.positives.offsets[:-1], counts)
    starts = np.flatnonzero(place % size == 0)  # (blocks,)
    lists = Lists(np.concatenate([starts, [len(owner)]]), groups.positives.papers)
    return dataclasses.replace(groups.take(owner[starts]), positives=lists)


def _range_of_triplets(groups: Groups, first: int, last: int) -> Groups:
    """Groups of only the triplets from first up to last; groups that stay whole stay as they are."""
    total = int(groups.triplet_counts().sum())
    if first == 0 and last == total:
        return groups
    owner = np.repeat(np.arange(len(groups)), groups.triplet_counts())
    return _of_triplets(groups.triplets()[first:last], owner[first:last])


def _of_triplets(triplets: Numbers, owner: Numbers) -> Groups:
    """Triplets of the same owner, which follow each other, as one group."""
    starts = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))  # (groups,)
    ends = np.concatenate([starts, [len(owner)]])
    return Groups(triplets[starts, 0], Lists(ends, triplets[:, 1]), Lists(ends, triplets[:, 2]))
