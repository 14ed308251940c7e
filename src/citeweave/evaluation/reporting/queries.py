"""What lies behind the means: how a metric spreads over queries, which ones are worst and best, which fields.

    by_field(rows, ["map"])      {"Biology": Field(queries=12, means=[61.2]), ...}

Summaries only: a page of thousands of queries stays small, and report.json holds every row. Probes have an answer and
no value for each paper, so nothing of them stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from citeweave.evaluation.reporting.document import number, table, text
from citeweave.evaluation.reporting.drawing import histogram, is_number
from citeweave.evaluation.reporting.heat import heat_table

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
