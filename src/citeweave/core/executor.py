"""Shards for other processes or machines, one thread pool for compiled loops, and what this machine has.

    task = ShardTask("citeweave.encoders.remote_shards:make_shard_worker", {"corpus": "/data/corpus", "model": "minilm"})
    for number, content in executor.make(task, [0, 1, 2]):    # as they finish, in any order, each number once
        save(number, content)

`maker` names a function of this package. A worker calls it once, with `arguments`, and gets a function from a shard's
number to its bytes: what `np.savez` writes, or JSON. The caller writes the bytes where a run without an executor would
have written them, so that an interrupted run resumes in the same way. Knows no engine: `remote/ray_executor.py` has the
one for Ray.

    run_in_threads(7, job)                      job(0) ... job(6), this thread among the workers
    run_range_in_threads(1000, job, workers=2)  job(0, 500), job(500, 1000)

A free thread takes the next part, so that a busy core delays little. Jobs write to places of their own, so that it does
not matter which thread runs them. Nothing here decides how the work is split into parts.

    processor()             the processor's name, such as "Neoverse-N1 (aarch64)"
    instruction_sets()      {"asimddp", "asimdhp", ...}; empty where the system does not say
    available_cores()       the cores that this process may use
    total_memory()          bytes, None where the system does not say, as on Windows
    process_count(64, 10)   processes for 10 jobs where 64 are allowed: 10
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

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

    >>> resolve_maker("citeweave.remote.ray_workers:squares")(wait=0)(3)
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
