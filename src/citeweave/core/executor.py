"""Work in shards that other processes or machines can do: what is asked of them, and nothing of how.

    work = Work("citeweave.encoders.remote_shards:embed_maker", {"corpus": "/data/corpus", "model": "minilm"})
    for number, made in crew.make(work, [0, 1, 2]):       # as they finish, in any order, each number once
        save(number, made)

`maker` names a function of this package. A worker calls it once, with `given`, and gets a function from a shard's
number to its bytes: what `np.savez` writes, or JSON. The caller writes the bytes where a run without a crew would have
written them, so that an interrupted run goes on in the same way. Knows no engine: `scale/` has the one for Ray.

One pool of threads for compiled loops: parts of the work on all cores, without starting threads for every call.

    share(7, job)                      job(0) ... job(6), this thread among those that work
    share_range(1000, job, workers=2)  job(0, 500), job(500, 1000)

Parts are taken one after the other by whichever thread is free, so that a busy core delays little. Jobs write to places
of their own, so that it does not matter which thread runs them. Nothing here decides how the work is cut into parts.

What this machine has, on every system: processor, cores and memory.

processor()         its name, such as "Neoverse-N1 (aarch64)"
instruction_sets()  {"asimddp", "asimdhp", ...}; empty where the system does not say
cores()             those that this process may use
memory()            bytes, None where the system does not say, as on Windows
processes(64, 10)   how many processes do 10 jobs where 64 are allowed: 10
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
    """What any process needs to make shards: plain data."""

    maker: str
    """`module:function` inside citeweave; called once a worker, as `maker(**given)`. If the function it gives has an
    attribute `overlaps` that is true, two shards may be asked of it at a time, from two threads."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """JSON values only: absolute folders, names, options."""

    label: str = ""
    """What is being done, in progress lines and errors."""

    unit: str = "papers"
    gpu: bool = False
    """Whether a worker wants a graphics card where there are any."""

    def __post_init__(self) -> None:
        assert json.loads(json.dumps(dict(self.given))) == dict(self.given), "work is told in JSON values"


class Executor(Protocol):
    """Whoever makes shards."""

    def make(self, work: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Every shard once, as they finish; at the end `ShardError` where some could not be made."""
        ...


class LocalExecutor:
    """A crew of this very process: the plainest there is."""

    def make(self, work: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        make = resolve(work.maker)(**work.given)
        for number in numbers:
            yield number, make(number)


def resolve(maker: str) -> Callable[..., Make]:
    """The function that a work names; only functions of this package are called.

    >>> resolve("citeweave.remote.ray_workers:squares")(wait=0)(3)
    b'9'
    >>> resolve("os:system")
    Traceback (most recent call last):
    ValueError: 'os:system' is not a function of citeweave
    """
    module, colon, name = maker.partition(":")
    if not (colon and module.startswith(PACKAGE) and name.isidentifier()):
        raise ValueError(f"{maker!r} is not a function of citeweave")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found) or getattr(found, "__module__", "") != module:
        raise ValueError(f"{maker!r} is not a function of citeweave")
    return found  # type: ignore[no-any-return]


# One pool of threads for compiled loops: parts of the work on all cores, without starting threads for every call.

_pools: dict[int, ThreadPoolExecutor] = {}
"""The pool of each process: threads do not survive a fork."""


def share(parts: int, job: Callable[[int], object], workers: int = 0) -> None:
    """Call `job` for every part; 0 workers means one per core. The first error is raised after all threads have stopped."""
    others = min(workers or cores(), parts) - 1
    numbers = count()

    def work() -> None:
        while (part := next(numbers)) < parts:
            job(part)

    pending = [_pool().submit(work) for _ in range(others)]
    try:
        work()
    finally:
        for future in pending:
            # one that has not begun, because other calls keep the pool busy, is not needed any more
            if not future.cancel():
                future.exception()
    for future in pending:
        if not future.cancelled():
            future.result()


def share_range(size: int, job: Callable[[int, int], object], workers: int = 0) -> None:
    """Call `job(start, stop)` for parts of range(size), one part per worker."""
    parts = min(workers or cores(), size)
    share(parts, lambda part: job(size * part // parts, size * (part + 1) // parts), workers)


def _pool() -> ThreadPoolExecutor:
    own = os.getpid()
    if own not in _pools:
        _pools.clear()
        _pools[own] = ThreadPoolExecutor(max(cores(), 2), thread_name_prefix="citeweave")
    return _pools[own]


# What this machine has, on every system: processor, cores and memory.


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Bytes of memory, None where the system does not say."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return None


def processes(allowed: int, jobs: int) -> int:
    """How many processes do so many jobs; Windows cannot wait for more than 61.

    >>> processes(4, 10), processes(64, 3)
    (4, 3)
    """
    return min(allowed, jobs, 61 if sys.platform == "win32" else jobs)


@functools.cache
def instruction_sets() -> frozenset[str]:
    """What Linux says that the processor has; empty on other systems."""
    told = _cpu_info()
    return frozenset(told.get("flags", told.get("Features", "")).split())


@functools.cache
def processor() -> str:
    """The processor's name and architecture."""
    told = _cpu_info()
    parts = told.get("CPU implementer", ""), told.get("CPU part", "")
    name = told.get("model name") or _ARM.get(parts) or platform.processor()
    return f"{name} ({platform.machine()})" if name and name != platform.machine() else platform.machine()


_ARM = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""Implementer and part of /proc/cpuinfo, where ARM processors have no name -> name."""


def _cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
