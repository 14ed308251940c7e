"""Publishing a folder in one step, and replacing or removing only files that citeweave wrote.

    create_work_folder(target)  the work folder of `target`; the caller holds the lock
    publish(target)             the new folder becomes `target`; the old `target` and the work folder are removed
    remove_work_folder(target)  when nothing in it would help another run
    remove_unresumable_work(target)    the same, unless it holds an intermediate file
    remove_leftovers(target)    the same for what an interrupted publication left, unless a writer is at work
    check_replaceable(folder)   UserError where a file in it was not written by citeweave
    remove_artifact(folder)     removes the files that its manifests name, and folders that are empty then

    .NAME.citeweave-1f0c2a9b/   hidden, and with a random part: no user's folder has such a name
        owner.json              marks it as citeweave's, and names the target; without it nothing here is touched
        new/                    is being written; after the exchange it holds what NAME was
        kept/                   intermediate files: an interrupted run resumes from them
    .NAME.citeweave.lock        held by the writer; it stays empty

At every moment NAME is either the complete old folder or the complete new one, even if the process is killed, where the
system can exchange two names atomically: Linux and macOS. On Windows and many network file systems neither has the name
for a moment, and a process killed then leaves both in the work folder, as `old` and `new`.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from citeweave.core.errors import InputError, UserError
from citeweave.core.files import move, read_input, sync, take_lock

MANIFEST = "manifest.json"
INDEX_STATE, INDEX_GENERATIONS = "state.json", "generations"
INDEX_PARTS = frozenset({INDEX_STATE, INDEX_GENERATIONS, "maps", ".lock", ".lock.held"})
"""Names in the folder of an index; its generations and maps have manifests of their own."""

GENERATION_NAME = re.compile(r"\d{6,12}-[0-9a-f]{8}")

_DESKTOP_FILES = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
"""Files that desktops leave in any folder."""

_NamesInManifest = Callable[[Path], set[str] | None]


def check_replaceable(folder: Path) -> None:
    """Refuse to replace a folder that holds a file citeweave did not write."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder of citeweave; choose another -o")
    for path, is_ours in _files_with_owner(folder):
        if not is_ours:
            raise UserError(
                f"{folder} cannot be replaced: {path} was not written by citeweave; move it elsewhere, or choose "
                "another -o"
            )


def remove_artifact(folder: Path) -> None:
    """Remove only files that citeweave wrote, those in manifests, manifests last so that an interrupted removal resumes."""
    files = [path for path, is_ours in _files_with_owner(folder) if is_ours]
    with suppress(OSError):  # the next writer removes what cannot be removed now
        for path in sorted(files, key=lambda path: (path.name in (MANIFEST, INDEX_STATE), -len(path.parts))):
            path.unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()


def _files_with_owner(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield every file below a folder, and whether citeweave wrote it."""
    names_in, is_index = functools.cache(_names_in_manifest), (folder / INDEX_STATE).is_file()
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            of_index = is_index and is_index_file(path.relative_to(folder).parts)
            yield path, of_index or name in _DESKTOP_FILES or _is_in_manifest(path, folder, names_in)


def is_index_file(parts: tuple[str, ...]) -> bool:
    """Return whether a file in an index folder belongs to the index although no manifest names it."""
    if (
        parts[0] in ("generations", "segments") and len(parts) > 2
    ):  # also where the generation's manifest is damaged or missing
        return bool(GENERATION_NAME.fullmatch(parts[1])) and parts[-1].endswith((".npy", ".utf8"))
    return (parts[0] in INDEX_PARTS and len(parts) == 1) or parts[0] in ("deleted", "heads")  # of version 2


def _is_in_manifest(path: Path, root: Path, names_in: _NamesInManifest) -> bool:
    """Return whether a manifest beside the file or above it, up to `root`, names the file; a manifest names itself."""
    for folder in path.parents:
        name = path.relative_to(folder).as_posix()
        if (files := names_in(folder)) is not None and (name == MANIFEST or name in files):
            return True
        if folder == root:
            break
    return False


def _names_in_manifest(folder: Path) -> set[str] | None:
    """Return the file names in the manifest of a folder, or None where it has none of ours."""
    try:
        data = json.loads(read_input(folder / MANIFEST))
        return set(data["files"]) if {"kind", "version", "recipe", "files"} <= data.keys() else None
    except (InputError, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


# The work folder and its publication.

_OWNER = "owner.json"
_NEW, _KEPT, _OLD = "new", "kept", "old"
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_AT_FDCWD = -100  # paths are relative to the current folder


def lock_file(target: Path) -> Path:
    """Return the path of the lock beside a folder, which its writer holds."""
    return _with_name(target).with_name(f".{_with_name(target).name}.citeweave.lock")


def work_folder(target: Path) -> Path:
    """Return the work folder of `target`, or a path that does not exist where there is none."""
    target = _with_name(target)
    start = target.with_name(f".{target.name}.citeweave-")
    folders = sorted(target.parent.glob(f"{glob.escape(start.name)}????????"))
    return next((path for path in folders if _is_work_folder(path, target)), start)


def create_work_folder(target: Path) -> Path:
    """Return the work folder from which `target` will be published, creating it where there is none."""
    folder = work_folder(target)
    if not folder.exists():
        folder = folder.with_name(folder.name + secrets.token_hex(4))
        folder.mkdir()
    owner, mark = folder / _OWNER, _owner_mark(_with_name(target))
    if not owner.exists() or read_input(owner) != mark:  # a complete mark is never rewritten, so that it cannot be lost
        owner.write_bytes(mark)
    for name in (_NEW, _KEPT):
        (folder / name).mkdir(exist_ok=True)
    return folder


def publish(target: Path) -> None:
    """Give the newly written folder its name, once everything in it has reached the disk."""
    work = work_folder(target)
    new = work / _NEW
    for folder in [new, *(path for path in new.rglob("*") if path.is_dir())]:
        sync(folder)
    check_replaceable(target)
    if not target.exists():
        move(new, target)
    elif not _exchange_atomically(new, target):
        _exchange_in_steps(new, target, work / _OLD)
    sync(target.parent)
    _remove_work(work)


def remove_work_folder(target: Path) -> None:
    """Remove the work folder of `target`; the caller holds the lock."""
    _remove_work(work_folder(target))


def remove_unresumable_work(target: Path) -> None:
    """Remove the work folder of `target` unless a run can resume from a file in it; the caller holds the lock."""
    if not any(path.is_file() for path in (work_folder(target) / _KEPT).rglob("*")):
        remove_work_folder(target)


def remove_leftovers(target: Path) -> None:
    """Remove what a killed publication left beside the folder, unless another one is under way."""
    if not work_folder(target).exists() and not lock_file(target).exists():
        return
    with suppress(OSError), take_lock(lock_file(target), remove=True):
        remove_work_folder(target)


def _with_name(folder: Path) -> Path:
    return folder if folder.name else folder.absolute()  # "." has no name of its own


def _owner_mark(target: Path) -> bytes:
    return json.dumps({"made_by": "citeweave", "work_of": target.name}).encode()


def _is_work_folder(folder: Path, target: Path) -> bool:
    """Return whether a folder is marked as the work folder of `target`; a killed process may have left half a mark."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    inside = [path.name for path in folder.iterdir()]
    try:
        mark = read_input(folder / _OWNER) if inside else b""
    except (InputError, OSError):
        return False
    return mark == _owner_mark(target) or (inside in ([], [_OWNER]) and _owner_mark(target).startswith(mark))


def _remove_work(work: Path) -> None:
    """Remove a work folder, its owner mark last, so that a half removed one is still known to be ours."""
    for name in (_NEW, _KEPT, _OLD):
        shutil.rmtree(work / name, ignore_errors=True)
    with suppress(OSError):
        if [path.name for path in work.iterdir()] == [_OWNER]:
            (work / _OWNER).unlink()
        work.rmdir()


def _exchange_in_steps(new: Path, target: Path, old: Path) -> None:
    """Replace `target` by two renames, for systems that cannot exchange two names atomically."""
    shutil.rmtree(old, ignore_errors=True)  # left by an exchange that was killed after the new folder got its name
    try:
        move(target, old)
    except PermissionError as error:
        raise UserError(
            f"{target} cannot be replaced ({error.strerror}); close what has it open, such as a server, or check its "
            "permissions, and run the same command again"
        ) from None
    try:
        move(new, target)
    except OSError:
        move(old, target)
        raise


def _exchange_atomically(one: Path, other: Path) -> bool:
    """Exchange two names and return whether the system could; many network file systems and Windows cannot."""
    paths = os.fsencode(one), os.fsencode(other)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return bool(system.renamex_np(*paths, _EXCHANGE) == 0)
        return bool(system.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE) == 0)
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no such library
        return False
