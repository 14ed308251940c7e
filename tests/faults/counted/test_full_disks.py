"""Full disks, input/output errors and short writes at random points of every stage.

What is tried: a step to the file system and all later ones find no space; one step fails with an input/output error; all
writes from a step on take half of what they are given; the kernel lets no file grow beyond some bytes; and a real file
system that is full. What must hold: the command ends with exit code 1 and one line that names the path, or it succeeds; the
artifact that it replaces is as it was, or the new one is whole; and the same command, given room, ends with the bytes of a
run that nothing disturbed and leaves nothing else.
"""

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .commands import Run
from .stages import STAGES, Undisturbed, laboratory

SIZE = 64 * 2**20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A mounted file system in memory, small enough to be filled; None where mounting is not allowed."""
    folder.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "citeweave", str(folder)]
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield folder if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)


KINDS = ("full", "error", "short", "limit", "real")


@contextmanager
def filled(disk: Path, room: int) -> Iterator[None]:
    """A file takes what room there is but for so many bytes."""
    about, filler = os.statvfs(disk), disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, about.f_bavail * about.f_frsize - room))
    yield
    filler.unlink()


def test_full_disks(trial, bert, tmp_path):
    made, kinds, ended = laboratory(bert), Counter[str](), Counter[str]()
    with small_disk(tmp_path / "disk") as disk:
        for seed in trial.numbers(quick=4, whole=100):
            draw, stage = random.Random(seed), STAGES[seed % len(STAGES)]
            kind = draw.choice(KINDS if disk else KINDS[:-1])
            replacing = draw.random() < 0.75
            kinds[kind] += 1
            with trial.attempt(f"seed {seed}: {stage}, {'replacing' if replacing else 'new'}, {kind}"):
                whole = made.undisturbed(stage, replacing=replacing)
                folder = (disk if disk and kind == "real" else tmp_path) / "tried"
                ran = run_into_trouble(whole, draw, folder, kind)
                ended["with an error" if ran.status else "well"] += 1
                if ran.status:
                    assert ran.status == 1, f"exit code {ran.status}: {ran.told}"
                    assert "internal error" not in ran.told and ran.told.count("\n") == 1, f"not one line: {ran.told}"
                    assert str(folder) in ran.told, f"no path is named: {ran.told}"
                whole.complete(folder, f"{ran.status} {ran.told}")
    trial.facts |= {f"kind {kind}": number for kind, number in sorted(kinds.items())}
    trial.facts |= {f"ended {how}": number for how, number in ended.items()}
    trial.facts["a real full file system"] = "tried" if disk else "not tried: this process may not mount one"


def run_into_trouble(whole: Undisturbed, draw: random.Random, folder: Path, kind: str) -> Run:
    """A stage that met its trouble: tried again with less room where it had enough."""
    size = sum(len(value) for value in whole.new.values() if isinstance(value, bytes))
    for _ in range(12):
        whole.begin(folder)
        at, room = draw.randint(1, whole.steps), draw.randrange(size)
        if kind == "real":
            with filled(folder.parent, room):
                ran = whole.run(folder)
        else:
            ran = whole.run(folder, {"kind": kind, "at": at, "bytes": room // 8})
        if ran.status or kind in ("error", "short"):
            return ran
        size = max(1, size // 2)
    raise AssertionError("twelve runs met no trouble: nothing was tried")
