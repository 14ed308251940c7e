"""Locks on files: one owner, free when it ends however it ends, and nothing of others touched."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from citeweave.core.files import LockedError, take_lock

OWNER = """
import sys, time
from pathlib import Path
from citeweave.core.files import take_lock
with take_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    with take_lock(path), pytest.raises(LockedError):
        take_lock(path)
    with take_lock(path):
        pass
    assert path.is_file()


def test_the_lock_of_a_killed_owner_is_free(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", OWNER, path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        with pytest.raises(LockedError):
            take_lock(path, wait=0.1)
        owner.kill()
        with take_lock(path, wait=30):
            pass


def test_who_waits_for_a_lock_that_is_removed_gets_the_one_at_its_place(tmp_path: Path) -> None:
    """Two owners at once would be the fault: of the file that is gone, and of the one that has its name now."""
    path, inside, most = tmp_path / "folder" / ".lock", [], []

    def work() -> None:
        for _ in range(20):
            with take_lock(path, wait=60, remove=True):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80 and not path.exists()


def test_a_lock_that_is_replaced_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking another folder comes in the place of the one with the lock."""
    folder, lock_descriptor = tmp_path / "folder", filelock.lock_descriptor
    folder.mkdir()

    def late(descriptor: int, *, blocking: bool) -> bool:
        if not (tmp_path / "old").exists():
            folder.rename(tmp_path / "old")
        return lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", late)
    with take_lock(folder / ".lock"):
        monkeypatch.undo()
        with pytest.raises(LockedError):
            take_lock(folder / ".lock")
        with take_lock(tmp_path / "old" / ".lock"):
            pass


def test_files_of_others_are_neither_written_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("years of work")
    os.link(tmp_path / "notes", tmp_path / "x.lock")
    with take_lock(tmp_path / "x.lock", remove=True):
        pass
    assert (tmp_path / "x.lock").read_text() == "years of work"
    (tmp_path / "y.lock").symlink_to(tmp_path / "notes")
    with pytest.raises(OSError) as caught:
        take_lock(tmp_path / "y.lock")
    assert caught.value.errno == errno.ELOOP


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(descriptor: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(filelock, "lock_descriptor", missing)
    path = tmp_path / ".lock"
    with take_lock(path), pytest.raises(LockedError):
        take_lock(path, wait=0.1)
    with take_lock(path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
