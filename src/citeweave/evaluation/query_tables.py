"""Queries of a report: one value per query of each task, the lowest and highest ones with their titles, their number.

    spreads = collect_spreads(value)                        value: the content of report.json
    list_extreme_queries(value, spreads)                    blocks of a page
    value["titles"] = titles_of_listed(value, suite.tasks)

Only the queries that a page lists get titles, so that a report on thousands of queries stays small. Does not draw: see
`html.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from citeweave.evaluation import html
from citeweave.evaluation.html import Block
from citeweave.evaluation.tasks import Task

PER_QUERY = ("mean", "folds", "weighted")
"""Ways of deriving a metric from one value per query."""

MAX_LISTED_TASKS, QUERIES_PER_END, MAX_TITLE = 4, 6, 120

Value = Mapping[str, Any]


@dataclass(frozen=True)
class MetricSpread:
    """The values that a report charts as a histogram: a task's main metric, query by query."""

    task: str
    metric: str
    values: dict[str, float]
    """Query -> percent."""

    fields: dict[str, str]


def collect_spreads(value: Value) -> list[MetricSpread]:
    """Collect what a report charts as histograms: each task's metric, query by query; the headline's first."""
    named = {metric: place for place, metric in enumerate(value["headline"])}
    spreads = []
    for task, metrics in per_query_metrics(value).items():
        main = min(metrics, key=lambda name: named.get(f"{task}.{name}", len(named)))
        rows = value["per_query"][task]
        known = {query: 100 * row[main] for query, row in rows.items() if html.is_number(row.get(main))}
        fields = {query: str(row["field"]) for query, row in rows.items() if "field" in row}
        if known:
            spreads.append((named.get(f"{task}.{main}", len(named)), MetricSpread(task, main, known, fields)))
    return [spread for _, spread in sorted(spreads, key=lambda each: each[0])]


def per_query_metrics(value: Value) -> dict[str, list[str]]:
    """Return task -> its metrics that have a value for each query, for tasks with any."""
    metrics = {
        task: [name for name, way in about["how"].items() if way in PER_QUERY] for task, about in value["tasks"].items()
    }
    return {task: names for task, names in metrics.items() if names}


def list_extreme_queries(value: Value, spreads: Sequence[MetricSpread]) -> list[Block]:
    """List each task's lowest and highest queries in a report, with their titles, side by side; ties in the order of names."""
    blocks: list[Block] = []
    for spread in spreads[:MAX_LISTED_TASKS]:
        titles = value.get("titles", {}).get(spread.task, {})
        tables = [_query_table(spread, queries, heading, titles) for heading, queries in _extremes(spread).items()]
        blocks += [("heading", (f"{spread.task} · {spread.metric}", "")), ("pair", tables)]
    return blocks


def _extremes(spread: MetricSpread) -> dict[str, list[str]]:
    """Return heading -> the names of a task's queries that a report lists, lowest or highest first."""
    order = sorted(spread.values, key=lambda query: (spread.values[query], query))
    if len(order) <= 2 * QUERIES_PER_END:
        return {"every query": order}
    return {"lowest": order[:QUERIES_PER_END], "highest": order[: -QUERIES_PER_END - 1 : -1]}


def _query_table(spread: MetricSpread, queries: Sequence[str], heading: str, titles: Mapping[str, str]) -> Any:
    values = {query: html.format_number(spread.values[query]) for query in queries}
    columns: dict[str, Mapping[str, str]] = {"title": titles} if any(map(titles.get, queries)) else {}
    columns |= {"field": spread.fields} if any(map(spread.fields.get, queries)) else {}
    columns[spread.metric] = values
    rows = [[query, *(column.get(query, "") for column in columns.values())] for query in queries]
    return html.table([heading, *columns], rows, numeric=[len(columns)], kind="queries")[1]


def titles_of_listed(value: Value, tasks: Sequence[Task]) -> dict[str, dict[str, str]]:
    """Return task -> name -> title of the queries that a report's page lists, where the suite's texts are at hand."""
    by_name, titles = {task.name: task for task in tasks}, {}
    for spread in collect_spreads(value)[:MAX_LISTED_TASKS]:
        task = by_name.get(spread.task)
        pools = getattr(task, "pools", None) or getattr(task, "judgments", None)
        if task is None or pools is None:
            continue
        listed = {query for queries in _extremes(spread).values() for query in queries}
        rows = zip(pools.names, pools.queries.tolist(), strict=True)
        own = {name: html.one_line(task.texts.titles[row], MAX_TITLE) for name, row in rows if name in listed}
        titles[spread.task] = {name: title for name, title in own.items() if title}
    return {task: own for task, own in titles.items() if own}


def count_queries(value: Value) -> list[str]:
    """Count the queries and the predictions of a report in words; a query that several tasks share counts once.

    >>> tasks = {"method": {"kind": "ranking"}, "all": {"kind": "ranking"}, "topic": {"kind": "classes"}}
    >>> rows = {"method": {"q1": {}, "q2": {}}, "all": {"q1": {}, "q2": {}}, "topic": {"p1": {}}}
    >>> count_queries({"tasks": tasks, "per_query": rows})
    ['2 queries', '1 test paper']
    """
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for task, about in value["tasks"].items():
        found[about["kind"] in ("ranking", "search", "clicks")].update(value["per_query"][task])
    words = {True: ("query", "queries"), False: ("test paper", "test papers")}
    return [f"{len(own):,} {words[kind][len(own) != 1]}" for kind, own in found.items() if own]
