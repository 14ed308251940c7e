"""Batches: which groups meet in which step, and every paper of a step once.

    batches = Batches(groups, options)
    batches.at(0)           the batch of step 0: a function of seed and step, whatever ran before

    >>> batch = assemble(groups_of([5, 5], positives=[[7], [7]], negatives=[[9], [8]]))
    >>> batch.papers.tolist(), batch.anchors.tolist(), batch.triplets.tolist()
    ([5, 7, 8, 9], [0, 0], [[0, 1, 3], [0, 1, 2]])

A batch of triplets keeps the triplets of an anchor together, so that the anchor is encoded once; it is cut where it is
full. Encodes nothing.

Which papers of a batch are negatives of which anchors, as plain masks: needs numpy alone.

candidates = candidates_of(batch)                       every positive and negative of the batch
opposed(batch, owner, candidates, relatives)            (owner, candidates), True at a negative of the group
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from citeweave.core.randomness import stream
from citeweave.training.data import AnchorGroups, Numbers, PaperLists, groups_of
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

    groups: AnchorGroups
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


def assemble(groups: AnchorGroups) -> Batch:
    """Number the different papers of some groups."""
    triplets = groups.triplets()
    mentioned = np.concatenate([groups.anchors, groups.positives.papers, groups.negatives.papers])
    papers, places = np.unique(mentioned, return_inverse=True)
    first, second = len(groups), len(groups) + len(groups.positives.papers)
    return Batch(
        papers=papers,
        anchors=places[:first],
        positives=_once(PaperLists(groups.positives.offsets, places[first:second]).padded()),
        negatives=_once(PaperLists(groups.negatives.offsets, places[second:]).padded()),
        triplets=np.searchsorted(papers, triplets),
        groups=groups,
        rules=None if groups.rules is None else PaperLists(groups.negatives.offsets, groups.rules).padded(),
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


def group_costs(groups: AnchorGroups, lengths: Numbers) -> Numbers:
    """Tokens of every group's papers, (groups,)."""
    return np.array([_cost(groups, number, lengths) for number in range(len(groups))], np.int64)


def _cost(groups: AnchorGroups, number: int, lengths: Numbers) -> int:
    ups, downs = groups.positives, groups.negatives
    papers = {
        int(groups.anchors[number]),
        *ups.papers[ups.offsets[number] : ups.offsets[number + 1]].tolist(),
        *downs.papers[downs.offsets[number] : downs.offsets[number + 1]].tolist(),
    }
    return int(lengths[list(papers)].sum())


class Batches:
    """The batches of all epochs, each a function of the seed and its number."""

    def __init__(self, groups: AnchorGroups, options: TrainingOptions) -> None:
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


def _draw(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Groups that can be trained on, or a share of them."""
    fits = groups.positives.counts() > 0 if options.pairs_suffice else groups.triplet_counts() > 0
    usable = np.flatnonzero(fits)
    if options.share >= 1:
        return groups.take(usable)
    count = max(1, round(options.share * len(usable)))
    return groups.take(np.sort(stream(options.seed, "training", "share").permutation(usable)[:count]))


def _blocks(groups: AnchorGroups, size: int) -> AnchorGroups:
    """Groups of at most so many triplets each."""
    counts = groups.triplet_counts()
    if not size or int(counts.max(initial=0)) <= size:
        return groups
    owner = np.repeat(np.arange(len(groups)), counts)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _of_triplets(groups.triplets(), owner * (int(counts.max()) + 1) + place // size)


def _positive_blocks(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Groups of at most so many positives each, where pairs suffice; each has all negatives of its anchor."""
    counts, size = groups.positives.counts(), options.block
    if not size or not options.pairs_suffice or int(counts.max(initial=0)) <= size:
        return groups
    owner = np.repeat(np.arange(len(groups)), counts)  # (positives,)
    place = np.arange(len(owner)) - np.repeat(groups.positives.offsets[:-1], counts)
    starts = np.flatnonzero(place % size == 0)  # (blocks,)
    lists = PaperLists(np.concatenate([starts, [len(owner)]]), groups.positives.papers)
    return dataclasses.replace(groups.take(owner[starts]), positives=lists)


def _range_of_triplets(groups: AnchorGroups, first: int, last: int) -> AnchorGroups:
    """Groups of only the triplets from first up to last; groups that stay whole stay as they are."""
    total = int(groups.triplet_counts().sum())
    if first == 0 and last == total:
        return groups
    owner = np.repeat(np.arange(len(groups)), groups.triplet_counts())
    return _of_triplets(groups.triplets()[first:last], owner[first:last])


def _of_triplets(triplets: Numbers, owner: Numbers) -> AnchorGroups:
    """Triplets of the same owner, which follow each other, as one group."""
    starts = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))  # (groups,)
    ends = np.concatenate([starts, [len(owner)]])
    return AnchorGroups(triplets[starts, 0], PaperLists(ends, triplets[:, 1]), PaperLists(ends, triplets[:, 2]))


# Which papers of a batch are negatives of which anchors, as plain masks: needs numpy alone.

Mask = NDArray[np.bool_]


def allowed_pairs(left: Numbers, right: Numbers, relatives: PaperLists | None) -> Mask:
    """Which papers may be negatives of each other: not a paper of itself, not known relatives; (left, right), bool.

    >>> from citeweave.training.data import lists_of
    >>> allowed_pairs(np.array([0, 2]), np.array([0, 1, 2]), lists_of([[1], [], []])).tolist()
    [[False, False, True], [True, True, False]]
    """
    allowed: Mask = left[:, None] != right  # (left, right)
    if relatives is not None:
        known = relatives.take(left)
        owner = np.repeat(np.arange(len(left)), known.counts())  # (relatives of all,)
        order = np.argsort(right, kind="stable")
        first, last = (np.searchsorted(right[order], known.papers, side) for side in ("left", "right"))
        counts = last - first  # a paper may stand on the right several times
        places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        allowed[np.repeat(owner, counts), order[places]] = False
    return allowed


def candidates_of(batch: Batch) -> Numbers:
    """Places of every paper that is a positive or a negative of some group, ascending."""
    found = np.unique(np.concatenate([batch.positives.ravel(), batch.negatives.ravel()]))
    return found[found >= 0]


def opposed(batch: Batch, owner: Numbers, candidates: Numbers, relatives: PaperLists | None) -> Mask:
    """Which of the batch's candidates are negatives of the groups `owner`, (owner, candidates), bool."""
    anchors = batch.anchors[owner]
    allowed = allowed_pairs(batch.papers[anchors], batch.papers[candidates], relatives)
    allowed &= ~are_pairs(batch, anchors, candidates)  # positives of any group of the anchor are none
    allowed |= named_by(batch.negatives, candidates, len(batch.papers))[owner]  # those it was given always are
    return allowed


def named_by(lists: Numbers, candidates: Numbers, papers: int) -> Mask:
    """Which candidates a list names, (lists, candidates), bool."""
    named: Mask = np.zeros((len(lists), papers + 1), bool)  # the last column takes the -1
    np.put_along_axis(named, lists, True, axis=1)
    return named[:, candidates]
