"""The Ray executor behind `--on`: joins a cluster, hands shards to workers, retries failed ones.

    with RayExecutor(ClusterOptions("local", workers=2)) as executor:
        for number, content in executor.make(task, range(20)): ...

Workers are actors that open the corpus and the model once, and make shards until there are none. At most two shards per
worker are in flight, and results are fetched one by one: memory is that of the shards in flight. A shard whose worker or
node died goes to another worker; one that fails repeatedly is left out, and `ShardError` names it at the end. Finished
shards are with the caller: a killed driver resumes with the missing ones. Workers end with the driver. Does not save
anything, and does not choose the shards.

    with _connect_ray("local", cores=2) as ray: ...             2 workers of 1 core, bound to 127.0.0.1, ended afterwards
    with _connect_ray("10.0.0.5:6379", cores=0) as ray: ...     the driver's machine is a node of that cluster
    with _connect_ray("ray://10.0.0.5:10001", cores=0) as ray:  the driver's machine is not

An address that does not answer is an error within seconds: Ray itself would wait for two minutes. Starts no nodes on other
machines; `ray start` does.

    pending = PendingShards([0, 1, 2], tries=3)
    pending.assign("anna", {"anna": "attic", "ben": "cellar"})     0
    pending.complete(0)
    pending.record_failure(1, "ValueError")    another worker gets it next; after the third failure it is left out

A failed shard goes to another node while there is one, then to another worker: a node that fails at everything costs each
shard one try. A shard whose worker died is assigned alone from then on, so that of two shards in one process the one that
kills it is found. Knows no processes: names of workers and nodes are any strings.
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
from citeweave.core.executor import ShardTask, available_cores
from citeweave.core.progress import QUIET, Reporter
from citeweave.remote.ray_workers import (
    ClusterOptions,
    PoolWorker,
    WorkerFailure,
    WorkerPool,
    has_gpus,
    package_versions,
    parse_cluster_options,
    short_error,
)

LOCAL_STORE_BYTES = 256 << 20
"""Bytes of a local cluster's object store: some shards in flight; more of them spill to the disk."""

CLIENT_SCHEME = "ray://"
_CONNECT_SECONDS = 8.0
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4


@contextmanager
def _connect_ray(address: str, cores: int) -> Iterator[ModuleType]:
    """Connect to a Ray cluster and yield the ray module; a local cluster ends with the block, any other keeps running."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray sends no usage statistics
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray reports deaths on stdout, amid our --json
    local = address == "local"
    if local:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's name for: bind to 127.0.0.1 only
    ray = require("ray", extra="ray")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if local:
        options |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
        options |= {"object_spilling_directory": tempfile.gettempdir()}
    elif address != "auto":
        check_address(address)
    try:
        ray.init(address=address, **options)
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:  # Ray before 2.52 has none
        raise UserError(
            f"{_cluster_name(address)} asks for a token that this machine does not have ({_one_line(error)}); copy the head's "
            "with `ray get-auth-token`, see docs/scale.md"
        ) from None
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if "ersion mismatch" in str(error):
            raise UserError(
                f"{_cluster_name(address)} runs a different Ray or Python than this machine ({_one_line(error)}); install the same here"
            ) from None
        token = "" if local else "; if it asks for a token, as newer versions do, set RAY_AUTH_MODE=token here too"
        raise UserError(
            f"{_cluster_name(address)} cannot be joined ({_one_line(error)}); {_advice(address)}{token}"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Refuse an address for the Ray executor where nothing, or something other than Ray, answers."""
    host, colon, port = address.removeprefix(CLIENT_SCHEME).rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--on: {address!r} is not an address; it must be HOST:PORT, ray://HOST:PORT, local or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection:
            if "RAY_USE_TLS" in os.environ:
                return
            connection.sendall(_HTTP2_PREFACE)
            reply = connection.recv(9)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(f"{_cluster_name(address)} does not answer ({reason}); {_advice(address)}") from None
    if (
        len(reply) < 4 or reply[3] != _SETTINGS_FRAME
    ):  # Ray speaks gRPC, whose server opens with its settings (RFC 9113, 3.4)
        raise UserError(f"{_cluster_name(address)} answers, but is not Ray; {_advice(address)}")


def _cluster_name(address: str) -> str:
    """Return the Ray cluster at an address in words, for messages."""
    return {"local": "a Ray cluster on this machine", "auto": "the Ray cluster of this machine"}.get(
        address, f"the Ray cluster {address}"
    )


def _advice(address: str) -> str:
    """Return what to do about a Ray cluster that cannot be joined."""
    if address == "auto":
        return "start one with `ray start --head`, or use --on ray:local"
    if address == "local":
        return "look into /tmp/ray/session_latest/logs, and check whether the disk is full"
    if address.startswith(CLIENT_SCHEME):
        return "check with `ray status` on its head whether it runs, and give the head's client port, usually 10001"
    return (
        "check with `ray status` on its head whether it runs, give the head's port, usually 6379, and start a node here "
        "with `ray start --address`, or use ray://HOST:10001 from a machine that is not a node"
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 300 else text[:300] + " ..."


# Shards that are still to be made.


class PendingShards:
    """Shards that the Ray executor still has to make: waiting, assigned to a worker, failed before, or left out."""

    def __init__(self, numbers: Sequence[int], tries: int) -> None:
        self.total, self.tries = len(numbers), tries
        self.left_out: dict[int, str] = {}
        """Shard number -> its last error."""

        self._waiting = deque(numbers)
        self._out: dict[int, tuple[str, str]] = {}  # number -> worker and its node
        self._failures: dict[int, list[tuple[str, str]]] = defaultdict(
            list
        )  # number -> workers that failed, and their nodes
        self._alone: set[int] = set()

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self._out

    @property
    def remaining(self) -> int:
        """Return how many shards are neither made nor left out."""
        return len(self._waiting) + len(self._out)

    def assigned_to(self, worker: str) -> list[int]:
        return [number for number, (who, _) in self._out.items() if who == worker]

    def assign(self, worker: str, nodes: Mapping[str, str], max_shards: int = 2) -> int | None:
        """Assign a shard of the Ray executor to a worker with fewer than `max_shards`; None where there is none now.

        `nodes` maps every ready worker to its node.
        """
        assigned = self.assigned_to(worker)
        if len(assigned) >= max_shards or self._alone & set(assigned):
            return None
        for number in self._waiting:
            if number in self._alone and assigned:
                continue
            if worker in self._eligible_workers(number, nodes):
                self._waiting.remove(number)
                self._out[number] = (worker, nodes[worker])
                return number
        return None

    def _eligible_workers(self, number: int, nodes: Mapping[str, str]) -> Collection[str]:
        """Return who may try a shard: workers at nodes where it did not fail, else other workers, else all."""
        failures = self._failures.get(number)
        if failures is None:
            return nodes
        failed_workers, failed_nodes = (set(column) for column in zip(*failures, strict=True))
        on_other_nodes = [worker for worker, node in nodes.items() if node not in failed_nodes]
        return on_other_nodes or nodes.keys() - failed_workers or nodes

    def complete(self, number: int) -> None:
        del self._out[number]

    def requeue(self, number: int) -> None:
        """Put a shard back to the front of the queue without counting a failure."""
        del self._out[number]
        self._waiting.appendleft(number)

    def record_failure(self, number: int, reason: str, *, died: bool = False) -> bool:
        """Count a shard's failure in the Ray executor; return whether it was the last one, and the shard is left out."""
        self._failures[number].append(self._out.pop(number))
        if died:
            self._alone.add(number)
        if len(self._failures[number]) >= self.tries:
            self.left_out[number] = reason
            return True
        self._waiting.append(number)
        return False


# The executor.

_NODE_CHECK_SECONDS = 2.0
"""Seconds between two checks of the nodes."""

_WAIT_NOTICE_SECONDS = 30.0
"""Seconds without any worker after which the user is told what is missing."""

_DIED = "its worker died"


class ClusterError(CiteweaveError):
    """No node of the Ray cluster can do the work."""


class RayExecutor:
    """An `Executor` that makes shards on a Ray cluster; a context manager that joins and leaves it."""

    def __init__(self, options: ClusterOptions, reporter: Reporter = QUIET) -> None:
        self.options, self._reporter = options, reporter
        self._stack = ExitStack()
        self._ray: ModuleType | None = None

    def __enter__(self) -> Self:
        if self.options.address not in ("local", "auto"):
            check_address(self.options.address)  # before a model is loaded
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray = None
        self._stack.close()

    @property
    def gpus(self) -> bool:
        """Return whether a task that wants GPUs gets them from this Ray executor."""
        if self.options.gpus <= 0:
            return False
        if self.options.address == "local":  # known without starting the cluster
            return bool(require("torch", extra="minilm").cuda.is_available())
        return has_gpus(self._joined())

    def make(self, task: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield every shard that the Ray executor makes, as it finishes; `ShardError` at the end if some failed."""
        if not len(numbers):
            return
        ray = self._joined()
        pending = PendingShards(list(numbers), self.options.tries)
        pool = WorkerPool(ray, self.options, task, package_versions(), self._reporter)
        loop = _ShardLoop(ray, pending, pool, self._reporter, _cluster_name(self.options.address))
        try:
            while not pending.is_done:
                yield from loop.step()
        finally:
            pool.stop_all()
        if pending.left_out:
            raise ShardError(task.label, pending.left_out, pending.total)

    def _joined(self) -> ModuleType:
        """Join the cluster on first use: a run that has nothing to do needs none."""
        if self._ray is None:
            workers = self.options.workers or max(1, available_cores() // self.options.cpus)
            self._ray = self._stack.enter_context(_connect_ray(self.options.address, workers * self.options.cpus))
        return self._ray


class _ShardLoop:
    """The loop of one `make` call: starts workers, assigns shards, collects results."""

    def __init__(
        self, ray: ModuleType, pending: PendingShards, pool: WorkerPool, reporter: Reporter, where: str
    ) -> None:
        self._ray, self._pending, self._pool, self._reporter, self._where = ray, pending, pool, reporter, where
        self._in_flight: dict[Any, tuple[int, PoolWorker]] = {}  # Ray reference -> shard and its worker
        self._last_ready = time.monotonic()
        self._last_check = -_NODE_CHECK_SECONDS

    def step(self) -> Iterator[tuple[int, bytes]]:
        """Take one step of the Ray executor: start workers, assign shards, and wait for one reply."""
        self._start_workers()
        self._assign_shards()
        references = [*self._pool.starting, *self._in_flight]
        if not references:
            time.sleep(0.1)
            return
        finished, _ = self._ray.wait(references, num_returns=1, timeout=_NODE_CHECK_SECONDS)
        for reference in finished:
            if reference not in self._in_flight:
                self._release_shards(self._pool.handle_reply(reference), died=False)
            elif (shard := self._fetch(reference)) is not None:
                self._assign_shards()  # before the caller writes to the disk
                yield shard

    def _start_workers(self) -> None:
        now = time.monotonic()
        if self._pool.ready:
            self._last_ready = now
        if now - self._last_check < _NODE_CHECK_SECONDS and self._pool.workers:
            return
        self._last_check = now
        self._pool.start_workers(self._pending.remaining)
        if self._pool.workers:
            if now - self._last_ready >= _WAIT_NOTICE_SECONDS:
                self._last_ready = now
                self._reporter.say(f"{self._where}: waiting for a worker with {self._pool.requirements()}")
            return
        if self._pool.excluded and not self._pool.has_room():
            raise ClusterError(f"no node of {self._where} can do the work: {' | '.join(self._pool.excluded.values())}")
        if not self._pool.has_room():
            raise ClusterError(
                f"no node of {self._where} has {self._pool.requirements()}; ask for less with cpus= or gpus="
            )

    def _assign_shards(self) -> None:
        ready = self._pool.ready
        nodes = {worker.name: worker.node for worker in ready}
        for max_shards in (1, 2):  # a first shard for every worker before a second for any
            for worker in ready:
                number = self._pending.assign(worker.name, nodes, min(max_shards, worker.max_shards))
                if number is not None:
                    self._in_flight[worker.actor.make.remote(number)] = (number, worker)

    def _fetch(self, reference: Any) -> tuple[int, bytes] | None:
        number, worker = self._in_flight.pop(reference)
        try:
            reply = self._ray.get(reference)
        except self._ray.exceptions.OutOfDiskError as error:  # the object store of the worker's node is full
            reply = WorkerFailure(True, short_error(error))
        except self._ray.exceptions.RayError as error:
            reason = short_error(error)
            self._record_failure(number, f"{_DIED} ({reason})", worker, died=True)
            self._release_shards([worker], died=True)
            self._release_shards(self._pool.record_death(worker, reason), died=False)
            return None
        if isinstance(reply, bytes):
            self._pending.complete(number)
            self._pool.record_success(worker)
            return number, reply
        assert isinstance(reply, WorkerFailure)
        if reply.of_node:
            self._pending.requeue(number)
            self._release_shards(self._pool.exclude_node(worker.node, reply.message), died=False)
        else:
            self._record_failure(number, reply.message, worker)
        return None

    def _record_failure(self, number: int, reason: str, worker: PoolWorker, *, died: bool = False) -> None:
        last = self._pending.record_failure(number, reason, died=died)
        outcome = "it is left out" if last else "it will be tried again"
        self._reporter.say(f"shard {number} failed at {self._pool.node_address(worker.node)}: {reason}; {outcome}")

    def _release_shards(self, stopped: Sequence[PoolWorker], *, died: bool) -> None:
        """Return the shards of stopped workers to the queue, or count a failure if their worker died."""
        names = {worker.name for worker in stopped}
        for reference, (number, worker) in list(self._in_flight.items()):
            if worker.name in names:
                del self._in_flight[reference]
                if died:
                    self._record_failure(number, _DIED, worker, died=True)
                else:
                    self._pending.requeue(number)


@contextmanager
def open_executor(text: str, reporter: Reporter = QUIET) -> Iterator[RayExecutor | None]:
    """Open the Ray executor of `--on`, None where the option is empty and the work is done locally."""
    if not text:
        yield None
        return
    with RayExecutor(parse_cluster_options(text), reporter) as executor:
        yield executor
