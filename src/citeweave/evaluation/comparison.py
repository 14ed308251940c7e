"""What a comparison found: systems side by side, their differences, and what a careful reader would sign.

Does not compute anything: `compare` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Difference:
    """First system minus second, by one metric, in points of percent."""

    first: str
    second: str
    metric: str
    points: float
    low: float
    high: float
    p: float
    """As if this were the only comparison."""

    corrected: float
    """After Holm's correction over all comparisons of this table."""

    @property
    def is_significant(self) -> bool:
        return self.corrected < SIGNIFICANT


@dataclass(frozen=True)
class Comparison:
    """Systems side by side."""

    systems: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Mapping[str, Mapping[str, float]]
    """System -> metric -> value in percent, the mean over its reports."""

    intervals: Mapping[str, Mapping[str, tuple[float, float]]]
    differences: tuple[Difference, ...]
    queries: Mapping[str, int]
    """Metric -> rows that all systems answered and that were compared."""

    notes: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """What a careful reader would sign."""
        return [*_verdicts(self.differences), *self.notes]


def _verdicts(differences: Sequence[Difference]) -> list[str]:
    """A sentence for every difference of the first metric and every significant one; the rest in one sentence."""
    if not differences:
        return ["Too few queries to test a difference."]
    first = differences[0].metric
    told = [each for each in differences if each.metric == first or each.is_significant]
    sentences = [_verdict(each, len(differences)) for each in told]
    rest = [f"{each.metric} ({each.first}, {each.second})" for each in differences if each not in told]
    if rest:
        sentences.append(f"No difference can be claimed by {', '.join(rest)}.")
    return sentences


def _verdict(difference: Difference, comparisons: int) -> str:
    better, worse, points = difference.first, difference.second, difference.points
    low, high = difference.low, difference.high
    if points < 0:
        better, worse, points, low, high = worse, better, -points, -high, -low
    span = f"95 % interval {low:+.2f} to {high:+.2f}"
    among = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    if difference.is_significant:
        return f"{difference.metric}: {better} is better than {worse} by {points:.2f} points ({span}, p = {difference.corrected:.2g}{among})."
    return (
        f"{difference.metric}: no difference between {better} and {worse} can be claimed: {points:+.2f} points "
        f"({span}, p = {difference.corrected:.2g}{among})."
    )
