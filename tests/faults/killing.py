"""Runs a command of citeweave that ends, as by kill -9, just before a file or folder of some name appears for the n-th time.

    killed_before("*/shards*/*.npz", 4, "embed", "corpus", "-o", "vectors")      three shards are there, the fourth is not

Whatever is written appears by one rename. The process watches its own renames, so the moment is the same one however busy
the machine is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

_PROGRAM = """
import fnmatch, os, signal, sys
from citeweave.cli import main

pattern, count = sys.argv[1], int(sys.argv[2])
seen = 0

def watch(event, values):
    global seen
    if event == "os.rename" and fnmatch.fnmatch(os.fsdecode(values[1]), pattern):
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
main(sys.argv[3:])
"""


def killed_before(pattern: str, count: int, *words: object, env: Mapping[str, str] = os.environ) -> bool:
    """Whether the command came to the moment and was killed."""
    command = [sys.executable, "-c", _PROGRAM, pattern, str(count), *map(str, words)]
    return subprocess.run(command, env=env).returncode == -signal.SIGKILL
