"""The tables of the page, as Markdown; numbers and claims come from `ranking.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.table.ranking import Entries, Ranked, means
from benchmarks.table.reports import RunReport
from benchmarks.table.systems import START, is_trained
from citeweave.evaluation.compare import Difference

NOTHING = "-"


@dataclass(frozen=True)
class Shown:
    """A column: a metric of a ranking, under a title."""

    title: str
    ranked: Ranked
    metric: str
    spans: bool = False
    """With its interval."""


def columns_of(ranked: Ranked, titles: dict[str, str] | None = None, *, spans: bool = True) -> list[Shown]:
    """A column for every metric, or for those that have a title; the first with its interval."""
    named = titles or {metric: metric for metric in ranked.metrics}
    return [Shown(title, ranked, metric, spans and not at) for at, (metric, title) in enumerate(named.items())]


def wide_table(columns: Sequence[Shown], entries: Entries) -> str:
    """Best first by the first column; those that have no place there behind them, the start first."""
    main = columns[0].ranked
    every = dict.fromkeys(name for column in columns for name in column.ranked.values)
    others = sorted((name for name in every if name not in main.order), key=lambda name: (name != START, name))
    lines = [["", "system", "runs", *(column.title for column in columns), "seconds"]]
    for place, name in enumerate([*main.order, *others], 1):
        shown = str(place) if name in main.order else ""
        runs = entries.runs[name]
        lines.append([shown, name, str(len(runs)), *(cell(column, name) for column in columns), seconds_of(name, runs)])
    return markdown(lines)


def cell(column: Shown, name: str) -> str:
    """A value with its marks."""
    found, metric = column.ranked, column.metric
    if metric not in found.values.get(name, {}):
        return NOTHING
    value = f"{found.values[name][metric]:.1f}"
    if name not in found.order or not found.references:
        return value
    marks = [{1: "+", -1: "-", 0: ""}[found.sign(name, START, metric)]]
    reference = found.references[metric]
    if name != reference:
        marks.append({1: ">", -1: "", 0: "="}[found.sign(name, reference, metric)])
    value = f"**{value}**" if name == found.best(metric) else value
    low, high = found.intervals[name][metric]
    span = f"[{low:.1f}, {high:.1f}]" if column.spans else ""
    return " ".join(part for part in (value, *marks, span) if part)


def reasons(columns: Sequence[Shown], entries: Entries) -> str:
    """Why systems have no place, each once."""
    told: dict[str, dict[str, None]] = {}
    for column in columns:
        for name, why in column.ranked.refused.items():
            told.setdefault(name, {}).update(dict.fromkeys(why))
    shown = {name for column in columns for name in column.ranked.values}
    left = {name: why for name, why in entries.refused.items() if name not in shown and not entries.runs[name]}
    lines = [f"- not ranked: {name}: {'; '.join(why)}" for name, why in told.items()]
    return "\n".join([*lines, *(f"- not shown: {name}: {'; '.join(why)}" for name, why in left.items())])


def leads_table(columns: Sequence[Shown], other: str) -> str:
    """Every ranked system against one: its lead by the first column, and the columns where a difference can be claimed."""
    main, metric = columns[0].ranked, columns[0].metric
    lines = [["system", f"{columns[0].title} minus {other}'s", "p", "better on", "worse on"]]
    for name in main.order:
        lead = main.against.get((name, other, metric))
        if lead is not None:
            by_sign = {
                sign: ", ".join(
                    each.title for each in columns[1:] if each.ranked.sign(name, other, each.metric) == sign
                )
                for sign in (1, -1)
            }
            lines.append([name, lead_text(lead), p_text(lead.corrected), by_sign[1] or NOTHING, by_sign[-1] or NOTHING])
    return markdown(lines) if len(lines) > 1 else ""


def lead_text(lead: Difference) -> str:
    return f"{lead.points:+.1f} [{lead.low:+.1f}, {lead.high:+.1f}]"


def p_text(p: float) -> str:
    """
    >>> p_text(0.0004), p_text(0.0234), p_text(1.0)
    ('< 0.001', '0.023', '1')
    """
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def plain_table(entries: Entries, view: str, metrics: Sequence[str]) -> str:
    """Means over seeds of a further view, without claims."""
    own = {name: [run for run in runs if view in run.views] for name, runs in entries.runs.items()}
    own = {name: runs for name, runs in own.items() if runs}
    if not own:
        return ""
    values = {name: means(runs, view, metrics) for name, runs in own.items()}
    lines = [[view, *metrics]]
    for name in sorted(values, key=lambda name: -values[name].get(metrics[0], -1.0)):
        note = " (not ranked)" if name in entries.refused else ""
        shown = (f"{values[name][each]:.1f}" if each in values[name] else NOTHING for each in metrics)
        lines.append([name + note, *shown])
    return markdown(lines)


def seconds_of(name: str, runs: Sequence[RunReport]) -> str:
    """Seconds of a run's training on the card, in the mean over seeds; what had none says what it had."""
    if not is_trained(name) or not runs:
        return "CPU" if runs and runs[0].cost.get("device") == "CPU" else NOTHING
    seconds = np.mean([run.cost["seconds"] / max(1, run.cost.get("beside", 1)) for run in runs])
    devices = {str(run.cost.get("device", "")) for run in runs}
    return f"{seconds:.1f}" + (" (CPU)" if any("CPU" in device for device in devices) else "")


def cost_table(entries: Entries) -> str:
    """What a run cost, in the mean over seeds."""
    lines: list[list[Any]] = [["system", "papers seen", "steps", "epochs", "GPU seconds"]]
    for name, runs in entries.runs.items():
        if is_trained(name) and runs:
            cost = runs[0].cost
            lines.append(
                [
                    name,
                    f"{runs[0].papers:,}",
                    f"{cost['steps']:,}",
                    f"{cost.get('epochs', 0):g}",
                    seconds_of(name, runs),
                ]
            )
    return markdown(lines) if len(lines) > 1 else ""


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line is its head."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)
