"""A comparison of systems as Markdown and as an HTML page, with verdicts.

    comparison_as_markdown(comparison)      for the terminal and for comparison.md
    comparison_as_page(comparison)          one self-contained page

Does not compare: `compare.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from citeweave.evaluation.compare import Comparison, Difference
from citeweave.evaluation.html import escape, render_bullets, render_page, render_section, render_table
from citeweave.evaluation.report import markdown_table
from citeweave.evaluation.report_charts import BarRow, GapRow, render_bar_table, render_gap_table
from citeweave.evaluation.report_page import ABOUT_BARS

_ABOUT_GAPS = (
    '<p class="muted">Paired bootstrap over the same queries; p-values are two-sided. The corrected one holds for all '
    "comparisons of this table together (Holm); ✓ marks those below 0.05. Intervals are not corrected.</p>"
)


def comparison_as_markdown(comparison: Comparison) -> str:
    """Report a comparison as Markdown: a table of systems with intervals, then the verdicts."""
    rows = [
        [system, *(_with_interval(comparison, system, metric) for metric in comparison.metrics)]
        for system in comparison.systems
    ]
    return "\n".join(
        [
            *markdown_table(["system", *comparison.metrics], rows),
            "",
            *(f"- {sentence}" for sentence in comparison.sentences),
            "",
        ]
    )


def _with_interval(comparison: Comparison, system: str, metric: str) -> str:
    low, high = comparison.intervals[system][metric]
    return f"{comparison.values[system][metric]:.2f} [{low:.2f}, {high:.2f}]"


def comparison_as_page(comparison: Comparison) -> str:
    """Return a comparison's report page in HTML: verdicts, metrics of systems as bars, differences with p-values."""
    title = " and ".join([", ".join(comparison.systems[:-1]), comparison.systems[-1]])
    values = {
        metric: [
            BarRow(system, comparison.values[system][metric], comparison.intervals[system][metric])
            for system in comparison.systems
        ]
        for metric in comparison.metrics
    }
    counts = [[escape(metric, 80), f"{count:,}"] for metric, count in comparison.queries.items()]
    body = [
        f"<header><h1>Comparison <small>of {escape(title, 300)}</small></h1></header><main>",
        render_section("Verdict", render_bullets(comparison.sentences)),
        render_section("Systems", render_bar_table(values, "system"), ABOUT_BARS),
        render_section("Differences", render_gap_table(_gap_groups(comparison.differences)), _ABOUT_GAPS),
        render_section("Compared rows", render_table(["metric", "rows that all systems answered"], counts)),
        "</main>",
    ]
    return render_page(f"Comparison of {title}", "\n".join(part for part in body if part))


def _gap_groups(differences: Sequence[Difference]) -> dict[str, list[GapRow]]:
    groups: dict[str, list[GapRow]] = {}
    for each in differences:
        gap = GapRow(
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
