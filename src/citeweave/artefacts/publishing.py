"""How a folder is made beside its name, and gets that name in one step, in the place of an older one or of nothing.

    begin_work(target)          its work folder, found or made; the caller has the lock
    publish(target)             what was written is `target` now; what `target` was is gone, and so is the work folder
    discard_work(target)        nothing of it would help another run
    discard_unkept(target)      the same, unless it holds an intermediate file
    remove_leftovers(target)    the same for what an interrupted publication left, unless somebody is at work

    .NAME.citeweave-1f0c2a9b/   hidden, and with a random part: no user's folder has such a name
        owner.json              that it is citeweave's, and of which folder; without it nothing here is touched
        new/                    is being written; after the exchange what NAME was
        kept/                   intermediate files: an interrupted run goes on from them
    .NAME.citeweave.lock        held by the writer; it stays empty

At every moment NAME is the whole older folder or the whole new one, also for a process that is killed, where the
system can exchange two names at once: Linux and macOS. On Windows and many network file systems neither has the name
for a moment, and who is killed then leaves both in the work folder, as `old` and `new`.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import secrets
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from citeweave.artefacts.ownership import check_replaceable
from citeweave.errors import InputError, UserError
from citeweave.files import move, read_input, sync
from citeweave.locks import take_lock

_OWNER = "owner.json"
_NEW, _KEPT, _OLD = "new", "kept", "old"
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_HERE = -100  # AT_FDCWD: paths are taken as everywhere


def lock_file(target: Path) -> Path:
    """What the writer of a folder holds, beside it."""
    return _named(target).with_name(f".{_named(target).name}.citeweave.lock")


def work_folder(target: Path) -> Path:
    """The work folder of `target`; where none was begun, a path at which nothing is."""
    target = _named(target)
    start = target.with_name(f".{target.name}.citeweave-")
    found = sorted(target.parent.glob(f"{glob.escape(start.name)}????????"))
    return next((path for path in found if _is_ours(path, target)), start)


def begin_work(target: Path) -> Path:
    """The work folder of `target`, made where there is none."""
    folder = work_folder(target)
    if not folder.exists():
        folder = folder.with_name(folder.name + secrets.token_hex(4))
        folder.mkdir()
    owner, mark = folder / _OWNER, _mark(_named(target))
    if not owner.exists() or read_input(owner) != mark:  # a whole mark is never written again: it must not be lost
        owner.write_bytes(mark)
    for name in (_NEW, _KEPT):
        (folder / name).mkdir(exist_ok=True)
    return folder


def publish(target: Path) -> None:
    """Give what was written its name, once everything in it has reached the disk."""
    work = work_folder(target)
    new = work / _NEW
    for folder in [new, *(path for path in new.rglob("*") if path.is_dir())]:
        sync(folder)
    check_replaceable(target)
    if not target.exists():
        move(new, target)
    elif not _exchange_at_once(new, target):
        _exchange_by_steps(new, target, work / _OLD)
    sync(target.parent)
    _remove(work)


def discard_work(target: Path) -> None:
    """Remove the work folder; the caller has the lock."""
    _remove(work_folder(target))


def discard_unkept(target: Path) -> None:
    """Remove the work folder unless another run can go on from a file in it; the caller has the lock."""
    if not any(path.is_file() for path in (work_folder(target) / _KEPT).rglob("*")):
        discard_work(target)


def remove_leftovers(target: Path) -> None:
    """Remove what a publication that was killed left beside the folder, unless one is under way."""
    if not work_folder(target).exists() and not lock_file(target).exists():
        return
    with suppress(OSError), take_lock(lock_file(target), remove=True):
        discard_work(target)


def _named(folder: Path) -> Path:
    return folder if folder.name else folder.absolute()  # "." has no name of its own


def _mark(target: Path) -> bytes:
    return json.dumps({"made_by": "citeweave", "work_of": target.name}).encode()


def _is_ours(folder: Path, target: Path) -> bool:
    """Whether a folder says that it is the work folder of `target`; who was killed may have left it half a mark."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    inside = [path.name for path in folder.iterdir()]
    try:
        mark = read_input(folder / _OWNER) if inside else b""
    except (InputError, OSError):
        return False
    return mark == _mark(target) or (inside in ([], [_OWNER]) and _mark(target).startswith(mark))


def _remove(work: Path) -> None:
    """Remove a work folder, its owner last, so that one that is half removed is still known to be ours."""
    for name in (_NEW, _KEPT, _OLD):
        shutil.rmtree(work / name, ignore_errors=True)
    with suppress(OSError):
        if [path.name for path in work.iterdir()] == [_OWNER]:
            (work / _OWNER).unlink()
        work.rmdir()


def _exchange_by_steps(new: Path, target: Path, old: Path) -> None:
    shutil.rmtree(old, ignore_errors=True)  # of an earlier exchange that was killed once the new folder had its name
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
