"""Commands of citeweave in processes of their own, run by `command_server.py`.

server = CommandServer(folder)
server.run(["graph", ...], {"kind": "kill", "at": 17}).status == -9
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[3]
SERVER = [sys.executable, "-m", "tests.faults.counted.command_server"]

Trouble = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """How a command ended."""

    status: int
    """Exit code, or minus the signal that ended it."""

    steps: int
    seconds: float
    told: str
    """What it printed."""

    def expect_success(self) -> Self:
        assert self.status == 0, f"exit code {self.status}: {self.told}"
        return self


class CommandServer:
    """A process that runs commands in forks of itself; see `command_server.py`."""

    def __init__(self, folder: Path) -> None:
        self._told = folder / "told.txt"
        paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "CITEWEAVE_CACHE": str(folder / "cache")}
        self._process = subprocess.Popen(
            SERVER, cwd=ROOT, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._listen()

    def close(self) -> None:
        self._process.communicate()

    def run(
        self,
        words: list[str],
        trouble: Trouble | None = None,
        *,
        kill_after: float | None = None,
        folder: Path | None = None,
    ) -> Run:
        """A command in a process of its own, in a folder, killed after so many seconds where they are given."""
        place = None if folder is None else str(folder)
        return self._ask(words=words, trouble=trouble, kill_after=kill_after, folder=place)

    def prepare(self, words: list[str]) -> None:
        """A command that makes inputs, in the server itself: what it compiles or loads the later ones find."""
        self._ask(words=words, here=True).expect_success()

    def _ask(self, **request: Any) -> Run:
        assert self._process.stdin is not None
        self._told.write_text("")
        self._process.stdin.write(json.dumps({**request, "told": str(self._told)}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._listen())
        return Run(told=self._told.read_text(encoding="utf-8", errors="replace"), **answer)

    def _listen(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server of commands has ended"
        return line
