"""How cost grows with size: the steps of a whole literature at several sizes, exponents, and a log-log picture.

    python benchmarks/growth.py                                       0.5 and 5 million citations
    python benchmarks/growth.py --sizes 500000 5000000 50000000       and 50 million

Every size is a run of `literature.py`; queries grow with it, the pool of the bands does not, so that every step ought to
grow in proportion. Exponents are slopes of the line that fits log CPU seconds by log citations best; the goal is 1.15 at
most. Every step is a process of its own, which takes the step on a tiny literature before its clock starts: what loading
compiled code costs would hide growth at small sizes. Import of several shards starts processes, whose start is measured.
The picture goes to docs/pictures/growth.png, the one of memory to growth-memory.png.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import FIGURES, fitted_exponent, write_figures

HERE = Path(__file__).parent
PAPERS, QUERIES, POOL = 0.112, 0.001, 50_000
"""Papers and queries of a citation, as in SciNCL's literature; papers of the pool."""

GOAL = 1.15
MAKING = "shards"
"""The step that makes the literature up: not what is measured."""

Rows = dict[str, dict[str, Any]]


def run_size(citations: int, work: Path, figures: Path) -> Rows:
    """The table of one size, by label without its numbers."""
    queries = max(100, round(QUERIES * citations))
    command = [
        sys.executable,
        str(HERE / "literature.py"),
        *("--papers", str(round(PAPERS * citations)), "--citations", str(citations)),
        *("--queries", str(queries), "--pool", str(POOL), "--triplets", str(5 * queries), "--work", str(work)),
        "--warm",
    ]
    subprocess.run(command, env={**os.environ, FIGURES: str(figures)}, check=True, stdout=sys.stderr)
    rows = [row for line in figures.read_text().splitlines() for row in json.loads(line)["rows"]]
    return {re.sub(r"[\d,.]+", "N", row["label"]).strip(): row for row in rows if row.get("cpu")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500_000, 5_000_000], help="citations")
    parser.add_argument("--pictures", type=Path, default=HERE.parent / "docs" / "pictures")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to work, and go on after a break; default a temporary one"
    )
    options = parser.parse_args()
    found = []
    for citations in options.sizes:
        with tempfile.TemporaryDirectory() as temporary:
            found.append(run_size(citations, options.folder or Path(temporary), Path(temporary) / "figures.jsonl"))
    report(options.sizes, found, options.pictures)


def report(sizes: list[int], found: list[Rows], pictures: Path) -> None:
    """Print exponents, draw, and hand the figures to the suite."""
    steps = [label for label in found[0] if label != MAKING and all(label in rows for rows in found)]
    slopes = {label: fitted_exponent(sizes, [rows[label]["cpu"] for rows in found]) for label in steps}
    print(f"{'CPU s by citations':32}" + "".join(f"{size:>14,}" for size in sizes) + f"{'exponent':>10}")
    for label in steps:
        seconds = "".join(f"{rows[label]['cpu']:14,.2f}" for rows in found)
        print(f"{label:32}{seconds}{slopes[label]:10.2f}{'' if slopes[label] <= GOAL else ' *'}")
    draw(sizes, found, slopes, pictures)
    rows = [
        {
            "label": label,
            **{name: found[-1][label].get(name) for name in ("cpu", "wall", "peak")},
            "growth": slopes[label],
            "remark": "CPU s " + ", ".join(f"{rows[label]['cpu']:,.2f}" for rows in found),
        }
        for label in steps
    ]
    write_figures(f"CPU s at {', '.join(f'{size:,}' for size in sizes)} citations", rows)


def draw(sizes: list[int], found: list[Rows], slopes: dict[str, float], pictures: Path) -> None:
    from citeweave.core.plots import draw_growth

    seconds = {f"{label}: {slope:.2f}": [rows[label]["cpu"] for rows in found] for label, slope in slopes.items()}
    about = {"x_label": "citations", "title": "Cost against size, with exponents"}
    draw_growth(pictures / "growth.png", sizes, seconds, y_label="CPU seconds", **about)
    memory = {label: [rows[label]["peak"] / 2**20 for rows in found] for label in slopes}
    draw_growth(
        pictures / "growth-memory.png",
        sizes,
        memory,
        y_label="resident MiB",
        x_label="citations",
        title="Memory against size",
    )


if __name__ == "__main__":
    main()
