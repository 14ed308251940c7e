"""Files that are there whole or not at all, and what they hash to.

with new_file(path) as file:     a binary file, on the disk before it has its name; none where the block fails
write_json(path, value)         the same for JSON
write_whole(path, content)      the same for bytes, without waiting for the disk's table of names
move(source, target)            another name for a file or a folder
hash_file(path)                 SHA-256 of its bytes
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
