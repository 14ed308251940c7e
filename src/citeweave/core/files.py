"""Files that are there whole or not at all, and what they hash to.

with new_file(path) as file:     a binary file, on the disk before it has its name; none where the block fails
write_json(path, value)         the same for JSON
write_whole(path, content)      the same for bytes, without waiting for the disk's table of names
move(source, target)            another name for a file or a folder
hash_file(path)                 SHA-256 of its bytes
file_state(path)                what is another once it was replaced or written to
open_input(path)                a file to read, which must not be a pipe or a device

Links and names that lead out of a folder: an artifact may come from a stranger.

    check_links(folder)          a symbolic link to something outside is refused, and what is no file
    check_names(files, path)     the same for the names in a manifest
    open_lock(path)              a file to be locked, left as it is
    output_place(path)           where an output goes: a symbolic link is followed, never replaced

Hard links cannot be told from files; so nothing that lies in a folder is opened for writing.

One process at a time: a lock on a file, which is free as soon as its owner ends, however that happens.

    with take_lock(folder / ".lock"):                LockedError at once where somebody else has it
    with take_lock(folder / ".lock", wait=60.0):     the same after a minute

The system's own locks, by `filelock`: Linux, macOS, Windows. A file that is locked is never written to. A lock is not
shared between the threads of a process: a second one waits, or is refused.
"""

from __future__ import annotations

import errno
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
    """A file to read bytes from: the one way to open what a user names.

    Refuses pipes and devices: opening one may wait forever, and what it gives cannot be read twice.
    """
    return open(path, "rb", opener=_open_regular)


def read_input(path: Path) -> bytes:
    """All bytes of a file, opened as `open_input` does."""
    with open_input(path) as file:
        return file.read()


def check_regular(path: Path) -> None:
    """Refuse a path at which something other than a file or a folder lies; OSError where nothing does."""
    _refuse_special(path.stat().st_mode, path)


def _open_regular(path: str, flags: int) -> int:
    check_regular(Path(path))  # first: opening a device may already act on it
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe that has just come there does not wait
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
    """SHA-256 of a file's bytes."""
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(path: Path) -> tuple[int, int, int, int]:
    """What is another where a file was replaced or written to: device, number, bytes, time of the last change."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def hash_json(value: object) -> str:
    """SHA-256 of a JSON value in one spelling."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal_of(value: object) -> str:
    """The same of a value that is about to be written, as it will be read: names are texts, tuples lists."""
    return hash_json(json.loads(json.dumps(value)))


def hidden_name(path: Path) -> Path:
    """A new name beside a path, which nobody else's file can have."""
    return path.with_name(f".{path.name[:60]}.citeweave-{secrets.token_hex(4)}")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name, in the place of another file or link, once it is whole and on the disk.

    Until then it has a hidden name with a random part, as `hidden_name` makes it.
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
    """Write a JSON file so that it is there whole or not at all."""
    with new_file(path) as file:
        file.write(f"{json.dumps(value, indent=1, ensure_ascii=False)}\n".encode())
    sync(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with new_file(path) as file:
        file.write(content)


def cache_folder(given: Path | None = None) -> Path:
    """Where what can be made again is kept: the folder given, else $CITEWEAVE_CACHE, else ~/.cache/citeweave."""
    named = os.environ.get("CITEWEAVE_CACHE")
    return given or (Path(named) if named else Path.home() / ".cache" / "citeweave")


def link_or_copy(source: Path, target: Path) -> None:
    """Share a file between two artifacts; copied where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except (OSError, AttributeError):
        shutil.copyfile(source, target)


def sync(path: Path) -> None:
    """Force a file's bytes, or the names in a folder, to the disk; Windows opens no folder and looks after names itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # it syncs only what may be written
    except PermissionError:
        if path.is_dir() or os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> None:
    """Give a file or a folder another name, a file also that of another file.

    Windows refuses while another process has one of them open; who reads is done in a moment, as are virus scanners.
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


# Links and names that lead out of a folder: an artifact may come from a stranger.

_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def check_links(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads out of it, or something is no file."""
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
    """Refuse names of files, as the manifest at `path` has them, that lead out of its folder.

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


def open_lock(path: Path) -> BinaryIO:
    """A file to be locked; OSError where a symbolic link is in its place."""
    if not _NO_LINKS and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666), "rb")


def output_place(path: Path) -> Path:
    """Where an output goes: the target of a symbolic link, whose folder must exist, else the path itself."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink() or not target.parent.is_dir():
        raise UserError(
            f"{path} is a link to {target}, which cannot be made; make {target.parent}, or choose another -o"
        )
    return target


# One process at a time: a lock on a file, which is free as soon as its owner ends, however that happens.

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
