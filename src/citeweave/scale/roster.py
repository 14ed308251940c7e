"""The workers of a crew: hired where there is room, checked, replaced when they die, and sent home at the end.

    roster = Roster(ray, on, work, expected=versions(), reporter=reporter)
    roster.hire()                      one actor for every free place, on every node that is not refused
    roster.heard(reference)            an actor's first answers: its versions, then whether it could open the work
    roster.ready                       those that can be asked for shards

A node is refused, and told so once, if its packages are others than the driver's, if it cannot open the work, if its
disk is full, or if its workers die before they have begun. Hands out no shards.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from citeweave.crew import Work
from citeweave.progress import Reporter
from citeweave.scale.options import On
from citeweave.scale.versions import differences
from citeweave.scale.worker import Fault, Worker

_DEATHS = 3
"""Workers of a node that may die, one after the other, before one of them was ready."""


@dataclass(slots=True)
class Member:
    """One worker."""

    name: str
    node: str
    actor: Any
    asked: Any
    """The reference of its answer to `hello`, then to `prepare`; None when it is ready."""

    opening: bool = False


class Roster:
    """Who is there."""

    def __init__(self, ray: ModuleType, on: On, work: Work, expected: Mapping[str, str], reporter: Reporter) -> None:
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        """Node -> why."""

        self._ray, self._on, self._work, self._expected, self._reporter = ray, on, work, dict(expected), reporter
        self._numbers, self._deaths = itertools.count(), Counter[str]()
        self._limits: dict[str, int] = {}  # node -> workers that it can hold, where fewer than it has cores for
        self._actor_class = ray.remote(Worker)
        self._gpus = on.gpus if work.gpu and has_gpus(ray) else 0.0

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members.values() if member.asked is None]

    @property
    def asked(self) -> dict[Any, Member]:
        """Answers that are awaited of those who are not ready yet."""
        return {member.asked: member for member in self.members.values() if member.asked is not None}

    def hire(self, wanted: int) -> None:
        """Fill the free places of all nodes, `wanted` workers at most."""
        most = min(wanted, self._on.workers or wanted)
        places = {node["NodeID"]: self._places(node) for node in self._nodes() if node["NodeID"] not in self.refused}
        for member in self.members.values():
            places[member.node] = places.get(member.node, 0) - 1
        while len(self.members) < most and any(count > 0 for count in places.values()):
            node = max(places, key=lambda name: places[name])  # the emptiest first
            places[node] -= 1
            self._hire_on(node)

    def heard(self, reference: Any) -> None:
        """An answer of a worker that is not ready yet."""
        member = self.asked[reference]
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._deaths[member.node] += 1
            self.dismiss(member)
            if self._deaths[member.node] >= _DEATHS or "ModuleNotFoundError" in str(error):
                self.refuse(member.node, f"its workers do not start: {last_line(error)}")
            return
        if isinstance(answer, Fault):
            self._cannot_open(member, answer.message)
        elif member.opening:
            self._deaths[member.node] = 0
            member.asked = None
        elif found := differences(self._expected, answer["versions"]):
            self.refuse(member.node, f"{'; '.join(found)}: install the same on all machines")
        else:
            member.opening = True
            member.asked = member.actor.prepare.remote(self._work.maker, dict(self._work.given))

    def _cannot_open(self, member: Member, why: str) -> None:
        """Where others of the node could, one worker less is the answer: its memory may be full of models."""
        self.dismiss(member)
        others = sum(other.node == member.node for other in self.ready)
        if not others:
            self.refuse(member.node, why)
            return
        self._limits[member.node] = others
        self._reporter.say(f"node {self.address_of(member.node)} holds {others} workers and no more: {why}")

    def refuse(self, node: str, why: str) -> list[Member]:
        """No more work for a node; the value is who worked there."""
        gone = [member for member in self.members.values() if member.node == node]
        for member in gone:
            self.dismiss(member)
        if node not in self.refused:
            self.refused[node] = f"{self.address_of(node)}: {why}"
            self._reporter.say(f"node {self.refused[node]}; it gets no more work")
        return gone

    def dismiss(self, member: Member) -> None:
        """End a worker, or note that it has ended."""
        self.members.pop(member.name, None)
        self._ray.kill(member.actor)

    def dismiss_all(self) -> None:
        for member in list(self.members.values()):
            self.dismiss(member)

    def address_of(self, node: str) -> str:
        """
        192.168.0.7 (4f02c1aa): several nodes may share a machine.
        """
        for found in self._ray.nodes():
            if found["NodeID"] == node:
                return f"{found['NodeManagerAddress']} ({node[:8]})"
        return node[:8]

    def room(self) -> bool:
        """Whether any node that is alive and not refused could hold a worker at all."""
        return any(self._places(node) > 0 for node in self._nodes() if node["NodeID"] not in self.refused)

    def needs(self) -> str:
        """What a worker asks of a node, in words."""
        return f"{self._on.cpus} core{'s' * (self._on.cpus > 1)}" + (
            f" and {self._gpus:g} graphics cards" if self._gpus else ""
        )

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _places(self, node: dict[str, Any]) -> int:
        held = node["Resources"]
        places = min(int(held.get("CPU", 0) // self._on.cpus), self._limits.get(node["NodeID"], 1 << 20))
        return min(places, int(held.get("GPU", 0) / self._gpus)) if self._gpus else places

    def _hire_on(self, node: str) -> None:
        at = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self._actor_class.options(
            num_cpus=self._on.cpus,
            num_gpus=self._gpus,
            max_concurrency=2,  # one shard is read while another is computed
            max_restarts=0,
            scheduling_strategy=at,
        ).remote(self._on.cpus)
        name = f"worker {next(self._numbers)}"
        self.members[name] = Member(name, node, actor, actor.hello.remote())


def has_gpus(ray: ModuleType) -> bool:
    """Whether any node of the cluster has a graphics card."""
    return any(node["Resources"].get("GPU", 0) > 0 for node in ray.nodes() if node["Alive"])


def last_line(error: BaseException) -> str:
    """The line of one of Ray's long errors that says most.

    >>> last_line(ValueError("The actor died.\\n  class_name: W\\nModuleNotFoundError: No module named 'x'\\n"))
    "ModuleNotFoundError: No module named 'x'"
    >>> last_line(ValueError("The actor died unexpectedly. More words.\\n\\tclass_name: Worker"))
    'The actor died unexpectedly.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith("Error") and " " not in line.partition(":")[0]]
    return (named[-1] if named else next(iter(lines), type(error).__name__).partition(". ")[0].rstrip(".") + ".")[:300]
