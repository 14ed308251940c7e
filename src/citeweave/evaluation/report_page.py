"""The HTML page of a report: metrics with intervals, charts, coverage, options.

    Path("report.html").write_text(report_as_page(report.value), encoding="utf-8")

One file that loads nothing: no script, no address elsewhere, charts as inline SVG. The map of papers is a file of its own
beside the report (`paper_map.py`); here is a small picture of it and a link. Does not compute anything: the numbers come
from report.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from citeweave.evaluation.html import (
    Curve,
    draw_curves,
    escape,
    format_number,
    is_number,
    render_bullets,
    render_contents,
    render_page,
    render_section,
    render_table,
)
from citeweave.evaluation.match_page import render_matches
from citeweave.evaluation.paper_map import MAP_FILE, MapData, draw_preview
from citeweave.evaluation.report_charts import (
    BarRow,
    collect_spreads,
    render_bar_table,
    render_extreme_queries,
    render_field_maps,
    render_histograms,
    render_task_map,
)

if TYPE_CHECKING:
    from citeweave.evaluation.match_page import ExampleMatch


MAX_CARDS = 8
ABOUT_BARS = '<p class="muted">Values are in percent, with 95 % bootstrap intervals.</p>'

_SHADED = '<p class="muted">Shades run from the lowest to the highest value of each column.</p>'
_DASHED = '<p class="muted">One value per query, in percent. The dashed line is the mean.</p>'


def report_as_page(
    value: Mapping[str, Any],
    *,
    curves: Mapping[str, list[tuple[float, float]]] | None = None,
    map_data: MapData | None = None,
    matches: Sequence[ExampleMatch] = (),
) -> str:
    """Return a report's HTML page; curves with the same name before a slash (`loss/train`, `loss/dev`) share a chart."""
    model, suite = value["model"]["name"], value["suite"]
    header = f"<header><h1>{escape(model)} <small>on {escape(suite)}</small></h1>{_counts(value)}{_cards(value)}"
    parts = {
        title: render_section(title, *inside)
        for title, inside in _sections(value, curves or {}, map_data, matches).items()
    }
    body = [
        f"{header}{render_contents(parts)}</header>",
        "<main>",
        *(part for part in parts.values() if part),
        "</main>",
    ]
    return render_page(f"{model} on {suite}", "\n".join(body))


def _sections(
    value: Mapping[str, Any], curves: Mapping[str, Curve], map_data: MapData | None, matches: Sequence[ExampleMatch]
) -> dict[str, tuple[str, ...]]:
    """Return the sections of a report page: title -> parts of HTML, empty strings where there is nothing to show."""
    spreads, tasks, fields = collect_spreads(value), render_task_map(value), render_field_maps(value)
    return {
        "Not evaluated": (render_bullets(f"{task}: {why}" for task, why in value["not_evaluated"].items()),),
        "Metrics": (render_bar_table(_bar_groups(value), "metric"), _about_metrics(value)),
        "Tasks and metrics": (tasks, _SHADED if tasks else ""),
        "Fields": (fields, _SHADED if fields else ""),
        "Queries": (render_histograms(spreads), _DASHED if spreads else ""),
        "Lowest and highest queries": (render_extreme_queries(spreads),),
        "Matching sentences": tuple(render_matches(matches)),
        "Training": (_training(curves),),
        "Map of papers": (_map(map_data),),
        "Coverage": (_coverage(value),),
        "Remarks": (render_bullets(remarks_of(value)),),
        "How it was evaluated": (_task_table(value), _metadata(value)),
    }


def _counts(value: Mapping[str, Any]) -> str:
    queries = sum(len(rows) for rows in value["per_query"].values())
    tasks = len(value["tasks"])
    parts = [f"{tasks} {'task' if tasks == 1 else 'tasks'}", f"{queries:,} evaluated rows"]
    if lost := len(value["not_evaluated"]):
        parts.append(f'<span class="warn">{lost} not evaluated</span>')
    return f'<p class="muted">{" · ".join(parts)}</p>'


def _cards(value: Mapping[str, Any]) -> str:
    metrics = value["metrics"]
    averages = [name for name in value.get("averages", {}) if name in metrics]
    headline = [name for name in value["headline"] if name in metrics]
    names = [*averages, *headline] if len(averages) + len(headline) <= MAX_CARDS else averages or headline
    items = "".join(_card(name, value) for name in (names or list(metrics))[:MAX_CARDS])
    return f'<ul class="cards">{items}</ul>' if items else ""


def _card(name: str, value: Mapping[str, Any]) -> str:
    low, high = _interval(value, name) or (None, None)
    span = f"95 %: {format_number(low)} to {format_number(high)}" if is_number(low) and is_number(high) else ""
    note = span or escape(value.get("averages", {}).get(name, ""), 120)
    return (
        f"<li><span>{escape(name, 60)}</span><b>{format_number(value['metrics'][name])}</b><small>{note}</small></li>"
    )


def _interval(value: Mapping[str, Any], name: str) -> Sequence[float] | None:
    interval: Sequence[float] | None = value.get("intervals", {}).get(name)
    return interval


def _bar_groups(value: Mapping[str, Any]) -> dict[str, list[BarRow]]:
    """Return the averages of a report, then the metrics of each task; a single task needs no heading."""
    metrics, groups = dict(value["metrics"]), {}
    for task, about in value["tasks"].items():
        names = {metric: f"{task}.{metric}" for metric in about["how"]}
        groups[task] = [BarRow(metric, metrics.pop(name), _interval(value, name)) for metric, name in names.items()]
    if not metrics:
        return groups if len(groups) > 1 else dict(zip([""], groups.values(), strict=True))
    return {"averages": [BarRow(name, percent) for name, percent in metrics.items()], **groups}


def _about_metrics(value: Mapping[str, Any]) -> str:
    notes: dict[str, list[str]] = {}
    for name, note in value.get("averages", {}).items():
        notes.setdefault(note, []).append(name)
    about = "Values are in percent. Intervals are bootstrap intervals over queries or test papers."
    lines = [", ".join(names) + f": {note}" for note, names in notes.items() if note]
    return f'<p class="muted">{about}</p>{render_bullets(lines)}'


def _training(curves: Mapping[str, Curve]) -> str:
    groups: dict[str, dict[str, Curve]] = {}
    for name, line in curves.items():
        groups.setdefault(name.partition("/")[0], {})[name] = line
    pictures = "".join(draw_curves(lines) for lines in groups.values())
    return f'<div class="panels large">{pictures}</div>' if pictures else ""


def _map(map_data: MapData | None) -> str:
    if map_data is None:
        return ""
    return f'{draw_preview(map_data)}<p><a href="{MAP_FILE}">Open the map</a>: titles, search, topics to hide and show.</p>'


def _coverage(value: Mapping[str, Any]) -> str:
    rows = [
        [escape(task, 60), _mark_gap(what) if _is_gap(what) else escape(what), f"{int(count):,}"]
        for task, counts in value["coverage"].items()
        for what, count in counts.items()
        if count
    ]
    shown = render_table(["task", "what", "number"], rows, numeric=[2]) if rows else ""
    return f'{shown}<p class="muted">Counts of 0 are left out; gaps are marked with ▲.</p>' if rows else ""


def _is_gap(what: str) -> bool:
    return any(word in what for word in ("without", "missing", "left out", "dropped", "zero", "unknown"))


def _mark_gap(what: str) -> str:
    return f'<span class="warn">▲ {escape(what)}</span>'


def remarks_of(value: Mapping[str, Any]) -> list[str]:
    """Return the notes of a report: the suite's, then each task's after its name."""
    own = [f"{task}: {note}" for task, about in value["tasks"].items() for note in about["notes"]]
    return [*value["notes"], *own]


def _task_table(value: Mapping[str, Any]) -> str:
    rows = [
        [escape(task, 60), escape(about["kind"]), escape(_plain(about["chosen"]), 300)]
        for task, about in value["tasks"].items()
    ]
    return render_table(["task", "kind", "chosen"], rows, numeric=())


def _metadata(value: Mapping[str, Any]) -> str:
    """Return the options, model, data and versions of a report as tables that are closed until opened."""
    parts = []
    for title in ("options", "model", "data", "versions"):
        rows = [[escape(name, 120), escape(_plain(each), 300)] for name, each in _flat(value.get(title, {}))]
        if rows:
            shown = render_table([title, "value"], rows, numeric=())
            parts.append(f"<details><summary>{title}</summary>{shown}</details>")
    return "".join(parts)


def _flat(metadata: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Return nested metadata of a report as flat lines.

    >>> _flat({"files": {"a.json": "12ab"}, "papers": 3})
    [('files / a.json', '12ab'), ('papers', 3)]
    """
    lines: list[tuple[str, Any]] = []
    for name, each in metadata.items():
        inside = isinstance(each, Mapping) and each
        lines += _flat(each, f"{before}{name} / ") if inside else [(f"{before}{name}", each)]
    return lines


def _plain(each: Any) -> str:
    if isinstance(each, Mapping):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in each.items())
    if isinstance(each, list | tuple):
        return ", ".join(_plain(inner) for inner in each)
    if isinstance(each, bool):
        return "yes" if each else "no"
    return "–" if each is None or each == "" else str(each)
