"""One process at a time: a lock on a file, which is free as soon as its owner ends, however that happens.

    with take_lock(folder / ".lock"):                LockedError at once where somebody else has it
    with take_lock(folder / ".lock", wait=60.0):     the same after a minute

The system's own locks, by `filelock`: Linux, macOS, Windows. A file that is locked is never written to. A lock is not
shared between the threads of a process: a second one waits, or is refused.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from citeweave.links import open_lock

_POLL = 0.05


class LockedError(OSError):
    """Somebody else has the lock."""


def take_lock(path: Path, *, wait: float = 0.0, remove: bool = False) -> ExitStack:
    """The lock of a file, which is made with its folder where there is none; `with` ends it.

    `remove` takes the file away at the end. OSError where it cannot be opened, LockedError where another has it.
    """
    from filelock import lock_descriptor  # half a tenth of a second, which those who only read need not wait

    end = time.monotonic() + wait
    held = ExitStack()
    path = path.absolute()  # a command may change its folder before the end
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_lock(path)
        try:
            taken = lock_descriptor(file.fileno(), blocking=False)
        except OSError as error:
            file.close()
            if error.errno != errno.ENOSYS:
                raise
            return _existence_lock(path, wait)  # some network file systems
        if taken and _is_at(path, file):
            held.callback(_end, path, file, remove)
            return held
        file.close()
        if not taken and time.monotonic() >= end:
            raise LockedError(errno.EAGAIN, "in use by another process", str(path))
        if not taken:
            time.sleep(_POLL)


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether the locked file still has its name: its last owner may have removed it between opening and locking."""
    if sys.platform == "win32":  # a file that is open keeps its name
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _end(path: Path, file: BinaryIO, remove: bool) -> None:
    remove = remove and os.fstat(file.fileno()).st_size == 0  # nobody writes to our locks: this would be another's file
    if sys.platform != "win32" and remove:
        with suppress(OSError):
            path.unlink()  # while it is locked: who waits for it sees that it is gone
    file.close()
    if sys.platform == "win32" and remove:
        with suppress(OSError):
            path.unlink()  # who waits for it has it open, and it stays


def _existence_lock(path: Path, wait: float) -> ExitStack:
    """Where the file system has no locks, a file beside it that is there while somebody works."""
    from filelock import SoftFileLock, Timeout

    held = ExitStack()
    lock = SoftFileLock(path.with_name(path.name + ".held"), timeout=wait, poll_interval=_POLL, thread_local=False)
    try:
        held.enter_context(lock)
    except Timeout:
        raise LockedError(errno.EAGAIN, "in use by another process", str(path)) from None
    return held
