"""How a finished folder gets its name: beside nothing, or in the place of an older one, in one step.

    publish(partial, target)        the finished folder is `target`; what `target` was is gone
    put(folder, target)             the same for a folder that is on the disk already; what `target` was is `target.old`
    remove_leftovers(target)        what an interrupted publication left

    target.partial         is being written; goes on after an interruption
    target.partial.lock    held by its writer; outside, since Windows renames no folder in which a file is open
    target.old             about to replace the older one, and afterwards that: of use to the writer alone

At every moment `target` is the whole older folder or the whole new one, also for a process that is killed, where the
system can exchange two names at once; elsewhere for a moment neither has the name.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path

from citeweave.files import sync
from citeweave.locks import take_lock

WORK = ".work"
"""Folder of intermediate files: an interrupted run goes on from them, and nobody once the folder has its name."""

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux
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
    if target.exists():
        new.rename(old)  # out of the way of the next writer
        _exchange(old, target, aside=new)
    else:
        new.rename(target)
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


def _exchange(new: Path, target: Path, aside: Path) -> None:
    """Two folders change names: at once, or by way of a third name."""
    if _exchange_at_once(new, target):
        return
    target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        aside.rename(target)
        raise
    aside.rename(new)


def _exchange_at_once(one: Path, other: Path) -> bool:
    """Whether the system could; many network file systems cannot, and systems other than Linux call it otherwise."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
