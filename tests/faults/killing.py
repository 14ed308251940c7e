"""Runs a command of citeweave that ends, as by kill -9, just before a file or folder of some name appears for the n-th time.

    killed_before("*/shards*/*.npz", 4, "embed", "corpus", "-o", "vectors")      three shards are there, the fourth is not
    python tests/faults/killing.py '*/shards*/*.npz' 4 embed corpus -o vectors

Whatever is written appears by one rename. The process watches its own renames, so the moment is the same one however busy
the machine is. Processes that torchrun starts again are left alone.
"""

import fnmatch
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping


def killed_before(pattern: str, count: int, *words: object, env: Mapping[str, str] = os.environ) -> bool:
    """Whether the command came to the moment and was killed."""
    command = [sys.executable, __file__, pattern, str(count), *map(str, words)]
    return subprocess.run(command, env=env).returncode == -signal.SIGKILL


def die_before(pattern: str, count: int) -> None:
    """End this process before its `count`-th rename to a path of this pattern."""
    numbers = itertools.count(1)

    def watch(event: str, values: tuple[object, ...]) -> None:
        if event == "os.rename" and fnmatch.fnmatch(os.fsdecode(values[1]), pattern) and next(numbers) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    from citeweave.cli import main

    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        die_before(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
