from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from citeweave.remote.ray_executor import PendingShards

BOTH = {"anna": "attic", "ben": "cellar"}


def test_two_shards_a_worker_and_no_more() -> None:
    pending = PendingShards([0, 1, 2, 3, 4], tries=3)
    assert [pending.assign("anna", BOTH) for _ in range(3)] == [0, 1, None]
    pending.complete(0)
    assert pending.assign("anna", BOTH) == 2
    assert pending.assigned_to("anna") == [1, 2] and pending.remaining == 4


def test_what_failed_goes_to_another_worker_while_there_is_one() -> None:
    pending = PendingShards([7], tries=3)
    assert pending.assign("anna", BOTH) == 7
    assert not pending.record_failure(7, "ValueError")
    assert pending.assign("anna", BOTH) is None
    assert pending.assign("anna", {"anna": "attic"}) == 7  # nobody else is left
    assert not pending.record_failure(7, "ValueError")
    assert pending.assign("ben", BOTH) == 7
    assert pending.record_failure(7, "the last error")
    assert pending.is_done and pending.left_out == {7: "the last error"}


def test_what_failed_goes_to_another_node_first() -> None:
    nodes = {"anna": "attic", "adam": "attic", "ben": "cellar"}
    pending = PendingShards([7], tries=4)
    assert pending.assign("anna", nodes) == 7
    pending.record_failure(7, "died", died=True)
    new = {"alma": "attic", "adam": "attic", "ben": "cellar"}  # alma in the place of anna, who died
    assert pending.assign("alma", new) is None and pending.assign("adam", new) is None
    assert pending.assign("ben", new) == 7
    pending.record_failure(7, "died", died=True)
    assert pending.assign("ben", new) is None  # it has failed everywhere: to a worker that has not tried it
    assert pending.assign("alma", new) == 7


def test_after_a_death_shards_are_given_out_alone() -> None:
    pending = PendingShards([0, 1, 2], tries=3)
    assert pending.assign("anna", BOTH) == 0 and pending.assign("anna", BOTH) == 1
    pending.record_failure(0, "died", died=True)
    pending.record_failure(1, "died", died=True)
    assert pending.assign("ben", {"ben": "cellar"}) == 2  # not with a suspect
    assert pending.assign("ben", {"ben": "cellar"}) is None
    pending.complete(2)
    assert pending.assign("ben", {"ben": "cellar"}) == 0
    assert pending.assign("ben", {"ben": "cellar"}) is None


def test_what_was_not_the_shards_fault_does_not_count() -> None:
    pending = PendingShards([5], tries=1)
    for _ in range(4):
        assert pending.assign("anna", BOTH) == 5
        pending.requeue(5)
    assert not pending.left_out and pending.remaining == 1


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000))
def test_every_shard_ends_once_whatever_happens(count: int, workers: int, seed: int) -> None:
    draw = random.Random(seed)
    pending, ended = PendingShards(range(count), tries=2), []
    names = {f"worker {n}": f"node {n // 2}" for n in range(workers)}
    held: list[int] = []
    while not pending.is_done:
        held += [number for name in names if (number := pending.assign(name, names)) is not None]
        assert held, "shards are left and nobody gets one"
        number = held.pop(draw.randrange(len(held)))
        fate = draw.choice(["made", "failed", "died", "given back"])
        if fate == "made":
            pending.complete(number)
            ended.append(number)
        elif fate == "given back":
            pending.requeue(number)
        elif pending.record_failure(number, fate, died=fate == "died"):
            ended.append(number)
    assert sorted(ended) == list(range(count))
