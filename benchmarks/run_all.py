"""Runs every benchmark that needs no GPU at a small size, one after the other; each prints one table.

`gpu_speed.py`, `gpu_sentences.py` and `learning.py` want a GPU and are run by hand.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNS = [
    ["import_citations.py", "--records", "2000000", "--papers", "100000"],
    ["synthesize.py", "--papers", "100000"],
    ["synthetic_hardness.py", "--seeds", "0"],
    ["leakage.py"],
    ["graph.py", "--papers", "100000", "--queries", "10000", "--peer-queries", "2000", "--slow-papers", "20000"],
    ["evaluation.py"],
    ["aspects.py", "--papers", "200", "--queries", "100"],
    ["transport.py", "--candidates", "2000", "--rounds", "2", "--peer-pairs", "20"],
    ["sentence_search.py", "speed", "--sentences", "20000"],
    ["probes.py", "--papers", "2000", "--dimension", "128"],
    ["cpu_embedding.py", "--papers", "30", "--rounds", "1"],
    ["mining.py", "--pool", "20000", "--queries", "2000", "--peer-queries", "500"],
]


def main() -> None:
    failed = []
    for script, *arguments in RUNS:
        print(f"\n== {script} {' '.join(arguments)}", flush=True)
        command = [sys.executable, str(Path(__file__).parent / script), *arguments]
        if subprocess.run(command).returncode:
            failed.append(script)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
