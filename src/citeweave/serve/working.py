"""Threads in which requests are worked on, so that the event loop only carries messages.

A few threads are kept aside for those who watch the server: /health answers while all others search. Does not stop a
thread: who gives up a request leaves it working, and where all threads work for nobody, `stuck` says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_ASIDE = 2


class Workers:
    """Threads for searches, and a few for what must always be answered."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "citeweave-work")
        self._aside = ThreadPoolExecutor(_ASIDE, "citeweave-watch")
        self._lock = threading.Lock()
        self._abandoned = 0

    def stuck(self) -> bool:
        """Whether every thread works for a request that was given up."""
        return self._abandoned >= self._threads

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the work in a thread; where the request is given up, work that has not begun is dropped."""
        future = self._pool.submit(work, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                with self._lock:
                    self._abandoned += 1
                future.add_done_callback(self._came_back)  # at once, where it is done by now
            raise

    async def run_aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._aside.submit(work, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._aside.shutdown(wait=False, cancel_futures=True)

    def _came_back(self, future: Future[Any]) -> None:
        with self._lock:
            self._abandoned -= 1
