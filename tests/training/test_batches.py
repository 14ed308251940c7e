"""Batches: every unit once an epoch, every paper once a batch, the same for the same seed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.training.batches import Batches, build_batch, mark_positives, split_batch
from citeweave.training.data import AnchorGroups, make_groups
from citeweave.training.options import TrainingOptions, training_options


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


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_triplet_once(seed, count, size, block):
    groups = made_groups(seed, count)
    wanted = by_hand(groups)
    batches = Batches(groups, TrainingOptions(batch=size, block=block, seed=seed))
    assert batches.units == len(wanted)
    for epoch in (0, 1) if wanted else ():
        found = [batches.at(epoch * batches.per_epoch + step) for step in range(batches.per_epoch)]
        rows = [tuple(row) for batch in found for row in batch.papers[batch.triplets].tolist()]
        assert sorted(rows) == sorted(wanted)
        assert all(len(batch.triplets) == size for batch in found[:-1])


def test_batches_are_functions_of_seed_and_step():
    groups, options = made_groups(3, 30), TrainingOptions(batch=4, seed=5)
    forwards = [Batches(groups, options).at(step).papers.tolist() for step in range(8)]
    batches, other = Batches(groups, options), Batches(groups, dataclasses.replace(options, seed=6))
    assert [batches.at(step).papers.tolist() for step in reversed(range(8))] == forwards[::-1]
    assert [other.at(step).papers.tolist() for step in range(8)] != forwards
    # a share of the samples is drawn by the seed too
    groups = make_groups(list(range(100)), [[100 + i] for i in range(100)], [[200 + i] for i in range(100)])
    tenth = TrainingOptions(batch=100, share=0.1, seed=1)
    first, again, other_tenth = (
        Batches(groups, dataclasses.replace(tenth, seed=seed)).at(0).papers.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other_tenth and len(Batches(groups, tenth).at(0).triplets) == 10


def test_triplets_of_an_anchor_stay_together_and_groups_are_complete():
    groups = make_groups([0, 10, 20], [[1, 2], [11, 12], [21, 22]], [[3, 4], [13, 14], [23, 24]])
    for step in range(3):
        batch = Batches(groups, TrainingOptions(batch=2)).at(step)
        assert len(set(batch.papers[batch.anchors].tolist())) == 1
    assert len(Batches(groups, TrainingOptions(batch=6, block=1)).at(0).anchors) == 6
    groups = make_groups([0, 10, 20], [[1, 2, 2], [11], [21]], [[3], [13, 14], [23]])
    batches = Batches(groups, TrainingOptions(batch=2, unit="groups"))
    assert batches.per_epoch == 2
    found = {}
    for batch in map(batches.at, range(2)):
        for anchor, ups in zip(batch.papers[batch.anchors].tolist(), batch.positives, strict=True):
            found[anchor] = batch.papers[ups[ups >= 0]].tolist()
    assert found == {0: [1, 2], 10: [11], 20: [21]}, "a paper counts once in a group"


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_where_pairs_suffice(seed, count, size, block):
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


def test_positives_of_an_anchor_are_known_across_its_groups():
    groups = made_groups(5, 20, papers=12)
    batch = build_batch(groups.take(np.flatnonzero(groups.positives.counts())))
    pairs = {(int(a), int(p)) for a, line in zip(batch.anchors, batch.positives, strict=True) for p in line if p >= 0}
    places = np.arange(len(batch.papers))
    found = mark_positives(batch, places, places[::-1])
    assert {(int(a), int(places[::-1][p])) for a, p in np.argwhere(found)} == pairs


@pytest.mark.parametrize("budget", [1, 25, 60, 10_000])
def test_parts_hold_whole_groups_within_the_budget(budget):
    groups = made_groups(7, 20)
    whole = build_batch(groups.take(np.flatnonzero(groups.triplet_counts())))
    lengths = np.random.default_rng(0).integers(1, 9, 40)
    parts = split_batch(whole, lengths, budget)
    rows = [row for part in parts for row in part.papers[part.triplets].tolist()]
    assert rows == whole.papers[whole.triplets].tolist()
    for part in parts:
        assert int(lengths[part.papers].sum()) <= budget or len(part.anchors) == 1
    assert (len(parts) == 1) == (budget == 10_000)


def _facts(groups: AnchorGroups) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Anchor, aspect and positive; anchor, aspect, negative and its rule: one after the other."""
    assert groups.aspects is not None and groups.rules is not None
    pairs: list[tuple[int, ...]] = []
    rules: list[tuple[int, ...]] = []
    for n, (anchor, aspect) in enumerate(zip(groups.anchors.tolist(), groups.aspects.tolist(), strict=True)):
        ups, downs = (slice(*lists.offsets[n : n + 2]) for lists in (groups.positives, groups.negatives))
        pairs += [(anchor, aspect, paper) for paper in groups.positives.papers[ups].tolist()]
        own = zip(groups.negatives.papers[downs].tolist(), groups.rules[downs].tolist(), strict=True)
        rules += [(anchor, aspect, paper, rule) for paper, rule in own]
    return pairs, rules


@pytest.mark.parametrize(("block", "share"), [(0, 1.0), (1, 1.0), (2, 1.0), (2, 0.5)])
def test_aspects_and_rules_stay_with_their_papers(block, share):
    rng = np.random.default_rng(block)
    counts = rng.integers(1, 6, (2, 30))
    ups, downs = ([rng.choice(90, count, replace=False).tolist() for count in row] for row in counts)
    groups = make_groups(rng.integers(90, 99, 30).tolist(), ups, downs)
    groups = dataclasses.replace(groups, aspects=rng.integers(0, 3, 30), rules=rng.integers(0, 4, int(counts[1].sum())))
    options = {"unit": "groups", "batch": 4, "block": block, "share": share, "losses": {"aspect_in_batch": {}}}
    batches, wanted = Batches(groups, training_options(options)), _facts(groups)
    found = [_facts(batches.at(step).groups) for step in range(batches.per_epoch)]
    pairs, rules = (sorted(fact for part in found for fact in part[kind]) for kind in (0, 1))
    if share == 1:
        assert pairs == sorted(wanted[0]) and set(rules) == set(wanted[1])
    else:
        assert set(pairs) <= set(wanted[0]) and 0 < len(pairs) < len(wanted[0]) and set(rules) < set(wanted[1])
    batch = batches.at(0)
    assert batch.rules is not None
    chosen = zip(batch.papers[batch.anchors].tolist(), batch.with_negatives_by([1]).negatives, strict=True)
    by_rule = {(anchor, paper) for anchor, line in chosen for paper in batch.papers[line[line >= 0]].tolist()}
    assert by_rule == {(anchor, paper) for anchor, _, paper, rule in _facts(batch.groups)[1] if rule == 1}
