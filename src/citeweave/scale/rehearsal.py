"""Work without papers and models, to try a crew: numbers that take time, fail, or end their process.

    Work("citeweave.scale.rehearsal:squares", {"wait": 0.1})                  the square of a number, after a while
    Work("citeweave.scale.rehearsal:squares", {"failing": [3]})               shard 3 always fails
    Work("citeweave.scale.rehearsal:squares", {"dying": [3], "marks": "/tmp/m"})    shard 3 ends its process once

Makes nothing of use: for tests, and to see whether a cluster holds what it promises.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from citeweave.crew import Make
from citeweave.errors import UserError


def squares(
    wait: float = 0.0,
    failing: Sequence[int] = (),
    full: Sequence[int] = (),
    dying: Sequence[int] = (),
    marks: str = "",
    together: int = 0,
    needs: str = "",
    unless: str = "",
) -> Make:
    """The function of a worker; `marks` is a folder in which each death and each number made leaves a file.

    No number is made before `together` processes are there. `needs` is a path without which a node cannot work, `unless` the beginning of one that is missed by nobody.
    """
    needs = os.path.expandvars(needs)
    if needs and not Path(needs).exists() and not (unless and needs.startswith(unless)):
        raise UserError(f"{needs} does not exist; give a folder that holds a corpus")

    def make(number: int) -> bytes:
        time.sleep(wait)
        if together:
            _wait_for_others(Path(marks), together)
        if number in failing:
            raise ValueError(f"number {number} fails")
        if number in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if number in dying and _first(Path(marks) / f"died-{number}"):
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows either ends it at once
        if marks:
            with (Path(marks) / f"made-{number}").open("a") as file:
                file.write(f"{os.getpid()}\n")
        return str(number * number).encode()

    return make


def _wait_for_others(marks: Path, together: int) -> None:
    """Until so many processes are at work."""
    (marks / f"at-work-{os.getpid()}").touch()
    while len(list(marks.glob("at-work-*"))) < together:
        time.sleep(0.01)


def _first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
