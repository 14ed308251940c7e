"""The Ray executor behind `--on`: joins a cluster, and makes shards with workers that open corpus and model once.

    with RayExecutor(parse_cluster_options("ray:local,workers=2")) as executor:
        for number, content in executor.make(task, range(20)): ...

Ray starts the workers and says when one has died; a shard is the unit of retry. At most two shards per worker
are in flight, and results are fetched one by one: memory is that of the shards in flight. Shards that were made are with
the caller: a killed driver resumes with the missing ones. Workers end with the driver. A failed shard goes to another node
while there is one, then to another worker; after `tries` failures it is left out, and `ShardError` names it at the end. One
whose worker died is made alone from then on, so that of two shards in one process the one that kills it is found.

A node gets no more shards, and is reported once, if its packages or its source of citeweave differ from the driver's, if
none of its workers can open the task, if its disk is full, or if its workers die one after the other.

    ShardTask("citeweave.core.executor:squares", {"failing": [3]})       to test a cluster: shard 3 always fails
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Self

from citeweave.core.errors import CiteweaveError, ShardError, UserError, choose, require
from citeweave.core.executor import (
    ShardTask,
    ShardWorker,
    WorkerFailure,
    available_cores,
    package_versions,
    version_differences,
)
from citeweave.core.progress import QUIET, Reporter

_FORM = "ray, ray:local, ray:auto, ray:HOST:6379 or ray://HOST:10001, then options such as workers=2, cpus=4"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which Ray workers `--on` asks for: where shards are made, by how many workers of which size."""

    address: str = "local"
    """`local`: a cluster that lives as long as the command; `auto`: the one running on this machine; else an address."""

    workers: int = 0
    """Most workers; 0 = as many as there is room for."""

    cpus: int = 1
    """Cores per worker, and its threads."""

    gpus: float = 1.0
    """GPUs per worker, where the task wants one and the cluster has any; 0.5 = two workers per GPU."""

    tries: int = 3
    """Failures of a shard after which it is left out."""

    def __post_init__(self) -> None:
        for name, minimum in (("workers", 0), ("cpus", 1), ("tries", 1)):
            if getattr(self, name) < minimum:
                raise UserError(f"--on: {name} is {getattr(self, name)}; it must be at least {minimum}")
        if not 0 <= self.gpus <= 64:
            raise UserError(f"--on: gpus is {self.gpus}; it must be a number from 0, for none, to 64")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UserError(f"--on: gpus is {self.gpus}; over 1 it must be a whole number: Ray splits one GPU, not two")


def parse_cluster_options(text: str) -> ClusterOptions:
    """Parse which Ray workers `--on` asks for.

    >>> parse_cluster_options("ray:local,workers=2")
    ClusterOptions(address='local', workers=2, cpus=1, gpus=1.0, tries=3)
    >>> parse_cluster_options("ray:workers=4") == parse_cluster_options("ray,workers=4")
    True
    """
    engine, *parts = [part.strip() for part in text.split(",")]
    if engine != "ray" and not engine.startswith("ray:"):
        raise UserError(f"--on is {text!r}; it must be {_FORM}")
    address = engine if engine.startswith(_CLIENT_SCHEME) else engine[4:]
    if "=" in address:
        parts, address = [address, *parts], ""
    kinds: dict[str, type[int] | type[float]] = {"workers": int, "cpus": int, "gpus": float, "tries": int}
    values: dict[str, Any] = {}
    for part in parts:
        name, _, value = part.partition("=")
        choose(name, kinds, "an option of --on")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise UserError(f"--on: {name} is {value!r}; it must be a number, such as {name}=2") from None
    return ClusterOptions(address or "local", **values)


# Joining a cluster.

LOCAL_STORE_BYTES = 256 << 20
"""Bytes of a local cluster's object store: some shards in flight; more of them spill to the disk."""

_CLIENT_SCHEME = "ray://"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4
_NAMES = {"local": "a Ray cluster on this machine", "auto": "the Ray cluster of this machine"}


class ClusterError(CiteweaveError):
    """No node of the Ray cluster can do the work."""


@contextmanager
def _connect_ray(address: str, cores: int) -> Iterator[ModuleType]:
    """Connect to a Ray cluster and yield the ray module; a local cluster ends with the block, any other keeps running."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray sends no usage statistics
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray reports deaths on stdout, amid our --json
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's name for: bind to 127.0.0.1 only
        options |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
        options |= {"object_spilling_directory": tempfile.gettempdir()}
    elif address != "auto":
        check_address(address)
    ray, name = require("ray", extra="ray"), _NAMES.get(address, f"the Ray cluster {address}")
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())
        text = text if len(text) < 300 else text[:300] + " ..."
        if isinstance(error, getattr(ray.exceptions, "AuthenticationError", ())):  # Ray before 2.52 has none
            raise UserError(
                f"{name} asks for a token that this machine does not have ({text}); copy the head's with "
                "`ray get-auth-token`, see docs/scale.md"
            ) from None
        if "ersion mismatch" in text:
            raise UserError(
                f"{name} runs a different Ray or Python than this machine ({text}); install the same here"
            ) from None
        token = "; if it asks for a token, as newer versions do, set RAY_AUTH_MODE=token here too"
        raise UserError(
            f"{name} cannot be joined ({text}); {_advice(address)}{'' if address == 'local' else token}"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Refuse an address where nothing, or something other than Ray, answers: Ray itself would wait for two minutes."""
    host, colon, port = address.removeprefix(_CLIENT_SCHEME).rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--on: {address!r} is not an address; it must be HOST:PORT, ray://HOST:PORT, local or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=8.0) as connection:
            if "RAY_USE_TLS" in os.environ:
                return
            connection.sendall(_HTTP2_PREFACE)
            reply = connection.recv(9)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(f"the Ray cluster {address} does not answer ({reason}); {_advice(address)}") from None
    # Ray speaks gRPC, whose server opens with its settings (RFC 9113, 3.4)
    if len(reply) < 4 or reply[3] != _SETTINGS_FRAME:
        raise UserError(f"the Ray cluster {address} answers, but is not Ray; {_advice(address)}")


def _advice(address: str) -> str:
    """Return what to do about a Ray cluster that cannot be joined."""
    if address == "auto":
        return "start one with `ray start --head`, or use --on ray:local"
    if address == "local":
        return "look into /tmp/ray/session_latest/logs, and check whether the disk is full"
    if address.startswith(_CLIENT_SCHEME):
        return "check with `ray status` on its head whether it runs, and give the head's client port, usually 10001"
    return (
        "check with `ray status` on its head whether it runs, give the head's port, usually 6379, and start a node here "
        "with `ray start --address`, or use ray://HOST:10001 from a machine that is not a node"
    )


# The executor.

_CHECK_SECONDS = 2.0
"""Seconds between two checks of the nodes."""

_NOTICE_SECONDS = 30.0
"""Seconds without any worker after which the user is told what is missing."""

_DEATHS = 3
"""Consecutive deaths of workers of a node, before one is ready or makes a shard, after which no more are started."""


class RayExecutor:
    """An `Executor` that makes shards on a Ray cluster; a context manager that joins and leaves it."""

    def __init__(self, options: ClusterOptions, reporter: Reporter = QUIET) -> None:
        self.options, self._reporter = options, reporter
        self._stack = ExitStack()
        self._ray: ModuleType | None = None

    def __enter__(self) -> Self:
        if self.options.address not in _NAMES:
            check_address(self.options.address)  # before a model is loaded
        return self

    def __exit__(self, *error: object) -> None:
        self._ray = None
        self._stack.close()

    @property
    def gpus(self) -> bool:
        """Return whether a task that wants GPUs gets them from this executor."""
        if self.options.gpus and self.options.address == "local":  # known without starting the cluster
            return bool(require("torch", extra="minilm").cuda.is_available())
        return bool(self.options.gpus) and _has_gpus(self._joined())

    def make(self, task: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield every shard as it finishes; `ShardError` at the end if some failed for good."""
        if not len(numbers):
            return
        run = _ClusterRun(self._joined(), self.options, task, numbers, self._reporter)
        try:
            while run.waiting or any(number is not None for _, number in run.calls.values()):
                yield from run.step()
        finally:
            for worker in list(run.workers):
                run.stop(worker)
        if run.left_out:
            raise ShardError(task.label, run.left_out, len(numbers))

    def _joined(self) -> ModuleType:
        """Join the cluster on first use: a run that has nothing to do needs none."""
        if self._ray is None:
            workers = self.options.workers or max(1, available_cores() // self.options.cpus)
            self._ray = self._stack.enter_context(_connect_ray(self.options.address, workers * self.options.cpus))
        return self._ray


@dataclass(eq=False, slots=True)
class _Worker:
    node: str
    actor: Any
    versions: Any
    """Ray reference of its answer to `hello`."""

    max_shards: int = 0
    """Shards that it takes at a time; 0 until it is ready."""

    shards: set[int] = field(default_factory=set)
    """Shards that it is making."""


class _ClusterRun:
    """One `make` call: workers at the nodes, shards that wait, and calls that have not been answered."""

    def __init__(
        self, ray: ModuleType, options: ClusterOptions, task: ShardTask, numbers: Sequence[int], reporter: Reporter
    ) -> None:
        self._ray, self._options, self._task, self._reporter = ray, options, task, reporter
        self._where = _NAMES.get(options.address, f"the Ray cluster {options.address}")
        self._versions, self._gpus = package_versions(), options.gpus if task.gpu and _has_gpus(ray) else 0.0
        self._actor_class = ray.remote(ShardWorker)
        self.workers: list[_Worker] = []
        self.waiting = deque(numbers)
        self.calls: dict[Any, tuple[_Worker, int | None]] = {}
        """Ray reference -> who is asked, and for which shard; None: to open the task."""
        self.left_out: dict[int, str] = {}
        """Shard -> its last error."""
        self.excluded: dict[str, str] = {}
        """Node -> its address and the reason."""
        self._limits: dict[str, int] = {}  # node -> workers it can hold, where fewer than its cores
        self._deaths = Counter[tuple[str, bool]]()  # node and whether its workers were ready -> consecutive deaths
        self._failures: dict[int, list[_Worker]] = defaultdict(list)
        self._alone: set[int] = set()
        self._last_check, self._last_ready = -_CHECK_SECONDS, time.monotonic()

    def step(self) -> Iterator[tuple[int, bytes]]:
        """Start workers, assign shards, and wait for one answer."""
        self._start_workers()
        self._assign_shards()
        finished, _ = self._ray.wait(list(self.calls), num_returns=1, timeout=_CHECK_SECONDS)
        for reference in finished:
            worker, number = self.calls.pop(reference)
            if number is not None:
                worker.shards.discard(number)
            try:
                if number is None and (differences := self._differences(worker)):
                    self._exclude(worker.node, f"{'; '.join(differences)}: install the same on all machines")
                    continue
                reply = self._ray.get(reference)
            except self._ray.exceptions.OutOfDiskError as error:  # the object store of the worker's node is full
                reply = WorkerFailure(True, short_error(error))
            except self._ray.exceptions.RayError as error:
                self._bury(worker, number, short_error(error))
                continue
            if isinstance(reply, bytes):
                assert number is not None
                self._deaths[worker.node, True] = 0
                self._assign_shards()  # before the caller writes to the disk
                yield number, reply
            elif number is None:
                self._open(worker, reply)
            elif reply.of_node:
                self.waiting.appendleft(number)
                self._exclude(worker.node, reply.message)
            else:
                self._fail(number, worker, reply.message)

    # Workers.

    def _start_workers(self) -> None:
        """Start workers at the free places of all nodes, the emptiest first; refuse if there are none."""
        now = time.monotonic()
        if any(worker.max_shards for worker in self.workers):
            self._last_ready = now
        if now - self._last_check < _CHECK_SECONDS and self.workers:
            return
        self._last_check = now
        places = {node["NodeID"]: self._places(node) for node in self._ray.nodes() if node["Alive"]}
        has_room = any(places.values())
        for worker in self.workers:
            places[worker.node] = places.get(worker.node, 0) - 1
        remaining = len(self.waiting) + sum(len(worker.shards) for worker in self.workers)
        while (
            len(self.workers) < min(remaining, self._options.workers or remaining)
            and max(places.values(), default=0) > 0
        ):
            node = max(places, key=lambda name: places[name])
            places[node] -= 1
            self._start_worker(node)
        requirements = f"{self._options.cpus} core{'s' * (self._options.cpus > 1)}"
        requirements += f" and {self._gpus:g} GPUs" if self._gpus else ""
        if not has_room and not self.workers and self.excluded:
            raise ClusterError(f"no node of {self._where} can do the work: {' | '.join(self.excluded.values())}")
        if not has_room and not self.workers:
            raise ClusterError(f"no node of {self._where} has {requirements}; ask for less with cpus= or gpus=")
        if now - self._last_ready >= _NOTICE_SECONDS:
            self._last_ready = now
            self._reporter.say(f"{self._where}: waiting for a worker with {requirements}")

    def _places(self, node: Mapping[str, Any]) -> int:
        """Return how many workers a node can hold."""
        if node["NodeID"] in self.excluded:
            return 0
        held = node["Resources"]
        places = min(int(held.get("CPU", 0) // self._options.cpus), self._limits.get(node["NodeID"], 1 << 20))
        return min(places, int(held.get("GPU", 0) / self._gpus)) if self._gpus else places

    def _start_worker(self, node: str) -> None:
        actor = self._actor_class.options(
            num_cpus=self._options.cpus,
            num_gpus=self._gpus,
            max_concurrency=2,  # one shard is read while another is computed
            scheduling_strategy=self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote()
        worker = _Worker(node, actor, actor.hello.remote())
        arguments, cards = dict(self._task.arguments), self._gpus > 0
        self.workers.append(worker)
        self.calls[actor.prepare.remote(self._task.maker, arguments, self._options.cpus, cards=cards)] = (worker, None)

    def _differences(self, worker: _Worker) -> list[str]:
        return version_differences(self._versions, self._ray.get(worker.versions))

    def _open(self, worker: _Worker, reply: int | WorkerFailure) -> None:
        """Take a worker's answer to whether it could open the task."""
        if isinstance(reply, WorkerFailure):
            self.stop(worker)
            self._limit(worker.node, reply.message)
        else:
            worker.max_shards, self._deaths[worker.node, False] = reply, 0

    def _bury(self, worker: _Worker, number: int | None, reason: str) -> None:
        """Replace a worker that died; its shards are to blame if it was ready, else its node is."""
        was_ready, node = number is not None, worker.node
        shards = worker.shards | ({number} if number is not None else set())
        worker.shards.clear()
        self.stop(worker)
        self._deaths[node, was_ready] += 1
        for shard in sorted(shards):
            self._alone.add(shard)
            self._fail(shard, worker, f"its worker died ({reason})")
        there = sum(other.node == node for other in self.workers)
        others = any(other.max_shards and other.node != node for other in self.workers)
        if was_ready and others and self._deaths[node, True] >= _DEATHS + there:
            self._exclude(node, f"its workers die and complete no shard: {reason}")
        elif not was_ready and ("ModuleNotFoundError" in reason or self._deaths[node, False] >= _DEATHS):
            self._limit(node, f"its workers do not start: {reason}")

    def _limit(self, node: str, reason: str) -> None:
        """Limit a node to the workers that it has, as its memory may be full of models; exclude it if it has none."""
        there = sum(worker.node == node for worker in self.workers)
        if not there:
            self._exclude(node, reason)
        elif self._limits.get(node) != there:
            self._limits[node], self._deaths[node, False] = there, 0
            self._reporter.say(f"node {self._address(node)} can hold only {there} workers: {reason}")

    def _exclude(self, node: str, reason: str) -> None:
        for worker in [worker for worker in self.workers if worker.node == node]:
            self.stop(worker)
        if node not in self.excluded:
            self.excluded[node] = f"{self._address(node)}: {reason}"
            self._reporter.say(f"node {self.excluded[node]}; it gets no more shards")

    def stop(self, worker: _Worker) -> None:
        """End a worker; what it was making waits again, and does not count as failed."""
        if worker in self.workers:
            self.workers.remove(worker)
        self.calls = {reference: call for reference, call in self.calls.items() if call[0] is not worker}
        self.waiting.extendleft(sorted(worker.shards, reverse=True))
        self._ray.kill(worker.actor)

    def _address(self, node: str) -> str:
        """Return address and short id of a node, `192.168.0.7 (4f02c1aa)`: several may share a machine."""
        addresses = {each["NodeID"]: f"{each['NodeManagerAddress']} ({node[:8]})" for each in self._ray.nodes()}
        return addresses.get(node, node[:8])

    # Shards.

    def _assign_shards(self) -> None:
        ready = [worker for worker in self.workers if worker.max_shards]
        for most in (1, 2):  # a first shard for every worker before a second for any
            for worker in ready:
                if len(worker.shards) < min(most, worker.max_shards) and not worker.shards & self._alone:
                    number = next((n for n in self.waiting if self._may_take(worker, n, ready)), None)
                    if number is not None:
                        self.waiting.remove(number)
                        worker.shards.add(number)
                        self.calls[worker.actor.make.remote(number)] = (worker, number)

    def _may_take(self, worker: _Worker, number: int, ready: Sequence[_Worker]) -> bool:
        """Return whether a worker is one of those to try a shard next: at other nodes, else other workers, else all."""
        if number in self._alone and worker.shards:
            return False
        failed = self._failures.get(number, [])
        if {other.node for other in ready} - {other.node for other in failed}:
            return worker.node not in {other.node for other in failed}
        return worker not in failed or not set(ready) - set(failed)

    def _fail(self, number: int, worker: _Worker, reason: str) -> None:
        self._failures[number].append(worker)
        is_last = len(self._failures[number]) >= self._options.tries
        if is_last:
            self.left_out[number] = reason
        else:
            self.waiting.append(number)
        outcome = "it is left out" if is_last else "it will be tried again"
        self._reporter.say(f"shard {number} failed at {self._address(worker.node)}: {reason}; {outcome}")


def _has_gpus(ray: ModuleType) -> bool:
    """Return whether any node of the Ray cluster has a GPU."""
    return any(node["Resources"].get("GPU", 0) > 0 for node in ray.nodes() if node["Alive"])


def short_error(error: BaseException) -> str:
    """Return the most informative line of a long error of Ray.

    >>> short_error(ValueError("The actor died.\\n  class_name: W\\nModuleNotFoundError: No module named 'x'\\n"))
    "ModuleNotFoundError: No module named 'x'"
    >>> short_error(ValueError("The actor died unexpectedly. More words.\\n\\tclass_name: Worker"))
    'The actor died unexpectedly.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith("Error") and " " not in line.partition(":")[0]]
    return (named[-1] if named else next(iter(lines), type(error).__name__).partition(". ")[0].rstrip(".") + ".")[:300]


@contextmanager
def open_executor(text: str, reporter: Reporter = QUIET) -> Iterator[RayExecutor | None]:
    """Open the executor of `--on`, None where the option is empty and the work is done locally."""
    if not text:
        yield None
        return
    with RayExecutor(parse_cluster_options(text), reporter) as executor:
        yield executor
