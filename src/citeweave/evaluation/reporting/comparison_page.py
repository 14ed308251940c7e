"""A comparison of systems as one page: the verdicts, each system's values with intervals, and the differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from citeweave.evaluation.reporting.bars import Gap, Line, bar_table, gap_table
from citeweave.evaluation.reporting.document import bullets, page, section, table, text

if TYPE_CHECKING:
    from citeweave.evaluation.comparison import Comparison, Difference


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
