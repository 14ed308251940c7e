"""Options of --on, one worker, and which workers are kept and which are stopped.

Ray is replaced by a list of nodes and of answers.
"""

from __future__ import annotations

import io
import os
from types import SimpleNamespace

import pytest

from citeweave.core.errors import UserError
from citeweave.core.executor import ShardTask
from citeweave.core.progress import Reporter
from citeweave.remote.ray_executor import open_executor
from citeweave.remote.ray_workers import (
    ClusterOptions,
    ShardWorker,
    WorkerFailure,
    WorkerPool,
    package_versions,
    parse_cluster_options,
    version_differences,
)

SQUARES = "citeweave.remote.ray_workers:squares"


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


def test_a_worker_says_who_it_is_and_makes_shards(tmp_path, monkeypatch):
    worker = ShardWorker()
    assert version_differences(package_versions(), worker.hello()) == []
    assert worker.prepare(SQUARES, {"failing": [2], "full": [4]}) == 1
    assert worker.make(3) == b"9"
    assert worker.make(2) == WorkerFailure(False, "ValueError: number 2 fails")
    assert worker.make(4) == WorkerFailure(True, "OSError: [Errno 28] No space left on device")
    # work that cannot be opened is the node's fault
    message = f"{tmp_path / 'x'} does not exist; give a folder that holds a corpus"
    assert ShardWorker().prepare(SQUARES, {"needs": str(tmp_path / "x")}) == WorkerFailure(True, message)
    message = "ValueError: 'os:system' is not a function of citeweave"
    assert ShardWorker().prepare("os:system", {}) == WorkerFailure(True, message)
    for cards, seen in ((True, "0,1"), (False, "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        ShardWorker().prepare(SQUARES, {}, cards=cards)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_another_source_is_another_version():
    ours = package_versions()
    assert version_differences(ours, ours) == []
    assert version_differences(ours, ours | {"citeweave": "0.1.0 (00000000)"})[0].startswith("citeweave is ")


# --- the pool ----------------------------------------------------------------------------------------

OURS = {"citeweave": "0.1.0 (9f2c04ab)"}


class _RayError(Exception):
    pass


class _Handle:
    """An actor; every call of it is a new reference."""

    def __init__(self):
        self.hello = self.prepare = SimpleNamespace(remote=lambda *given, **named: object())


class _Ray:
    """As much of Ray as a worker pool uses."""

    exceptions = SimpleNamespace(RayError=_RayError)
    util = SimpleNamespace(scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda **given: given))

    def __init__(self, nodes):
        self._nodes, self.requested, self.answer = nodes, [], None

    def nodes(self):
        nodes = self._nodes.items()
        return [{"NodeID": n, "Alive": True, "Resources": held, "NodeManagerAddress": n} for n, held in nodes]

    def remote(self, kind):
        def options(**requested):
            self.requested.append(requested)
            return SimpleNamespace(remote=_Handle)

        return SimpleNamespace(options=options)

    def get(self, reference):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def kill(self, actor):
        pass


class Pool(WorkerPool):
    """A pool on these nodes, whose workers answer what a test says."""

    def __init__(self, nodes, options=None, *, gpu=False):
        self.fake, self.messages = _Ray(nodes), io.StringIO()
        task = ShardTask("citeweave.x:y", gpu=gpu)
        super().__init__(self.fake, options or ClusterOptions(), task, OURS, Reporter(stream=self.messages))

    def reply(self, worker, answer):
        self.fake.answer = answer
        return self.handle_reply(worker.reply)

    def open_all(self, wanted=99):
        self.start_workers(wanted)
        for worker in self.starting.values():
            self.reply(worker, OURS)
            self.reply(worker, 1)
        return self.ready


@pytest.mark.parametrize("answer", [WorkerFailure(True, "MemoryError"), _RayError("The actor died.")])
def test_a_node_keeps_the_workers_that_could_open_the_work(answer):
    """Three fail while the fourth is still loading its model."""
    pool = Pool({"attic": {"CPU": 4}})
    pool.start_workers(99)
    slow, *others = pool.workers.values()
    for worker in (slow, *others):
        pool.reply(worker, OURS)
    for worker in others:
        assert pool.reply(worker, answer) == []
    assert not pool.excluded
    pool.reply(slow, 2)
    pool.start_workers(99)
    assert pool.ready == [slow] and list(pool.workers.values()) == [slow] and slow.max_shards == 2
    assert "node attic (attic) can hold only 1 workers" in pool.messages.getvalue()


def test_a_node_none_of_whose_workers_can_open_the_work_is_excluded():
    pool = Pool({"attic": {"CPU": 2}})
    pool.start_workers(99)
    for answer in (OURS, WorkerFailure(True, "corpus does not exist")):
        for worker in list(pool.workers.values()):
            pool.reply(worker, answer)
    assert list(pool.excluded) == ["attic"] and not pool.has_room()
    assert pool.messages.getvalue().count("corpus does not exist") == 1


def test_a_node_at_which_workers_only_die_is_excluded_while_there_is_another():
    pool = Pool({"attic": {"CPU": 1}, "cellar": {"CPU": 1}})
    for death in range(3):
        assert not pool.excluded
        ready = pool.open_all()
        assert len(ready) == 2
        pool.record_death(next(worker for worker in ready if worker.node == "attic"), f"died {death}")
    assert list(pool.excluded) == ["attic"]
    for _ in range(5):  # the last node is never excluded for it: the shards may be the cause
        pool.record_death(pool.open_all()[0], "died")
    assert list(pool.excluded) == ["attic"]


def test_deaths_between_which_shards_were_made_do_not_count():
    pool = Pool({"attic": {"CPU": 1}, "cellar": {"CPU": 1}})
    for _ in range(9):
        worker = next(worker for worker in pool.open_all() if worker.node == "attic")
        pool.record_success(worker)
        pool.record_death(worker, "died")
    assert not pool.excluded


def test_the_workers_of_a_node_with_other_packages_are_named():
    """Its code was changed while it worked: what the others held is not their shards' fault."""
    pool = Pool({"attic": {"CPU": 2}})
    first = pool.open_all(wanted=1)[0]
    pool.start_workers(2)
    new = next(worker for worker in pool.workers.values() if worker is not first)
    assert first in pool.reply(new, {"citeweave": "0.2.0 (00000000)"})


@pytest.mark.parametrize(("gpus", "workers"), [(1.0, 2), (0.5, 4), (2.0, 1), (0.0, 16)])
def test_workers_of_a_node_with_cards(gpus, workers):
    pool = Pool({"cards": {"CPU": 8, "GPU": 2}, "none": {"CPU": 8}}, ClusterOptions(gpus=gpus), gpu=True)
    pool.start_workers(99)
    assert len(pool.fake.requested) == workers
    assert all(requested["num_gpus"] == gpus for requested in pool.fake.requested)
