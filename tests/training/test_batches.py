"""Batches: every unit once an epoch, every paper once a batch, the same for the same seed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.training.batches import Batches, build_batch, mark_positives, split_batch
from citeweave.training.data import AnchorGroups, make_groups
from citeweave.training.options import TrainingOptions


def made_groups(seed: int, count: int, papers: int = 40) -> AnchorGroups:
    drawn = np.random.default_rng(seed)
    lists = [[drawn.integers(0, papers, drawn.integers(0, 5)).tolist() for _ in range(count)] for _ in range(2)]
    return make_groups(drawn.integers(0, papers, count).tolist(), *lists)


def by_hand(groups: AnchorGroups) -> list[tuple[int, int, int]]:
    """Triplets one by one: the shorter list begun anew."""
    found = []
    for number, anchor in enumerate(groups.anchors.tolist()):
        ups = groups.positives.take(np.array([number])).papers.tolist()
        downs = groups.negatives.take(np.array([number])).papers.tolist()
        count = max(len(ups), len(downs)) if ups and downs else 0
        found += [(anchor, ups[place % len(ups)], downs[place % len(downs)]) for place in range(count)]
    return found


def rows_of(batches: Batches, epoch: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for step in range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch):
        batch = batches.at(step)
        found += [tuple(row) for row in batch.papers[batch.triplets].tolist()]
    return found


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_triplet_once(seed: int, count: int, size: int, block: int) -> None:
    groups = made_groups(seed, count)
    wanted = by_hand(groups)
    batches = Batches(groups, TrainingOptions(batch=size, block=block, seed=seed))
    assert batches.units == len(wanted)
    for epoch in (0, 1) if wanted else ():
        assert sorted(rows_of(batches, epoch)) == sorted(wanted)
    sizes = [len(batches.at(step).triplets) for step in range(batches.per_epoch)]
    assert sizes[:-1] == [size] * (len(sizes) - 1)


def test_triplets_of_an_anchor_stay_together_unless_a_batch_is_full() -> None:
    groups = make_groups([0, 10, 20], [[1, 2], [11, 12], [21, 22]], [[3, 4], [13, 14], [23, 24]])
    batches = Batches(groups, TrainingOptions(batch=2))
    for step in range(3):
        assert len(set(batches.at(step).papers[batches.at(step).anchors].tolist())) == 1
    blocks = Batches(groups, TrainingOptions(batch=6, block=1)).at(0)
    assert len(blocks.anchors) == 6


def test_batches_are_functions_of_seed_and_step() -> None:
    groups = made_groups(3, 30)
    options = TrainingOptions(batch=4, seed=5)
    forwards = [Batches(groups, options).at(step).papers.tolist() for step in range(8)]
    batches = Batches(groups, options)
    assert [batches.at(step).papers.tolist() for step in reversed(range(8))] == forwards[::-1]
    other = Batches(groups, dataclasses.replace(options, seed=6))
    assert [other.at(step).papers.tolist() for step in range(8)] != forwards


def test_groups_are_whole_where_they_are_the_unit() -> None:
    groups = make_groups([0, 10, 20], [[1, 2, 2], [11], [21]], [[3], [13, 14], [23]])
    batches = Batches(groups, TrainingOptions(batch=2, unit="groups"))
    assert batches.per_epoch == 2
    found = {}
    for step in range(2):
        batch = batches.at(step)
        for number, anchor in enumerate(batch.papers[batch.anchors].tolist()):
            inside = batch.positives[number] >= 0
            found[anchor] = batch.papers[batch.positives[number][inside]].tolist()
    assert found == {0: [1, 2], 10: [11], 20: [21]}, "a paper counts once in a group"


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_where_pairs_suffice(seed: int, count: int, size: int, block: int) -> None:
    groups = made_groups(seed, count)
    options = TrainingOptions(losses={"in_batch": {}}, batch=size, block=block, unit="groups", seed=seed)
    batches, found, wanted = Batches(groups, options), [], []
    for group in range(count):
        one = groups.take(np.array([group]))
        ups, downs = one.positives.papers.tolist(), sorted(set(one.negatives.papers.tolist()))
        for at in range(0, len(ups), block or len(ups) or 1):
            kept = tuple(dict.fromkeys(ups[at : at + (block or len(ups))]))
            wanted.append((int(one.anchors[0]), kept, tuple(downs)))
    for step in range(batches.per_epoch):
        batch = batches.at(step)
        assert len(batch.anchors) <= size
        lists = [[tuple(batch.papers[line[line >= 0]].tolist()) for line in part] for part in (batch.positives, batch.negatives)]  # fmt: skip
        found += [
            (a, p, tuple(sorted(n))) for a, p, n in zip(batch.papers[batch.anchors].tolist(), *lists, strict=True)
        ]
    assert sorted(found) == sorted(wanted)
    needs_negatives = dataclasses.replace(options, losses={"in_batch": {}, "triplet": {}})
    assert Batches(groups, needs_negatives).units == int((groups.triplet_counts() > 0).sum())


def test_positives_of_an_anchor_are_known_across_its_groups() -> None:
    groups = made_groups(5, 20, papers=12)
    batch = build_batch(groups.take(np.flatnonzero(groups.positives.counts())))
    pairs = {(int(a), int(p)) for a, line in zip(batch.anchors, batch.positives, strict=True) for p in line if p >= 0}
    places = np.arange(len(batch.papers))
    found = mark_positives(batch, places, places[::-1])
    assert {(int(a), int(places[::-1][p])) for a, p in np.argwhere(found)} == pairs


def test_a_share_of_the_samples_is_drawn_by_the_seed() -> None:
    groups = make_groups(list(range(100)), [[100 + i] for i in range(100)], [[200 + i] for i in range(100)])
    tenth = TrainingOptions(batch=100, share=0.1, seed=1)
    first, again = (Batches(groups, tenth).at(0).papers.tolist() for _ in range(2))
    assert first == again
    assert len(Batches(groups, tenth).at(0).triplets) == 10
    assert first != Batches(groups, dataclasses.replace(tenth, seed=2)).at(0).papers.tolist()


@pytest.mark.parametrize("budget", [1, 25, 60, 10_000])
def test_parts_hold_whole_groups_within_the_budget(budget: int) -> None:
    groups = made_groups(7, 20)
    whole = build_batch(groups.take(np.flatnonzero(groups.triplet_counts())))
    lengths = np.random.default_rng(0).integers(1, 9, 40)
    parts = split_batch(whole, lengths, budget)
    rows = [row for part in parts for row in part.papers[part.triplets].tolist()]
    assert rows == whole.papers[whole.triplets].tolist()
    for part in parts:
        assert int(lengths[part.papers].sum()) <= budget or len(part.anchors) == 1
    assert (len(parts) == 1) == (budget == 10_000)
