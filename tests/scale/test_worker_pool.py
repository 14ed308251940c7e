"""Which workers are kept and which are stopped; Ray is replaced by a list of nodes and of answers."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from citeweave.core.executor import ShardTask
from citeweave.core.progress import Reporter
from citeweave.remote.ray_workers import ClusterOptions, PoolWorker, WorkerFailure, WorkerPool

OURS = {"citeweave": "0.1.0 (9f2c04ab)"}


class _RayError(Exception):
    pass


class _Handle:
    """An actor; every call of it is a new reference."""

    def __init__(self) -> None:
        self.hello = self.prepare = SimpleNamespace(remote=lambda *given, **named: object())


class _Ray:
    """As much of Ray as a worker pool uses."""

    exceptions = SimpleNamespace(RayError=_RayError)
    util = SimpleNamespace(scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda **given: given))

    def __init__(self, nodes: dict[str, dict[str, float]]) -> None:
        self._nodes, self.asked_for = nodes, list[dict[str, Any]]()
        self.answer: Any = None

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": True, "Resources": held, "NodeManagerAddress": name}
            for name, held in self._nodes.items()
        ]

    def remote(self, kind: type) -> Any:
        def options(**asked: Any) -> Any:
            self.asked_for.append(asked)
            return SimpleNamespace(remote=_Handle)

        return SimpleNamespace(options=options)

    def get(self, reference: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def kill(self, actor: Any) -> None:
        pass


def pool_of(
    nodes: dict[str, dict[str, float]], on: ClusterOptions | None = None, *, gpu: bool = False
) -> tuple[WorkerPool, _Ray, io.StringIO]:
    ray, said = _Ray(nodes), io.StringIO()
    return (
        WorkerPool(ray, on or ClusterOptions(), ShardTask("citeweave.x:y", gpu=gpu), OURS, Reporter(stream=said)),
        ray,
        said,
    )  # type: ignore[arg-type]


def tell(pool: WorkerPool, ray: _Ray, worker: PoolWorker, answer: Any) -> list[PoolWorker]:
    ray.answer = answer
    return pool.handle_reply(worker.reply)


def open_all(pool: WorkerPool, ray: _Ray, wanted: int = 99) -> list[PoolWorker]:
    pool.start_workers(wanted)
    for worker in pool.starting.values():
        tell(pool, ray, worker, OURS)
        tell(pool, ray, worker, 1)
    return pool.ready


@pytest.mark.parametrize("answer", [WorkerFailure(True, "MemoryError"), _RayError("The actor died.")])
def test_a_node_keeps_the_workers_that_could_open_the_work(answer: Any) -> None:
    """Three fail while the fourth is still loading its model."""
    pool, ray, said = pool_of({"attic": {"CPU": 4}})
    pool.start_workers(99)
    slow, *others = pool.workers.values()
    for worker in (slow, *others):
        tell(pool, ray, worker, OURS)
    for worker in others:
        assert tell(pool, ray, worker, answer) == []
    assert not pool.excluded
    tell(pool, ray, slow, 2)
    pool.start_workers(99)
    assert pool.ready == [slow] and list(pool.workers.values()) == [slow] and slow.max_shards == 2
    assert "node attic (attic) can hold only 1 workers" in said.getvalue()


def test_a_node_none_of_whose_workers_can_open_the_work_is_refused() -> None:
    pool, ray, said = pool_of({"attic": {"CPU": 2}})
    pool.start_workers(99)
    for worker in list(pool.workers.values()):
        tell(pool, ray, worker, OURS)
    for worker in list(pool.workers.values()):
        tell(pool, ray, worker, WorkerFailure(True, "corpus does not exist"))
    assert list(pool.excluded) == ["attic"] and not pool.has_room()
    assert said.getvalue().count("corpus does not exist") == 1


def test_a_node_at_which_workers_only_die_is_refused_while_there_is_another() -> None:
    pool, ray, _ = pool_of({"attic": {"CPU": 1}, "cellar": {"CPU": 1}})
    for death in range(3):
        assert not pool.excluded
        ready = open_all(pool, ray)
        assert len(ready) == 2
        pool.record_death(next(worker for worker in ready if worker.node == "attic"), f"died {death}")
    assert list(pool.excluded) == ["attic"]
    for _ in range(5):  # the last node is never refused for it: the shards may be the cause
        pool.record_death(open_all(pool, ray)[0], "died")
    assert list(pool.excluded) == ["attic"]


def test_deaths_between_which_shards_were_made_do_not_count() -> None:
    pool, ray, _ = pool_of({"attic": {"CPU": 1}, "cellar": {"CPU": 1}})
    for _ in range(9):
        worker = next(worker for worker in open_all(pool, ray) if worker.node == "attic")
        pool.record_success(worker)
        pool.record_death(worker, "died")
    assert not pool.excluded


def test_whoever_works_at_a_node_with_other_packages_is_named() -> None:
    """Its code was changed while it worked: what the others held is not their shards' fault."""
    pool, ray, _ = pool_of({"attic": {"CPU": 2}})
    first = open_all(pool, ray, wanted=1)[0]
    pool.start_workers(2)
    new = next(worker for worker in pool.workers.values() if worker is not first)
    assert first in tell(pool, ray, new, {"citeweave": "0.2.0 (00000000)"})


@pytest.mark.parametrize(("gpus", "workers"), [(1.0, 2), (0.5, 4), (2.0, 1), (0.0, 16)])
def test_workers_of_a_node_with_cards(gpus: float, workers: int) -> None:
    pool, ray, _ = pool_of({"cards": {"CPU": 8, "GPU": 2}, "none": {"CPU": 8}}, ClusterOptions(gpus=gpus), gpu=True)
    pool.start_workers(99)
    assert len(ray.asked_for) == workers
    assert all(asked["num_gpus"] == gpus for asked in ray.asked_for)
