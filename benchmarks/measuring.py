"""What the benchmarks share: the cost of one step in a process of its own, the peak of memory, the printed table.

def step(clock, size):
    prepare(size)                # imports, warm-up, opening of files: not measured
    with clock:
        work(size)
    return {"edges": 10}

cost = run_step(step, 1000)      # cost.cpu, cost.wall, cost.peak, cost.start, cost.found["edges"]

Where the environment names a file in CITEWEAVE_BENCH_JSON, tables go there too, one JSON object a line: `run_all.py`
collects them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from citeweave.core import executor

FIGURES = "CITEWEAVE_BENCH_JSON"
"""The variable that names the file for tables."""


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


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step took."""

    cpu: float
    """User and system seconds of all threads, and of child processes that ended."""

    wall: float
    peak: int
    """Bytes resident at most, imports and pages of mapped files included."""

    start: int
    """Bytes resident when the clock started: imports, compiled code, what was prepared."""

    found: dict[str, Any]
    """What the step returned."""


class Clock:
    """Measures one `with` block of a step."""

    def __init__(self, *, children: bool = False) -> None:
        self.cpu = self.wall = 0.0
        self.peak = self.start = 0
        self._family = PeakMemory() if children else None

    def __enter__(self) -> Clock:
        gc.collect()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        self.start = _status("VmRSS")
        if self._family is not None:
            self._family.__enter__()
        self.wall, self.cpu = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, _cpu_seconds() - self.cpu
        self.peak = _status("VmHWM")
        if self._family is not None:
            self._family.__exit__()
            self.peak = max(self.peak, self._family.peak)


Step = Callable[..., dict[str, Any]]


def run_step(step: Step, *arguments: Any, children: bool = False) -> Cost:
    """Run a step in a new process, so that its peak of memory is its own; `children` where it starts processes.

    Says on stderr what it took, so that a long run which fails at its end has not been for nothing.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        cost = pool.submit(_measured, step, arguments, children).result()
    name = " ".join([step.__name__, *(argument for argument in arguments if isinstance(argument, str))])
    figures = f"{cost.cpu:,.2f} CPU s, {cost.wall:,.2f} s, {cost.peak / 2**20:,.0f} MiB"
    print(f"{name}: {figures}", file=sys.stderr, flush=True)
    return cost


def _measured(step: Step, arguments: tuple[Any, ...], children: bool) -> Cost:
    clock = Clock(children=children)
    found = step(clock, *arguments)
    return Cost(clock.cpu, clock.wall, clock.peak, clock.start, found)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; a line without a cost stands for a peer that is skipped, or for a heading."""

    label: str
    cost: Cost | None = None
    times: float = 1.0
    """Seconds are multiplied by this: an extrapolation, which the label must name."""

    beside: Row | None = None
    """The line of ours that it is compared with."""

    growth: float | None = None
    """Exponent of CPU seconds by size."""

    remark: str = ""

    @property
    def cpu(self) -> float:
        return 0.0 if self.cost is None else self.cost.cpu * self.times


def print_table(title: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """`ratio` is CPU seconds of the line over those of ours."""
    width = max(len(row.label) for row in rows) + 2
    grown = any(row.growth is not None for row in rows)
    print(f"\n{title}")
    head = f"{'':{width}}{'CPU s':>12}{'wall s':>12}{'peak MiB':>10}{'at start':>10}{'ratio':>8}"
    print(head + (f"{'growth':>8}" if grown else ""))
    for row in rows:
        print(_line(row, width, grown).rstrip())
    for note in notes:
        print(f"  {note}")
    write_figures(title, [figures_of(row) for row in rows], notes)


def figures_of(row: Row) -> dict[str, Any]:
    """A line as plain data; a heading has its label alone."""
    if row.cost is None:
        return {"label": row.label, "remark": row.remark}
    return {
        "label": row.label,
        "cpu": row.cpu,
        "wall": row.cost.wall * row.times,
        "peak": row.cost.peak,
        "ratio": row.cpu / row.beside.cpu if row.beside is not None and row.beside.cpu else None,
        "growth": row.growth,
        "remark": row.remark,
    }


def write_figures(title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Append a table to the file that the environment names; nothing where it names none.

    Keys that the suite knows: label, cpu and wall (seconds), peak (bytes), ratio (to ours), growth, remark; others stand
    in its table as they are.
    """
    if place := os.environ.get(FIGURES):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"title": title, "rows": list(rows), "notes": list(notes)}) + "\n")


def _line(row: Row, width: int, grown: bool) -> str:
    if row.cost is None:
        return f"{row.label:{width}}{row.remark}"
    seconds = f"{row.cpu:12,.2f}{row.cost.wall * row.times:12,.2f}"
    memory = f"{row.cost.peak / 2**20:10,.0f}{row.cost.start / 2**20:10,.0f}"
    ratio = "" if row.beside is None or not row.beside.cpu else f"{row.cpu / row.beside.cpu:.2f}"
    growth = f"{'' if row.growth is None else f'{row.growth:.2f}':>8}" if grown else ""
    return f"{row.label:{width}}{seconds}{memory}{ratio:>8}{growth}  {row.remark}"


def exponent(large: float, small: float, ratio: float) -> float:
    """The x in large = small * ratio ** x.

    >>> exponent(20.0, 2.0, 10.0)
    1.0
    """
    return math.log(large / small) / math.log(ratio)


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the line that fits log cost by log size best, by least squares.

    >>> round(fitted_exponent([1, 10, 100], [2, 20, 200]), 6)
    1.0
    """
    across, up = ([math.log(value) for value in values] for values in (sizes, costs))
    middle, height = sum(across) / len(across), sum(up) / len(up)
    spread = sum((x - middle) ** 2 for x in across)
    return sum((x - middle) * (y - height) for x, y in zip(across, up, strict=True)) / spread


def missing(module: str, pip: str) -> Row | None:
    """A line that says how to install a peer, where it is not installed."""
    if importlib.util.find_spec(module) is not None:
        return None
    return Row(f"  {module}", remark=f"skipped, not installed: pip install {pip}")


def versions(*packages: str) -> str:
    """Which releases were measured, of those that are installed.

    >>> versions("no-such-package")
    ''
    """
    found = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


_INSTRUCTIONS = (
    "avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""Instruction sets that decide how fast vectors are multiplied, as Linux spells them."""


def processor() -> str:
    """The processor and those of its instruction sets that matter here, as far as the system says.

    >>> bool(processor())
    True
    """
    flags = executor.instruction_sets()
    return " ".join([executor.processor(), *(f"+{flag}" for flag in _INSTRUCTIONS if flag in flags)])


def _cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


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
