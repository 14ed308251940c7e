"""Tables whose last column is a picture: values as bars with their intervals, differences around 0.

    >>> line = Line("map", 88.0, (85.0, 91.0))
    >>> "88.00" in bar_table({"cite": [line]}, "metric")
    True

The numbers stand beside the bars, so that the picture needs no labels and shrinks to a phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from citeweave.evaluation.reporting.document import number, text
from citeweave.evaluation.reporting.drawing import axis, bar, difference, is_number, span_of


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
