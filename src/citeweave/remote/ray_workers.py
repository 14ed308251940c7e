"""Workers on a Ray cluster: options of `--on`, version checks, the worker itself, and the pool that starts them.

>>> parse_cluster_options("ray:local,workers=2")
ClusterOptions(address='local', workers=2, cpus=1, gpus=1.0, tries=3)
>>> parse_cluster_options("ray://head:10001,gpus=0.5").address
'ray://head:10001'
>>> parse_cluster_options("ray:workers=4") == parse_cluster_options("ray,workers=4")
True

No worker may compute with other packages than the driver:

    package_versions()                  {"citeweave": "0.1.0 (9f2c04ab)", "python": "3.11.9", "numpy": "2.4.0", ...}
    version_differences(ours, theirs)   ["numpy is 2.4.0 here and 2.1.0 there"]

The eight digits are a hash of the package's source: two checkouts of one version differ too. A worker opens the corpus and
the model once, then makes shard after shard:

    worker = ShardWorker()
    worker.hello()                                        {"citeweave": "0.1.0 (9f2c04ab)", ...}
    worker.prepare(task.maker, arguments, threads=2)      how many shards it takes at a time, or a WorkerFailure
    worker.make(3)                                        bytes, or a WorkerFailure

It knows no Ray: the pool turns the class into actors. `ShardWorker()` and `hello()` must stay as they are in all versions:
their answer tells a driver of another version. Errors are returned as plain data, because an exception of a package that
the driver does not have could not be read there.

    pool = WorkerPool(ray, options, task, expected=package_versions(), reporter=reporter)
    pool.start_workers(wanted=20)      one actor for every free place, on every node that is not excluded
    pool.handle_reply(reference)       an actor's first replies: its versions, then whether it could open the task
    pool.ready                         the workers that take shards

A node is excluded, and reported once, if its packages differ from the driver's, if none of its workers can open the task,
if its disk is full, or if its workers die one after the other. The pool assigns no shards.

    ShardTask("citeweave.remote.ray_workers:squares", {"wait": 0.1})          the square of a number, after a while
    ShardTask("citeweave.remote.ray_workers:squares", {"failing": [3]})       shard 3 always fails
    ShardTask("citeweave.remote.ray_workers:squares", {"dying": [3], "marks": "/tmp/m"})    shard 3 kills its process once

`squares` is a task without papers and models, to test an executor or a cluster.
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

from citeweave.core.errors import UserError, choose, require
from citeweave.core.executor import Make, ShardTask, resolve_maker
from citeweave.core.progress import Reporter
from citeweave.version import __version__

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
    """Parse which Ray workers `--on` asks for, such as `ray:local,workers=2`."""
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
    return ClusterOptions(address or "local", **values)  # type: ignore[arg-type]


# Versions of code and packages.

PACKAGES = ("numpy", "torch", "tokenizers", "transformers")
"""Packages that decide the bytes of vectors, beside our own code."""


def package_versions() -> dict[str, str]:
    """Return the package versions that Ray workers must share with this process; empty for one that is not installed."""
    versions = {"citeweave": f"{__version__} ({_source()})", "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def version_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Say which package versions of Ray workers differ; builds for other devices (2.6.0+cpu, 2.6.0+cu126) do not count.

    >>> version_differences({"numpy": "2.4.0", "torch": "2.6.0+cpu"}, {"numpy": "", "torch": "2.6.0+cu126"})
    ['numpy is 2.4.0 here and missing there']
    """
    pairs = [(name, ours[name], theirs.get(name, "")) for name in ours]
    return [
        f"{name} is {here or 'missing'} here and {there or 'missing'} there"
        for name, here, there in pairs
        if here.partition("+")[0] != there.partition("+")[0]
    ]


def _source() -> str:
    """Return a hash of the package's source files."""
    folder = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


# The worker.


class WorkerFailure(NamedTuple):
    """An error of a Ray worker as plain data."""

    of_node: bool
    """Whether any other shard would fail on this node too: a missing folder, a full disk."""

    message: str


class ShardWorker:
    """What runs in a Ray worker's actor: opens a task once and makes its shards."""

    def __init__(self) -> None:
        self._make: Make | None = None

    def hello(self) -> dict[str, str]:
        """Return the versions of the worker's packages."""
        return package_versions()

    def prepare(
        self, maker: str, arguments: Mapping[str, Any], threads: int = 1, *, cards: bool = True
    ) -> int | WorkerFailure:
        """Open the Ray worker's task; return 2 where one shard is read while another is computed, else 1, or a failure."""
        try:
            os.environ["OMP_NUM_THREADS"] = str(threads)  # for libraries loaded from here on
            if not cards:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray lets a worker without GPUs see them all
            self._make = resolve_maker(maker)(**arguments)
            _limit_threads(threads)
            return 2 if getattr(self._make, "overlaps", False) else 1
        except Exception as error:
            return WorkerFailure(True, _describe_error(error))

    def make(self, number: int) -> bytes | WorkerFailure:
        """Return the bytes of a shard made by this Ray worker, or a failure; `prepare` said how many calls at a time."""
        assert self._make is not None, "prepare comes first"
        try:
            return self._make(number)
        except Exception as error:
            return WorkerFailure(isinstance(error, OSError) and error.errno in _FULL, _describe_error(error))


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _describe_error(error: BaseException) -> str:
    """Return an error of a worker in one line: our own as they are, others with their class.

    >>> _describe_error(UserError("corpus does not exist")), _describe_error(ValueError("no"))
    ('corpus does not exist', 'ValueError: no')
    """
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _limit_threads(threads: int) -> None:
    """Let torch use as many threads as the worker has cores: more would compete with other workers."""
    if "torch" in sys.modules:
        require("torch", extra="minilm").set_num_threads(threads)


# The pool of workers.

_DEATHS = 3
"""Consecutive deaths of workers of a node before one of them is ready, or makes a shard, that exclude the node."""


@dataclass(slots=True)
class PoolWorker:
    """One Ray worker of the pool: its node, its actor and whether it is ready."""

    name: str
    node: str
    actor: Any
    reply: Any
    """Ray reference of its reply to `hello`, then to `prepare`; None when it is ready."""

    is_preparing: bool = False
    max_shards: int = 1
    """Shards that it takes at a time."""


class WorkerPool:
    """The pool of Ray workers on the nodes of a cluster: started, checked, replaced when they die, stopped at the end."""

    def __init__(
        self, ray: ModuleType, options: ClusterOptions, task: ShardTask, expected: Mapping[str, str], reporter: Reporter
    ) -> None:
        self.workers: dict[str, PoolWorker] = {}
        self.excluded: dict[str, str] = {}
        """Node -> its address and the reason."""

        self._ray, self._options, self._task = ray, options, task
        self._expected, self._reporter = dict(expected), reporter
        self._numbers = itertools.count()
        # node -> deaths since a worker was ready, and since one made a shard
        self._early_deaths, self._late_deaths = Counter[str](), Counter[str]()
        self._limits: dict[str, int] = {}  # node -> workers it can hold, where fewer than its cores
        self._unreported_limits: dict[str, str] = {}  # node -> reason of its limit, until reported
        self._actor_class = ray.remote(ShardWorker)
        self._gpus = options.gpus if task.gpu and has_gpus(ray) else 0.0

    @property
    def ready(self) -> list[PoolWorker]:
        return [worker for worker in self.workers.values() if worker.reply is None]

    @property
    def starting(self) -> dict[Any, PoolWorker]:
        """Return the awaited replies of workers that are not ready yet."""
        return {worker.reply: worker for worker in self.workers.values() if worker.reply is not None}

    def start_workers(self, wanted: int) -> None:
        """Start Ray workers at the free places of all nodes, `wanted` in total at most."""
        max_workers = min(wanted, self._options.workers or wanted)
        places = {node["NodeID"]: self._places(node) for node in self._nodes() if node["NodeID"] not in self.excluded}
        for worker in self.workers.values():
            places[worker.node] = places.get(worker.node, 0) - 1
        while len(self.workers) < max_workers and any(count > 0 for count in places.values()):
            node = max(places, key=lambda name: places[name])  # the emptiest node first
            places[node] -= 1
            self._start_on(node)

    def handle_reply(self, reference: Any) -> list[PoolWorker]:
        """Handle a reply of a Ray worker that is not ready yet; return other workers that were stopped because of it."""
        worker = self.starting[reference]
        try:
            reply = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self.stop(worker)
            self._early_deaths[worker.node] += 1
            reason = f"its workers do not start: {short_error(error)}"
            if "ModuleNotFoundError" in str(error):
                return self.exclude_node(worker.node, reason)
            if self._early_deaths[worker.node] >= _DEATHS:
                self._limit_node(worker.node, reason)
            return []
        if isinstance(reply, WorkerFailure):
            self.stop(worker)
            self._limit_node(worker.node, reply.message)
        elif worker.is_preparing:
            self._early_deaths[worker.node] = 0
            worker.reply, worker.max_shards = None, reply
            self._report_limit(worker.node)
        elif differences := version_differences(self._expected, reply):
            return self.exclude_node(worker.node, f"{'; '.join(differences)}: install the same on all machines")
        else:
            worker.is_preparing = True
            arguments, cards = dict(self._task.arguments), self._gpus > 0
            worker.reply = worker.actor.prepare.remote(self._task.maker, arguments, self._options.cpus, cards=cards)
        return []

    def record_success(self, worker: PoolWorker) -> None:
        """Record that a worker has made a shard, so that its node counts as working."""
        self._late_deaths[worker.node] = 0

    def record_death(self, worker: PoolWorker, reason: str) -> list[PoolWorker]:
        """Record that a ready Ray worker died; return other workers stopped because their node only costs tries."""
        self.stop(worker)
        self._late_deaths[worker.node] += 1
        there = sum(other.node == worker.node for other in self.workers.values())
        if self._late_deaths[worker.node] >= _DEATHS + there and any(other.node != worker.node for other in self.ready):
            return self.exclude_node(worker.node, f"its workers die and complete no shard: {reason}")
        return []

    def _limit_node(self, node: str, reason: str) -> None:
        """Limit a node to the workers that could open the task, as its memory may be full of models."""
        there = sum(worker.node == node for worker in self.workers.values())
        if not there:
            self.exclude_node(node, reason)
            return
        self._limits[node], self._unreported_limits[node], self._early_deaths[node] = there, reason, 0
        self._report_limit(node)

    def _report_limit(self, node: str) -> None:
        """Report the limit of a node once all its workers are ready."""
        there = [worker for worker in self.workers.values() if worker.node == node]
        if node in self._unreported_limits and all(worker.reply is None for worker in there):
            reason = self._unreported_limits.pop(node)
            self._reporter.say(f"node {self.node_address(node)} can hold only {len(there)} workers: {reason}")

    def exclude_node(self, node: str, reason: str) -> list[PoolWorker]:
        """Exclude a node from the pool of Ray workers; return the workers stopped there."""
        stopped = [worker for worker in self.workers.values() if worker.node == node]
        for worker in stopped:
            self.stop(worker)
        if node not in self.excluded:
            self.excluded[node] = f"{self.node_address(node)}: {reason}"
            self._reporter.say(f"node {self.excluded[node]}; it gets no more shards")
        return stopped

    def stop(self, worker: PoolWorker) -> None:
        """Stop a worker, or forget one that has ended."""
        self.workers.pop(worker.name, None)
        self._ray.kill(worker.actor)

    def stop_all(self) -> None:
        for worker in list(self.workers.values()):
            self.stop(worker)

    def node_address(self, node: str) -> str:
        """Return address and short id of a node, `192.168.0.7 (4f02c1aa)`: several may share a machine."""
        for each in self._ray.nodes():
            if each["NodeID"] == node:
                return f"{each['NodeManagerAddress']} ({node[:8]})"
        return node[:8]

    def has_room(self) -> bool:
        """Return whether any node that is alive and not excluded could hold a worker."""
        return any(self._places(node) > 0 for node in self._nodes() if node["NodeID"] not in self.excluded)

    def requirements(self) -> str:
        """Return in words what a worker requires of a node."""
        return f"{self._options.cpus} core{'s' * (self._options.cpus > 1)}" + (
            f" and {self._gpus:g} GPUs" if self._gpus else ""
        )

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _places(self, node: dict[str, Any]) -> int:
        resources = node["Resources"]
        places = min(int(resources.get("CPU", 0) // self._options.cpus), self._limits.get(node["NodeID"], 1 << 20))
        return min(places, int(resources.get("GPU", 0) / self._gpus)) if self._gpus else places

    def _start_on(self, node: str) -> None:
        at = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self._actor_class.options(
            num_cpus=self._options.cpus,
            num_gpus=self._gpus,
            max_concurrency=2,  # one shard is read while another is computed
            max_restarts=0,
            scheduling_strategy=at,
        ).remote()
        name = f"worker {next(self._numbers)}"
        self.workers[name] = PoolWorker(name, node, actor, actor.hello.remote())


def has_gpus(ray: ModuleType) -> bool:
    """Return whether any node of the Ray cluster has a GPU."""
    return any(node["Resources"].get("GPU", 0) > 0 for node in ray.nodes() if node["Alive"])


def short_error(error: BaseException) -> str:
    """Return the most informative line of the long error of a Ray worker.

    >>> short_error(ValueError("The actor died.\\n  class_name: W\\nModuleNotFoundError: No module named 'x'\\n"))
    "ModuleNotFoundError: No module named 'x'"
    >>> short_error(ValueError("The actor died unexpectedly. More words.\\n\\tclass_name: Worker"))
    'The actor died unexpectedly.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith("Error") and " " not in line.partition(":")[0]]
    return (named[-1] if named else next(iter(lines), type(error).__name__).partition(". ")[0].rstrip(".") + ".")[:300]


# A task for tests: numbers that take time, fail, or kill their process.


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
    """Return a test task for Ray workers that squares numbers; each death and each number leaves a file in `marks`.

    No number is made before `together` processes run. `needs` is a path without which a node cannot work; one that begins with
    `unless` may be missing.
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
    """Wait until `together` processes are at work."""
    (marks / f"at-work-{os.getpid()}").touch()
    while len(list(marks.glob("at-work-*"))) < together:
        time.sleep(0.01)


def _first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
