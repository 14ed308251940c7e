"""What the benchmarks share: the peak of memory over a process and its children."""

from __future__ import annotations

import os
import threading
from pathlib import Path


class PeakMemory:
    """Largest proportional set size (shared pages counted once) and anonymous memory of this process and its children."""

    def __enter__(self) -> PeakMemory:
        self.peak = self.anonymous = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.25):
            totals = [_memory(pid) for pid in _family(os.getpid())]
            self.peak = max(self.peak, sum(total for total, _ in totals))
            self.anonymous = max(self.anonymous, sum(anonymous for _, anonymous in totals))


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except OSError:
        found = []
    return [pid, *(grandchild for child in found for grandchild in _family(child))]


def _memory(pid: int) -> tuple[int, int]:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
    return values.get("Pss", 0), values.get("Anonymous", 0)
