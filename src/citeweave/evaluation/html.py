"""Report pages: Jinja2 templates in `page/`, text and numbers, palette, charts, a content security policy.

    page = render_report(("specter", "on scidocs", ""), {"Remarks": [("bullets", ["a careful remark"])]})
    page = render_page("map.html.j2", "Map of papers", script, view)

A page is given as data: sections of blocks, each a macro of `page/charts.html.j2` and what it shows. Ids, titles and names
are untrusted text and never markup: templates escape whatever they print, and put it on one line without invisible
characters. A page loads nothing: its style (`report.css`) and script are inside it, and its content security policy forbids
everything else.

Charts are inline SVG whose colors come from the style, so that one chart serves light screens, dark screens and paper.
Bars hold no text: they are in a table beside their numbers and stretch to its width. Does not know what a report is: see
`report.py`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from citeweave.core.notebook import one_line as one_line

if TYPE_CHECKING:
    from jinja2 import Environment

PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3fa0", "#8c510a", "#b0305f", "#8a8a1f"),
    *("#332288", "#2aa198", "#66a61e", "#f4808a", "#1f5a66", "#b39ddb", "#6d1f2b", "#c2a200", "#3f51d0", "#d081e8"),
)
"""Colors of topics on a light background, the most distinct first; enough for the 19 fields of MAG.

The first ones are Okabe and Ito's (Color Universal Design, 2008), which color-blind readers can tell apart too. No twenty
colors have that property, so a name always stands beside a color.
"""

DARK_PALETTE = (
    *("#4fa3e0", "#ff7f32", "#2cc79a", "#e79ac4", "#f5b83d", "#9adcff", "#b98ae0", "#c98f4e", "#f0709e", "#cfcf5a"),
    *("#8f8ff0", "#7fdccb", "#9fdc5a", "#ff9aa2", "#4f9aa8", "#cbb8f5", "#b5525f", "#e5d04a", "#7f8cff", "#e3a6f5"),
)

GRAY, DARK_GRAY = "#a3abb5", "#6b7480"
"""Topics beyond the palette."""

SHADES = 11
"""Steps of a heat map's scale: the classes `h0` to `h10`, one blue over the page's background; text on them is readable."""

Span = tuple[float, float]
Block = tuple[str, Any]
"""A part of a section: the name of a macro in `charts.html.j2`, and what it shows; nothing is shown of an empty one."""

# --- text and numbers ------------------------------------------------------------------------------------


def format_number(value: Any, decimals: int = 2) -> str:
    """Return a number as a page shows it, with thousands separators; a dash for None, NaN and infinity.

    >>> format_number(-1.25), format_number(float("nan")), format_number(12345, 0)
    ('−1.25', '–', '12,345')
    """
    return f"{value:,.{decimals}f}".replace("-", "−") if is_number(value) else "–"


def is_number(value: object) -> bool:
    """Return whether a value can be drawn: JSON holds null or NaN where nothing was measured."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def flat_lines(metadata: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Return nested metadata of a report as flat lines.

    >>> flat_lines({"files": {"a.json": "12ab"}, "papers": 3})
    [('files / a.json', '12ab'), ('papers', 3)]
    """
    lines: list[tuple[str, Any]] = []
    for name, each in metadata.items():
        inside = isinstance(each, Mapping) and each
        lines += flat_lines(each, f"{before}{name} / ") if inside else [(f"{before}{name}", each)]
    return lines


def plain_value(each: Any) -> str:
    """Return a value of a report's metadata as one line of text.

    >>> plain_value({"seeds": [1, 2], "map": True}), plain_value(None)
    ('seeds 1, 2, map yes', '–')
    """
    if isinstance(each, Mapping):
        return ", ".join(f"{name} {plain_value(inner)}" for name, inner in each.items())
    if isinstance(each, list | tuple):
        return ", ".join(plain_value(inner) for inner in each)
    if isinstance(each, bool):
        return "yes" if each else "no"
    return "–" if each is None or each == "" else str(each)


def as_json(value: object) -> str:
    """Return a value as JSON that can stand inside an HTML script element; templates do not escape it again.

    >>> as_json({"title": "</script>"})
    Markup('{"title":"\\\\u003c/script\\\\u003e"}')
    """
    from jinja2.utils import htmlsafe_json_dumps

    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- templates -------------------------------------------------------------------------------------------


def render_report(heading: tuple[str, str, str], sections: Mapping[str, Sequence[Block]], **header: Any) -> str:
    """Render sections of blocks as an HTML file, under a heading whose second part is in small letters.

    A section with nothing but notes is left out. The header may have a summary, a warning, cards and a lead.
    """
    shown = {title: own for title, own in sections.items() if any(each for kind, each in own if kind != "note")}
    view = {"summary": (), "warning": "", "cards": (), "lead": "", "heading": heading, "sections": shown, **header}
    return render_page("report.html.j2", " ".join(map(str, heading)), "", view)


def render_page(template: str, title: str, script: str, view: Mapping[str, Any]) -> str:
    """Render a template as a complete HTML file whose content security policy allows only its own style and script."""
    return _templates().get_template(template).render(title=title, style=_read_style(), script=script, **view)


@functools.cache
def _templates() -> Environment:
    """Return the templates; whatever they print becomes one line of at most 1,000 characters and is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("citeweave.evaluation", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: value if hasattr(value, "__html__") else one_line(value, 1000),
    )
    environment.filters |= {"line": one_line, "number": format_number, "json": as_json, "sha256": _sha256}
    environment.filters |= {"place": _place, "tick": _tick_label}
    environment.tests["finite"] = is_number
    return environment


def _sha256(source: str) -> str:
    """Return the hash by which a content security policy allows one inline style or script."""
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def read_resource(name: str) -> str:
    """Return the text of a style sheet or script in `page/`, such as `report.css`."""
    return (resources.files("citeweave.evaluation") / "page" / name).read_text(encoding="utf-8")


@functools.cache
def _read_style() -> str:
    """Return the style sheet that all pages share: `report.css` with the palettes and heat map shades filled in."""
    light = _color_rules([*PALETTE, GRAY], (247, 251, 255), (125, 178, 224))
    dark = _color_rules([*DARK_PALETTE, DARK_GRAY], (24, 30, 38), (20, 98, 160))
    sheet = read_resource("report.css").strip()
    return sheet.replace("/* light colors */", light).replace("/* dark colors */", dark)


def _color_rules(topics: Sequence[str], palest: tuple[int, int, int], darkest: tuple[int, int, int]) -> str:
    """Return the CSS rules of the topic colors `c0`, `c1`, ... and of the heat map shades `h0` to `h10`."""
    colors = [f".c{at}{{color:{color}}}" for at, color in enumerate(topics)]
    for step in range(SHADES):
        shade = [round(a + (b - a) * step / (SHADES - 1)) for a, b in zip(palest, darkest, strict=True)]
        colors.append(f".h{step}{{background:#{bytes(shade).hex()}}}")
    return "".join(colors)


# --- charts ----------------------------------------------------------------------------------------------


class BarRow(NamedTuple):
    """A row of a report's bar chart: a name with its value, the ends of its interval, and p-values of a difference."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    p: str = ""
    corrected: str = ""
    is_significant: bool = False


def bar_table(groups: Mapping[str, Sequence[BarRow]], what: str, *, is_difference: bool = False) -> Block:
    """Return a bar chart of a report as a table on one axis, grouped by names; an empty name gives no heading.

    The axis is in percent, or from the largest difference over 0 to its opposite.

    >>> bar_table({"cite": [BarRow("map", -3.0, -7.5, 1.0)]}, "metric", is_difference=True)[1]["span"]
    (-8, 8)
    """
    ends = [float(end) for rows in groups.values() for row in rows for end in row[1:4] if end and is_number(end)]
    reach = max(1, math.ceil(max(map(abs, ends), default=0)))
    span = (-reach, reach) if is_difference else percent_span(ends)
    marks = (span[0], 0.0 if span[0] else span[1] / 2, span[1])
    return "bars", {"groups": groups, "what": what, "is_difference": is_difference, "span": span, "marks": marks}


def percent_span(values: Sequence[float]) -> Span:
    """Return the ends of a percent axis in HTML: 0 to 100, widened in steps of 25 for values outside, such as tau < 0.

    >>> percent_span([12.0, 99.0]), percent_span([-3.0, 20.0]), percent_span([])
    ((0.0, 100.0), (-25.0, 100.0), (0.0, 100.0))
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    return 25.0 * min(0, math.floor(low / 25)), 25.0 * max(4, math.ceil(high / 25))


def _place(value: float, span: Span, start: float = 0, length: float = 100) -> str:
    """Return where on a chart axis a value stands; values beyond an end stand at that end.

    >>> _place(25, (0, 100)), _place(-5, (0, 100)), _place(1, (0, 4), 196, -180)
    ('25.00', '0.00', '151.00')
    """
    return f"{start + length * min(1.0, max(0.0, (value - span[0]) / (span[1] - span[0]))):.2f}"


def _tick_label(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, numeric: Sequence[int] = (), kind: str = "") -> Block:
    """Return a table of a report whose first cell names each row; a cell is a text, or a number and a text."""
    return "table", rows and {"head": head, "rows": rows, "numeric": numeric, "kind": kind}


def shade_columns(rows: Sequence[Sequence[float | None]]) -> list[list[tuple[int | None, str]]]:
    """Return the cells of a report's heat map: the shade of each value in its column, 0 for the lowest, and its text.

    >>> shade_columns([[40.0, 7.0], [60.0, math.inf], [50.0, None]])
    [[(0, '40.00'), (5, '7.00')], [(10, '60.00'), (None, '')], [(5, '50.00'), (None, '')]]
    """
    values = np.array(rows, np.float64)  # (rows, columns), NaN for None
    values[np.isinf(values)] = np.nan
    low = np.fmin.reduce(values, axis=0)
    size = np.fmax.reduce(values, axis=0) - low
    shares = np.where(size > 0, (values - low) / np.where(size > 0, size, 1), 0.5 + 0 * values).tolist()
    shades = [[round((SHADES - 1) * share) if is_number(share) else None for share in row] for row in shares]
    return [
        [(shade, "" if shade is None else format_number(value)) for shade, value in zip(*row, strict=True)]
        for row in zip(shades, rows, strict=True)
    ]


def histogram(values: Sequence[float], caption: Sequence[str]) -> dict[str, Any]:
    """Return a histogram of a report: values in percent, with their mean."""
    span = percent_span(values)
    counts = np.histogram(values, 20, span)[0]
    heights = (110 * counts / counts.max()).round(1).tolist()
    bars = "".join(f"M{36.7 + 14 * at:.1f} 128v-{height}h12.6v{height}z" for at, height in enumerate(heights) if height)
    view = {"count": len(values), "highest": int(counts.max()), "mean": float(np.mean(values)), "caption": caption}
    return {**view, "bars": bars, "span": span, "marks": (span[0], sum(span) / 2, span[1])}
