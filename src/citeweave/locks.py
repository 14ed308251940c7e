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
    path, end = path.absolute(), time.monotonic() + wait  # a command may change its folder before the end
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            file = held.enter_context(open_lock(path))
            is_taken = _is_taken(path, file, held)
            if is_taken and _is_at(path, file):
                held.callback(_end, path, file, remove)
                return held.pop_all()
        if not is_taken:
            if time.monotonic() >= end:
                raise LockedError(errno.EAGAIN, "in use by another process", str(path))
            time.sleep(_POLL)


def _is_taken(path: Path, file: BinaryIO, held: ExitStack) -> bool:
    """Whether the lock is ours now; some network file systems have none, and a file beside it takes its place."""
    # a twentieth of a second to import, for which those who only read need not wait
    from filelock import SoftFileLock, Timeout, lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    try:
        held.enter_context(SoftFileLock(path.with_name(path.name + ".held"), timeout=0, thread_local=False))
    except Timeout:
        return False
    return True


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether the locked file still has its name: its last owner may have removed it between opening and locking."""
    if sys.platform == "win32":  # a file that is open keeps its name
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _end(path: Path, file: BinaryIO, remove: bool) -> None:
    if not remove or os.fstat(file.fileno()).st_size:  # nobody writes to our locks: this is another's file
        return
    try:
        path.unlink()  # while it is locked: who waits for it sees that it is gone
    except PermissionError:  # Windows; who waits for it has it open, and then it stays
        file.close()
        with suppress(OSError):
            path.unlink()
    except OSError:
        pass
