"""One worker: opens the corpus and the model once, then makes shard after shard.

    worker = Worker()
    worker.hello()                                      {"citeweave": "0.1.0 (9f2c04ab)", ...}
    worker.prepare(work.maker, given, threads=2)        how many shards it takes at a time, or a Fault
    worker.make(3)                                      bytes, or a Fault

Knows no Ray: the crew turns the class into actors. `Worker()` and `hello()` must stay as they are in all versions: it is
by their answer that a driver of another version finds out. Errors come back as plain data, because an exception of a package
that the driver does not have could not be read there.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
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
    """What runs in an actor."""

    def __init__(self) -> None:
        self._make: Make | None = None

    def hello(self) -> dict[str, str]:
        """The versions of its packages."""
        return versions()

    def prepare(self, maker: str, given: Mapping[str, Any], threads: int = 1, *, cards: bool = True) -> int | Fault:
        """Open whatever the work needs; 2 where one shard is read while another is computed, else 1."""
        try:
            os.environ["OMP_NUM_THREADS"] = str(threads)  # for what is loaded from here on
            if not cards:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray lets a worker that has no card see them all
            self._make = resolve(maker)(**given)
            _limit_threads(threads)
            return 2 if getattr(self._make, "overlaps", False) else 1
        except Exception as error:
            return Fault(True, describe(error))

    def make(self, number: int) -> bytes | Fault:
        """The bytes of a shard; as many calls at a time as `prepare` said."""
        assert self._make is not None, "prepare comes first"
        try:
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
