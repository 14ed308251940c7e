"""The tables of the page, as Markdown; numbers and claims come from `ranking.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.table.ranking import Entries, Ranked
from benchmarks.table.reports import RunReport
from benchmarks.table.systems import START, is_trained
from citeweave.evaluation.compare import OVERALL, Difference

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
    lines = [["", "system", *(column.title for column in columns)]]
    for place, name in enumerate([*main.order, *others], 1):
        shown = str(place) if name in main.order else ""
        lines.append([shown, name, *(cell(column, name) for column in columns)])
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
    return " ".join(part for part in (value + "".join(marks), span) if part)


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


def details_table(ranked: Ranked, by_l2: Mapping[str, Mapping[str, float]], entries: Entries) -> str:
    """Every system with its lead over the start, its mean by L2 and what its training cost, best first."""
    lines = [["system", f"mean minus {START}'s", "pools by L2", "papers read", "steps", "GPU seconds"]]
    for name in [*ranked.order, *sorted(set(ranked.values) - set(ranked.order))]:
        lead = ranked.against.get((name, START, OVERALL))
        pools = by_l2.get(name, {}).get(OVERALL)
        cost = cost_of(name, entries.runs[name])
        shown = NOTHING if pools is None else f"{pools:.1f}"
        lines.append([name, lead_text(lead) if lead else NOTHING, shown, *cost])
    return markdown(lines)


def lead_text(lead: Difference) -> str:
    return f"{lead.points:+.1f} [{lead.low:+.1f}, {lead.high:+.1f}]"


def seconds_of(name: str, runs: Sequence[RunReport]) -> str:
    """Seconds of a run's training on the card, in the mean over seeds; what had none says what it had."""
    if not is_trained(name) or not runs:
        return "CPU" if runs and runs[0].cost.get("device") == "CPU" else NOTHING
    seconds = np.mean([run.cost["seconds"] / max(1, run.cost.get("beside", 1)) for run in runs])
    devices = {str(run.cost.get("device", "")) for run in runs}
    return f"{seconds:.1f}" + (" (CPU)" if any("CPU" in device for device in devices) else "")


def cost_of(name: str, runs: Sequence[RunReport]) -> list[str]:
    """Papers read, steps and seconds of a run, in the mean over seeds."""
    if not is_trained(name) or not runs:
        return [NOTHING, NOTHING, seconds_of(name, runs)]
    return [f"{runs[0].papers:,}", f"{runs[0].cost['steps']:,}", seconds_of(name, runs)]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line is its head."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)
