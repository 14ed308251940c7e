"""Threads that stay: parts of a compiled loop on all cores, without the cost of starting threads for every query.

    share(7, job)       job(0) ... job(6), this thread among those that work

Parts are taken one after the other by whoever is free, so that a busy core delays little. Which thread did what is
nobody's business: jobs write to places of their own. Does not cut the work into parts.
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
    """Call `job` for every part; 0 workers are one a core. The first error is raised when all have ended."""
    helpers = min(workers or cores(), parts) - 1
    numbers = count()

    def work() -> None:
        while (part := next(numbers)) < parts:
            job(part)

    pending = [_pool().submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        for future in pending:
            # one that has not begun, because other queries keep the pool busy, is not needed any more
            if not future.cancel():
                future.exception()
    for future in pending:
        if not future.cancelled():
            future.result()


def _pool() -> ThreadPoolExecutor:
    own = os.getpid()
    if own not in _pools:
        _pools.clear()
        _pools[own] = ThreadPoolExecutor(max(cores(), 2), thread_name_prefix="quick")
    return _pools[own]
