"""Addresses of Ray, how shards are assigned, and an executor on a real cluster of two nodes."""

from __future__ import annotations

import io
import os
import random
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import ShardTask
from citeweave.core.progress import Reporter
from citeweave.remote import ray_executor
from citeweave.remote.ray_executor import ClusterError, PendingShards, RayExecutor, check_address
from citeweave.remote.ray_workers import ClusterOptions, package_versions

SQUARES = "citeweave.remote.ray_workers:squares"
BOTH = {"anna": "attic", "ben": "cellar"}
BEN = {"ben": "cellar"}


def test_an_address_where_something_else_than_ray_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UserError, match=r"the Ray cluster ray://127.0.0.1:\d+ answers, but is not Ray; .*10001"):
            check_address(f"ray://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_addresses_where_nothing_answers():
    for address in ("somewhere", "host:port", ":6379", "ray://head", "host:99999"):
        with pytest.raises(UserError, match="is not an address; it must be HOST:PORT"):
            check_address(address)
    with pytest.raises(UserError, match=r"no-such-host.invalid:6379 does not answer"):
        check_address("no-such-host.invalid:6379")
    message = r"the Ray cluster 127.0.0.1:9 does not answer \(Connection refused\).*ray status"
    with pytest.raises(UserError, match=message):
        RayExecutor(ClusterOptions("127.0.0.1:9")).__enter__()


# --- which worker gets which shard -------------------------------------------------------------------


def test_two_shards_per_worker_and_no_more():
    pending = PendingShards([0, 1, 2, 3, 4], tries=3)
    assert [pending.assign("anna", BOTH) for _ in range(3)] == [0, 1, None]
    pending.complete(0)
    assert pending.assign("anna", BOTH) == 2
    assert pending.assigned_to("anna") == [1, 2] and pending.remaining == 4


def test_what_failed_goes_to_another_worker_while_there_is_one():
    pending = PendingShards([7], tries=3)
    assert pending.assign("anna", BOTH) == 7
    assert not pending.record_failure(7, "ValueError")
    assert pending.assign("anna", BOTH) is None
    assert pending.assign("anna", {"anna": "attic"}) == 7  # nobody else is left
    assert not pending.record_failure(7, "ValueError")
    assert pending.assign("ben", BOTH) == 7
    assert pending.record_failure(7, "the last error")
    assert pending.is_done and pending.left_out == {7: "the last error"}


def test_what_failed_goes_to_another_node_first():
    nodes = {"anna": "attic", "adam": "attic", "ben": "cellar"}
    pending = PendingShards([7], tries=4)
    assert pending.assign("anna", nodes) == 7
    pending.record_failure(7, "died", died=True)
    new = {"alma": "attic", "adam": "attic", "ben": "cellar"}  # alma in the place of anna, who died
    assert [pending.assign(name, new) for name in ("alma", "adam", "ben")] == [None, None, 7]
    pending.record_failure(7, "died", died=True)
    # it has failed everywhere: to a worker that has not tried it
    assert [pending.assign(name, new) for name in ("ben", "alma")] == [None, 7]


def test_after_a_death_shards_are_assigned_alone():
    pending = PendingShards([0, 1, 2], tries=3)
    assert pending.assign("anna", BOTH) == 0 and pending.assign("anna", BOTH) == 1
    pending.record_failure(0, "died", died=True)
    pending.record_failure(1, "died", died=True)
    assert [pending.assign("ben", BEN) for _ in range(2)] == [2, None]  # not with a suspect
    pending.complete(2)
    assert [pending.assign("ben", BEN) for _ in range(2)] == [0, None]


def test_what_was_not_the_shards_fault_does_not_count():
    pending = PendingShards([5], tries=1)
    for _ in range(4):
        assert pending.assign("anna", BOTH) == 5
        pending.requeue(5)
    assert not pending.left_out and pending.remaining == 1


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000))
def test_every_shard_ends_once_whatever_happens(count, workers, seed):
    draw = random.Random(seed)
    pending, ended, held = PendingShards(range(count), tries=2), [], []
    names = {f"worker {n}": f"node {n // 2}" for n in range(workers)}
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


# --- on a cluster ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joined(cluster):
    """One executor for all tests: to join a cluster takes seconds."""
    with RayExecutor(ClusterOptions(cluster)) as executor:
        yield executor


@pytest.fixture
def messages():
    """What the executor reports in one test."""
    return io.StringIO()


@pytest.fixture
def executor(joined, messages):
    joined._reporter = Reporter(stream=messages)
    return joined


def squares_of(numbers):
    return {number: str(number**2).encode() for number in numbers}


def made_by(executor, arguments, numbers, found=None):
    found = {} if found is None else found
    for number, made in executor.make(ShardTask(SQUARES, arguments, label="squares"), numbers):
        assert number not in found
        found[number] = made
    return found


def test_shards_come_once_each_and_from_both_nodes(executor, tmp_path):
    assert made_by(executor, {"marks": str(tmp_path), "together": 2}, range(12)) == squares_of(range(12))
    makers = [path.read_text().split() for path in tmp_path.glob("made-*")]
    assert all(len(pids) == 1 for pids in makers)
    assert len({pids[0] for pids in makers}) == 2 and str(os.getpid()) not in {pids[0] for pids in makers}


def test_a_shard_whose_worker_dies_is_made_by_another(executor, messages, tmp_path):
    assert made_by(executor, {"marks": str(tmp_path), "dying": [2]}, range(8)) == squares_of(range(8))
    assert (tmp_path / "died-2").exists()
    assert "shard 2 failed at" in messages.getvalue() and "worker died" in messages.getvalue()


def test_a_shard_that_always_fails_is_left_out_and_the_rest_is_made(executor, messages):
    found = {}
    with pytest.raises(ShardError, match=r"squares: 1 of 6 shards .*\(3; .*number 3 fails.*run the same") as caught:
        made_by(executor, {"failing": [3]}, range(6), found)
    assert found == squares_of([0, 1, 2, 4, 5])
    assert caught.value.failed == {3: "ValueError: number 3 fails"}
    assert messages.getvalue().count("shard 3 failed") == 3


def test_a_node_that_cannot_open_the_work_is_excluded_and_the_other_does_it(executor, messages, tmp_path):
    arguments = {"needs": "${CITEWEAVE_CACHE}/corpus", "unless": "/nowhere/first", "marks": str(tmp_path), "wait": 0.02}
    found = {}
    for number, made in executor.make(ShardTask(SQUARES, arguments), range(30_000)):
        found[number] = made
        if "gets no more shards" in messages.getvalue() and len(found) > 4:  # the other node may start late
            break
    assert found == squares_of(found)
    assert len({path.read_text() for path in tmp_path.glob("made-*")}) == 1
    assert "/nowhere/second/corpus does not exist" in messages.getvalue()
    assert "gets no more shards" in messages.getvalue()


def test_an_error_where_no_node_can_do_the_work(executor, tmp_path, monkeypatch):
    for arguments, message in [
        ({"needs": str(tmp_path / "none")}, r"no node of .* can do the work: .*none does not exist.* \| .*none does"),
        ({"full": [1]}, "No space left on device"),
    ]:
        with pytest.raises(ClusterError, match=message):
            made_by(executor, arguments, range(3))
    with monkeypatch.context() as patch, pytest.raises(ClusterError, match="numpy is 1.0 here and .* there: install"):
        patch.setattr(ray_executor, "package_versions", lambda: package_versions() | {"numpy": "1.0"})  # of the driver
        made_by(executor, {}, range(3))
    monkeypatch.setattr(executor, "options", ClusterOptions(executor.options.address, cpus=64))
    with pytest.raises(ClusterError, match="has 64 cores; ask for less"):
        made_by(executor, {}, range(3))


def test_workers_end_when_no_more_shards_are_taken(executor, tmp_path):
    work = executor.make(ShardTask(SQUARES, {"marks": str(tmp_path), "wait": 0.01}), range(50))
    next(work)
    work.close()
    assert len(list(tmp_path.glob("made-*"))) < 50
    assert list(executor.make(ShardTask(SQUARES), [7])) == [(7, b"49")]  # there is room again
