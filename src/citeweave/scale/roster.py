"""The workers of a crew: hired where there is room, checked, replaced when they die, and sent home at the end.

    roster = Roster(ray, on, work, expected=versions(), reporter=reporter)
    roster.hire(wanted=20)             one actor for every free place, on every node that is not refused
    roster.heard(reference)            an actor's first answers: its versions, then whether it could open the work
    roster.ready                       those that can be asked for shards

A node is refused, and told so once, if its packages are others than the driver's, if none of its workers can open the
work, if its disk is full, or if its workers die one after the other. Hands out no shards.
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
"""Workers of a node that may die, one after the other, before one of them was ready, or had made a shard."""


@dataclass(slots=True)
class Member:
    """One worker."""

    name: str
    node: str
    actor: Any
    asked: Any
    """The reference of its answer to `hello`, then to `prepare`; None when it is ready."""

    opening: bool = False
    most: int = 1
    """Shards that it takes at a time."""


class Roster:
    """Who is there."""

    def __init__(self, ray: ModuleType, on: On, work: Work, expected: Mapping[str, str], reporter: Reporter) -> None:
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        """Node -> why."""

        self._ray, self._on, self._work, self._expected, self._reporter = ray, on, work, dict(expected), reporter
        self._numbers = itertools.count()
        self._early, self._late = Counter[str](), Counter[str]()  # node -> deaths since one was ready, or made a shard
        self._limits: dict[str, int] = {}  # node -> workers that it can hold, where fewer than it has cores for
        self._cramped: dict[str, str] = {}  # node -> why it has a limit, until that is told
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

    def heard(self, reference: Any) -> list[Member]:
        """An answer of a worker that is not ready yet; the value is who else must go because of it."""
        member = self.asked[reference]
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self.dismiss(member)
            self._early[member.node] += 1
            why = f"its workers do not start: {last_line(error)}"
            if "ModuleNotFoundError" in str(error):
                return self.refuse(member.node, why)
            if self._early[member.node] >= _DEATHS:
                self._one_less(member.node, why)
            return []
        if isinstance(answer, Fault):
            self.dismiss(member)
            self._one_less(member.node, answer.message)
        elif member.opening:
            self._early[member.node] = 0
            member.asked, member.most = None, answer
            self._tell_limit(member.node)
        elif found := differences(self._expected, answer):
            return self.refuse(member.node, f"{'; '.join(found)}: install the same on all machines")
        else:
            member.opening = True
            given, cards = dict(self._work.given), self._gpus > 0
            member.asked = member.actor.prepare.remote(self._work.maker, given, self._on.cpus, cards=cards)
        return []

    def made(self, member: Member) -> None:
        """A worker has made a shard: its node is one at which that can be done."""
        self._late[member.node] = 0

    def died(self, member: Member, why: str) -> list[Member]:
        """A worker ended that was ready; the value is who else must go, where a node only costs tries."""
        self.dismiss(member)
        self._late[member.node] += 1
        there = sum(other.node == member.node for other in self.members.values())
        if self._late[member.node] >= _DEATHS + there and any(other.node != member.node for other in self.ready):
            return self.refuse(member.node, f"its workers die and make nothing: {why}")
        return []

    def _one_less(self, node: str, why: str) -> None:
        """A worker could not open the work: the node keeps those that can, as its memory may be full of models."""
        there = sum(member.node == node for member in self.members.values())
        if not there:
            self.refuse(node, why)
            return
        self._limits[node], self._cramped[node], self._early[node] = there, why, 0
        self._tell_limit(node)

    def _tell_limit(self, node: str) -> None:
        """Once all that a node holds are ready."""
        there = [member for member in self.members.values() if member.node == node]
        if node in self._cramped and all(member.asked is None for member in there):
            why = self._cramped.pop(node)
            self._reporter.say(f"node {self.address_of(node)} holds {len(there)} workers and no more: {why}")

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
        """`192.168.0.7 (4f02c1aa)`: several nodes may share a machine."""
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
        ).remote()
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
