"""Steps to the file system, counted, and the trouble that one of them meets.

    {"kind": "kill", "at": 17}                     the process ends at step 17, as by kill -9
    {"kind": "full", "at": 17}                     step 17 and all later writes: no space left
    {"kind": "error", "at": 17}                    step 17 alone: an input/output error
    {"kind": "short", "at": 17}                    a write takes a part of what it was given
    {"kind": "limit", "at": 17, "bytes": 4096}     from step 17 on no file grows beyond so many bytes: the kernel refuses
    {"kind": "pause", "at": 17, "flag": "file"}    the process makes the file before step 17, and goes on once it is removed
    {"kind": "change", "at": 17, "how": "replace", "input": "in/papers.jsonl", "other": "other/papers.jsonl"}

Python's own calls are counted: what opens files for writing, writes, renames, removes, and forces to the disk. What
compiled libraries write by themselves passes unseen; the kernel's limit and a small file system meet it too. Each trouble
lasts as long as the process, which is a fork made for it.

An input that changes is changed by its reader, just before a step, so that every order of both can be tried. These steps
are others: a file below the input that is about to be opened, or the next piece of a file that may be compressed.
"""

import builtins
import errno
import inspect
import io
import itertools
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "link", "ftruncate", "truncate", "sendfile", "write")
"""Functions of `os` that change what is on the disk or force it there."""

THAT_NEED_ROOM = {"open", "write", "mkdir", "link", "ftruncate", "truncate", "sendfile", "rename", "replace", "fsync"}
"""Steps that a full disk can refuse: removing is always possible."""


class Steps:
    """Counts steps and lets the trouble happen at its own."""

    def __init__(self, trouble: dict[str, Any], counter: mmap.mmap) -> None:
        self._trouble, self._counter, self._numbers = trouble, counter, itertools.count(1)

    def __call__(self, name: str, path: object = None) -> bool:
        """One more step; whether a write is to be short."""
        count = next(self._numbers)  # each number once, also where several threads write
        self._counter[:8] = struct.pack("<q", count)
        kind, at = self._trouble.get("kind"), self._trouble.get("at", 0)
        if count == at and kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif count == at and kind == "limit":
            # from here on the kernel refuses; the signal that it also sends is one that Python ignores
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._trouble["bytes"],) * 2)
        elif count == at and kind == "pause":
            pause(Path(self._trouble["flag"]))
        elif count == at and kind == "error":
            raise failure(errno.EIO, name, path)
        if kind == "full" and count >= at and name in THAT_NEED_ROOM:
            raise failure(errno.ENOSPC, name, path)
        return kind == "short" and count >= at


def failure(code: int, name: str, path: object) -> OSError:
    """As the system tells it: calls that take a path name it, those that take a descriptor do not."""
    is_described = isinstance(path, str | bytes | os.PathLike) and name not in ("write", "sendfile")
    return OSError(code, os.strerror(code), *([path] if is_described else []))


def pause(flag: Path) -> None:
    """Wait while another process does something."""
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    for _ in range(12_000):
        if not flag.exists():
            return
        time.sleep(0.005)


def begin(trouble: dict[str, Any] | None, counter: mmap.mmap) -> None:
    """Count from here on; without a trouble nothing else happens."""
    if trouble and trouble["kind"] == "change":
        begin_changes(trouble, counter)
        return
    steps = Steps(trouble or {}, counter)
    for name in CALLS:
        setattr(os, name, _counted(getattr(os, name), name, steps))
    builtins.open = io.open = _opening(io.open, steps)


def _counted(real: Callable[..., Any], name: str, steps: Steps) -> Callable[..., Any]:
    def call(*given: Any, **options: Any) -> Any:
        is_short = steps(name, given[0] if given else None)
        if is_short and name == "write" and len(given[1]) > 1:
            return real(given[0], memoryview(given[1]).cast("B")[: len(given[1]) // 2])
        return real(*given, **options)

    return call


def _opening(real: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    """`open`, whose files count what is written to them."""

    class Counted(io.FileIO):
        def write(self, data: Any, /) -> int | None:
            view = memoryview(data).cast("B")
            is_short = steps("write")
            return super().write(view[: (len(view) + 1) // 2] if is_short else view)

        def truncate(self, size: int | None = None, /) -> int:
            steps("truncate")
            return super().truncate(size)

    form = inspect.signature(real)

    def opened(*given: Any, **options: Any) -> Any:
        how = form.bind(*given, **options)
        how.apply_defaults()
        file, mode, buffering, encoding, errors, newline, closefd, opener = how.args
        if not set(mode) & set("wax+") or isinstance(file, int):
            return real(*given, **options)
        steps("open", file)
        raw = Counted(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
        held = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        if "b" in mode:
            return held
        text = io.TextIOWrapper(held, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text

    return opened


# --- inputs that change -----------------------------------------------------------------------------------

FILE_CHANGES = ("replace", "rewrite", "truncate", "append", "remove")
FOLDER_CHANGES = ("exchange", "replace a file", "remove", "remove a file")


def change(how: str, path: Path, other: Path) -> None:
    """What another program does to an input."""
    if how == "replace":
        Path(shutil.copy(other, path.with_name(".other"))).replace(path)
    elif how == "rewrite":
        path.write_bytes(other.read_bytes())
    elif how == "truncate":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "append":
        with path.open("ab") as file:
            file.write(other.read_bytes())
    elif how == "exchange":
        path.rename(path.with_name("before"))
        shutil.copytree(other, path)
    elif how == "replace a file":
        name = Path("papers", "title.utf8")
        Path(shutil.copy(other / name, path / ".other")).replace(path / name)
    elif how == "remove a file":
        (path / "papers" / "title.utf8").unlink()
    else:
        path.rename(path.with_name("before"))


def begin_changes(trouble: dict[str, Any], counter: mmap.mmap) -> None:
    """Count steps from here on; at one of them the input changes."""
    numbers, changing = itertools.count(1), list[bool]()
    source, other = Path(trouble["input"]), Path(trouble["other"])

    def step() -> None:
        if changing:
            return
        count = next(numbers)
        counter[:8] = struct.pack("<q", count)
        if count == trouble["at"]:
            changing.append(True)
            change(trouble["how"], source, other)
            changing.clear()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(source)):
            step()

    sys.addaudithook(watch)
    from citeweave.core import inputs

    real = inputs._InputStream.readinto

    def readinto(self: inputs._InputStream, buffer: object) -> int:
        step()
        return real(self, buffer)

    inputs._InputStream.readinto = readinto
