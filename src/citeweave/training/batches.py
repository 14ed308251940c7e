"""Batches: which groups are trained in which step, and which papers of a batch are negatives of which anchors.

    batches = Batches(groups, options)
    batches.at(0)           the batch of step 0: a function of seed and step alone

    >>> from citeweave.training.data import make_groups
    >>> batch = build_batch(make_groups([5, 5], positives=[[7], [7]], negatives=[[9], [8]]))
    >>> batch.papers.tolist(), batch.anchors.tolist(), batch.triplets.tolist()
    ([5, 7, 8, 9], [0, 0], [[0, 1, 3], [0, 1, 2]])

Every paper of a batch is encoded once. A batch of triplets keeps the triplets of an anchor together, except where it is
full. Masks of in-batch negatives need only numpy:

    candidates = batch_candidates(batch)                               every positive and negative of the batch
    mark_negatives(batch, owner, candidates, related)                  (owner, candidates), True at a negative

Encodes nothing.
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
from citeweave.training.data import AnchorGroups, Numbers, PaperLists
from citeweave.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class Batch:
    """A training batch: papers with their groups; anchors, positives and negatives are positions in `papers`."""

    papers: Numbers
    """Distinct papers, ascending, shape (papers,)."""

    anchors: Numbers
    """Shape (groups,)."""

    positives: Numbers
    """Shape (groups, longest), each paper once, -1 where a group has fewer."""

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

    def with_negatives_by(self, rules: Sequence[int]) -> Batch:
        """Return the batch with only the negatives of some mining rules."""
        assert self.rules is not None, "load_training_data keeps the rules where a loss needs them"
        return dataclasses.replace(self, negatives=np.where(np.isin(self.rules, list(rules)), self.negatives, -1))


def build_batch(groups: AnchorGroups) -> Batch:
    """Build the training batch of some groups: number its distinct papers and pad its lists."""
    triplets = groups.triplets()
    mentioned = np.concatenate([groups.anchors, groups.positives.papers, groups.negatives.papers])
    papers, places = np.unique(mentioned, return_inverse=True)
    first, second = len(groups), len(groups) + len(groups.positives.papers)
    return Batch(
        papers=papers,
        anchors=places[:first],
        positives=_drop_repeats(PaperLists(groups.positives.offsets, places[first:second]).padded()),
        negatives=_drop_repeats(PaperLists(groups.negatives.offsets, places[second:]).padded()),
        triplets=np.searchsorted(papers, triplets),
        groups=groups,
        rules=None if groups.rules is None else PaperLists(groups.negatives.offsets, groups.rules).padded(),
    )


def _drop_repeats(lists: Numbers) -> Numbers:
    """Replace repeated papers of padded lists by -1; same shape.

    >>> _drop_repeats(np.array([[4, 2, 4], [1, -1, -1]])).tolist()
    [[4, 2, -1], [1, -1, -1]]
    """
    repeated = (lists[:, :, None] == lists[:, None, :]) & np.tri(
        lists.shape[1], k=-1, dtype=bool
    )  # (owners, places, places)
    return np.where(repeated.any(axis=2), -1, lists)


def mark_positives(batch: Batch, anchors: Numbers, candidates: Numbers) -> NDArray[np.bool_]:
    """Mark which candidates of a training batch are positives of which anchors in any group, (anchors, candidates).

    >>> from citeweave.training.data import make_groups
    >>> batch = build_batch(make_groups([5, 5], positives=[[7], [8]], negatives=[[], []]))
    >>> mark_positives(batch, np.array([0]), np.array([0, 1, 2])).tolist()  # 5 with 5, 7 and 8
    [[False, True, True]]
    """
    pairs: NDArray[np.bool_] = np.zeros((len(batch.papers), len(batch.papers) + 1), bool)  # the last takes the -1
    pairs[batch.anchors[:, None], batch.positives] = True
    return pairs[anchors[:, None], candidates]


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


def balance_costs(costs: Numbers, count: int) -> list[Numbers]:
    """Divide a batch among `count` processes at about equal cost: each next most expensive item to the least loaded.

    Graham 1969; each process keeps its items in their original order.

    >>> [mine.tolist() for mine in balance_costs(np.array([1, 5, 2, 3]), 2)]
    [[0, 1], [2, 3]]
    """
    if count == 1:
        return [np.arange(len(costs))]
    loads = [(0, rank) for rank in range(count)]
    assigned: list[list[int]] = [[] for _ in range(count)]
    for number in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        assigned[rank].append(number)
        heapq.heapreplace(loads, (load + int(costs[number]), rank))
    return [np.array(sorted(mine), np.int64) for mine in assigned]


def group_costs(groups: AnchorGroups, lengths: Numbers) -> Numbers:
    """Count the tokens of every group's papers, (groups,)."""
    return np.array([_group_cost(groups, number, lengths) for number in range(len(groups))], np.int64)


def _group_cost(groups: AnchorGroups, number: int, lengths: Numbers) -> int:
    papers = {int(groups.anchors[number])}
    for lists in (groups.positives, groups.negatives):
        papers.update(lists.papers[lists.offsets[number] : lists.offsets[number + 1]].tolist())
    return int(lengths[list(papers)].sum())


class Batches:
    """Training batches of all epochs, each a function of the seed and its step."""

    def __init__(self, groups: AnchorGroups, options: TrainingOptions) -> None:
        self._seed, self._size = options.seed, options.batch
        self._by_triplets = options.unit == "triplets"
        usable = _select_groups(groups, options)
        self._groups = (
            _split_triplets(usable, options.block) if self._by_triplets else _split_positives(usable, options)
        )
        self._triplets = self._groups.triplet_counts()  # (groups,)
        units = int(self._triplets.sum()) if self._by_triplets else len(self._groups)
        self.units = units
        self.per_epoch = -(-units // self._size)
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

    def _order(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Return the random order of an epoch's groups, and the cumulative number of triplets."""
        order = stream(self._seed, "training", "order", epoch).permutation(len(self._groups))
        return order, np.cumsum(self._triplets[order])


def _select_groups(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Select the groups that can be trained on, or a random share of them."""
    fits = groups.positives.counts() > 0 if options.pairs_suffice else groups.triplet_counts() > 0
    usable = np.flatnonzero(fits)
    if options.share >= 1:
        return groups.take(usable)
    count = max(1, round(options.share * len(usable)))
    return groups.take(np.sort(stream(options.seed, "training", "share").permutation(usable)[:count]))


def _split_triplets(groups: AnchorGroups, size: int) -> AnchorGroups:
    """Split groups into groups of at most `size` triplets."""
    counts = groups.triplet_counts()
    if not size or int(counts.max(initial=0)) <= size:
        return groups
    owner = np.repeat(np.arange(len(groups)), counts)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _group_triplets(groups.triplets(), owner * (int(counts.max()) + 1) + place // size)


def _split_positives(groups: AnchorGroups, options: TrainingOptions) -> AnchorGroups:
    """Split groups by positives where losses take the batch's negatives; each part keeps all negatives."""
    counts, size = groups.positives.counts(), options.block
    if not size or not options.pairs_suffice or int(counts.max(initial=0)) <= size:
        return groups
    owner = np.repeat(np.arange(len(groups)), counts)  # (positives,)
    place = np.arange(len(owner)) - np.repeat(groups.positives.offsets[:-1], counts)
    starts = np.flatnonzero(place % size == 0)  # (blocks,)
    lists = PaperLists(np.concatenate([starts, [len(owner)]]), groups.positives.papers)
    return dataclasses.replace(groups.take(owner[starts]), positives=lists)


def _slice_triplets(groups: AnchorGroups, first: int, last: int) -> AnchorGroups:
    """Return groups with only the triplets from first up to last; complete groups stay as they are."""
    total = int(groups.triplet_counts().sum())
    if first == 0 and last == total:
        return groups
    owner = np.repeat(np.arange(len(groups)), groups.triplet_counts())
    return _group_triplets(groups.triplets()[first:last], owner[first:last])


def _group_triplets(triplets: Numbers, owner: Numbers) -> AnchorGroups:
    """Group consecutive triplets of the same owner."""
    starts = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))  # (groups,)
    ends = np.concatenate([starts, [len(owner)]])
    return AnchorGroups(triplets[starts, 0], PaperLists(ends, triplets[:, 1]), PaperLists(ends, triplets[:, 2]))


# Masks of in-batch negatives

Mask = NDArray[np.bool_]


def allowed_pairs(left: Numbers, right: Numbers, related: PaperLists | None) -> Mask:
    """Mark which papers of a batch may be negatives of each other: not itself, not a related paper; (left, right).

    >>> from citeweave.training.data import make_lists
    >>> allowed_pairs(np.array([0, 2]), np.array([0, 1, 2]), make_lists([[1], [], []])).tolist()
    [[False, False, True], [True, True, False]]
    """
    allowed: Mask = left[:, None] != right  # (left, right)
    if related is not None:
        lists = related.take(left)
        owner = np.repeat(np.arange(len(left)), lists.counts())  # (related papers,)
        order = np.argsort(right, kind="stable")
        first, last = (np.searchsorted(right[order], lists.papers, side) for side in ("left", "right"))
        counts = last - first  # a paper may occur several times on the right
        places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        allowed[np.repeat(owner, counts), order[places]] = False
    return allowed


def batch_candidates(batch: Batch) -> Numbers:
    """Return the positions of all positives and negatives of a batch, ascending."""
    places = np.unique(np.concatenate([batch.positives.ravel(), batch.negatives.ravel()]))
    return places[places >= 0]


def mark_negatives(batch: Batch, owner: Numbers, candidates: Numbers, related: PaperLists | None) -> Mask:
    """Mark which candidates of a training batch are negatives of the groups `owner`, (owner, candidates), bool."""
    anchors = batch.anchors[owner]
    allowed = allowed_pairs(batch.papers[anchors], batch.papers[candidates], related)
    allowed &= ~mark_positives(batch, anchors, candidates)  # positives of any group of the anchor are not negatives
    allowed |= mark_listed(batch.negatives, candidates, len(batch.papers))[owner]  # its own negatives always are
    return allowed


def mark_listed(lists: Numbers, candidates: Numbers, papers: int) -> Mask:
    """Mark which candidates each padded list contains, (lists, candidates), bool."""
    listed: Mask = np.zeros((len(lists), papers + 1), bool)  # the last column takes the -1
    np.put_along_axis(listed, lists, True, axis=1)
    return listed[:, candidates]
