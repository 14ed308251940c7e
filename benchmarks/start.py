"""How long a command takes from its start: help, an index's account, and single questions, each in a new process.

    python benchmarks/start.py --index index/             an index with vectors
    python benchmarks/start.py --papers 500               one of a synthetic literature, made first

CPU seconds (user and system) and wall seconds, the least of `--rounds`. A question's first run on a machine keeps a copy of the
model and is given apart: it begins with an empty cache of its own. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import write_figures

QUESTION = "neural networks for parsing sentences into dependency trees"
PYTHON = f"""
import citeweave as cw
index = cw.Index.open({{index!r}})
for text in ({QUESTION!r}, "maps of citations"):
    cw.answer(index, cw.Query(text=text)).hits
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--papers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        index = str(options.index or make_index(Path(place), options.papers))
        os.environ["CITEWEAVE_CACHE"] = str(Path(place) / "cache")
        print("| command | CPU s | wall s |\n|---|---|---|", flush=True)
        rows = []
        for label, command, rounds in commands(index, options.rounds):
            cpu, wall = least(command, rounds)
            print(f"| {label} | {cpu:.2f} | {wall:.2f} |", flush=True)
            rows.append({"label": label, "cpu": cpu, "wall": wall})
        write_figures("start", rows)


def make_index(place: Path, papers: int) -> Path:
    """Index a synthetic literature with the default model."""
    cli = [sys.executable, "-m", "citeweave"]
    subprocess.run([*cli, "synthesize", str(place / "corpus"), "--papers", str(papers), "--quiet"], check=True)
    index = place / "index"
    subprocess.run([*cli, "index", str(place / "corpus"), "-o", str(index), "--quiet"], check=True)
    return index


def commands(index: str, rounds: int) -> list[tuple[str, list[str], int]]:
    """Return a label, a command and how often it is run, for each line of the table."""
    cli = [sys.executable, "-m", "citeweave"]
    search = [*cli, "search", index]
    found = json.loads(subprocess.check_output([*search, QUESTION, "--by", "words", "--json"]))
    paper = found["hits"][0]["id"] if found["hits"] else ""
    lines = [
        ("the first question, which keeps a copy of the model", [*search, QUESTION], 1),
        ("a question", [*search, QUESTION], rounds),
        ("a question by words alone", [*search, QUESTION, "--by", "words"], rounds),
        ("a paper", [*search, "--paper", paper], rounds if paper else 0),
        ("Python: import, open, two questions", [sys.executable, "-c", PYTHON.format(index=index)], rounds),
        ("`citeweave info index`", [*cli, "info", index], rounds),
        ("`citeweave --help`", [*cli, "--help"], rounds),
        ("`python -c pass`", [sys.executable, "-c", "pass"], rounds),
    ]
    return [line for line in lines if line[2]]


def least(command: list[str], rounds: int) -> tuple[float, float]:
    """Run a command some times; return its least CPU seconds and its least wall seconds."""
    cpu, wall = [], []
    for _ in range(rounds):
        used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall.append(time.perf_counter() - began)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
    return min(cpu), min(wall)


if __name__ == "__main__":
    main()
