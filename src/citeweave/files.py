"""Files that are there whole or not at all, and what they hash to.

with new_file(path) as file:     a binary file, on the disk before it has its name; none where the block fails
write_json(path, value)         the same for JSON
write_whole(path, content)      the same for bytes, without waiting for the disk's table of names
move(source, target)            another name for a file or a folder
hash_file(path)                 SHA-256 of its bytes
file_state(path)                what is another once it was replaced or written to
open_input(path)                a file to read, which must not be a pipe or a device
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from citeweave.errors import InputError


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
    """Share a file between two artefacts; copied where the file system cannot link."""
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
