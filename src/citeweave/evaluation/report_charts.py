"""Tables whose last column is a picture: values as bars with their intervals, differences around 0.

    >>> line = Line("map", 88.0, (85.0, 91.0))
    >>> "88.00" in bar_table({"cite": [line]}, "metric")
    True

The numbers stand beside the bars, so that the picture needs no labels and shrinks to a phone.

Heat maps as tables: numbers in shaded cells, from the lowest of a column, palest, to its highest.

    >>> heat_table("field", ["map"], {"Art": [40.0], "Biology": [60.0]}).count("<td")
    2
    >>> shades([40.0, 60.0, None])
    [0, 10, None]

A table, as its numbers can be read, copied and heard. Does not compute the numbers.

What lies behind the means: how a metric spreads over queries, which ones are worst and best, which fields.

    by_field(rows, ["map"])      {"Biology": Field(queries=12, means=[61.2]), ...}

Summaries only: a page of thousands of queries stays small, and report.json holds every row. Probes have an answer and
no value for each paper, so nothing of them stands here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from citeweave.evaluation.html import (
    axis,
    bar,
    difference,
    histogram,
    is_number,
    number,
    span_of,
    table,
    text,
)
from citeweave.evaluation.style import SHADES


class Line(NamedTuple):
    """One bar."""

    name: str
    value: float
    interval: Sequence[float] | None = None
    """Low and high end, in percent as the value."""


class Gap(NamedTuple):
    """One difference, in points."""

    name: str
    points: float
    low: float
    high: float
    p: float
    corrected: float
    is_significant: bool


def bar_table(groups: Mapping[str, Sequence[Line]], what: str) -> str:
    """Bars on one axis, under the names of their groups; a group without name has no heading."""
    every = [line for lines in groups.values() for line in lines]
    ends = [line.value for line in every] + [end for line in every for end in line.interval or () if end is not None]
    span = span_of(ends)
    body = []
    for group, lines in groups.items():
        if group:
            body.append(f'<tr class="group"><th scope="rowgroup" colspan="3">{text(group, 80)}</th></tr>')
        body += [_bar_row(line, span) for line in lines]
    marks = (span[0], 0.0 if span[0] else 50.0, span[1])
    head = (
        f'<th scope="col">{what}</th><th scope="col" class="num">value <small>95 % interval</small></th>'
        f'<th scope="col" class="wide">{axis(span, marks)}</th>'
    )
    return _whole("bars", head, body)


def _bar_row(line: Line, span: tuple[float, float]) -> str:
    low, high = line.interval or (None, None)
    between = f" <small>{number(low)} to {number(high)}</small>" if is_number(low) and is_number(high) else ""
    return (
        f'<tr><th scope="row">{text(line.name, 80)}</th><td class="num">{number(line.value)}{between}</td>'
        f'<td class="wide">{bar(line.value, low, high, span)}</td></tr>'
    )


def gap_table(groups: Mapping[str, Sequence[Gap]]) -> str:
    """Differences on one axis, with their p-values; those that hold after the correction are marked."""
    every = [gap for gaps in groups.values() for gap in gaps]
    reach = max((abs(end) for gap in every for end in (gap.low, gap.high, gap.points) if is_number(end)), default=0.0)
    reach = max(1.0, math.ceil(reach))
    body = []
    for group, gaps in groups.items():
        body.append(f'<tr class="group"><th scope="rowgroup" colspan="4">{text(group, 80)}</th></tr>')
        body += [_gap_row(gap, reach) for gap in gaps]
    head = (
        '<th scope="col">first − second</th><th scope="col" class="num">points <small>95 % interval</small></th>'
        '<th scope="col" class="num">p <small>corrected</small></th>'
        f'<th scope="col" class="wide">{axis((-reach, reach), (-reach, 0.0, reach))}</th>'
    )
    return _whole("forest", head, body)


def _gap_row(gap: Gap, reach: float) -> str:
    corrected = f'<span class="good">✓ {gap.corrected:.2g}</span>' if gap.is_significant else f"{gap.corrected:.2g}"
    return (
        f'<tr><th scope="row">{text(gap.name, 120)}</th>'
        f'<td class="num">{number(gap.points)} <small>{number(gap.low)} to {number(gap.high)}</small></td>'
        f'<td class="num">{gap.p:.2g} <small>{corrected}</small></td>'
        f'<td class="wide">{difference(gap.points, gap.low, gap.high, reach)}</td></tr>'
    )


def _whole(kind: str, head: str, body: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


# Heat maps as tables: numbers in shaded cells, from the lowest of a column, palest, to its highest.

Cell = float | None


def heat_table(
    corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], *, counts: Mapping[str, int] | None = None
) -> str:
    """Rows by name, in percent; `counts` says of how many queries each row is the mean."""
    names = list(rows)
    shaded = [shades([rows[name][at] for name in names]) for at in range(len(columns))]  # by column
    heads = [corner, *(["queries"] if counts else []), *(text(column, 60) for column in columns)]
    lines = []
    for place, name in enumerate(names):
        first = f"<td>{counts[name]:,}</td>" if counts else ""
        cells = "".join(_cell(rows[name][at], shaded[at][place]) for at in range(len(columns)))
        lines.append(f'<tr><th scope="row">{text(name, 80)}</th>{first}{cells}</tr>')
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="heat map"><table class="heat"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def shades(values: Sequence[Cell]) -> list[int | None]:
    """Steps of the scale for the numbers of one column; the middle where all are equal."""
    known = [value for value in values if is_number(value) and value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    found: list[int | None] = []
    for value in values:
        if value is None or not is_number(value):
            found.append(None)
        elif high > low:
            found.append(round((SHADES - 1) * (value - low) / (high - low)))
        else:
            found.append(SHADES // 2)
    return found


def _cell(value: Cell, shade: int | None) -> str:
    return "<td></td>" if shade is None else f'<td class="h{shade}">{number(value)}</td>'


# What lies behind the means: how a metric spreads over queries, which ones are worst and best, which fields.

Rows = Mapping[str, Mapping[str, Any]]

OF_VALUES = ("mean", "folds", "weighted")
"""Ways of deriving a metric from one value a row."""

MOST_PANELS, MOST_LISTED, MOST_FIELDS, MOST_COLUMNS, ENDS = 12, 4, 40, 8, 6


@dataclass(frozen=True)
class Field:
    """A field's part of a task."""

    queries: int
    means: list[float | None]
    """In percent, one a metric."""


@dataclass(frozen=True)
class Spread:
    """A task's main metric, query by query."""

    task: str
    metric: str
    values: dict[str, float]
    """Query -> percent."""

    fields: dict[str, str]


def spreads_of(value: Mapping[str, Any]) -> list[Spread]:
    """The tasks that have a value for each query: those of the headline first, each by the metric the headline names."""
    named = {metric: place for place, metric in enumerate(value["headline"])}
    found = []
    for task, about in value["tasks"].items():
        metrics = [name for name, way in about["how"].items() if way in OF_VALUES]
        if not metrics:
            continue
        main = min(metrics, key=lambda name: named.get(f"{task}.{name}", len(named)))
        rows = value["per_query"][task]
        known = {query: 100 * row[main] for query, row in rows.items() if is_number(row.get(main))}
        fields = {query: str(row["field"]) for query, row in rows.items() if "field" in row}
        if known:
            found.append((named.get(f"{task}.{main}", len(named)), Spread(task, main, known, fields)))
    return [spread for _, spread in sorted(found, key=lambda each: each[0])]


def histograms_of(spreads: Sequence[Spread]) -> str:
    """One small picture a task."""
    panels = "".join(_panel(spread) for spread in spreads[:MOST_PANELS])
    more = len(spreads) - MOST_PANELS
    rest = f'<p class="muted">{more} more tasks are in report.json.</p>' if more > 0 else ""
    return f'<div class="panels">{panels}</div>{rest}' if panels else ""


def _panel(spread: Spread) -> str:
    values = np.array(list(spread.values.values()))
    at_ends = [f"{int((values == end).sum()):,} at {end}" for end in (0, 100) if (values == end).any()]
    facts = [
        f"{len(values):,} queries",
        f"mean {number(values.mean())}",
        f"median {number(np.median(values))}",
        *at_ends,
    ]
    caption = f"<b>{text(spread.task, 60)} · {text(spread.metric, 60)}</b>: {', '.join(facts)}"
    return f"<figure>{histogram(values.tolist())}<figcaption>{caption}</figcaption></figure>"


def worst_and_best(spreads: Sequence[Spread]) -> str:
    """The ends of a task's queries, side by side; equal ones by name."""
    parts = []
    for spread in spreads[:MOST_LISTED]:
        order = sorted(spread.values, key=lambda query: (spread.values[query], query))
        heading = f"<h3>{text(spread.task, 60)} · {text(spread.metric, 60)}</h3>" if len(spreads) > 1 else ""
        if len(order) <= 2 * ENDS:
            parts.append(f"{heading}{_listed(spread, order, 'every query')}")
            continue
        worst = _listed(spread, order[:ENDS], "lowest")
        best = _listed(spread, order[: -ENDS - 1 : -1], "highest")
        parts.append(f'{heading}<div class="pair">{worst}{best}</div>')
    return "".join(parts)


def _listed(spread: Spread, queries: Sequence[str], heading: str) -> str:
    with_field = any(spread.fields.get(query) for query in queries)
    head = [heading, *(["field"] if with_field else []), text(spread.metric, 40)]
    rows = [
        [
            text(query, 100),
            *([text(spread.fields.get(query, ""), 40)] if with_field else []),
            number(spread.values[query]),
        ]
        for query in queries
    ]
    return table(head, rows, numeric=[len(head) - 1], kind="queries")


def by_field(rows: Rows, metrics: Sequence[str]) -> dict[str, Field]:
    """Means of the rows of each field, the largest fields first.

    >>> by_field({"q": {"map": 0.5, "field": "Art"}, "r": {"map": 1.0, "field": "Art"}}, ["map"])
    {'Art': Field(queries=2, means=[75.0])}
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows.values():
        if "field" in row:
            groups.setdefault(str(row["field"]), []).append(row)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return {name: Field(len(own), [_mean(own, metric) for metric in metrics]) for name, own in ordered}


def _mean(rows: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    known = [row[metric] for row in rows if is_number(row.get(metric))]
    return 100 * float(np.mean(known)) if known else None


def field_maps(value: Mapping[str, Any]) -> str:
    """Fields by metrics, one table a task that knows fields; plain means over a field's queries."""
    parts = []
    for task, about in value["tasks"].items():
        metrics = [name for name, way in about["how"].items() if way in OF_VALUES][:MOST_COLUMNS]
        fields = by_field(value["per_query"][task], metrics) if metrics else {}
        if len(fields) < 2:
            continue
        shown = dict(list(fields.items())[:MOST_FIELDS])
        rows = {name: field.means for name, field in shown.items()}
        more = len(fields) - len(shown)
        rest = f'<p class="muted">{more} smaller fields are in report.json.</p>' if more else ""
        heat = heat_table("field", metrics, rows, counts={name: field.queries for name, field in shown.items()})
        parts.append(f"<h3>{text(task, 60)}</h3>{heat}{rest}")
    return "".join(parts[:MOST_PANELS])


def task_map(value: Mapping[str, Any]) -> str:
    """Tasks by metrics, for suites whose tasks share metrics, as MDCR's fields do."""
    uses: dict[str, int] = {}
    for about in value["tasks"].values():
        for metric in about["how"]:
            uses[metric] = uses.get(metric, 0) + 1
    shared = [metric for metric, number_of in uses.items() if number_of > 1][:MOST_COLUMNS]
    rows = {
        task: [value["metrics"].get(f"{task}.{metric}") if metric in about["how"] else None for metric in shared]
        for task, about in value["tasks"].items()
        if any(metric in about["how"] for metric in shared)
    }
    return heat_table("task", shared, rows) if len(rows) > 2 else ""
