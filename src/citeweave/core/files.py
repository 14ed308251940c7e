"""Files: atomic writes, hashes, no pipes or devices, no links that lead outside, locks between processes.

    with new_file(path) as file:       a binary file, on the disk before it has its name; nothing remains if the block fails
    write_json(path, value)            the same for JSON
    write_atomically(path, content)    the same for bytes, without forcing the folder's names to the disk
    move(source, target)               rename a file or a folder
    hash_file(path)                    SHA-256 of its bytes
    file_state(path)                   changes once the file is replaced or written to
    open_input(path)                   a file to read, which must not be a pipe or a device
    check_links(folder)                refuse symbolic links that lead outside, and what is not a file
    check_names(names, path)           the same for the names in a manifest
    resolve_output(path)               where an output goes: a symbolic link is followed, never replaced

An artifact may come from an untrusted source. Hard links cannot be told from files, so nothing that lies in a folder is
opened for writing.

    with take_lock(folder / ".lock"):                LockedError at once where another process holds it
    with take_lock(folder / ".lock", wait=60.0):     the same after a minute

Locks are the system's own, by `filelock`: Linux, macOS, Windows. A lock is free as soon as its owner ends, however that
happens. A locked file is never written to. The threads of a process do not share a lock: the second waits or is refused.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from citeweave.core.errors import ArtifactError, InputError, UserError


def open_input(path: Path) -> io.BufferedReader:
    """Open a file that a user names, for reading bytes.

    Refuses pipes and devices: opening one may block forever, and its content cannot be read twice.
    """
    return open(path, "rb", opener=_open_regular)


def read_input(path: Path) -> bytes:
    """Return all bytes of a file, opened as `open_input` does."""
    with open_input(path) as file:
        return file.read()


def check_regular(path: Path) -> None:
    """Refuse a path that is not a file or a folder; OSError where nothing exists."""
    _refuse_special(path.stat().st_mode, path)


def _open_regular(path: str, flags: int) -> int:
    check_regular(Path(path))  # first: opening a device may already act on it
    descriptor = os.open(
        path, flags | getattr(os, "O_NONBLOCK", 0)
    )  # a pipe that has just appeared there does not block
    try:
        _refuse_special(os.fstat(descriptor).st_mode, path)
    except InputError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_special(mode: int, path: str | Path) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path} is a pipe or a device, which cannot be read twice; save its content in a file first")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(path: Path) -> tuple[int, int, int, int]:
    """Return device, inode, size and modification time of a file, which differ once it is replaced or written to."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def hash_once(path: Path) -> str:
    """Return `hash_file` of a file that many functions ask for, such as a model's weights: read again only if its state changes.

    A file that was written in the last seconds is read every time: the clock of file systems is too coarse to tell two writes apart.
    """
    state = file_state(path)
    is_settled = time.time() - state[3] / 1e9 > _SETTLED
    return _hash_in_state(path, state) if is_settled else hash_file(path)


_SETTLED = 3.0
"""Seconds after its last change."""


@functools.lru_cache(256)
def _hash_in_state(path: Path, state: tuple[int, int, int, int]) -> str:
    return hash_file(path)


def hash_json(value: object) -> str:
    """Return the SHA-256 of a JSON value in its canonical spelling."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def hash_as_written(value: object) -> str:
    """Return `hash_json` of a value as it will be read back from JSON: keys are strings, tuples are lists."""
    return hash_json(json.loads(json.dumps(value)))


def hidden_name(path: Path) -> Path:
    """Return a new hidden name beside a path, with a random part that no other file has."""
    return path.with_name(f".{path.name[:60]}.citeweave-{secrets.token_hex(4)}")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, which gets its name, replacing a file or link, once it is complete and on the disk.

    Until then it has the name that `hidden_name` gives it.
    """
    temporary = hidden_name(path)
    with temporary.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
    move(temporary, path)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file that appears complete or not at all."""
    with new_file(path) as file:
        file.write(f"{json.dumps(value, indent=1, ensure_ascii=False)}\n".encode())
    sync(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write bytes to a file that appears complete or not at all."""
    with new_file(path) as file:
        file.write(content)


def cache_folder(folder: Path | None = None) -> Path:
    """Return the cache folder: the given one, else $CITEWEAVE_CACHE, else ~/.cache/citeweave."""
    variable = os.environ.get("CITEWEAVE_CACHE")
    return folder or (Path(variable) if variable else Path.home() / ".cache" / "citeweave")


def link_or_copy(source: Path, target: Path) -> None:
    """Share a file between two artifacts by a hard link, or copy it where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except (OSError, AttributeError):
        shutil.copyfile(source, target)


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's names, to the disk; Windows cannot open folders and needs no such thing."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY if path.is_dir() else os.O_RDWR
        )  # Windows syncs only files opened for writing
    except PermissionError:
        if path.is_dir() or os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> None:
    """Rename a file or a folder; a file may replace another file.

    Windows refuses while another process, a reader or a virus scanner, has one of them open; so it is tried some times.
    """
    for pause in (0.01, 0.03, 0.1, 0.3, 1.0):
        try:
            source.replace(target)
            return
        except PermissionError as error:
            if not hasattr(error, "winerror"):
                raise
            time.sleep(pause)
    source.replace(target)


# Links and names that lead out of a folder: an artifact may come from an untrusted source.

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def check_links(folder: Path) -> None:
    """Refuse a folder with files that are not regular: a symbolic link that leads out of it, a pipe or a device."""
    root = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # a writer has just removed it
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise ArtifactError(f"{path} is a pipe or a device; an artifact holds files only: do not use it")
            if stat.S_ISLNK(mode) and not _is_within(os.path.realpath(path), root):
                raise ArtifactError(
                    f"{path} is a link to something outside of {folder}; an artifact holds its files itself: copy it there"
                )


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def check_names(names: Iterable[str], path: Path) -> None:
    """Refuse names of files in the manifest at `path` that lead out of its folder.

    >>> check_names(["papers/year.npy"], Path("corpus/manifest.json"))
    >>> check_names(["../year.npy"], Path("corpus/manifest.json"))
    Traceback (most recent call last):
    citeweave.core.errors.ArtifactError: corpus/manifest.json names the file '../year.npy', which leads out of its folder; ...
    >>> check_names([r"C:\\year.npy"], Path("corpus/manifest.json"))
    Traceback (most recent call last):
    citeweave.core.errors.ArtifactError: corpus/manifest.json names the file 'C:\\\\year.npy', which leads out of its folder; ...
    """
    for name in names:
        if "\0" in name or any(_leads_out(place) for place in (PurePosixPath(name), PureWindowsPath(name))):
            raise ArtifactError(
                f"{path} names the file {name[:200]!r}, which leads out of its folder; do not use this artifact"
            )


def _leads_out(place: PurePath) -> bool:
    return bool(place.anchor) or ".." in place.parts or not place.parts


def _open_lock(path: Path) -> BinaryIO:
    """Open the file of a lock; OSError where a symbolic link is in its place."""
    if not _NO_FOLLOW and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o666), "rb")


def resolve_output(path: Path) -> Path:
    """Return where an output file goes: the target of a symbolic link, whose folder must exist, else the path itself."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink() or not target.parent.is_dir():
        raise UserError(
            f"{path} is a link to {target}, which cannot be created; create {target.parent}, or choose another -o"
        )
    return target


# Locks between processes.

_POLL = 0.05


class LockedError(OSError):
    """Another process holds the lock."""


def take_lock(path: Path, *, wait: float = 0.0, remove: bool = False) -> ExitStack:
    """Lock a file, creating it and its folder where needed; `with` releases the lock.

    `remove` deletes the file at the end. OSError where it cannot be opened, LockedError where another process holds it.
    """
    path, deadline = path.absolute(), time.monotonic() + wait  # a command may change the current folder before the end
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            file = stack.enter_context(_open_lock(path))
            is_locked = _try_lock(path, file, stack)
            if is_locked and _has_its_name(path, file):
                stack.callback(_release, path, file, remove)
                return stack.pop_all()
        if not is_locked:
            if time.monotonic() >= deadline:
                raise LockedError(errno.EAGAIN, "in use by another process", str(path))
            time.sleep(_POLL)


def _try_lock(path: Path, file: BinaryIO, stack: ExitStack) -> bool:
    """Try to lock an open file; on network file systems without locks a file beside it takes its place."""
    # importing it takes 50 ms, which those who only read need not wait for
    from filelock import SoftFileLock, Timeout, lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    try:
        stack.enter_context(SoftFileLock(path.with_name(path.name + ".held"), timeout=0, thread_local=False))
    except Timeout:
        return False
    return True


def _has_its_name(path: Path, file: BinaryIO) -> bool:
    """Return whether the locked file still has its name: its last owner may have removed it between opening and locking."""
    if sys.platform == "win32":  # a file that is open keeps its name
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _release(path: Path, file: BinaryIO, remove: bool) -> None:
    if not remove or os.fstat(file.fileno()).st_size:  # nobody writes to our locks: this file is not ours
        return
    try:
        path.unlink()  # while it is locked: a waiting process sees that it is gone
    except PermissionError:  # Windows: a waiting process has it open, and then it stays
        file.close()
        with suppress(OSError):
            path.unlink()
    except OSError:
        pass
