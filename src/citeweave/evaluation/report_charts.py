"""Charts and tables of the report page: bars with intervals, heat maps, histograms, extreme queries.

    >>> row = BarRow("map", 88.0, (85.0, 91.0))
    >>> "88.00" in render_bar_table({"cite": [row]}, "metric")
    True
    >>> _render_heat_map("field", ["map"], {"Art": [40.0], "Biology": [60.0]}).count("<td")
    2
    >>> choose_shades([40.0, 60.0, None])
    [0, 10, None]

Numbers stand beside the bars, so that a chart needs no labels and shrinks to a phone. Heat maps are tables, so that their
numbers can be read, copied and heard; a cell's shade runs from the lowest value of its column, palest, to the highest.
Per-query values are summarized: a page about thousands of queries stays small, and report.json holds every row. Probes
have a prediction and no value for each paper, so they have no histogram. Does not compute metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from citeweave.evaluation.html import (
    SHADES,
    draw_axis,
    draw_bar,
    draw_difference,
    draw_histogram,
    escape,
    format_number,
    is_number,
    percent_span,
    render_table,
)

Cell = float | None
Rows = Mapping[str, Mapping[str, Any]]

PER_QUERY = ("mean", "folds", "weighted")
"""Ways of deriving a metric from one value per query."""

MAX_HISTOGRAMS, MAX_LISTED_TASKS, MAX_FIELDS, MAX_COLUMNS, QUERIES_PER_END = 12, 4, 40, 8, 6


# --- bars and differences --------------------------------------------------------------------------------


class BarRow(NamedTuple):
    """A row of a report's bar chart: a metric or system with its value and interval, in percent."""

    name: str
    value: float
    interval: Sequence[float] | None = None
    """Its low and high end."""


class GapRow(NamedTuple):
    """A row of a report's chart of differences: two systems, the difference of their values in points, p-values."""

    name: str
    points: float
    low: float
    high: float
    p: float
    corrected: float
    is_significant: bool


def render_bar_table(groups: Mapping[str, Sequence[BarRow]], what: str) -> str:
    """Render a report's bar chart as a table on one axis, grouped by names; an empty name gives no heading."""
    every = [row for rows in groups.values() for row in rows]
    ends = [row.value for row in every] + [end for row in every for end in row.interval or () if end is not None]
    span = percent_span(ends)
    body = []
    for group, rows in groups.items():
        if group:
            body.append(f'<tr class="group"><th scope="rowgroup" colspan="3">{escape(group, 80)}</th></tr>')
        body += [_render_bar_row(row, span) for row in rows]
    marks = (span[0], 0.0 if span[0] else 50.0, span[1])
    head = (
        f'<th scope="col">{what}</th><th scope="col" class="num">value <small>95 % interval</small></th>'
        f'<th scope="col" class="wide">{draw_axis(span, marks)}</th>'
    )
    return _render_chart_table("bars", head, body)


def _render_bar_row(row: BarRow, span: tuple[float, float]) -> str:
    low, high = row.interval or (None, None)
    has_interval = is_number(low) and is_number(high)
    between = f" <small>{format_number(low)} to {format_number(high)}</small>" if has_interval else ""
    return (
        f'<tr><th scope="row">{escape(row.name, 80)}</th><td class="num">{format_number(row.value)}{between}</td>'
        f'<td class="wide">{draw_bar(row.value, low, high, span)}</td></tr>'
    )


def render_gap_table(groups: Mapping[str, Sequence[GapRow]]) -> str:
    """Render a report's chart of differences between systems on one axis, with p-values; significant ones are marked."""
    every = [gap for gaps in groups.values() for gap in gaps]
    reach = max((abs(end) for gap in every for end in (gap.low, gap.high, gap.points) if is_number(end)), default=0.0)
    reach = max(1.0, math.ceil(reach))
    body = []
    for group, gaps in groups.items():
        body.append(f'<tr class="group"><th scope="rowgroup" colspan="4">{escape(group, 80)}</th></tr>')
        body += [_render_gap_row(gap, reach) for gap in gaps]
    head = (
        '<th scope="col">first − second</th><th scope="col" class="num">points <small>95 % interval</small></th>'
        '<th scope="col" class="num">p <small>corrected</small></th>'
        f'<th scope="col" class="wide">{draw_axis((-reach, reach), (-reach, 0.0, reach))}</th>'
    )
    return _render_chart_table("forest", head, body)


def _render_gap_row(gap: GapRow, reach: float) -> str:
    corrected = f'<span class="good">✓ {gap.corrected:.2g}</span>' if gap.is_significant else f"{gap.corrected:.2g}"
    return (
        f'<tr><th scope="row">{escape(gap.name, 120)}</th>'
        f'<td class="num">{format_number(gap.points)} '
        f"<small>{format_number(gap.low)} to {format_number(gap.high)}</small></td>"
        f'<td class="num">{gap.p:.2g} <small>{corrected}</small></td>'
        f'<td class="wide">{draw_difference(gap.points, gap.low, gap.high, reach)}</td></tr>'
    )


def _render_chart_table(kind: str, head: str, body: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


# --- heat maps -------------------------------------------------------------------------------------------


def _render_heat_map(
    corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], *, counts: Mapping[str, int] | None = None
) -> str:
    """Return an HTML heat map of values in percent, rows by name; `counts` are the queries that each row averages."""
    names = list(rows)
    shades = [choose_shades([rows[name][at] for name in names]) for at in range(len(columns))]  # by column
    heads = [corner, *(["queries"] if counts else []), *(escape(column, 60) for column in columns)]
    lines = []
    for place, name in enumerate(names):
        first = f"<td>{counts[name]:,}</td>" if counts else ""
        cells = "".join(_render_cell(rows[name][at], shades[at][place]) for at in range(len(columns)))
        lines.append(f'<tr><th scope="row">{escape(name, 80)}</th>{first}{cells}</tr>')
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="heat map"><table class="heat"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def choose_shades(values: Sequence[Cell]) -> list[int | None]:
    """Return the shades of a column in a report's heat map, 0 for the lowest; the middle shade where all are equal."""
    known = [value for value in values if is_number(value) and value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    shades: list[int | None] = []
    for value in values:
        if value is None or not is_number(value):
            shades.append(None)
        elif high > low:
            shades.append(round((SHADES - 1) * (value - low) / (high - low)))
        else:
            shades.append(SHADES // 2)
    return shades


def _render_cell(value: Cell, shade: int | None) -> str:
    return "<td></td>" if shade is None else f'<td class="h{shade}">{format_number(value)}</td>'


# --- behind the means: queries and fields ----------------------------------------------------------------


@dataclass(frozen=True)
class FieldMeans:
    """The mean metrics of a task's queries from one field."""

    queries: int
    means: list[float | None]
    """In percent, one per metric."""


@dataclass(frozen=True)
class MetricSpread:
    """The values that a report charts as a histogram: a task's main metric, query by query."""

    task: str
    metric: str
    values: dict[str, float]
    """Query -> percent."""

    fields: dict[str, str]


def collect_spreads(value: Mapping[str, Any]) -> list[MetricSpread]:
    """Collect what a report charts as histograms: each task's metric, query by query; the headline's first."""
    named = {metric: place for place, metric in enumerate(value["headline"])}
    spreads = []
    for task, about in value["tasks"].items():
        metrics = [name for name, way in about["how"].items() if way in PER_QUERY]
        if not metrics:
            continue
        main = min(metrics, key=lambda name: named.get(f"{task}.{name}", len(named)))
        rows = value["per_query"][task]
        known = {query: 100 * row[main] for query, row in rows.items() if is_number(row.get(main))}
        fields = {query: str(row["field"]) for query, row in rows.items() if "field" in row}
        if known:
            spreads.append((named.get(f"{task}.{main}", len(named)), MetricSpread(task, main, known, fields)))
    return [spread for _, spread in sorted(spreads, key=lambda each: each[0])]


def render_histograms(spreads: Sequence[MetricSpread]) -> str:
    """Return one small histogram of per-query values for each task."""
    panels = "".join(_render_histogram(spread) for spread in spreads[:MAX_HISTOGRAMS])
    more = len(spreads) - MAX_HISTOGRAMS
    rest = f'<p class="muted">{more} more tasks are in report.json.</p>' if more > 0 else ""
    return f'<div class="panels">{panels}</div>{rest}' if panels else ""


def _render_histogram(spread: MetricSpread) -> str:
    values = np.array(list(spread.values.values()))
    at_ends = [f"{int((values == end).sum()):,} at {end}" for end in (0, 100) if (values == end).any()]
    summary = [
        f"{len(values):,} queries",
        f"mean {format_number(values.mean())}",
        f"median {format_number(np.median(values))}",
        *at_ends,
    ]
    caption = f"<b>{escape(spread.task, 60)} · {escape(spread.metric, 60)}</b>: {', '.join(summary)}"
    return f"<figure>{draw_histogram(values.tolist())}<figcaption>{caption}</figcaption></figure>"


def render_extreme_queries(spreads: Sequence[MetricSpread]) -> str:
    """Render a report's tables of each task's lowest and highest queries, side by side; ties in the order of names."""
    parts = []
    for spread in spreads[:MAX_LISTED_TASKS]:
        order = sorted(spread.values, key=lambda query: (spread.values[query], query))
        heading = f"<h3>{escape(spread.task, 60)} · {escape(spread.metric, 60)}</h3>" if len(spreads) > 1 else ""
        if len(order) <= 2 * QUERIES_PER_END:
            parts.append(f"{heading}{_list_queries(spread, order, 'every query')}")
            continue
        worst = _list_queries(spread, order[:QUERIES_PER_END], "lowest")
        best = _list_queries(spread, order[: -QUERIES_PER_END - 1 : -1], "highest")
        parts.append(f'{heading}<div class="pair">{worst}{best}</div>')
    return "".join(parts)


def _list_queries(spread: MetricSpread, queries: Sequence[str], heading: str) -> str:
    with_field = any(spread.fields.get(query) for query in queries)
    head = [heading, *(["field"] if with_field else []), escape(spread.metric, 40)]
    rows = [
        [
            escape(query, 100),
            *([escape(spread.fields.get(query, ""), 40)] if with_field else []),
            format_number(spread.values[query]),
        ]
        for query in queries
    ]
    return render_table(head, rows, numeric=[len(head) - 1], kind="queries")


def _average_by_field(rows: Rows, metrics: Sequence[str]) -> dict[str, FieldMeans]:
    """Return the mean metrics of the queries of each field, the largest fields first.

    >>> _average_by_field({"q": {"map": 0.5, "field": "Art"}, "r": {"map": 1.0, "field": "Art"}}, ["map"])
    {'Art': FieldMeans(queries=2, means=[75.0])}
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows.values():
        if "field" in row:
            groups.setdefault(str(row["field"]), []).append(row)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return {name: FieldMeans(len(own), [_mean_percent(own, metric) for metric in metrics]) for name, own in ordered}


def _mean_percent(rows: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    known = [row[metric] for row in rows if is_number(row.get(metric))]
    return 100 * float(np.mean(known)) if known else None


def render_field_maps(value: Mapping[str, Any]) -> str:
    """Render a report's heat map of fields by metrics, means over queries, for each task whose queries have fields."""
    parts = []
    for task, about in value["tasks"].items():
        metrics = [name for name, way in about["how"].items() if way in PER_QUERY][:MAX_COLUMNS]
        fields = _average_by_field(value["per_query"][task], metrics) if metrics else {}
        if len(fields) < 2:
            continue
        shown = dict(list(fields.items())[:MAX_FIELDS])
        rows = {name: field.means for name, field in shown.items()}
        more = len(fields) - len(shown)
        rest = f'<p class="muted">{more} smaller fields are in report.json.</p>' if more else ""
        heat = _render_heat_map("field", metrics, rows, counts={name: field.queries for name, field in shown.items()})
        parts.append(f"<h3>{escape(task, 60)}</h3>{heat}{rest}")
    return "".join(parts[:MAX_HISTOGRAMS])


def render_task_map(value: Mapping[str, Any]) -> str:
    """Render a report's heat map of tasks by metrics, for suites whose tasks share metrics, as MDCR's fields do."""
    uses: dict[str, int] = {}
    for about in value["tasks"].values():
        for metric in about["how"]:
            uses[metric] = uses.get(metric, 0) + 1
    shared = [metric for metric, count in uses.items() if count > 1][:MAX_COLUMNS]
    rows = {
        task: [value["metrics"].get(f"{task}.{metric}") if metric in about["how"] else None for metric in shared]
        for task, about in value["tasks"].items()
        if any(metric in about["how"] for metric in shared)
    }
    return _render_heat_map("task", shared, rows) if len(rows) > 2 else ""
