"""Lines of logs as a table: CSFCube by reading, the corpora's means, SciTLDR, seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from weaving.bundle import CORPORA
from weaving.cube import READINGS


def table(logs: Iterable[Path]) -> str:
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    head = ["run/seed/share", *READINGS, "other fold", *CORPORA.values(), "scitldr", "GPU s"]
    return "\n".join(map(_row, [head, ["---"] * len(head), *map(cells_of, lines)]))


def cells_of(line: dict[str, Any]) -> list[str]:
    cube = line["cube"]
    chosen = f"{cube_cell(cube['other_fold'])} {', '.join(cube['other_fold'][5:])}"
    means = ["-" if mean is None else f"{mean:.2f}" for mean in line["means"].values()]
    found = f"{line['suites']['scitldr.search']:.2f}"
    return [line["key"], *(cube_cell(cube[name]) for name in READINGS), chosen, *means, found, f"{line['seconds']:.0f}"]


def cube_cell(values: Sequence[Any]) -> str:
    """MAP / NDCG%20 of all facets, and in brackets MAP of the method facet.

    >>> cube_cell([40.0, 61.5, 52.0, 27.44, 41.0])
    '40.00 / 61.50 (27.4)'
    """
    return f"{values[0]:.2f} / {values[1]:.2f} ({values[3]:.1f})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
