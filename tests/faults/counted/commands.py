"""Commands of citeweave in processes of their own: forks of a server that has loaded everything.

    server = CommandServer(folder)
    server.run(["graph", ...], {"kind": "kill", "at": 17}).status == -9

As from the shell, without the seconds that importing takes. The server is this module, run as a program: a line of JSON in,
a line of JSON out. `steps` counts what reached the file system, as `troubles.py` sees it.
"""

import contextlib
import importlib
import io
import json
import mmap
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from . import troubles

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 120.0
"""Seconds after which a command is taken for hung."""

NOT_NEEDED = (
    "baselines", "intents", "triton", "pipeline", "search.store", "lance", "milvus", "serve", "remote", "__main__",
)  # fmt: skip
"""Words in the names of modules that no stage needs, and that load much, or what starts threads."""

NOBODY = 65534


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    status: int  # exit code, or minus the signal that ended it
    steps: int
    seconds: float
    memory: int  # largest resident memory in bytes
    out: str
    err: str

    @property
    def told(self) -> str:
        """All that it printed."""
        return self.out + self.err

    def expect_success(self) -> Self:
        assert self.status == 0, f"exit code {self.status}: {self.told}"
        return self


class CommandServer:
    """A process that runs commands in forks of itself; `light` where they only import papers, in little memory."""

    def __init__(self, folder: Path, *, light: bool = False) -> None:
        self._files = [folder / name for name in ("out.txt", "err.txt")]
        paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "CITEWEAVE_CACHE": str(folder / "cache")}
        alone["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # pyarrow's wheel for x86 starts a thread otherwise
        command = [sys.executable, "-m", "tests.faults.counted.commands", *["light"] * light]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, env=alone, text=True, **pipes)
        self._listen()

    def close(self) -> None:
        self._process.communicate()

    def run(self, words: list[str], trouble: Mapping[str, Any] | None = None, **how: Any) -> Run:
        """A command in a process of its own: in a `folder`, killed after `kill_after` seconds, without rights (`nobody`)."""
        return self._ask(words=words, trouble=trouble, **how)

    def prepare(self, words: list[str]) -> None:
        """A command that makes inputs, in the server itself: what it compiles or loads the later ones find."""
        self._ask(words=words, here=True).expect_success()

    def _ask(self, **request: Any) -> Run:
        for path in self._files:
            path.write_text("")
        self._process.stdin.write(json.dumps({**request, "files": self._files}, default=str) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._listen())
        return Run(**answer, **{path.stem: path.read_text("utf-8", "replace") for path in self._files})

    def _listen(self) -> str:
        line = self._process.stdout.readline()
        assert line, "the server of commands has ended"
        return line


# --- the server -------------------------------------------------------------------------------------------


def main() -> None:
    load_readers() if sys.argv[1:] == ["light"] else load_everything()
    tell("ready")
    for line in sys.stdin:
        tell(run(json.loads(line)))


def tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def load_readers() -> None:
    import concurrent.futures.process  # noqa: F401

    import citeweave.corpus.ingest  # noqa: F401
    from citeweave.corpus.readers import FORMATS, reader_of

    all(map(reader_of, FORMATS))
    with contextlib.redirect_stdout(io.StringIO()):
        run_here(["import", "--help"])


def load_everything() -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer, BertModel  # noqa: F401

    import citeweave

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(citeweave.__path__, "citeweave."):
        if not any(word in module.name for word in NOT_NEEDED):
            importlib.import_module(module.name)


def run(request: dict[str, Any]) -> dict[str, Any]:
    counter, start = mmap.mmap(-1, 8), time.monotonic()
    if request.get("here"):
        status, memory = run_here(request["words"]), 0
    else:
        threads = len(list(Path("/proc/self/task").iterdir()))
        assert threads == 1, f"{threads} threads: forks could hang"
        child = os.fork()
        if child == 0:
            os._exit(command(request, counter))
        status, memory = wait(child, start, request.get("kill_after"))
    steps = int.from_bytes(counter[:8], "little")
    return {"status": status, "steps": steps, "seconds": time.monotonic() - start, "memory": memory}


def wait(child: int, start: float, kill_after: float | None) -> tuple[int, int]:
    """The exit code of a child, or minus the signal that ended it; the largest memory that it or one of its own had."""
    end = LONGEST if kill_after is None else kill_after
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024
        if time.monotonic() - start >= end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.0005)


def command(request: dict[str, Any], counter: mmap.mmap) -> int:
    """What a shell would start: its own group, its own output, the words of a command."""
    os.setsid()
    for descriptor, file in enumerate((os.devnull, *request["files"])):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(request.get("folder") or ".")
    if request.get("nobody"):
        os.setegid(NOBODY), os.seteuid(NOBODY)
    troubles.begin(request.get("trouble"), counter)
    return run_here(request["words"])


def run_here(words: list[str]) -> int:
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
