"""Options of --on, addresses of Ray, and an executor on a real cluster of two nodes."""

from __future__ import annotations

import io
import os
import socket
import threading

import pytest

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import ShardTask, package_versions
from citeweave.core.progress import Reporter
from citeweave.remote import ray_executor
from citeweave.remote.ray_executor import (
    ClusterError,
    ClusterOptions,
    RayExecutor,
    check_address,
    open_executor,
    parse_cluster_options,
)

SQUARES = "citeweave.core.executor:squares"


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


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("ray", ClusterOptions("local")),
        ("ray:local,workers=2,cpus=4", ClusterOptions("local", workers=2, cpus=4)),
        ("ray:auto", ClusterOptions("auto")),
        ("ray:10.0.0.5:6379", ClusterOptions("10.0.0.5:6379")),
        ("ray://10.0.0.5:10001, gpus=0.5, tries=1", ClusterOptions("ray://10.0.0.5:10001", gpus=0.5, tries=1)),
        ("spark", "--on is 'spark'; it must be ray, ray:local"),
        ("ray,wrokers=2", "Did you mean 'workers'"),
        ("ray,workers=two", "workers is 'two'; it must be a number"),
        ("ray,cpus=0", "cpus is 0; it must be at least 1"),
        ("ray,gpus=-1", "gpus is -1.0"),
        ("ray,gpus=nan", "gpus is nan"),
        ("ray,gpus=1.5", "gpus is 1.5; over 1 it must be a whole number"),
    ],
)
def test_options_of_on_or_what_is_wrong_with_them(text, options):
    if isinstance(options, ClusterOptions):
        assert parse_cluster_options(text) == options
    else:
        with pytest.raises(UserError, match=options):
            parse_cluster_options(text)


def test_without_on_there_is_no_executor():
    with open_executor("") as executor:
        assert executor is None


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
