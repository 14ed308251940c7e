"""Reports: what was judged, how, and what came out; per query first, averages derived.

    report/report.json      everything: suite, model, metrics (percent, flat names), intervals, per_query, coverage, ...
    report/report.md        the tables
    report/report.html      tables and pictures in one page that needs nothing else
    report/map.html         where it was asked for: the papers on a map, coloured by topic
    report/runs/TASK.run    TREC runs of the ranking tasks
    report/mteb/TASK.json   the same numbers in MTEB's form

Does not judge and does not compare: see `evaluate` and `compare`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.artefacts.integrity import check_some
from citeweave.artefacts.manifest import Manifest, read_manifest
from citeweave.errors import ArtefactError
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.reporting.map_page import MAP, map_page
from citeweave.evaluation.reporting.map_page import REPORT as PAGE
from citeweave.evaluation.reporting.markdown import as_markdown
from citeweave.evaluation.reporting.mteb import as_mteb
from citeweave.evaluation.reporting.page import as_page
from citeweave.evaluation.reporting.paper_map import MapData
from citeweave.files import link_or_copy, new_file, read_input, write_json

if TYPE_CHECKING:
    from citeweave.evaluation.reporting.matches import ExampleMatch

KIND, VERSION = "report", 1
REPORT = "report.json"

_NEEDED = ("suite", "model", "metrics", "headline", "coverage", "tasks", "per_query")


class Report:
    """A finished report."""

    def __init__(self, folder: Path, manifest: Manifest, value: Mapping[str, Any]) -> None:
        self.folder, self.manifest, self.value = folder, manifest, value

    @classmethod
    def open(cls, folder: str | Path) -> Report:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        try:
            check_some(folder, manifest, [REPORT])
            value = json.loads(read_input(folder / REPORT))
        except (ArtefactError, OSError, ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or not all(name in value for name in _NEEDED):
            raise ArtefactError(f"{folder / REPORT} is missing or damaged; evaluate again")
        return cls(folder, manifest, value)

    @property
    def name(self) -> str:
        """What was judged."""
        return str(self.value["model"]["name"])

    @property
    def metrics(self) -> dict[str, float]:
        """In percent, by flat names such as `cite.map`."""
        return dict(self.value["metrics"])

    def outcomes(self) -> list[Outcome]:
        """The tasks with their rows, as they were judged."""
        return [
            Outcome(
                task,
                about["kind"],
                about["how"],
                self.value["per_query"][task],
                self.value["coverage"][task],
                tuple(about["notes"]),
                about["chosen"],
            )
            for task, about in self.value["tasks"].items()
        ]

    def runs(self) -> dict[str, Path]:
        """Task -> its TREC run, of the tasks that rank."""
        paths = {task: _run_path(self.folder, name) for task, name in file_names(self.value["tasks"]).items()}
        return {task: path for task, path in paths.items() if path.is_file()}


def write_report(
    value: Mapping[str, Any],
    folder: Path,
    runs: Mapping[str, Path],
    map_data: MapData | None = None,
    matches: Sequence[ExampleMatch] = (),
) -> None:
    """Write every form of a report into a folder; `runs` are finished files, which are shared or copied."""
    write_json(folder / REPORT, value)
    (folder / "report.md").write_text(as_markdown(value), encoding="utf-8")
    (folder / PAGE).write_text(as_page(value, map_data=map_data, matches=matches), encoding="utf-8")
    if map_data is not None:
        title = f"{value['model']['name']} on {value['suite']}"
        (folder / MAP).write_text(map_page(map_data, title=title, back=PAGE), encoding="utf-8")
    names = file_names(value["tasks"])
    for task, result in as_mteb(value).items():
        (folder / "mteb").mkdir(exist_ok=True)
        write_json(folder / "mteb" / f"{names[task]}.json", result)
    for task, run in runs.items():
        link_or_copy(run, _run_path(folder, names[task]))


def write_run(path: Path, outcome: Outcome, tag: str) -> None:
    """`query Q0 paper rank score tag`, best first; the file is there whole or not at all."""
    with new_file(path) as file:
        for query, ranked in outcome.ranked.items():
            first, last = f"{_word(query)} Q0", _word(tag)
            for place, (paper, score) in enumerate(ranked, 1):
                file.write(f"{first} {_word(paper)} {place} {score:.9g} {last}\n".encode("utf-8", "replace"))


def file_names(tasks: Iterable[str]) -> dict[str, str]:
    """Names of tasks as names of files, each its own.

    >>> file_names(["Computer Science/x", "Computer Science x"])
    {'Computer Science/x': 'Computer_Science_x', 'Computer Science x': 'Computer_Science_x-2'}
    """
    found: dict[str, str] = {}
    for task in tasks:
        plain = re.sub(r"[^\w.%-]+", "_", task).strip("_.") or "task"
        name, number = plain, 1
        while name in found.values():
            number += 1
            name = f"{plain}-{number}"
        found[task] = name
    return found


def _run_path(folder: Path, name: str) -> Path:
    return folder / "runs" / f"{name}.run"


def _word(text: str) -> str:
    """One word, as the columns of a run are parted by spaces."""
    return "_".join(text.split()) or "_"
