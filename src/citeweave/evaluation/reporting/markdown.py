"""A report, or a comparison, as Markdown: tables with intervals, what was not evaluated, what was missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from citeweave.evaluation.comparison import Comparison


def as_markdown(value: Mapping[str, Any]) -> str:
    """The report's page."""
    parts = [
        f"# {_cell(value['model']['name'])} on {_cell(value['suite'])}",
        "",
        *_table(["metric", "value", "95 % interval"], _metric_rows(value)),
        "",
        "Values are in percent. Intervals are bootstrap intervals over queries or test papers.",
        *_section("Averages", [f"{name}: {note}" for name, note in value.get("averages", {}).items() if note]),
        *_section("Not evaluated", [f"{task}: {why}" for task, why in value["not_evaluated"].items()]),
        *_section("Remarks", _remarks(value)),
        "",
        "## Coverage",
        "",
        *_table(["task", "what", "number"], _coverage_rows(value)),
        "",
        "## How",
        "",
        *_table(
            ["option", "value"], [[name, str(each)] for name, each in {**value["options"], **value["model"]}.items()]
        ),
        "",
    ]
    return "\n".join(parts)


def comparison_as_markdown(comparison: Comparison) -> str:
    """Systems side by side, then the verdicts."""
    rows = [
        [system, *(_with_interval(comparison, system, metric) for metric in comparison.metrics)]
        for system in comparison.systems
    ]
    return "\n".join(
        [
            *_table(["system", *comparison.metrics], rows),
            "",
            *(f"- {sentence}" for sentence in comparison.sentences),
            "",
        ]
    )


def _with_interval(comparison: Comparison, system: str, metric: str) -> str:
    low, high = comparison.intervals[system][metric]
    return f"{comparison.values[system][metric]:.2f} [{low:.2f}, {high:.2f}]"


def _metric_rows(value: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, number in value["metrics"].items():
        span = value.get("intervals", {}).get(name)
        rows.append([name, f"{number:.2f}", f"{span[0]:.2f} to {span[1]:.2f}" if span else ""])
    return rows


def _coverage_rows(value: Mapping[str, Any]) -> list[list[str]]:
    return [
        [task, what, f"{number:,}"]
        for task, counts in value["coverage"].items()
        for what, number in counts.items()
        if number
    ]


def _remarks(value: Mapping[str, Any]) -> list[str]:
    own = [f"{task}: {note}" for task, about in value["tasks"].items() for note in about["notes"]]
    return [*value["notes"], *own]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {_cell(line)}" for line in lines)] if lines else []


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: object) -> str:
    """One line without a bar of its own; ids and names come from files and may hold anything.

    >>> _cell("a | b" + chr(10) + "<b>")
    'a \\\\| b &lt;b>'
    """
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
