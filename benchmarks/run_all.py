"""The benchmarks as one suite: runs them one after the other, keeps what is done, and writes the table of all.

    python benchmarks/run_all.py                          all that need neither GPU nor data, at small sizes
    python benchmarks/run_all.py --size full --only graph,growth
    python benchmarks/run_all.py --list                   names, what they measure, what is run by hand
    python benchmarks/run_all.py --page                   also the table in benchmarks/results.md

A benchmark that is done lies in RESULTS/SIZE/NAME.json with its command, figures, machine, versions and date; it is not
run again unless its command changed or `--again` is given, so that an interrupted suite goes on. Others still run after
one that failed; the exit code is 1 then. The list is `suite.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import FIGURES, processor, versions
from results_page import build_table, write_page
from suite import BENCHMARKS, SIZES

HERE = Path(__file__).parent
PACKAGES = (
    "citeweave",
    "numpy",
    "numba",
    "torch",
    "transformers",
    "sentence-transformers",
    "scikit-network",
    "faiss-cpu",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--results", type=Path, default=HERE.parent / "build" / "benchmarks", help="what is done")
    parser.add_argument("--again", action="store_true", help="run also what is done")
    parser.add_argument("--page", action="store_true", help="write the table in benchmarks/results.md")
    parser.add_argument("--list", action="store_true", help="show the list and run nothing")
    options = parser.parse_args()
    names = _names(options.only)
    if options.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:20}{benchmark.about}" + (f" (by hand: {benchmark.by_hand})" if benchmark.by_hand else ""))
        return
    folder = options.results / options.size
    folder.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not run(name, options.size, folder, again=options.again)]
    done = [json.loads(path.read_text()) for name in BENCHMARKS if (path := folder / f"{name}.json").is_file()]
    print(f"\n{build_table(done)}")
    if options.page:
        write_page(HERE / "results.md", done)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _names(only: str) -> list[str]:
    """Those asked for, or all that are not run by hand."""
    asked = [name.strip() for name in only.split(",") if name.strip()]
    for name in asked:
        if name not in BENCHMARKS:
            sys.exit(f"--only names {name!r}; it must be of {', '.join(BENCHMARKS)}")
    return asked or [name for name, benchmark in BENCHMARKS.items() if not benchmark.by_hand]


def run(name: str, size: str, folder: Path, *, again: bool) -> bool:
    """Run one, unless it is done; whether it is done now."""
    benchmark, place = BENCHMARKS[name], folder / f"{name}.json"
    command = ["python", f"benchmarks/{benchmark.script}", *benchmark.arguments(size)]
    if benchmark.by_hand:
        print(f"== {name} is run by hand, it needs {benchmark.by_hand}: {' '.join(command)}")
        return True
    if not (HERE / benchmark.script).is_file():
        print(f"== {name}: {benchmark.script} is not here; left out")
        return True
    if not again and place.is_file() and json.loads(place.read_text())["command"] == " ".join(command):
        print(f"== {name} is done: {place}")
        return True
    print(f"\n== {' '.join(command)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        figures, started = Path(temporary) / "figures.jsonl", time.perf_counter()
        ended = subprocess.run(
            [sys.executable, str(HERE / benchmark.script), *(part.format(work=temporary) for part in command[2:])],
            env={**os.environ, FIGURES: str(figures)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        print(ended.stdout, flush=True)
        if ended.returncode:
            return False
        tables = [json.loads(line) for line in figures.read_text().splitlines()] if figures.is_file() else []
    _keep(place, name, " ".join(command), time.perf_counter() - started, tables, ended.stdout)
    return True


def _keep(place: Path, name: str, command: str, seconds: float, tables: list[dict[str, Any]], printed: str) -> None:
    record = {
        "name": name,
        "command": command,
        "seconds": seconds,
        "tables": tables,
        "machine": f"{os.cpu_count()} cores of {processor()}, {platform.system()}",
        "versions": versions(*PACKAGES),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "printed": printed,
    }
    new = place.with_suffix(".new")
    new.write_text(json.dumps(record, indent=1, ensure_ascii=False))
    new.replace(place)


if __name__ == "__main__":
    main()
