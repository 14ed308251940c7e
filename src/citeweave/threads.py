"""One pool of threads for compiled loops: parts of the work on all cores, without starting threads for every call.

    share(7, job)                      job(0) ... job(6), this thread among those that work
    share_range(1000, job, workers=2)  job(0, 500), job(500, 1000)

Parts are taken one after the other by whichever thread is free, so that a busy core delays little. Jobs write to places
of their own, so that it does not matter which thread runs them. Nothing here decides how the work is cut into parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from citeweave.machine import cores

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
