"""How a finished folder gets its name: beside nothing, or in the place of an older one, in one step.

    publish(partial, target)        the finished folder is `target`; what `target` was is gone
    put(folder, target)             the same for a folder that is on the disk already; what `target` was is `target.old`
    remove_leftovers(target)        what an interrupted publication left

    target.partial         is being written; goes on after an interruption
    target.partial.lock    held by its writer; outside, since Windows renames no folder in which a file is open
    target.old             about to replace the older one, and afterwards that: of use to the writer alone

At every moment `target` is the whole older folder or the whole new one, also for a process that is killed, where the
system can exchange two names at once: Linux and macOS. On Windows and many network file systems neither has the name
for a moment, and who is killed then leaves the older one as `target.old` and the new one as `target.partial`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from citeweave.errors import UserError
from citeweave.files import move, sync
from citeweave.locks import take_lock

WORK = ".work"
"""Folder of intermediate files: an interrupted run goes on from them, and nobody once the folder has its name."""

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_HERE = -100  # AT_FDCWD: paths are taken as everywhere


def partial_folder(folder: Path) -> Path:
    folder = folder if folder.name else folder.absolute()  # "." has no name of its own
    return folder.with_name(folder.name + ".partial")


def lock_file(folder: Path) -> Path:
    """What the writer of a folder holds, beside it."""
    partial = partial_folder(folder)
    return partial.with_name(partial.name + ".lock")


def publish(partial: Path, target: Path) -> None:
    """Give a finished folder its name, once everything in it has reached the disk."""
    for folder in [partial, *(path for path in partial.rglob("*") if path.is_dir())]:
        sync(folder)
    put(partial, target)
    for path in _leftovers(target):
        _remove(path)


def put(new: Path, target: Path) -> None:
    """Give a folder a name; what had it is `target.old`."""
    old = _old(target)
    _remove(old)
    if not target.exists():
        move(new, target)
    elif not _is_exchanged(new, target, old):
        _exchange_by_steps(new, target, old)
    sync(target.parent)


def remove_leftovers(target: Path) -> None:
    """Remove what a publication that was killed left in the folder and of the one it replaced, unless one is under way."""
    leftovers = [path for path in _leftovers(target) if path.exists()]
    if not leftovers and not lock_file(target).exists():
        return
    with suppress(OSError), take_lock(lock_file(target), remove=True):
        for path in leftovers:
            _remove(path)


def _leftovers(target: Path) -> tuple[Path, ...]:
    return _old(target), target / WORK


def _old(target: Path) -> Path:
    return target.with_name(target.name + ".old")


def _remove(path: Path) -> None:
    """Remove what nobody needs; what cannot be removed now is removed by the next publication."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _is_exchanged(new: Path, target: Path, old: Path) -> bool:
    """Whether the new folder got the name, and the one that had it is `old`, in one step."""
    move(new, old)  # out of the way of the next writer
    if _exchange_at_once(old, target):
        return True
    move(old, new)
    return False


def _exchange_by_steps(new: Path, target: Path, old: Path) -> None:
    try:
        move(target, old)
    except PermissionError as error:
        raise UserError(
            f"{target} cannot be replaced ({error.strerror}); end what has it open, such as a server, or check its "
            "permissions, and run the same command again"
        ) from None
    try:
        move(new, target)
    except OSError:
        move(old, target)
        raise


def _exchange_at_once(one: Path, other: Path) -> bool:
    """Whether the system could; many network file systems cannot, nor can Windows."""
    paths = os.fsencode(one), os.fsencode(other)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return bool(system.renamex_np(*paths, _EXCHANGE) == 0)
        return bool(system.renameat2(_HERE, paths[0], _HERE, paths[1], _EXCHANGE) == 0)
    except (AttributeError, OSError, TypeError):  # the last of Windows, which has no such library
        return False
