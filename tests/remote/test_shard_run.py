"""Which worker gets which shard, and which nodes get no more, by a Ray of lists: its actors answer what a test says."""

import io
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.executor import ShardTask, WorkerFailure, package_versions
from citeweave.core.progress import Reporter
from citeweave.remote import ray_executor
from citeweave.remote.ray_executor import ClusterError, ClusterOptions, _ClusterRun

TWO = {"attic": {"CPU": 1}, "cellar": {"CPU": 1}}


class _RayError(Exception):
    pass


class DiedError(_RayError):
    """A worker's process has ended."""


class _Actor:
    """An actor at a node; its calls wait in the order in which they came."""

    def __init__(self, ray, node):
        self.ray, self.node = ray, node
        self.hello = SimpleNamespace(remote=lambda: ("hello", self))
        self.prepare = SimpleNamespace(remote=lambda *given, **named: self.ask("prepare"))
        self.make = SimpleNamespace(remote=self.ask)

    def ask(self, what):
        reference = (what, self, object())
        self.ray.asked.append(reference)
        return reference


class FakeRay:
    """As much of Ray as a run of shards uses; `answer(node, what)` says what an actor answers, a shard or "prepare"."""

    exceptions = SimpleNamespace(RayError=_RayError, OutOfDiskError=type("OutOfDiskError", (_RayError,), {}))
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    )

    def __init__(self, nodes, answer=lambda node, what: 1 if what == "prepare" else b"x", seed=0):
        self._nodes, self.answer, self.asked, self.requested = nodes, answer, [], []
        self.versions, self.random = {}, random.Random(seed)

    def nodes(self):
        nodes = self._nodes.items()
        return [{"NodeID": n, "Alive": True, "Resources": held, "NodeManagerAddress": n} for n, held in nodes]

    def remote(self, kind):
        def options(**requested):
            self.requested.append(requested)
            return SimpleNamespace(remote=lambda: _Actor(self, requested["scheduling_strategy"]))

        return SimpleNamespace(options=options)

    def wait(self, references, num_returns, timeout):
        assert references, "shards are left and nobody makes one"
        return [self.random.choice(references)], []

    def get(self, reference):
        what, actor = reference[:2]
        if what == "hello":
            return self.versions.get(actor.node, package_versions())
        answer = self.answer(actor.node, what)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor):
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nodes are looked at in every step, and the source is not hashed for every worker."""
    versions = package_versions()
    monkeypatch.setattr(ray_executor, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(ray_executor, "package_versions", lambda: versions)
    monkeypatch.setitem(globals(), "package_versions", lambda: versions)


def start(ray, numbers, *, gpu=False, **options):
    messages = io.StringIO()
    task = ShardTask("citeweave.x:y", gpu=gpu)
    run = _ClusterRun(ray, ClusterOptions(**options), task, numbers, Reporter(stream=messages))
    return run, messages


def finish(run):
    """Numbers in the order in which they were made."""
    made = []
    while run.waiting or any(number is not None for _, number in run.calls.values()):
        made += [number for number, _ in run.step()]
        for worker in run.workers:
            assert len(worker.shards) <= max(worker.max_shards, 0)
            assert not worker.shards & run._alone or len(worker.shards) == 1, "a suspect is not alone"
    return made


def places(ray, number):
    """Nodes at which a shard was tried, in order."""
    return [actor.node for what, actor, _ in ray.asked if what == number]


def test_workers_have_two_shards_where_they_overlap_and_one_first():
    ray = FakeRay(TWO, lambda node, what: 2 if what == "prepare" else b"x")
    run, _ = start(ray, range(9))
    made = []
    while not run.workers or not all(worker.max_shards for worker in run.workers):
        made += [number for number, _ in run.step()]
    run._assign_shards()
    assert [len(worker.shards) for worker in run.workers] == [2, 2]
    assert sorted(made + finish(run)) == list(range(9))


def test_a_failed_shard_goes_to_another_node_first_and_is_left_out_after_its_last_try():
    ray = FakeRay(TWO, lambda node, what: 1 if what == "prepare" else WorkerFailure(False, "no") if what == 7 else b"x")
    run, messages = start(ray, range(20), tries=4)
    assert sorted(finish(run)) == [n for n in range(20) if n != 7]
    tried = places(ray, 7)
    assert run.left_out == {7: "no"} and len(tried) == 4 and set(tried[:2]) == {"attic", "cellar"}
    assert messages.getvalue().count("shard 7 failed at") == 4 and "it is left out" in messages.getvalue()


def test_a_shard_that_kills_its_worker_is_found_although_two_were_there():
    """The innocent shard beside it is made, since both are made alone from then on."""
    ray = FakeRay(TWO, lambda node, what: 2 if what == "prepare" else DiedError("died") if what == 3 else b"x")
    run, _ = start(ray, range(12), tries=3)
    assert sorted(finish(run)) == [n for n in range(12) if n != 3]
    assert list(run.left_out) == [3] and "its worker died" in run.left_out[3]


def test_a_full_disk_is_the_fault_of_the_node_and_counts_for_no_shard():
    full = WorkerFailure(True, "No space left")
    ray = FakeRay(TWO, lambda node, what: 1 if what == "prepare" else full if node == "attic" else b"x")
    run, messages = start(ray, range(9), tries=1)
    assert sorted(finish(run)) == list(range(9)) and not run.left_out
    assert messages.getvalue().count("node attic (attic): No space left; it gets no more shards") == 1


@pytest.mark.parametrize("answer", [WorkerFailure(True, "MemoryError"), DiedError("The actor died.")])
def test_a_node_keeps_the_workers_that_could_open_the_work(answer):
    """Of four workers three fail to open the work while the first has."""
    opened = Counter()

    def reply(node, what):
        if what != "prepare":
            return b"x"
        opened[node] += 1
        return 1 if opened[node] == 1 else answer

    run, messages = start(FakeRay({"attic": {"CPU": 4}}, reply), range(60))
    assert sorted(finish(run)) == list(range(60))
    assert not run.excluded and len(run.workers) == 1
    assert "node attic (attic) can hold only 1 workers" in messages.getvalue()


def test_a_node_none_of_whose_workers_can_open_the_work_is_excluded():
    failure = WorkerFailure(True, "corpus does not exist")
    ray = FakeRay({"attic": {"CPU": 2}}, lambda node, what: failure if what == "prepare" else b"")
    run, messages = start(ray, range(9))
    with pytest.raises(ClusterError, match=r"no node of .* can do the work: attic \(attic\): corpus does not exist"):
        finish(run)
    assert messages.getvalue().count("corpus does not exist; it gets no more") == 1


def test_a_node_at_which_workers_only_die_is_excluded_while_there_is_another():
    ray = FakeRay(TWO, lambda node, what: 1 if what == "prepare" else DiedError("died") if node == "attic" else b"x")
    run, _ = start(ray, range(40), tries=2)
    assert sorted(finish(run)) == list(range(40)) and list(run.excluded) == ["attic"]
    # the last node is never excluded for it: the shards may be the cause
    run, _ = start(FakeRay({"attic": {"CPU": 1}}, ray.answer), range(9), tries=2)
    assert finish(run) == [] and sorted(run.left_out) == list(range(9)) and not run.excluded


def test_deaths_between_which_shards_were_made_do_not_count():
    turns = Counter()

    def reply(node, what):
        turns[node] += what != "prepare"
        return 1 if what == "prepare" else DiedError("died") if node == "attic" and turns[node] % 2 else b"x"

    run, _ = start(FakeRay(TWO, reply), range(60))
    assert sorted(finish(run)) == list(range(60)) and not run.excluded


def test_a_node_with_other_packages_gets_no_shards():
    ray = FakeRay(TWO)
    ray.versions["attic"] = package_versions() | {"citeweave": "0.2.0 (00000000)"}
    run, messages = start(ray, range(9))
    assert sorted(finish(run)) == list(range(9)) and not places(ray, 0).count("attic")
    assert "citeweave is " in messages.getvalue() and "install the same on all machines" in messages.getvalue()


@pytest.mark.parametrize(("gpus", "workers"), [(1.0, 2), (0.5, 4), (2.0, 1), (0.0, 16)])
def test_workers_of_a_node_with_cards(gpus, workers):
    ray = FakeRay({"cards": {"CPU": 8, "GPU": 2}, "none": {"CPU": 8}})
    run, _ = start(ray, range(99), gpu=True, gpus=gpus)
    list(run.step())
    assert len(ray.requested) == workers
    assert all(requested["num_gpus"] == gpus for requested in ray.requested)


def test_no_more_workers_than_shards_or_than_asked_for():
    for numbers, workers in ((range(3), 0), (range(99), 3)):
        ray = FakeRay({"attic": {"CPU": 8}, "cellar": {"CPU": 2}})
        run, _ = start(ray, numbers, workers=workers)
        list(run.step())
        assert len(ray.requested) == 3


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000))
def test_every_shard_ends_once_whatever_happens(count, nodes, seed):
    draw = random.Random(seed)

    def reply(node, what):
        if what == "prepare":
            return draw.choice([1, 2])
        return draw.choice([b"x", WorkerFailure(False, "no"), DiedError("died")])

    run, _ = start(FakeRay({f"node {n}": {"CPU": 2} for n in range(nodes)}, reply, seed), range(count), tries=2)
    made = finish(run)
    assert sorted([*made, *run.left_out]) == list(range(count))
