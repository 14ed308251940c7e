"""Shards for other processes or machines, one thread pool for compiled loops, and what this machine has.

    task = ShardTask("citeweave.encoders.embed:make_shard_worker", {"corpus": "/data/corpus", "model": "minilm"})
    for number, content in executor.make(task, [0, 1, 2]):    # as they finish, in any order, each number once
        save(number, content)

`maker` names a function of this package. A worker calls it once, with `arguments`, and gets a function from a shard's
number to its bytes: what `np.savez` writes, or JSON. The caller writes the bytes where a run without an executor would
have written them, so that an interrupted run resumes in the same way. Knows no engine: `remote/ray_executor.py` turns
`ShardWorker` into actors of Ray.

    run_in_threads(7, job)                      job(0) ... job(6), this thread among the workers
    run_range_in_threads(1000, job, workers=2)  job(0, 500), job(500, 1000)
    run_in_processes([job, other], workers=2)   yields 0 and 1, each once its job is done

A free thread takes the next part, so that a busy core delays little. Jobs write to places of their own, so that it does
not matter which thread runs them. Nothing here decides how the work is split into parts.

    processor()             the processor's name, such as "Neoverse-N1 (aarch64)"
    instruction_sets()      {"asimddp", "asimdhp", ...}; empty where the system does not say
    available_cores()       the cores that this process may use
    total_memory()          bytes, None where the system does not say, as on Windows
    process_count(64, 10)   processes for 10 jobs where 64 are allowed: 10
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from citeweave.core.errors import UserError, require
from citeweave.version import __version__

Make = Callable[[int], bytes]
"""Number of a shard -> its bytes."""

PACKAGE = "citeweave."


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A job in shards that any process can do, as plain data: a function name and its arguments."""

    maker: str
    """`module:function` inside citeweave; called once per worker, as `maker(**arguments)`. If the function it returns has
    a true attribute `overlaps`, two threads may ask it for a shard at the same time."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """JSON values only: absolute folders, names, options."""

    label: str = ""
    """Name of the job in progress lines and errors."""

    unit: str = "papers"
    gpu: bool = False
    """Whether a worker wants a GPU where there are any."""

    def __post_init__(self) -> None:
        assert json.loads(json.dumps(dict(self.arguments))) == dict(self.arguments), (
            "arguments of a task are JSON values"
        )


class Executor(Protocol):
    """Makes the shards of a task: in this process, or on a cluster."""

    def make(self, task: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield every shard once, as it finishes; raise `ShardError` at the end if some could not be made."""
        ...


class LocalExecutor:
    """An executor that makes shards in this process, one after the other."""

    def make(self, task: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        make = resolve_maker(task.maker)(**task.arguments)
        for number in numbers:
            yield number, make(number)


def resolve_maker(maker: str) -> Callable[..., Make]:
    """Return the function that the task of an executor names; only functions of this package are called.

    >>> resolve_maker("citeweave.core.executor:squares")(wait=0)(3)
    b'9'
    >>> resolve_maker("os:system")
    Traceback (most recent call last):
    ValueError: 'os:system' is not a function of citeweave
    """
    module, colon, name = maker.partition(":")
    if not (colon and module.startswith(PACKAGE) and name.isidentifier()):
        raise ValueError(f"{maker!r} is not a function of citeweave")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function) or getattr(function, "__module__", "") != module:
        raise ValueError(f"{maker!r} is not a function of citeweave")
    return function  # type: ignore[no-any-return]


# A worker in another process, and versions that it must share with this one.

PACKAGES = ("numpy", "torch", "tokenizers", "transformers")
"""Packages that decide the bytes of vectors, beside our own code."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class WorkerFailure(NamedTuple):
    """An error of a worker as plain data: the driver may lack the package of an exception."""

    of_node: bool
    """Whether any other shard would fail on this node too: a missing folder, a full disk."""

    message: str

    @classmethod
    def of(cls, error: BaseException, *, of_node: bool = False) -> WorkerFailure:
        """Describe an error in one line: our own as they are, others with their class.

        >>> WorkerFailure.of(UserError("corpus does not exist")).message, WorkerFailure.of(ValueError("no")).message
        ('corpus does not exist', 'ValueError: no')
        """
        text = " ".join(str(error).split())
        message = text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")
        return cls(of_node or (isinstance(error, OSError) and error.errno in _FULL), message)


class ShardWorker:
    """What runs in another process: opens a task once and makes its shards.

    `ShardWorker()` and `hello()` must stay as they are in all versions: their answer tells a driver of another version.
    """

    _make: Make

    def hello(self) -> dict[str, str]:
        """Return the versions of the worker's packages."""
        return package_versions()

    def prepare(
        self, maker: str, arguments: Mapping[str, Any], threads: int = 1, *, cards: bool = True
    ) -> int | WorkerFailure:
        """Open the worker's task; return 2 where one shard is read while another is computed, else 1, or a failure."""
        try:
            os.environ["OMP_NUM_THREADS"] = str(threads)  # for libraries loaded from here on
            if not cards:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray lets a worker without GPUs see them all
            self._make = resolve_maker(maker)(**arguments)
            if "torch" in sys.modules:  # more threads than cores would compete with other workers
                require("torch", extra="minilm").set_num_threads(threads)
            return 2 if getattr(self._make, "overlaps", False) else 1
        except Exception as error:
            return WorkerFailure.of(error, of_node=True)

    def make(self, number: int) -> bytes | WorkerFailure:
        """Return the bytes of a shard, or a failure; `prepare` said how many calls at a time."""
        try:
            return self._make(number)
        except Exception as error:
            return WorkerFailure.of(error)


def package_versions() -> dict[str, str]:
    """Return the versions that workers must share with the driver; citeweave's has a hash of its source files."""
    folder, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    versions = {"citeweave": f"{__version__} ({digest.hexdigest()[:8]})", "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def version_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Say which versions of a worker differ; builds for other devices (2.6.0+cpu, 2.6.0+cu126) do not count.

    >>> version_differences({"numpy": "2.4.0", "torch": "2.6.0+cpu"}, {"numpy": "", "torch": "2.6.0+cu126"})
    ['numpy is 2.4.0 here and missing there']
    """
    return [
        f"{name} is {here or 'missing'} here and {there or 'missing'} there"
        for name, here, there in ((name, ours[name], theirs.get(name, "")) for name in ours)
        if here.partition("+")[0] != there.partition("+")[0]
    ]


# A task without papers and models, to test an executor or a cluster.


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
    """Return a task that squares numbers, to test an executor or a cluster; each death and each number leaves a file in `marks`.

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


# One thread pool for compiled loops, so that no call has to start threads.

_pools: dict[int, ThreadPoolExecutor] = {}
"""Process id -> its pool: threads do not survive a fork."""


def run_in_threads(parts: int, job: Callable[[int], object], workers: int = 0) -> None:
    """Call `job` for every part in threads; 0 workers: one per core. Raises the first error once all have stopped."""
    others = min(workers or available_cores(), parts) - 1
    numbers = count()

    def work() -> None:
        while (part := next(numbers)) < parts:
            job(part)

    pending = [_pool().submit(work) for _ in range(others)]
    try:
        work()
    finally:
        for future in pending:
            # one that has not begun, because other calls keep the pool busy, is no longer needed
            if not future.cancel():
                future.exception()
    for future in pending:
        if not future.cancelled():
            future.result()


def run_range_in_threads(size: int, job: Callable[[int, int], object], workers: int = 0) -> None:
    """Call `job(start, stop)` in threads for parts of range(size), one part per worker."""
    parts = min(workers or available_cores(), size)
    run_in_threads(parts, lambda part: job(size * part // parts, size * (part + 1) // parts), workers)


def run_in_processes(jobs: Sequence[Callable[[], object]], workers: int) -> Iterator[int]:
    """Call every job in a process, in this one where there is one worker; yield the number of each job that is done."""
    if workers == 1:
        for number, job in enumerate(jobs):
            job()
            yield number
        return
    from concurrent.futures import ProcessPoolExecutor  # only here: it loads multiprocessing
    from multiprocessing import get_context

    # spawned: forking a process that has started threads can hang
    with ProcessPoolExecutor(process_count(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(job): number for number, job in enumerate(jobs)}
        try:
            for future in as_completed(pending):
                future.result()
                yield pending[future]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _pool() -> ThreadPoolExecutor:
    own = os.getpid()
    if own not in _pools:
        _pools.clear()
        _pools[own] = ThreadPoolExecutor(max(available_cores(), 2), thread_name_prefix="citeweave")
    return _pools[own]


# Processor, cores and memory of this machine.


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int | None:
    """Return what this machine has in bytes of memory, None where the system does not say."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return None


def process_count(allowed: int, jobs: int) -> int:
    """Return how many processes an executor starts for a number of jobs; Windows cannot wait for more than 61.

    >>> process_count(4, 10), process_count(64, 3)
    (4, 3)
    """
    return min(allowed, jobs, 61 if sys.platform == "win32" else jobs)


@functools.cache
def instruction_sets() -> frozenset[str]:
    """Return the instruction sets of the processor as Linux lists them; empty on other systems."""
    info = _cpu_info()
    return frozenset(info.get("flags", info.get("Features", "")).split())


@functools.cache
def processor() -> str:
    """Return the processor's name and architecture."""
    info = _cpu_info()
    parts = info.get("CPU implementer", ""), info.get("CPU part", "")
    name = info.get("model name") or _ARM_NAMES.get(parts) or platform.processor()
    return f"{name} ({platform.machine()})" if name and name != platform.machine() else platform.machine()


_ARM_NAMES = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""Implementer and part in /proc/cpuinfo -> name: ARM processors have no name there."""


def _cpu_info() -> dict[str, str]:
    """Return the first processor of /proc/cpuinfo, by field."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
