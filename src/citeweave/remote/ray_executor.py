"""Joining a Ray cluster, or starting one on this machine for the time of a command.

    with join("local", cores=2) as ray: ...             2 workers of 1 core, bound to 127.0.0.1, gone afterwards
    with join("10.0.0.5:6379", cores=0) as ray: ...     the driver's machine is a node of that cluster
    with join("ray://10.0.0.5:10001", cores=0) as ray:  the driver's machine is not

An address that does not answer is an error within some seconds: Ray itself would wait for two minutes. Starts no
nodes elsewhere; `ray start` does.

Which shards are still to be made, who has tried them, and which are given up.

    ledger = Ledger([0, 1, 2], tries=3)
    ledger.take("anna", {"anna": "attic", "ben": "cellar"})     0
    ledger.done(0)
    ledger.failed(1, "ValueError")          another worker gets it next; the third failure puts it aside

What failed goes to another node while there is one, then to another worker: a node that fails at everything costs each
shard one try. A shard whose worker died is given out alone from then on, so that of two shards in one process the one
that ends it is found. Knows no processes: names of workers and of nodes are any words.

A crew on Ray: actors that open the corpus and the model once, and make shards until there are none.

    with RayCrew(On("local", workers=2)) as crew:
        for number, made in crew.make(work, range(20)): ...

At most two shards a worker are on their way, and results are fetched one by one: memory is that of the shards in
flight. A shard whose worker or node died goes to another; one that fails again and again is put aside, the rest goes
on, and `ShardError` names it at the end. What is finished lies with the caller: a killed driver goes on with what is
missing. Workers end with the driver. Does not save anything, and does not choose the shards.

The crew that `--on` means, for the time of a command.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, TracebackType
from typing import Any, Self

from citeweave.core.errors import CiteweaveError, ShardError, UserError, require
from citeweave.core.executor import ShardTask, cores
from citeweave.core.progress import QUIET, Reporter
from citeweave.remote.ray_workers import Fault, Member, On, Roster, has_gpus, last_line, parse_on, versions

STORE = 256 << 20
"""Bytes of a local cluster's object store: some shards on their way; more of them go to the disk."""

CLIENT = "ray://"
_SECONDS = 8.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


@contextmanager
def join(address: str, cores: int) -> Iterator[ModuleType]:
    """Ray, connected; a local cluster ends with the block, another one goes on without us."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray tells of deaths on stdout, amid our --json
    local = address == "local"
    if local:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's name for: bind to 127.0.0.1 only
    ray = require("ray", extra="ray")
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if local:
        how |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
        how |= {"object_spilling_directory": tempfile.gettempdir()}
    elif address != "auto":
        check_address(address)
    try:
        ray.init(address=address, **how)
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:  # Rays before 2.52 have none
        raise UserError(
            f"{named(address)} asks for a token that this machine does not have ({_line(error)}); copy the head's "
            "with `ray get-auth-token`, see docs/scale.md"
        ) from None
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if "ersion mismatch" in str(error):
            raise UserError(
                f"{named(address)} runs another Ray or Python than this machine ({_line(error)}); install the same here"
            ) from None
        token = "" if local else "; if it asks for a token, as newer Rays do, set RAY_AUTH_MODE=token here too"
        raise UserError(f"{named(address)} cannot be joined ({_line(error)}); {_advice(address)}{token}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Refuse an address at which nothing, or something else than Ray, answers."""
    host, colon, port = address.removeprefix(CLIENT).rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--on: {address!r} is no address; it must be HOST:PORT, ray://HOST:PORT, local or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as line:
            if "RAY_USE_TLS" in os.environ:
                return
            line.sendall(_PREFACE)
            answer = line.recv(9)
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(f"{named(address)} does not answer ({why}); {_advice(address)}") from None
    if len(answer) < 4 or answer[3] != _SETTINGS:  # a Ray server, of gRPC, opens with its settings (RFC 9113, 3.4)
        raise UserError(f"{named(address)} answers, but is not Ray; {_advice(address)}")


def named(address: str) -> str:
    return {"local": "a Ray cluster on this machine", "auto": "the Ray cluster of this machine"}.get(
        address, f"the Ray cluster {address}"
    )


def _advice(address: str) -> str:
    if address == "auto":
        return "start one with `ray start --head`, or take --on ray:local"
    if address == "local":
        return "look into /tmp/ray/session_latest/logs, and whether the disk is full"
    if address.startswith(CLIENT):
        return "see with `ray status` on its head whether it runs, and give the head's client port, usually 10001"
    return (
        "see with `ray status` on its head whether it runs, give the head's port, usually 6379, and start a node here "
        "with `ray start --address`, or take ray://HOST:10001 from a machine that is no node"
    )


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 300 else text[:300] + " ..."


# Which shards are still to be made, who has tried them, and which are given up.


class Ledger:
    """The state of every shard of one call."""

    def __init__(self, numbers: Sequence[int], tries: int) -> None:
        self.total, self.tries = len(numbers), tries
        self.given_up: dict[int, str] = {}
        """Number -> its last error."""

        self._waiting = deque(numbers)
        self._out: dict[int, tuple[str, str]] = {}  # number -> who makes it, and at which node
        self._failures: dict[int, list[tuple[str, str]]] = defaultdict(list)  # number -> who failed, and where
        self._alone: set[int] = set()

    @property
    def over(self) -> bool:
        return not self._waiting and not self._out

    @property
    def left(self) -> int:
        """Shards that are not made and not given up."""
        return len(self._waiting) + len(self._out)

    def held_by(self, worker: str) -> list[int]:
        return [number for number, (who, _) in self._out.items() if who == worker]

    def take(self, worker: str, nodes: Mapping[str, str], most: int = 2) -> int | None:
        """A shard for a worker that has fewer than `most`; None where there is none for it now.

        `nodes` are all workers that can be asked, with the node of each.
        """
        held = self.held_by(worker)
        if len(held) >= most or self._alone & set(held):
            return None
        for number in self._waiting:
            if number in self._alone and held:
                continue
            if worker in self._next(number, nodes):
                self._waiting.remove(number)
                self._out[number] = (worker, nodes[worker])
                return number
        return None

    def _next(self, number: int, nodes: Mapping[str, str]) -> Collection[str]:
        """Who may try a shard: those at other nodes than it failed at, else other workers, else all."""
        failures = self._failures.get(number)
        if failures is None:
            return nodes
        tried, places = (set(column) for column in zip(*failures, strict=True))
        elsewhere = [worker for worker, node in nodes.items() if node not in places]
        return elsewhere or nodes.keys() - tried or nodes

    def done(self, number: int) -> None:
        del self._out[number]

    def give_back(self, number: int) -> None:
        """Not the shard's fault: it is the next to be given out."""
        del self._out[number]
        self._waiting.appendleft(number)

    def failed(self, number: int, why: str, *, died: bool = False) -> bool:
        """Count a failure; true where it was the last one and the shard is put aside."""
        self._failures[number].append(self._out.pop(number))
        if died:
            self._alone.add(number)
        if len(self._failures[number]) >= self.tries:
            self.given_up[number] = why
            return True
        self._waiting.append(number)
        return False


# A crew on Ray: actors that open the corpus and the model once, and make shards until there are none.

_LOOK = 2.0
"""Seconds between two looks at the nodes."""

_PATIENCE = 30.0
"""Seconds without any worker after which it is said what is waited for."""

_DIED = "its worker died"


class ClusterError(CiteweaveError):
    """No node of the cluster can do the work."""


class RayCrew:
    """See `citeweave.core.executor.Crew`; a context manager that joins the cluster and leaves it."""

    def __init__(self, on: On, reporter: Reporter = QUIET) -> None:
        self.on, self._reporter = on, reporter
        self._stack = ExitStack()
        self._ray: ModuleType | None = None

    def __enter__(self) -> Self:
        if self.on.address not in ("local", "auto"):
            check_address(self.on.address)  # before a model is loaded
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray = None
        self._stack.close()

    @property
    def gpus(self) -> bool:
        """Whether a work that wants graphics cards gets them here."""
        if self.on.gpus <= 0:
            return False
        if self.on.address == "local":  # without starting it
            return bool(require("torch", extra="minilm").cuda.is_available())
        return has_gpus(self._joined())

    def make(self, work: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Every shard once, as they finish; at the end `ShardError` where some could not be made."""
        if not len(numbers):
            return
        ray = self._joined()
        ledger = Ledger(list(numbers), self.on.tries)
        roster = Roster(ray, self.on, work, versions(), self._reporter)
        shift = _Shift(ray, ledger, roster, self._reporter, named(self.on.address))
        try:
            while not ledger.over:
                yield from shift.step()
        finally:
            roster.dismiss_all()
        if ledger.given_up:
            raise ShardError(work.label, ledger.given_up, ledger.total)

    def _joined(self) -> ModuleType:
        """The cluster is joined when it is needed: what is made already needs none."""
        if self._ray is None:
            workers = self.on.workers or max(1, cores() // self.on.cpus)
            self._ray = self._stack.enter_context(join(self.on.address, workers * self.on.cpus))
        return self._ray


class _Shift:
    """The loop of one call."""

    def __init__(self, ray: ModuleType, ledger: Ledger, roster: Roster, reporter: Reporter, where: str) -> None:
        self._ray, self._ledger, self._roster, self._reporter, self._where = ray, ledger, roster, reporter, where
        self._out: dict[Any, tuple[int, Member]] = {}  # reference -> shard and who makes it
        self._worked = time.monotonic()
        self._looked = -_LOOK

    def step(self) -> Iterator[tuple[int, bytes]]:
        """Hire, hand out, wait for one answer."""
        self._hire()
        self._hand_out()
        awaited = [*self._roster.asked, *self._out]
        if not awaited:
            time.sleep(0.1)
            return
        answered, _ = self._ray.wait(awaited, num_returns=1, timeout=_LOOK)
        for reference in answered:
            if reference not in self._out:
                self._lost(self._roster.heard(reference), died=False)
            elif (made := self._fetch(reference)) is not None:
                self._hand_out()  # before the caller writes to the disk
                yield made

    def _hire(self) -> None:
        now = time.monotonic()
        if self._roster.ready:
            self._worked = now
        if now - self._looked < _LOOK and self._roster.members:
            return
        self._looked = now
        self._roster.hire(self._ledger.left)
        if self._roster.members:
            if now - self._worked >= _PATIENCE:
                self._worked = now
                self._reporter.say(f"{self._where}: waiting for a worker with {self._roster.needs()}")
            return
        if self._roster.refused and not self._roster.room():
            raise ClusterError(f"no node of {self._where} can do the work: {' | '.join(self._roster.refused.values())}")
        if not self._roster.room():
            raise ClusterError(
                f"no node of {self._where} has {self._roster.needs()}; ask for fewer with cpus= or gpus="
            )

    def _hand_out(self) -> None:
        ready = self._roster.ready
        nodes = {member.name: member.node for member in ready}
        for most in (1, 2):  # the first shard for everyone before the second for anyone
            for member in ready:
                number = self._ledger.take(member.name, nodes, min(most, member.most))
                if number is not None:
                    self._out[member.actor.make.remote(number)] = (number, member)

    def _fetch(self, reference: Any) -> tuple[int, bytes] | None:
        number, member = self._out.pop(reference)
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.OutOfDiskError as error:  # the store of the worker's node holds no more
            answer = Fault(True, last_line(error))
        except self._ray.exceptions.RayError as error:
            why = last_line(error)
            self._failed(number, f"{_DIED} ({why})", member, died=True)
            self._lost([member], died=True)
            self._lost(self._roster.died(member, why), died=False)
            return None
        if isinstance(answer, bytes):
            self._ledger.done(number)
            self._roster.made(member)
            return number, answer
        assert isinstance(answer, Fault)
        if answer.of_node:
            self._ledger.give_back(number)
            self._lost(self._roster.refuse(member.node, answer.message), died=False)
        else:
            self._failed(number, answer.message, member)
        return None

    def _failed(self, number: int, why: str, member: Member, *, died: bool = False) -> None:
        last = self._ledger.failed(number, why, died=died)
        then = "it is left out" if last else "it is given out again"
        self._reporter.say(f"shard {number} failed at {self._roster.address_of(member.node)}: {why}; {then}")

    def _lost(self, gone: Sequence[Member], *, died: bool) -> None:
        """What else those who are gone had in hand."""
        names = {member.name for member in gone}
        for reference, (number, member) in list(self._out.items()):
            if member.name in names:
                del self._out[reference]
                if died:
                    self._failed(number, _DIED, member, died=True)
                else:
                    self._ledger.give_back(number)


# The crew that `--on` means, for the time of a command.


@contextmanager
def open_crew(text: str, reporter: Reporter = QUIET) -> Iterator[RayCrew | None]:
    """The crew of `--on`, and None where it is not given: the work is done here. Its cluster ends with the block."""
    if not text:
        yield None
        return
    with RayCrew(parse_on(text), reporter) as crew:
        yield crew
