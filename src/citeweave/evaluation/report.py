"""A report of an evaluation on disk: report.json, and its numbers as Markdown, HTML and MTEB results.

    report/report.json      suite, model, metrics (percent, flat names), intervals, per_query, coverage, ...
    report/report.md        the tables
    report/report.html      tables and charts in one page that loads nothing
    report/map.html         with --map: the papers on a map, colored by topic
    report/runs/TASK.run    TREC runs of the ranking tasks
    report/mteb/TASK.json   the same numbers in MTEB's format

Per-query values come first; metrics and averages are derived from them.

The page is one file that loads nothing: no script, no address elsewhere, charts as inline SVG. Numbers stand beside bars,
so that a chart needs no labels and shrinks to a phone. Heat maps are tables, so that their numbers can be read, copied and
heard; a cell's shade runs from the lowest value of its column, palest, to the highest. Per-query values are summarized: a
page about thousands of queries stays small, and report.json holds every row. Probes have a prediction and no value for each
paper, so they have no histogram. The map of papers is a file of its own (`paper_map.py`); the page has a small picture of it
and a link. Does not evaluate and does not compare: see `evaluate.py` and `compare.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import Manifest, check_named_files, read_manifest
from citeweave.core.errors import ArtifactError
from citeweave.core.files import link_or_copy, new_file, read_input, write_json
from citeweave.core.notebook import Tabular, html_table
from citeweave.evaluation import html
from citeweave.evaluation.html import Block
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.paper_map import MAP_FILE, MapData, map_as_page, preview
from citeweave.evaluation.query_tables import (
    MetricSpread,
    collect_spreads,
    count_queries,
    list_extreme_queries,
    per_query_metrics,
)

KIND, VERSION = "report", 2
REPORT, PAGE = "report.json", "report.html"

MAX_CARDS, MAX_HISTOGRAMS, MAX_FIELDS, MAX_COLUMNS = 8, 12, 40, 8

_SHADED = ("note", "Shades run from the lowest to the highest value of each column.")
_DASHED = ("note", "One value per query, in percent. The dashed line is the mean.")
_ABOUT_METRICS = ("note", "Values are in percent. Intervals are bootstrap intervals over queries or test papers.")
_ABOUT_COVERAGE = ("note", "Counts of 0 are left out; gaps are marked with ▲.")

Value = Mapping[str, Any]

_NEEDED = ("suite", "model", "metrics", "headline", "coverage", "tasks", "per_query")


class Report(Tabular):
    """The report of an evaluation: metrics in percent with intervals, per-query values, coverage.

    `Report.open("report/").metrics["cite.map"]` is a number, `to_pandas()` a table, `value` the content of report.json.
    """

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

    def __repr__(self) -> str:
        size = f"{len(self.value['tasks']):,} tasks, {len(self.metrics):,} metrics"
        return f"Report({str(self.folder)!r}: {self.name} on {self.value['suite']}, {size})"

    @property
    def name(self) -> str:
        """The name of the evaluated system."""
        return str(self.value["model"]["name"])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the report in percent, by flat names such as `cite.map`."""
        return dict(self.value["metrics"])

    def records(self) -> list[dict[str, Any]]:
        """Return one row per metric in percent with the ends of its interval, also those of `to_pandas`; averages first."""
        named = {
            f"{task}.{metric}": (task, metric) for task, about in self.value["tasks"].items() for metric in about["how"]
        }
        rows = {name: named.get(name, ("", name)) for name in sorted(self.metrics, key=lambda name: name in named)}
        ends = {name: dict(zip(("low", "high"), _interval(self.value, name), strict=True)) for name in rows}
        return [{"task": t, "metric": m, "percent": self.metrics[name], **ends[name]} for name, (t, m) in rows.items()]

    def _repr_html_(self) -> str:
        return html_table(
            self.records(), f"{self.name} on {self.value['suite']}", notes=["In percent, with 95 % intervals."]
        )

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each task of the report, with its per-query rows."""
        value = self.value
        return [
            Outcome.of_json(
                {**about, "task": task, "rows": value["per_query"][task], "coverage": value["coverage"][task]}
            )
            for task, about in value["tasks"].items()
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
    matches: Sequence[Block] = (),
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
        _ABOUT_METRICS[1],
        *_section("Averages", [f"{name}: {note}" for name, note in value.get("averages", {}).items() if note]),
        *_section("Not evaluated", [f"{task}: {why}" for task, why in value["not_evaluated"].items()]),
        *_section("Remarks", remarks_of(value)),
        "",
        "## Coverage",
        "",
        *markdown_table(
            ["task", "what", "number"], [[task, what, f"{count:,}"] for task, what, count in _counts(value)]
        ),
        "",
        "## How",
        "",
        *markdown_table(["option", "value"], [[*option] for option in {**value["options"], **value["model"]}.items()]),
        "",
    ]
    return "\n".join(parts)


def _metric_rows(value: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, percent in value["metrics"].items():
        span = value.get("intervals", {}).get(name)
        rows.append([name, f"{percent:.2f}", f"{span[0]:.2f} to {span[1]:.2f}" if span else ""])
    return rows


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {_cell(line)}" for line in lines)] if lines else []


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
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


# --- HTML ------------------------------------------------------------------------------------------------


def report_as_page(value: Value, *, map_data: MapData | None = None, matches: Sequence[Block] = ()) -> str:
    """Return a report's HTML page: metrics, charts, matching sentences, map, coverage, and how it was evaluated."""
    spreads, tasks = collect_spreads(value), value["tasks"]
    panels = [_histogram(spread) for spread in spreads[:MAX_HISTOGRAMS]]
    chosen = [[task, about["kind"], html.plain_value(about["chosen"])] for task, about in tasks.items()]
    sections: dict[str, list[Block]] = {
        "Not evaluated": [("bullets", [f"{task}: {why}" for task, why in value["not_evaluated"].items()])],
        "Metrics": [html.bar_table(_bar_groups(value), "metric"), _ABOUT_METRICS, ("bullets", _averages(value))],
        "Tasks and metrics": [_task_map(value), _SHADED],
        "Fields": [*_field_maps(value), _SHADED],
        "Queries": [("histograms", panels), _left_out(len(spreads) - len(panels), "more tasks"), _DASHED],
        "Lowest and highest queries": list_extreme_queries(value, spreads),
        "Matching sentences": list(matches),
        "Map of papers": [("preview", map_data and preview(map_data))],
        "Coverage": [
            html.table(["task", "what", "number"], _coverage(value), numeric=[2], kind="gaps"),
            _ABOUT_COVERAGE,
        ],
        "Remarks": [("bullets", remarks_of(value))],
        "How it was evaluated": [html.table(["task", "kind", "chosen"], chosen), ("details", list(_metadata(value)))],
    }
    lost = len(value["not_evaluated"])
    summary = [f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}", *count_queries(value)]
    warning, heading = f"{lost} not evaluated" if lost else "", (value["model"]["name"], f"on {value['suite']}", "")
    return html.render_report(heading, sections, summary=summary, warning=warning, cards=_cards(value))


# --- metrics ---------------------------------------------------------------------------------------------


def _cards(value: Value) -> list[tuple[str, float, str]]:
    """Return the metrics that stand first on a report's page, each with its interval or what it averages."""
    metrics, notes = value["metrics"], value.get("averages", {})
    averages, headline = ([name for name in names if name in metrics] for names in (notes, value["headline"]))
    names = [*averages, *headline] if len(averages) + len(headline) <= MAX_CARDS else averages or headline
    cards = []
    for name in (names or list(metrics))[:MAX_CARDS]:
        ends = [html.format_number(end) for end in _interval(value, name) if html.is_number(end)]
        cards.append((name, metrics[name], f"95 %: {' to '.join(ends)}" if len(ends) == 2 else notes.get(name, "")))
    return cards


def _interval(value: Value, name: str) -> tuple[float | None, float | None]:
    low, high = value.get("intervals", {}).get(name) or (None, None)
    return low, high


def _bar_groups(value: Value) -> dict[str, list[html.BarRow]]:
    """Return the averages of a report, then the metrics of each task; a single task needs no heading."""
    metrics, groups = dict(value["metrics"]), {}
    for task, about in value["tasks"].items():
        names = {metric: f"{task}.{metric}" for metric in about["how"]}
        groups[task] = [
            html.BarRow(metric, metrics.pop(name), *_interval(value, name)) for metric, name in names.items()
        ]
    if not metrics:
        return groups if len(groups) > 1 else dict(zip([""], groups.values(), strict=True))
    return {"averages": [html.BarRow(name, percent) for name, percent in metrics.items()], **groups}


def _averages(value: Value) -> list[str]:
    notes: dict[str, list[str]] = {}
    for name, note in value.get("averages", {}).items():
        notes.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in notes.items() if note]


# --- behind the means: queries and fields ----------------------------------------------------------------


def _histogram(spread: MetricSpread) -> dict[str, Any]:
    values = np.array(list(spread.values.values()))
    summary = [f"mean {html.format_number(values.mean())}", f"median {html.format_number(np.median(values))}"]
    at_ends = [f"{int((values == end).sum()):,} at {end}" for end in (0, 100) if (values == end).any()]
    return html.histogram(
        values.tolist(), [f"{spread.task} · {spread.metric}", f"{len(values):,} queries", *summary, *at_ends]
    )


def _field_maps(value: Value) -> list[Block]:
    """Return a report's heat map of fields by metrics, means over queries, for each task whose queries have fields."""
    blocks: list[Block] = []
    for task, metrics in per_query_metrics(value).items():
        fields: dict[str, list[Value]] = {}
        for row in value["per_query"][task].values():
            if "field" in row:
                fields.setdefault(str(row["field"]), []).append(row)
        if len(fields) < 2 or len(blocks) >= 3 * MAX_HISTOGRAMS:
            continue
        largest = sorted(fields, key=lambda name: (-len(fields[name]), name))[:MAX_FIELDS]
        shown = metrics[:MAX_COLUMNS]
        means = html.shade_columns([[_mean_percent(fields[name], metric) for metric in shown] for name in largest])
        cells = [[(None, f"{len(fields[name]):,}"), *row] for name, row in zip(largest, means, strict=True)]
        heat = _heat_map(["field", "queries", *shown], largest, cells)
        blocks += [("heading", (task, "")), heat, _left_out(len(fields) - len(largest), "smaller fields")]
    return blocks


def _left_out(count: int, what: str) -> Block:
    return "note", f"{count} {what} are in report.json." if count > 0 else ""


def _mean_percent(rows: Sequence[Value], metric: str) -> float | None:
    known = [row[metric] for row in rows if html.is_number(row.get(metric))]
    return 100 * float(np.mean(known)) if known else None


def _task_map(value: Value) -> Block:
    """Return a report's heat map of tasks by metrics, for suites whose tasks share metrics, as MDCR's fields do."""
    ways = {task: about["how"] for task, about in value["tasks"].items()}
    every = dict.fromkeys(metric for own in ways.values() for metric in own)
    shared = [metric for metric in every if sum(metric in own for own in ways.values()) > 1][:MAX_COLUMNS]
    tasks = [task for task, own in ways.items() if any(metric in own for metric in shared)]
    rows = [[value["metrics"].get(f"{task}.{metric}") for metric in shared] for task in tasks]
    return _heat_map(["task", *shared], tasks, html.shade_columns(rows)) if len(tasks) > 2 else ("heat", None)


def _heat_map(heads: Sequence[str], names: Sequence[str], cells: Sequence[Any]) -> Block:
    rows = [(name, "", row) for name, row in zip(names, cells, strict=True)]
    return "heat", {"heads": [(head, "") for head in heads], "rows": rows, "kind": ""}


# --- how it was evaluated --------------------------------------------------------------------------------


def _coverage(value: Value) -> list[list[Any]]:
    gap = re.compile("without|missing|left out|dropped|zero|unknown")
    return [
        [task, ("▲", what) if gap.search(what) else what, f"{int(count):,}"] for task, what, count in _counts(value)
    ]


def _counts(value: Value) -> list[tuple[str, str, int]]:
    """Return the task, the name and the number of every count of a report that is not 0."""
    return [(task, what, count) for task, own in value["coverage"].items() for what, count in own.items() if count]


def remarks_of(value: Value) -> list[str]:
    """Return the notes of a report: the suite's, the distances, then each task's after its name."""
    own = [f"{task}: {note}" for task, about in value["tasks"].items() for note in about["notes"]]
    return [*value["notes"], *_distances(value), *own]


def _distances(value: Value) -> list[str]:
    """Name the distances that the tasks of a report were ranked by, beside the protocol's.

    >>> ranked = {"distance": "cosine", "protocol": "l2"}
    >>> _distances({"tasks": {"method": {"chosen": ranked}, "all": {"chosen": ranked}, "topic": {"chosen": {}}}})
    ["ranked by cosine, where the protocol's distance is l2: method, all"]
    """
    tasks: dict[str, list[str]] = {}
    for task, about in value["tasks"].items():
        if protocol := about["chosen"].get("protocol"):
            used = about["chosen"]["distance"]
            other = f"where the protocol's distance is {protocol}" if used != protocol else "the protocol's distance"
            tasks.setdefault(f"ranked by {used}, {other}", []).append(task)
    return [f"{line}: {', '.join(names)}" for line, names in tasks.items()]


def _metadata(value: Value) -> Iterable[dict[str, Any]]:
    """Return the options, model, data and versions of a report as tables that are closed until opened."""
    for title in ("options", "model", "data", "versions"):
        if rows := [[name, html.plain_value(each)] for name, each in html.flat_lines(value.get(title, {}))]:
            yield html.table([title, "value"], rows)[1]
