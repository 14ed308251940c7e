from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import ShardTask
from citeweave.core.progress import Reporter
from citeweave.remote import ray_executor
from citeweave.remote.ray_executor import ClusterError, RayExecutor
from citeweave.remote.ray_workers import ClusterOptions, package_versions

SQUARES = "citeweave.remote.ray_workers:squares"


def squares_of(numbers: range) -> dict[int, bytes]:
    return {number: str(number**2).encode() for number in numbers}


@pytest.fixture
def said() -> io.StringIO:
    """What the executor says in one test."""
    return io.StringIO()


@pytest.fixture
def executor(joined: RayExecutor, said: io.StringIO) -> RayExecutor:
    """One executor for all tests: to join a cluster takes seconds."""
    joined._reporter = Reporter(stream=said)
    return joined


@pytest.fixture(scope="module")
def joined(cluster: str) -> Iterator[RayExecutor]:
    with RayExecutor(ClusterOptions(cluster)) as executor:
        yield executor


def made_by(executor: RayExecutor, given: dict[str, object], numbers: range) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for number, made in executor.make(ShardTask(SQUARES, given, label="squares"), numbers):
        assert number not in found
        found[number] = made
    return found


def test_shards_come_once_each_and_from_both_nodes(executor: RayExecutor, tmp_path: Path) -> None:
    assert made_by(executor, {"marks": str(tmp_path), "together": 2}, range(12)) == squares_of(range(12))
    makers = [path.read_text().split() for path in tmp_path.glob("made-*")]
    assert all(len(pids) == 1 for pids in makers)
    assert len({pids[0] for pids in makers}) == 2
    assert str(os.getpid()) not in {pids[0] for pids in makers}


def test_a_shard_whose_worker_dies_is_made_by_another(executor: RayExecutor, said: io.StringIO, tmp_path: Path) -> None:
    found = made_by(executor, {"marks": str(tmp_path), "dying": [2]}, range(8))
    assert found == squares_of(range(8))
    assert (tmp_path / "died-2").exists()
    assert "shard 2 failed at" in said.getvalue() and "worker died" in said.getvalue()


def test_a_shard_that_always_fails_is_put_aside_and_the_rest_goes_on(executor: RayExecutor, said: io.StringIO) -> None:
    found = {}
    with pytest.raises(ShardError, match=r"squares: 1 of 6 shards .*\(3; .*number 3 fails.*run the same") as caught:
        for number, made in executor.make(ShardTask(SQUARES, {"failing": [3]}, label="squares"), range(6)):
            found[number] = made
    assert found == {number: made for number, made in squares_of(range(6)).items() if number != 3}
    assert caught.value.failed == {3: "ValueError: number 3 fails"}
    assert said.getvalue().count("shard 3 failed") == 3


def test_a_node_that_cannot_open_the_work_is_refused_and_the_other_does_it(
    executor: RayExecutor, said: io.StringIO, tmp_path: Path
) -> None:
    given = {"needs": "${CITEWEAVE_CACHE}/corpus", "unless": "/nowhere/first", "marks": str(tmp_path), "wait": 0.02}
    found: dict[int, bytes] = {}
    for number, made in executor.make(ShardTask(SQUARES, given), range(30_000)):
        found[number] = made
        if "gets no more shards" in said.getvalue() and len(found) > 4:  # the other node may start late
            break
    assert found == {number: str(number**2).encode() for number in found}
    assert len({path.read_text() for path in tmp_path.glob("made-*")}) == 1
    assert "/nowhere/second/corpus does not exist" in said.getvalue() and "gets no more shards" in said.getvalue()


def test_an_error_where_no_node_can(executor: RayExecutor, tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match=r"no node of .* can do the work: .*no-corpus does not exist.* \| .*no-corpus"
    ):
        made_by(executor, {"needs": str(tmp_path / "no-corpus")}, range(3))
    with pytest.raises(ClusterError, match="No space left on device"):
        made_by(executor, {"full": [1]}, range(3))


def test_a_node_with_other_packages_is_refused(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ray_executor, "package_versions", lambda: package_versions() | {"numpy": "1.0"}
    )  # of the driver
    with pytest.raises(ClusterError, match="numpy is 1.0 here and .* there: install the same"):
        made_by(executor, {}, range(3))


def test_more_cores_than_any_node_has(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "options", ClusterOptions(executor.options.address, cpus=64))
    with pytest.raises(ClusterError, match="has 64 cores; ask for less"):
        made_by(executor, {}, range(3))


def test_workers_end_when_nobody_asks_any_more(executor: RayExecutor, tmp_path: Path) -> None:
    work = executor.make(ShardTask(SQUARES, {"marks": str(tmp_path), "wait": 0.01}), range(50))
    next(work)
    work.close()  # type: ignore[attr-defined]
    assert len(list(tmp_path.glob("made-*"))) < 50
    assert list(executor.make(ShardTask(SQUARES), [7])) == [(7, b"49")]  # there is room again


def test_a_wrong_address_is_told_at_once() -> None:
    with pytest.raises(
        UserError, match=r"the Ray cluster 127.0.0.1:9 does not answer \(Connection refused\).*ray status"
    ):
        RayExecutor(ClusterOptions("127.0.0.1:9")).__enter__()
