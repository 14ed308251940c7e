"""A file system of its own in memory, small enough to be filled; only where this process may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = 64 * 2**20


class SmallDisk:
    """A mounted folder, and the file that takes what room there is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / "filler"

    def leave(self, room: int) -> None:
        """Fill the disk up to so many bytes."""
        self.empty()
        about = os.statvfs(self.folder)
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, about.f_bavail * about.f_frsize - room))

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """A mounted disk; None where mounting is not allowed."""
    folder.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "citeweave", str(folder)]
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield SmallDisk(folder) if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)
