from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from citeweave.remote.ray_executor import Ledger

BOTH = {"anna": "attic", "ben": "cellar"}


def test_two_shards_a_worker_and_no_more() -> None:
    ledger = Ledger([0, 1, 2, 3, 4], tries=3)
    assert [ledger.take("anna", BOTH) for _ in range(3)] == [0, 1, None]
    ledger.done(0)
    assert ledger.take("anna", BOTH) == 2
    assert ledger.held_by("anna") == [1, 2] and ledger.left == 4


def test_what_failed_goes_to_another_worker_while_there_is_one() -> None:
    ledger = Ledger([7], tries=3)
    assert ledger.take("anna", BOTH) == 7
    assert not ledger.failed(7, "ValueError")
    assert ledger.take("anna", BOTH) is None
    assert ledger.take("anna", {"anna": "attic"}) == 7  # nobody else is left
    assert not ledger.failed(7, "ValueError")
    assert ledger.take("ben", BOTH) == 7
    assert ledger.failed(7, "the last error")
    assert ledger.over and ledger.given_up == {7: "the last error"}


def test_what_failed_goes_to_another_node_first() -> None:
    nodes = {"anna": "attic", "adam": "attic", "ben": "cellar"}
    ledger = Ledger([7], tries=4)
    assert ledger.take("anna", nodes) == 7
    ledger.failed(7, "died", died=True)
    new = {"alma": "attic", "adam": "attic", "ben": "cellar"}  # alma in the place of anna, who died
    assert ledger.take("alma", new) is None and ledger.take("adam", new) is None
    assert ledger.take("ben", new) == 7
    ledger.failed(7, "died", died=True)
    assert ledger.take("ben", new) is None  # it has failed everywhere: to a worker that has not tried it
    assert ledger.take("alma", new) == 7


def test_after_a_death_shards_are_given_out_alone() -> None:
    ledger = Ledger([0, 1, 2], tries=3)
    assert ledger.take("anna", BOTH) == 0 and ledger.take("anna", BOTH) == 1
    ledger.failed(0, "died", died=True)
    ledger.failed(1, "died", died=True)
    assert ledger.take("ben", {"ben": "cellar"}) == 2  # not with a suspect
    assert ledger.take("ben", {"ben": "cellar"}) is None
    ledger.done(2)
    assert ledger.take("ben", {"ben": "cellar"}) == 0
    assert ledger.take("ben", {"ben": "cellar"}) is None


def test_what_was_not_the_shards_fault_does_not_count() -> None:
    ledger = Ledger([5], tries=1)
    for _ in range(4):
        assert ledger.take("anna", BOTH) == 5
        ledger.give_back(5)
    assert not ledger.given_up and ledger.left == 1


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000))
def test_every_shard_ends_once_whatever_happens(count: int, workers: int, seed: int) -> None:
    draw = random.Random(seed)
    ledger, ended = Ledger(range(count), tries=2), []
    names = {f"worker {n}": f"node {n // 2}" for n in range(workers)}
    held: list[int] = []
    while not ledger.over:
        held += [number for name in names if (number := ledger.take(name, names)) is not None]
        assert held, "shards are left and nobody gets one"
        number = held.pop(draw.randrange(len(held)))
        fate = draw.choice(["made", "failed", "died", "given back"])
        if fate == "made":
            ledger.done(number)
            ended.append(number)
        elif fate == "given back":
            ledger.give_back(number)
        elif ledger.failed(number, fate, died=fate == "died"):
            ended.append(number)
    assert sorted(ended) == list(range(count))
