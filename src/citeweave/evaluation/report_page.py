"""A comparison of systems as one page: the verdicts, each system's values with intervals, and the differences.

A report, or a comparison, as one page that needs nothing else: tables, bars with intervals, heat maps, histograms.

    Path("report.html").write_text(as_page(report.value), encoding="utf-8")

No script, no address of another place; pictures are SVG in the page. The map of papers is a file of its own beside the
report (`map_page`): here stands a small picture of it, and a link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from citeweave.evaluation.html import (
    Curve,
    bullets,
    contents,
    is_number,
    number,
    page,
    section,
    table,
    text,
)
from citeweave.evaluation.html import curves as draw_curves
from citeweave.evaluation.map_page import MAP, preview
from citeweave.evaluation.match_page import match_parts
from citeweave.evaluation.paper_map import MapData
from citeweave.evaluation.report_charts import (
    Gap,
    Line,
    bar_table,
    field_maps,
    gap_table,
    histograms_of,
    spreads_of,
    task_map,
    worst_and_best,
)

if TYPE_CHECKING:
    from citeweave.evaluation.compare import Comparison, Difference
    from citeweave.evaluation.match_page import ExampleMatch


def comparison_as_page(comparison: Comparison) -> str:
    """Bars of the systems under each metric, differences with corrected p-values, and plain sentences."""
    title = " and ".join([", ".join(comparison.systems[:-1]), comparison.systems[-1]])
    values = {
        metric: [
            Line(system, comparison.values[system][metric], comparison.intervals[system][metric])
            for system in comparison.systems
        ]
        for metric in comparison.metrics
    }
    counts = [[text(metric, 80), f"{number:,}"] for metric, number in comparison.queries.items()]
    body = [
        f"<header><h1>Comparison <small>of {text(title, 300)}</small></h1></header><main>",
        section("Verdict", bullets(comparison.sentences)),
        section("Systems", bar_table(values, "system"), _ABOUT_BARS),
        section("Differences", gap_table(_gaps(comparison.differences)), _ABOUT_GAPS),
        section("Compared rows", table(["metric", "rows that all systems answered"], counts)),
        "</main>",
    ]
    return page(f"Comparison of {title}", "\n".join(part for part in body if part))


_ABOUT_BARS = '<p class="muted">Values are in percent, with 95 % bootstrap intervals.</p>'
_ABOUT_GAPS = (
    '<p class="muted">Paired bootstrap over the same queries; p-values are two-sided. The corrected one holds for all '
    "comparisons of this table together (Holm); ✓ marks those below 0.05. Intervals are not corrected.</p>"
)


def _gaps(differences: Sequence[Difference]) -> dict[str, list[Gap]]:
    groups: dict[str, list[Gap]] = {}
    for each in differences:
        gap = Gap(
            f"{each.first} − {each.second}",
            each.points,
            each.low,
            each.high,
            each.p,
            each.corrected,
            each.is_significant,
        )
        groups.setdefault(each.metric, []).append(gap)
    return groups


# A report, or a comparison, as one page that needs nothing else: tables, bars with intervals, heat maps, histograms.

__all__ = ["as_page", "comparison_as_page"]

MOST_CARDS = 8


def as_page(
    value: Mapping[str, Any],
    *,
    curves: Mapping[str, list[tuple[float, float]]] | None = None,
    map_data: MapData | None = None,
    matches: Sequence[ExampleMatch] = (),
) -> str:
    """The report's page. Curves named alike up to a slash, as `loss/train` and `loss/dev`, share a picture."""
    model, suite = value["model"]["name"], value["suite"]
    header = f"<header><h1>{text(model)} <small>on {text(suite)}</small></h1>{_counts(value)}{_cards(value)}"
    parts = {
        title: section(title, *inside) for title, inside in _sections(value, curves or {}, map_data, matches).items()
    }
    body = [f"{header}{contents(parts)}</header>", "<main>", *(part for part in parts.values() if part), "</main>"]
    return page(f"{model} on {suite}", "\n".join(body))


def _sections(
    value: Mapping[str, Any], curves: Mapping[str, Curve], map_data: MapData | None, matches: Sequence[ExampleMatch]
) -> dict[str, tuple[str, ...]]:
    """Title -> what stands under it; empty strings where there is nothing."""
    spreads, tasks, fields = spreads_of(value), task_map(value), field_maps(value)
    return {
        "Not evaluated": (bullets(f"{task}: {why}" for task, why in value["not_evaluated"].items()),),
        "Metrics": (bar_table(_lines(value), "metric"), _about_metrics(value)),
        "Tasks and metrics": (tasks, _SHADED if tasks else ""),
        "Fields": (fields, _SHADED if fields else ""),
        "Queries": (histograms_of(spreads), _DASHED if spreads else ""),
        "Lowest and highest queries": (worst_and_best(spreads),),
        "Matching sentences": tuple(match_parts(matches)),
        "Training": (_training(curves),),
        "Map of papers": (_map(map_data),),
        "Coverage": (_coverage(value),),
        "Remarks": (bullets(_remarks(value)),),
        "How it was judged": (_how(value), _facts(value)),
    }


_SHADED = '<p class="muted">Shades run from the lowest to the highest value of each column.</p>'
_DASHED = '<p class="muted">One value a query, in percent. The dashed line is the mean.</p>'


def _counts(value: Mapping[str, Any]) -> str:
    queries = sum(len(rows) for rows in value["per_query"].values())
    tasks = len(value["tasks"])
    parts = [f"{tasks} {'task' if tasks == 1 else 'tasks'}", f"{queries:,} judged rows"]
    if lost := len(value["not_evaluated"]):
        parts.append(f'<span class="warn">{lost} not evaluated</span>')
    return f'<p class="muted">{" · ".join(parts)}</p>'


def _cards(value: Mapping[str, Any]) -> str:
    metrics = value["metrics"]
    averages = [name for name in value.get("averages", {}) if name in metrics]
    headline = [name for name in value["headline"] if name in metrics]
    names = [*averages, *headline] if len(averages) + len(headline) <= MOST_CARDS else averages or headline
    items = "".join(_card(name, value) for name in (names or list(metrics))[:MOST_CARDS])
    return f'<ul class="cards">{items}</ul>' if items else ""


def _card(name: str, value: Mapping[str, Any]) -> str:
    low, high = _interval(value, name) or (None, None)
    span = f"95 %: {number(low)} to {number(high)}" if is_number(low) and is_number(high) else ""
    note = span or text(value.get("averages", {}).get(name, ""), 120)
    return f"<li><span>{text(name, 60)}</span><b>{number(value['metrics'][name])}</b><small>{note}</small></li>"


def _interval(value: Mapping[str, Any], name: str) -> Sequence[float] | None:
    found: Sequence[float] | None = value.get("intervals", {}).get(name)
    return found


def _lines(value: Mapping[str, Any]) -> dict[str, list[Line]]:
    """Metrics under their tasks, then averages; a single task needs no heading."""
    metrics, groups = dict(value["metrics"]), {}
    for task, about in value["tasks"].items():
        names = {metric: f"{task}.{metric}" for metric in about["how"]}
        groups[task] = [Line(metric, metrics.pop(name), _interval(value, name)) for metric, name in names.items()]
    if not metrics:
        return groups if len(groups) > 1 else dict(zip([""], groups.values(), strict=True))
    return {"averages": [Line(name, number_of) for name, number_of in metrics.items()], **groups}


def _about_metrics(value: Mapping[str, Any]) -> str:
    notes: dict[str, list[str]] = {}
    for name, note in value.get("averages", {}).items():
        notes.setdefault(note, []).append(name)
    about = "Values are in percent. Intervals are bootstrap intervals over queries or test papers."
    lines = [", ".join(names) + f": {note}" for note, names in notes.items() if note]
    return f'<p class="muted">{about}</p>{bullets(lines)}'


def _training(curves: Mapping[str, Curve]) -> str:
    groups: dict[str, dict[str, Curve]] = {}
    for name, line in curves.items():
        groups.setdefault(name.partition("/")[0], {})[name] = line
    pictures = "".join(draw_curves(lines) for lines in groups.values())
    return f'<div class="panels large">{pictures}</div>' if pictures else ""


def _map(map_data: MapData | None) -> str:
    if map_data is None:
        return ""
    return f'{preview(map_data)}<p><a href="{MAP}">Open the map</a>: titles, search, topics to hide and show.</p>'


def _coverage(value: Mapping[str, Any]) -> str:
    rows = [
        [text(task, 60), _gap(what) if _is_gap(what) else text(what), f"{int(count):,}"]
        for task, counts in value["coverage"].items()
        for what, count in counts.items()
        if count
    ]
    shown = table(["task", "what", "number"], rows, numeric=[2]) if rows else ""
    return f'{shown}<p class="muted">Counts of 0 are left out; gaps are marked with ▲.</p>' if rows else ""


def _is_gap(what: str) -> bool:
    return any(word in what for word in ("without", "missing", "left out", "dropped", "zero", "unknown"))


def _gap(what: str) -> str:
    return f'<span class="warn">▲ {text(what)}</span>'


def _remarks(value: Mapping[str, Any]) -> list[str]:
    own = [f"{task}: {note}" for task, about in value["tasks"].items() for note in about["notes"]]
    return [*value["notes"], *own]


def _how(value: Mapping[str, Any]) -> str:
    rows = [
        [text(task, 60), text(about["kind"]), text(_plain(about["chosen"]), 300)]
        for task, about in value["tasks"].items()
    ]
    return table(["task", "kind", "chosen"], rows, numeric=())


def _facts(value: Mapping[str, Any]) -> str:
    """Options, model, data and versions, closed until asked for."""
    parts = []
    for title in ("options", "model", "data", "versions"):
        rows = [[text(name, 120), text(_plain(each), 300)] for name, each in _flat(value.get(title, {}))]
        if rows:
            shown = table([title, "value"], rows, numeric=())
            parts.append(f"<details><summary>{title}</summary>{shown}</details>")
    return "".join(parts)


def _flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Nested facts as lines.

    >>> _flat({"files": {"a.json": "12ab"}, "papers": 3})
    [('files / a.json', '12ab'), ('papers', 3)]
    """
    found: list[tuple[str, Any]] = []
    for name, each in facts.items():
        inside = isinstance(each, Mapping) and each
        found += _flat(each, f"{before}{name} / ") if inside else [(f"{before}{name}", each)]
    return found


def _plain(each: Any) -> str:
    if isinstance(each, Mapping):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in each.items())
    if isinstance(each, list | tuple):
        return ", ".join(_plain(inner) for inner in each)
    if isinstance(each, bool):
        return "yes" if each else "no"
    return "–" if each is None or each == "" else str(each)
