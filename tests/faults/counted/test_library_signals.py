"""Signals while `citeweave explore` serves a library and vectors are made behind it: all ends, nothing is lost.

After Ctrl-C, SIGTERM and the end of the terminal both processes end in order; after kill -9 the process behind ends by
itself. The index is sound, and the next start finishes it. The moment is a number of papers that have their vectors.
"""

import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from citeweave.search.describe import describe_folder

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
PAPERS, PATIENCE = 200, 300.0
"""Seconds guard against a hang."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs the list of processes of Linux")


def test_library_signals(trial, bert, tmp_path):
    source = tmp_path / "many.bib"
    entries = (f"@article{{k{n}, title={{the cell {n} grows in graphs}}}}\n" for n in range(PAPERS))
    source.write_text("".join(entries))
    for seed in trial.numbers(quick=1, whole=10 * len(SIGNALS)):
        name, after = SIGNALS[seed % len(SIGNALS)], random.Random(seed).randint(0, PAPERS // 2)
        folder = tmp_path / f"library-{seed}"
        words = ["explore", str(source), "--folder", str(folder), "--model", str(bert), "--runtime", "torch"]
        command = [sys.executable, "-m", "citeweave", *words]
        with trial.attempt(f"seed {seed}: {name} after {after} papers"):
            behind, told, status = serve_and_send(command, name, after)
            assert name == "SIGKILL" or (status == 0 and "Traceback" not in told), told
            wait_for_end_of(behind)
            assert describe_folder(folder / "index", verify=True)["papers"] == PAPERS
            done = subprocess.run([*command, "--once", "--json"], capture_output=True, text=True, check=True)
            assert json.loads(done.stdout)["with_vectors"] == PAPERS


def serve_and_send(command: list[str], name: str, after: int) -> tuple[set[int], str, int]:
    """Start, wait for so many vectors, send the signal: the processes behind, the last words, the exit status."""
    with subprocess.Popen([*command, "--no-browser"], stderr=subprocess.PIPE, text=True) as process:
        found = (re.search(r"http://127\.0\.0\.1:\d+/", line) for line in process.stderr)
        address = next(match[0] for match in found if match)
        behind: set[int] = set()
        while not behind or with_vectors(address) < after:
            behind |= children_of(process.pid)
            time.sleep(0.1)
        process.send_signal(getattr(signal, name))
        told = process.communicate(timeout=PATIENCE)[1]
        return behind, told, process.returncode


def with_vectors(address: str) -> int:
    with urllib.request.urlopen(f"{address}health", timeout=PATIENCE) as answer:
        return int(json.load(answer)["with_vectors"])


def children_of(number: int) -> set[int]:
    lists = Path(f"/proc/{number}/task").glob("*/children")
    return {int(child) for children in lists for child in children.read_text().split()}


def wait_for_end_of(numbers: set[int]) -> None:
    """Until no process is there, or only its exit status."""
    end = time.monotonic() + PATIENCE
    for number in numbers:
        with contextlib.suppress(OSError):
            while Path(f"/proc/{number}/cmdline").read_bytes():
                assert time.monotonic() < end, "the work behind goes on"
                time.sleep(0.05)
