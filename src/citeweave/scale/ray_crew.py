"""A crew on Ray: actors that open the corpus and the model once, and make shards until there are none.

    with RayCrew(On("local", workers=2)) as crew:
        for number, made in crew.make(work, range(20)): ...

At most two shards a worker are on their way, and results are fetched one by one: memory is that of the shards in
flight. A shard whose worker or node died goes to another; one that fails again and again is put aside, the rest goes
on, and `ShardError` names it at the end. What is finished lies with the caller: a killed driver goes on with what is
missing. Workers end with the driver. Does not save anything, and does not choose the shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import ModuleType, TracebackType
from typing import Any, Self

from citeweave.crew import Work
from citeweave.errors import CiteweaveError, ShardError
from citeweave.extras import require
from citeweave.machine import cores
from citeweave.progress import QUIET, Reporter
from citeweave.scale.cluster import check_address, join, named
from citeweave.scale.ledger import Ledger
from citeweave.scale.options import On
from citeweave.scale.roster import Member, Roster, has_gpus, last_line
from citeweave.scale.versions import versions
from citeweave.scale.worker import Fault

_LOOK = 2.0
"""Seconds between two looks at the nodes."""

_PATIENCE = 30.0
"""Seconds without any worker after which it is said what is waited for."""

_DIED = "its worker died"


class CrewError(CiteweaveError):
    """No node of the cluster can do the work."""


class RayCrew:
    """See `citeweave.crew.Crew`; a context manager that joins the cluster and leaves it."""

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

    def make(self, work: Work, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
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
            raise CrewError(f"no node of {self._where} can do the work: {' | '.join(self._roster.refused.values())}")
        if not self._roster.room():
            raise CrewError(f"no node of {self._where} has {self._roster.needs()}; ask for fewer with cpus= or gpus=")

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
