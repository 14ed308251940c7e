"""Reports: what was judged, how, and what came out; per query first, averages derived.

    report/report.json      everything: suite, model, metrics (percent, flat names), intervals, per_query, coverage, ...
    report/report.md        the tables
    report/report.html      tables and pictures in one page that needs nothing else
    report/runs/TASK.run    TREC runs of the ranking tasks
    report/mteb/TASK.json   the same numbers in MTEB's form

Does not judge and does not compare: see `evaluate` and `compare`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from citeweave.errors import ArtefactError
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.reporting.markdown import as_markdown
from citeweave.evaluation.reporting.mteb import as_mteb
from citeweave.evaluation.reporting.page import as_page
from citeweave.files import Manifest, read_manifest, write_json

KIND, VERSION = "report", 1
REPORT = "report.json"


class Report:
    """A finished report."""

    def __init__(self, folder: Path, manifest: Manifest, value: Mapping[str, Any]) -> None:
        self.folder, self.manifest, self.value = folder, manifest, value

    @classmethod
    def open(cls, folder: str | Path) -> Report:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        try:
            value = json.loads((folder / REPORT).read_bytes())
        except (OSError, ValueError, RecursionError):
            raise ArtefactError(f"{folder / REPORT} is missing or damaged; evaluate again") from None
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


def write_report(value: Mapping[str, Any], folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Write every form of a report into a folder."""
    write_json(folder / REPORT, value)
    (folder / "report.md").write_text(as_markdown(value), encoding="utf-8")
    (folder / "report.html").write_text(as_page(value), encoding="utf-8")
    for name, result in as_mteb(value).items():
        (folder / "mteb").mkdir(exist_ok=True)
        write_json(folder / "mteb" / f"{file_name(name)}.json", result)
    for outcome in outcomes:
        if outcome.ranked:
            (folder / "runs").mkdir(exist_ok=True)
            write_run(folder / "runs" / f"{file_name(outcome.task)}.run", outcome, str(value["model"]["name"]))


def write_run(path: Path, outcome: Outcome, tag: str) -> None:
    """`query Q0 paper rank score tag`, best first."""
    tag = re.sub(r"\s+", "_", tag) or "unnamed"
    with path.open("w", encoding="utf-8") as file:
        for query, ranked in outcome.ranked.items():
            for place, (paper, score) in enumerate(ranked, 1):
                file.write(f"{query} Q0 {paper} {place} {score:.9g} {tag}\n")


def file_name(text: str) -> str:
    """A task's name as the name of a file.

    >>> file_name("Computer Science/x")
    'Computer_Science_x'
    """
    return re.sub(r"[^\w.%-]+", "_", text).strip("_.") or "task"
