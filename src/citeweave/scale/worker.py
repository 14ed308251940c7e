"""One worker: opens the corpus and the model once, then makes shard after shard.

    worker = Worker(threads=2)
    worker.hello()                          {"versions": {...}, "pid": 4711}
    worker.prepare(work.maker, given)       None, or a Fault
    worker.make(3)                          bytes, or a Fault

Knows no Ray: the crew turns the class into actors. Errors come back as plain data, because an exception of a package
that the driver does not have could not be read there.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

from citeweave.crew import Make, resolve
from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.scale.versions import versions


class Fault(NamedTuple):
    """An error as plain data."""

    of_node: bool
    """Whether any other shard would fail here too: a folder that is not there, a disk that is full."""

    message: str


class Worker:
    """What runs in an actor; two calls at a time, so that one shard is read while another is computed."""

    def __init__(self, threads: int) -> None:
        self._threads, self._lock = threads, threading.Lock()
        self._make: Make | None = None

    def hello(self) -> dict[str, Any]:
        """Who this is."""
        return {"versions": versions(), "pid": os.getpid()}

    def prepare(self, maker: str, given: Mapping[str, Any]) -> Fault | None:
        """Open whatever the work needs."""
        try:
            os.environ["OMP_NUM_THREADS"] = str(self._threads)  # for what is loaded from here on
            self._make = resolve(maker)(**given)
            _limit_threads(self._threads)
            return None
        except Exception as error:
            return Fault(True, describe(error))

    def make(self, number: int) -> bytes | Fault:
        """The bytes of a shard; one at a time unless the function says that it overlaps."""
        assert self._make is not None, "prepare comes first"
        try:
            with nullcontext() if getattr(self._make, "overlaps", False) else self._lock:
                return self._make(number)
        except Exception as error:
            return Fault(isinstance(error, OSError) and error.errno in _FULL, describe(error))


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def describe(error: BaseException) -> str:
    """One line: our own errors as they are, others with their kind.

    >>> describe(UserError("corpus does not exist")), describe(ValueError("no"))
    ('corpus does not exist', 'ValueError: no')
    """
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _limit_threads(threads: int) -> None:
    """As many as the worker has cores: more of them would wait for those of its neighbours."""
    if "torch" in sys.modules:
        require("torch", extra="minilm").set_num_threads(threads)
