"""Runs commands of citeweave in forks of a process that has loaded everything.

    python -m tests.faults.counted.command_server        a line of JSON in, a line of JSON out

    {"words": ["graph", ...], "told": "file", "trouble": {"kind": "kill", "at": 17}, "kill_after": null, "folder": null}
    {"status": -9, "steps": 17, "seconds": 0.31}

Each command is a process of its own, as from the shell, without the seconds that importing takes. What it prints goes to
the file `told`. `steps` counts what reached the file system, as `troubles.py` sees it. With `"here": true` a command runs
in the server itself, so that the forks find compiled functions loaded.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import pkgutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from . import troubles

LONGEST = 120.0
"""Seconds after which a command is taken for hung."""

NOT_NEEDED = ("baselines", "intents", "kernels", "pipeline", "stores", "serve", "cloud", "scale", "__main__")
"""Words in the names of modules that no stage needs, and that load much, or what starts threads."""


def main() -> None:
    load_everything()
    tell("ready")
    for line in sys.stdin:
        tell(run(json.loads(line)))


def tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def load_everything() -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer, BertModel  # noqa: F401

    import citeweave

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(citeweave.__path__, "citeweave."):
        if not any(word in module.name for word in NOT_NEEDED):
            importlib.import_module(module.name)


def run(request: dict[str, Any]) -> dict[str, Any]:
    counter = mmap.mmap(-1, 8)
    start = time.monotonic()
    if request.get("here"):
        return {"status": citeweave(request["words"]), "steps": 0, "seconds": time.monotonic() - start}
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: forks could hang"
    child = os.fork()
    if child == 0:
        os._exit(command(request, counter))
    status = wait(child, start, request.get("kill_after"))
    return {"status": status, "steps": troubles.read_count(counter), "seconds": time.monotonic() - start}


def wait(child: int, start: float, kill_after: float | None) -> int:
    """The exit code of a child, or minus the signal that ended it."""
    end = LONGEST if kill_after is None else kill_after
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - start >= end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.0005)


def command(request: dict[str, Any], counter: mmap.mmap) -> int:
    """What a shell would start: its own group, its own output, the words of a command."""
    os.setsid()
    told = os.open(request["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(told, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request.get("folder") or ".")
    troubles.begin(request.get("trouble"), counter)
    return citeweave(request["words"])


def citeweave(words: list[str]) -> int:
    """The exit code of a command."""
    from citeweave.cli import main

    try:
        main(words)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException as error:
        sys.stderr.write(f"{error!r} escaped\n")
        return 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()
