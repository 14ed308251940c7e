"""What `--on` says: where shards are made, and by how many.

>>> parse_on("ray:local,workers=2")
On(address='local', workers=2, cpus=1, gpus=1.0, tries=3)
>>> parse_on("ray://head:10001,gpus=0.5").address
'ray://head:10001'
>>> parse_on("ray:workers=4") == parse_on("ray,workers=4")
True

Which code and packages a process has, so that no worker computes with others than the driver.

    versions()                          {"citeweave": "0.1.0 (9f2c04ab)", "python": "3.11.9", "numpy": "2.4.0", ...}
    differences(ours, theirs)           ["numpy is 2.4.0 here and 2.1.0 there"]

The eight digits are a hash of the package's source: two checkouts of one version differ too.

One worker: opens the corpus and the model once, then makes shard after shard.

    worker = Worker()
    worker.hello()                                      {"citeweave": "0.1.0 (9f2c04ab)", ...}
    worker.prepare(work.maker, given, threads=2)        how many shards it takes at a time, or a Fault
    worker.make(3)                                      bytes, or a Fault

Knows no Ray: the crew turns the class into actors. `Worker()` and `hello()` must stay as they are in all versions: it is
by their answer that a driver of another version finds out. Errors come back as plain data, because an exception of a package
that the driver does not have could not be read there.

The workers of a crew: hired where there is room, checked, replaced when they die, and sent home at the end.

    roster = Roster(ray, on, work, expected=versions(), reporter=reporter)
    roster.hire(wanted=20)             one actor for every free place, on every node that is not refused
    roster.heard(reference)            an actor's first answers: its versions, then whether it could open the work
    roster.ready                       those that can be asked for shards

A node is refused, and told so once, if its packages are others than the driver's, if none of its workers can open the
work, if its disk is full, or if its workers die one after the other. Hands out no shards.

Work without papers and models, to try a crew: numbers that take time, fail, or end their process.

    Work("citeweave.remote.ray_workers:squares", {"wait": 0.1})                  the square of a number, after a while
    Work("citeweave.remote.ray_workers:squares", {"failing": [3]})               shard 3 always fails
    Work("citeweave.remote.ray_workers:squares", {"dying": [3], "marks": "/tmp/m"})    shard 3 ends its process once

Makes nothing of use: for tests, and to see whether a cluster holds what it promises.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import itertools
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import citeweave
from citeweave.core.errors import UserError, choose, require
from citeweave.core.executor import Make, ShardTask, resolve
from citeweave.core.progress import Reporter
from citeweave.version import __version__

_FORM = "ray, ray:local, ray:auto, ray:HOST:6379 or ray://HOST:10001, then options such as workers=2, cpus=4"


@dataclass(frozen=True, slots=True)
class On:
    """Where shards are made."""

    address: str = "local"
    """`local`: a cluster for the time of the command; `auto`: the one that runs on this machine; else its address."""

    workers: int = 0
    """At most so many; 0 = as many as there is room for."""

    cpus: int = 1
    """Cores of a worker, and its threads."""

    gpus: float = 1.0
    """Graphics cards of a worker, where the work wants one and the cluster has any; 0.5 = two workers a card."""

    tries: int = 3
    """How often a shard may fail before it is left out."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("cpus", 1), ("tries", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--on: {name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 <= self.gpus <= 64:
            raise UserError(f"--on: gpus is {self.gpus}; it must be a number from 0, without graphics cards, to 64")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UserError(
                f"--on: gpus is {self.gpus}; over 1 it must be a whole number: Ray shares one card, not two"
            )


def parse_on(text: str) -> On:
    """`ray:local,workers=2` -> what it means."""
    engine, *parts = [part.strip() for part in text.split(",")]
    if engine.startswith("ray://"):
        address = engine
    elif engine == "ray" or engine.startswith("ray:"):
        address = engine[4:]
        if "=" in address:
            parts, address = [address, *parts], ""
    else:
        raise UserError(f"--on is {text!r}; it must be {_FORM}")
    kinds: dict[str, type[int] | type[float]] = {"workers": int, "cpus": int, "gpus": float, "tries": int}
    values: dict[str, float] = {}
    for part in parts:
        name, _, value = part.partition("=")
        choose(name, kinds, "an option of --on")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise UserError(f"--on: {name} is {value!r}; it must be a number, such as {name}=2") from None
    return On(address or "local", **values)  # type: ignore[arg-type]


# Which code and packages a process has, so that no worker computes with others than the driver.

PACKAGES = ("numpy", "torch", "tokenizers", "transformers")
"""What decides the bytes of vectors beside our own code."""


def versions() -> dict[str, str]:
    """Of this process; empty where a package is not installed."""
    found = {"citeweave": f"{__version__} ({_source()})", "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What differs, in words; builds of one version for other devices (2.6.0+cpu, 2.6.0+cu126) do not.

    >>> differences({"numpy": "2.4.0", "torch": "2.6.0+cpu"}, {"numpy": "", "torch": "2.6.0+cu126"})
    ['numpy is 2.4.0 here and missing there']
    """
    pairs = [(name, ours[name], theirs.get(name, "")) for name in ours]
    return [
        f"{name} is {here or 'missing'} here and {there or 'missing'} there"
        for name, here, there in pairs
        if here.partition("+")[0] != there.partition("+")[0]
    ]


def _source() -> str:
    folder = Path(citeweave.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


# One worker: opens the corpus and the model once, then makes shard after shard.


class Fault(NamedTuple):
    """An error as plain data."""

    of_node: bool
    """Whether any other shard would fail here too: a folder that is not there, a disk that is full."""

    message: str


class Worker:
    """What runs in an actor."""

    def __init__(self) -> None:
        self._make: Make | None = None

    def hello(self) -> dict[str, str]:
        """The versions of its packages."""
        return versions()

    def prepare(self, maker: str, given: Mapping[str, Any], threads: int = 1, *, cards: bool = True) -> int | Fault:
        """Open whatever the work needs; 2 where one shard is read while another is computed, else 1."""
        try:
            os.environ["OMP_NUM_THREADS"] = str(threads)  # for what is loaded from here on
            if not cards:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray lets a worker that has no card see them all
            self._make = resolve(maker)(**given)
            _limit_threads(threads)
            return 2 if getattr(self._make, "overlaps", False) else 1
        except Exception as error:
            return Fault(True, describe(error))

    def make(self, number: int) -> bytes | Fault:
        """The bytes of a shard; as many calls at a time as `prepare` said."""
        assert self._make is not None, "prepare comes first"
        try:
            return self._make(number)
        except Exception as error:
            return Fault(isinstance(error, OSError) and error.errno in _FULL, describe(error))


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def describe(error: BaseException) -> str:
    """One line: our own errors as they are, others with their kind.

    >>> describe(UserError("corpus does not exist")), describe(ValueError("no"))
    ('corpus does not exist', 'ValueError: no')
    """
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _limit_threads(threads: int) -> None:
    """As many as the worker has cores: more of them would wait for those of its neighbors."""
    if "torch" in sys.modules:
        require("torch", extra="minilm").set_num_threads(threads)


# The workers of a crew: hired where there is room, checked, replaced when they die, and sent home at the end.

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

    def __init__(
        self, ray: ModuleType, on: On, work: ShardTask, expected: Mapping[str, str], reporter: Reporter
    ) -> None:
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


# Work without papers and models, to try a crew: numbers that take time, fail, or end their process.


def squares(
    wait: float = 0.0,
    failing: Sequence[int] = (),
    full: Sequence[int] = (),
    dying: Sequence[int] = (),
    marks: str = "",
    together: int = 0,
    needs: str = "",
    unless: str = "",
) -> Make:
    """The function of a worker; `marks` is a folder in which each death and each number made leaves a file.

    No number is made before `together` processes are there. `needs` is a path without which a node cannot work, `unless` the beginning of one that is missed by nobody.
    """
    needs = os.path.expandvars(needs)
    if needs and not Path(needs).exists() and not (unless and needs.startswith(unless)):
        raise UserError(f"{needs} does not exist; give a folder that holds a corpus")

    def make(number: int) -> bytes:
        time.sleep(wait)
        if together:
            _wait_for_others(Path(marks), together)
        if number in failing:
            raise ValueError(f"number {number} fails")
        if number in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if number in dying and _first(Path(marks) / f"died-{number}"):
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows either ends it at once
        if marks:
            with (Path(marks) / f"made-{number}").open("a") as file:
                file.write(f"{os.getpid()}\n")
        return str(number * number).encode()

    return make


def _wait_for_others(marks: Path, together: int) -> None:
    """Until so many processes are at work."""
    (marks / f"at-work-{os.getpid()}").touch()
    while len(list(marks.glob("at-work-*"))) < together:
        time.sleep(0.01)


def _first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
