"""Makes this interpreter as narrow as Python on Windows, as far as one on Linux can be.

Missing: modules, functions of `os`, flags and signals that Windows lacks; processes by fork. Refused: opening a folder,
syncing what is not open for writing, a name that is taken for `os.rename`, and another name, another content or the end
for a file, or for a folder with a file in it, that this process has open or mapped. A `sitecustomize.py` that calls
`narrow()` does so in every process that is started. Importing this changes nothing.

Does not change what libraries do in compiled code, nor paths: they keep their slashes.
"""

from __future__ import annotations

import builtins
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MODULES = {"fcntl", "resource", "pwd", "grp", "spwd", "crypt", "termios", "tty", "pty", "syslog", "readline", "curses"}
FUNCTIONS = (
    "fork", "forkpty", "link", "sched_getaffinity", "sched_setaffinity", "sched_yield", "getuid",
    "geteuid", "getgid", "getegid", "getgroups", "getpgid", "getpgrp", "setsid", "setpgid", "killpg", "nice",
    "getloadavg", "pread", "preadv", "pwrite", "pwritev", "sendfile", "posix_fadvise", "posix_fallocate",
    "mkfifo", "mknod", "chown", "fchown", "lchown", "fchmod", "fchdir", "chroot", "sync", "fdatasync", "pidfd_open",
    "memfd_create", "getxattr", "setxattr", "openpty", "ttyname", "wait", "wait3", "wait4", "O_NOFOLLOW", "O_DIRECTORY",
    "O_NONBLOCK", "O_SYNC", "O_NOATIME", "O_PATH", "O_TMPFILE",
)  # fmt: skip
SIGNALS = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGCHLD", "SIGTSTP", "SIGWINCH")
ADVICE = ("MADV_DONTNEED", "MADV_SEQUENTIAL", "MADV_RANDOM", "MADV_WILLNEED")
LINUX_PARTS = ("psutil", "filelock")
"""Libraries that choose a part for each system by `sys.platform`, and get what the one for Linux imports."""


def narrow() -> None:
    """Change this process, for good."""
    import ctypes
    import mmap
    import multiprocessing.context as processes
    import shutil
    import tempfile

    access_mode = _access_mode()
    for name in MODULES:
        sys.modules.pop(name, None)
    builtins.__import__ = _importing(builtins.__import__)
    for owner, names in ((os, FUNCTIONS), (mmap, ADVICE), (signal, (*SIGNALS, "pthread_sigmask", "pthread_kill"))):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    os.supports_dir_fd.clear()  # type: ignore[attr-defined]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # it opens folders where the system lets it
    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # type: ignore[misc]  # else a file that is removed while open
    contexts: dict[str, Any] = processes._concrete_contexts  # type: ignore[attr-defined]
    for name in ("fork", "forkserver"):
        del contexts[name]
    processes._default_context._default_context = contexts["spawn"]  # type: ignore[attr-defined]
    ctypes.CDLL = _loading(ctypes.CDLL)  # type: ignore[misc,assignment]
    os.rename = _renaming(os.rename, over=False)
    os.replace = _renaming(os.replace, over=True)
    os.fsync = _syncing(os.fsync, access_mode)
    sys.addaudithook(_refuse)


def _access_mode() -> Callable[[int], int]:
    """What tells how a descriptor was opened, taken while it is there."""
    import fcntl

    return lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE


def _importing(real: Callable[..., Any]) -> Callable[..., Any]:
    def find(name: str, globals: Mapping[str, Any] | None = None, *arguments: Any, **options: Any) -> Any:
        if name in MODULES and (globals or {}).get("__name__", "").partition(".")[0] not in LINUX_PARTS:
            raise ModuleNotFoundError(f"No module named {name!r}, as on Windows", name=name)
        return real(name, globals, *arguments, **options)

    return find


def _renaming(real: Callable[..., None], *, over: bool) -> Callable[..., None]:
    def rename(source: Any, target: Any, **options: Any) -> None:
        same = os.path.realpath(source) == os.path.realpath(target)
        if os.path.lexists(target) and not same and (not over or Path(os.fsdecode(target)).is_dir()):
            kind = PermissionError if over else FileExistsError
            raise kind(errno.EACCES if over else errno.EEXIST, "the name is taken, as on Windows", os.fsdecode(target))
        real(source, target, **options)

    return rename


def _loading(real: type) -> type:
    class Library(real):  # type: ignore[misc]
        def __init__(self, name: Any, *arguments: Any, **options: Any) -> None:
            if name is None:
                raise TypeError("there is no library of the process itself, as on Windows")
            super().__init__(name, *arguments, **options)

    return Library


def _syncing(real: Callable[[int], None], access_mode: Callable[[int], int]) -> Callable[[Any], None]:
    def fsync(file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        if access_mode(descriptor) == os.O_RDONLY:
            raise OSError(errno.EBADF, "not open for writing, as on Windows")
        real(descriptor)

    return fsync


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """What the system is asked to do comes by here first, also from inside of Python's own library."""
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, int) or path is None:
            return
        if mode is None and Path(os.fsdecode(path)).is_dir():
            raise PermissionError(errno.EACCES, "a folder cannot be opened, as on Windows", os.fsdecode(path))
        if flags & os.O_TRUNC and (found := _in_use(path, opened=False)):
            raise OSError(errno.EINVAL, f"{found} is mapped, as on Windows", os.fsdecode(path))
    elif event in ("os.rename", "os.remove", "os.rmdir", "os.truncate"):
        for path in arguments[: 2 if event == "os.rename" else 1]:
            if not isinstance(path, int) and (found := _in_use(path)):
                raise PermissionError(errno.EACCES, f"{found} is in use, as on Windows", os.fsdecode(path))


def _in_use(path: Any, *, opened: bool = True) -> str:
    """A file at this place or below it that this process has mapped, or open; empty where there is none."""
    place = os.path.realpath(os.fsdecode(path))
    held = {line.split(maxsplit=5)[5] for line in _maps() if line.count("/")}
    if opened:
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the list itself is gone by then
                held.add(str(descriptor.readlink()))
    return next((file for file in sorted(held) if file == place or file.startswith(f"{place}/")), "")


def _maps() -> list[str]:
    return Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
