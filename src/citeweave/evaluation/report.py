"""A report of an evaluation on disk: report.json, and its numbers as Markdown, HTML and MTEB results.

    report/report.json      suite, model, metrics (percent, flat names), intervals, per_query, coverage, ...
    report/report.md        the tables
    report/report.html      tables and charts in one page that loads nothing
    report/map.html         with --map: the papers on a map, colored by topic
    report/runs/TASK.run    TREC runs of the ranking tasks
    report/mteb/TASK.json   the same numbers in MTEB's format

Per-query values come first; metrics and averages are derived from them. Does not evaluate and does not compare: see
`evaluate.py` and `compare.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.artifact import Manifest, check_named_files, read_manifest
from citeweave.core.errors import ArtifactError
from citeweave.core.files import link_or_copy, new_file, read_input, write_json
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.paper_map import MAP_FILE, MapData, map_as_page
from citeweave.evaluation.report_page import remarks_of, report_as_page

if TYPE_CHECKING:
    from citeweave.evaluation.match_page import ExampleMatch


KIND, VERSION = "report", 1
REPORT, PAGE = "report.json", "report.html"

_NEEDED = ("suite", "model", "metrics", "headline", "coverage", "tasks", "per_query")


class Report:
    """A finished report: its folder, its manifest and the content of report.json."""

    def __init__(self, folder: Path, manifest: Manifest, value: Mapping[str, Any]) -> None:
        self.folder, self.manifest, self.value = folder, manifest, value

    @classmethod
    def open(cls, folder: str | Path) -> Report:
        """Open a report's folder; raises ArtifactError where report.json is missing or damaged."""
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        try:
            check_named_files(folder, manifest, [REPORT])
            value = json.loads(read_input(folder / REPORT))
        except (ArtifactError, OSError, ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or not all(name in value for name in _NEEDED):
            raise ArtifactError(f"{folder / REPORT} is missing or damaged; evaluate again")
        return cls(folder, manifest, value)

    @property
    def name(self) -> str:
        """The name of the evaluated system."""
        return str(self.value["model"]["name"])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the report in percent, by flat names such as `cite.map`."""
        return dict(self.value["metrics"])

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each task of the report, with its per-query rows."""
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
        """Return task -> file of its TREC run, for the ranking tasks of the report."""
        paths = {task: _run_path(self.folder, name) for task, name in file_names(self.value["tasks"]).items()}
        return {task: path for task, path in paths.items() if path.is_file()}


def write_report(
    value: Mapping[str, Any],
    folder: Path,
    runs: Mapping[str, Path],
    map_data: MapData | None = None,
    matches: Sequence[ExampleMatch] = (),
) -> None:
    """Write a report in every format into a folder; `runs` are finished TREC runs, which are hard-linked or copied."""
    write_json(folder / REPORT, value)
    (folder / "report.md").write_text(_report_as_markdown(value), encoding="utf-8")
    (folder / PAGE).write_text(report_as_page(value, map_data=map_data, matches=matches), encoding="utf-8")
    if map_data is not None:
        title = f"{value['model']['name']} on {value['suite']}"
        (folder / MAP_FILE).write_text(map_as_page(map_data, title=title, back=PAGE), encoding="utf-8")
    names = file_names(value["tasks"])
    for task, result in _report_as_mteb(value).items():
        (folder / "mteb").mkdir(exist_ok=True)
        write_json(folder / "mteb" / f"{names[task]}.json", result)
    for task, run in runs.items():
        link_or_copy(run, _run_path(folder, names[task]))


def write_run(path: Path, outcome: Outcome, tag: str) -> None:
    """Write a report's TREC run of a task, `query Q0 paper rank score tag`, best first; complete or not at all."""
    with new_file(path) as file:
        for query, ranked in outcome.ranked.items():
            first, last = f"{_word(query)} Q0", _word(tag)
            for place, (paper, score) in enumerate(ranked, 1):
                file.write(f"{first} {_word(paper)} {place} {score:.9g} {last}\n".encode("utf-8", "replace"))


def file_names(tasks: Iterable[str]) -> dict[str, str]:
    """Return task -> a file name for its run and its MTEB result in a report's folder, distinct for each task.

    >>> file_names(["Computer Science/x", "Computer Science x"])
    {'Computer Science/x': 'Computer_Science_x', 'Computer Science x': 'Computer_Science_x-2'}
    """
    names: dict[str, str] = {}
    for task in tasks:
        plain = re.sub(r"[^\w.%-]+", "_", task).strip("_.") or "task"
        name, number = plain, 1
        while name in names.values():
            number += 1
            name = f"{plain}-{number}"
        names[task] = name
    return names


def _run_path(folder: Path, name: str) -> Path:
    return folder / "runs" / f"{name}.run"


def _word(text: str) -> str:
    """Return an id as one word, since spaces separate the columns of a TREC run."""
    return "_".join(text.split()) or "_"


# --- Markdown --------------------------------------------------------------------------------------------


def _report_as_markdown(value: Mapping[str, Any]) -> str:
    """Return a report as Markdown tables: metrics with intervals, what was not evaluated, coverage, options."""
    parts = [
        f"# {_cell(value['model']['name'])} on {_cell(value['suite'])}",
        "",
        *markdown_table(["metric", "value", "95 % interval"], _metric_rows(value)),
        "",
        "Values are in percent. Intervals are bootstrap intervals over queries or test papers.",
        *_section("Averages", [f"{name}: {note}" for name, note in value.get("averages", {}).items() if note]),
        *_section("Not evaluated", [f"{task}: {why}" for task, why in value["not_evaluated"].items()]),
        *_section("Remarks", remarks_of(value)),
        "",
        "## Coverage",
        "",
        *markdown_table(["task", "what", "number"], _coverage_rows(value)),
        "",
        "## How",
        "",
        *markdown_table(
            ["option", "value"], [[name, str(each)] for name, each in {**value["options"], **value["model"]}.items()]
        ),
        "",
    ]
    return "\n".join(parts)


def _metric_rows(value: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, percent in value["metrics"].items():
        span = value.get("intervals", {}).get(name)
        rows.append([name, f"{percent:.2f}", f"{span[0]:.2f} to {span[1]:.2f}" if span else ""])
    return rows


def _coverage_rows(value: Mapping[str, Any]) -> list[list[str]]:
    return [
        [task, what, f"{number:,}"]
        for task, counts in value["coverage"].items()
        for what, number in counts.items()
        if number
    ]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {_cell(line)}" for line in lines)] if lines else []


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> markdown_table(["metric", "value"], [["map", "88.00"]])
    ['| metric | value |', '| --- | --- |', '| map | 88.00 |']
    """
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: object) -> str:
    """Return untrusted text as a cell of a Markdown table: one line, with bars and markup escaped.

    >>> _cell("a | b" + chr(10) + "<b>")
    'a \\\\| b &lt;b>'
    """
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


# --- MTEB ------------------------------------------------------------------------------------------------


def _report_as_mteb(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return task -> its result as MTEB stores it (results/<model>/<revision>/<Task>.json), fractions instead of percent.

    >>> report = {"suite": "scidocs", "tasks": {"cite": {"how": {"map": "mean"}}}, "metrics": {"cite.map": 88.3},
    ...           "versions": {"citeweave": "0.1"}, "data": {}}
    >>> _report_as_mteb(report)["cite"]["scores"]["test"][0]["main_score"]
    0.883
    """
    split = str(value["data"].get("split", "test"))
    results = {}
    for task, about in value["tasks"].items():
        scores = {_mteb_metric(name): round(value["metrics"][f"{task}.{name}"] / 100, 6) for name in about["how"]}
        if not scores:
            continue
        main = next(iter(scores.values()))
        results[task] = {
            "dataset_revision": str(value["data"].get("hash", "")),
            "task_name": f"{value['suite']}.{task}",
            "mteb_version": f"citeweave {value['versions']['citeweave']}",
            "scores": {split: [{**scores, "main_score": main, "hf_subset": "default", "languages": ["eng-Latn"]}]},
            "evaluation_time": None,
        }
    return results


def _mteb_metric(metric: str) -> str:
    """Return MTEB's name of a metric: `ndcg_cut_10` is `ndcg_at_10`."""
    for ours, theirs in (("_cut_", "_at_"), ("P_", "precision_at_"), ("recall_", "recall_at_")):
        if ours in metric and "_at_" not in metric:
            return metric.replace(ours, theirs, 1)
    return metric
