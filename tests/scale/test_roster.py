"""Who is kept and who is sent home; Ray is played by a list of nodes and of answers."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from citeweave.core.executor import ShardTask
from citeweave.core.progress import Reporter
from citeweave.remote.ray_workers import Fault, Member, On, Roster

OURS = {"citeweave": "0.1.0 (9f2c04ab)"}


class _RayError(Exception):
    pass


class _Handle:
    """An actor; every call of it is a new reference."""

    def __init__(self) -> None:
        self.hello = self.prepare = SimpleNamespace(remote=lambda *given, **named: object())


class _Ray:
    """As much of Ray as a roster uses."""

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


def roster_of(
    nodes: dict[str, dict[str, float]], on: On | None = None, *, gpu: bool = False
) -> tuple[Roster, _Ray, io.StringIO]:
    ray, said = _Ray(nodes), io.StringIO()
    return Roster(ray, on or On(), ShardTask("citeweave.x:y", gpu=gpu), OURS, Reporter(stream=said)), ray, said  # type: ignore[arg-type]


def tell(roster: Roster, ray: _Ray, member: Member, answer: Any) -> list[Member]:
    ray.answer = answer
    return roster.heard(member.asked)


def open_all(roster: Roster, ray: _Ray, wanted: int = 99) -> list[Member]:
    roster.hire(wanted)
    for member in roster.asked.values():
        tell(roster, ray, member, OURS)
        tell(roster, ray, member, 1)
    return roster.ready


@pytest.mark.parametrize("answer", [Fault(True, "MemoryError"), _RayError("The actor died.")])
def test_a_node_keeps_the_workers_that_could_open_the_work(answer: Any) -> None:
    """Three fail while the fourth is still loading its model."""
    roster, ray, said = roster_of({"attic": {"CPU": 4}})
    roster.hire(99)
    slow, *others = roster.members.values()
    for member in (slow, *others):
        tell(roster, ray, member, OURS)
    for member in others:
        assert tell(roster, ray, member, answer) == []
    assert not roster.refused
    tell(roster, ray, slow, 2)
    roster.hire(99)
    assert roster.ready == [slow] and list(roster.members.values()) == [slow] and slow.most == 2
    assert "node attic (attic) holds 1 workers and no more" in said.getvalue()


def test_a_node_none_of_whose_workers_can_open_the_work_is_refused() -> None:
    roster, ray, said = roster_of({"attic": {"CPU": 2}})
    roster.hire(99)
    for member in list(roster.members.values()):
        tell(roster, ray, member, OURS)
    for member in list(roster.members.values()):
        tell(roster, ray, member, Fault(True, "corpus does not exist"))
    assert list(roster.refused) == ["attic"] and not roster.room()
    assert said.getvalue().count("corpus does not exist") == 1


def test_a_node_at_which_workers_only_die_is_refused_while_there_is_another() -> None:
    roster, ray, _ = roster_of({"attic": {"CPU": 1}, "cellar": {"CPU": 1}})
    for death in range(3):
        assert not roster.refused
        ready = open_all(roster, ray)
        assert len(ready) == 2
        roster.died(next(member for member in ready if member.node == "attic"), f"died {death}")
    assert list(roster.refused) == ["attic"]
    for _ in range(5):  # the last node is never refused for it: the shards may be the cause
        roster.died(open_all(roster, ray)[0], "died")
    assert list(roster.refused) == ["attic"]


def test_deaths_between_which_shards_were_made_do_not_count() -> None:
    roster, ray, _ = roster_of({"attic": {"CPU": 1}, "cellar": {"CPU": 1}})
    for _ in range(9):
        member = next(member for member in open_all(roster, ray) if member.node == "attic")
        roster.made(member)
        roster.died(member, "died")
    assert not roster.refused


def test_whoever_works_at_a_node_with_other_packages_is_named() -> None:
    """Its code was changed while it worked: what the others held is not their shards' fault."""
    roster, ray, _ = roster_of({"attic": {"CPU": 2}})
    first = open_all(roster, ray, wanted=1)[0]
    roster.hire(2)
    new = next(member for member in roster.members.values() if member is not first)
    assert first in tell(roster, ray, new, {"citeweave": "0.2.0 (00000000)"})


@pytest.mark.parametrize(("gpus", "workers"), [(1.0, 2), (0.5, 4), (2.0, 1), (0.0, 16)])
def test_workers_of_a_node_with_cards(gpus: float, workers: int) -> None:
    roster, ray, _ = roster_of({"cards": {"CPU": 8, "GPU": 2}, "none": {"CPU": 8}}, On(gpus=gpus), gpu=True)
    roster.hire(99)
    assert len(ray.asked_for) == workers
    assert all(asked["num_gpus"] == gpus for asked in ray.asked_for)
