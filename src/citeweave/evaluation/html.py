"""HTML building blocks of report pages: escaped text, tables, SVG charts, palette, a self-contained page.

    >>> escape("<b>")
    '&lt;b&gt;'
    >>> format_number(-1.25), format_number(float("nan")), format_number(12345, 0)
    ('−1.25', '–', '12,345')
    >>> render_table(["task", "map"], [[escape("a & b"), "1.00"]])
    '<div class="scroll"><table><thead><tr><th scope="col">task</th><th scope="col" class="num">map</th></tr></thead><tbody><tr><th scope="row">a &amp; b</th><td class="num">1.00</td></tr></tbody></table></div>'
    >>> draw_bar(50, 40, 60, (0, 100)).count("<path")
    1

Ids, titles and names are untrusted text and never markup: whatever comes from outside goes through `escape`, and data for
a script through `escape_json`. All other strings here are HTML. A page loads nothing: its style (`report.css`) and script
are inside it, and its content security policy forbids everything else.

Charts are inline SVG whose colors come from the style, so that one chart serves light screens, dark screens and paper.
Bars and differences hold no text: they are in a table beside their numbers and stretch to its width. Does not know what
a report is: see `report_page.py`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3fa0", "#8c510a", "#b0305f", "#8a8a1f"),
    *("#332288", "#2aa198", "#66a61e", "#f4808a", "#1f5a66", "#b39ddb", "#6d1f2b", "#c2a200", "#3f51d0", "#d081e8"),
)
"""Colors of topics and curves on a light background, the most distinct first; enough for the 19 fields of MAG.

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
Curve = Sequence[tuple[float, float]]

_JOINERS = "\u200c\u200d"
"""Not printable, yet parts of words in some scripts and of many emoji."""

_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_MAX_CURVE_POINTS = 400
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_STRETCH = 'preserveAspectRatio="none" aria-hidden="true" focusable="false"'


# --- text and numbers ------------------------------------------------------------------------------------


def one_line(value: object, max_chars: int = 200) -> str:
    """Return untrusted text for HTML on one line, without invisible characters and changes of writing direction.

    >>> one_line("a" + chr(10) + " b" + chr(0x202e) + "c", 4)
    'a bc'
    >>> one_line("abcdef", 4)
    'abc…'
    """
    # ten times as many characters hold enough printable ones, however long the text is
    line = " ".join(str(value)[: 10 * max_chars + 100].split())
    if not line.isprintable():
        line = "".join(character for character in line if character.isprintable() or character in _JOINERS)
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def escape(value: object, max_chars: int = 200) -> str:
    """Return untrusted text as HTML: on one line, cut to a length, with its markup escaped."""
    return html.escape(one_line(value, max_chars), quote=True)


def format_number(value: Any, decimals: int = 2) -> str:
    """Return a number as a page shows it, with thousands separators; a dash for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{decimals}f}".replace("-", "−")


def escape_json(value: object) -> str:
    """Return a value as JSON that can stand inside an HTML script element.

    >>> escape_json({"title": "</script>"})
    '{"title":"\\\\u003c/script\\\\u003e"}'
    """
    encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character, replacement in _ESCAPES.items():  # far faster than str.translate on megabytes
        encoded = encoded.replace(character, replacement)
    return encoded


# --- parts of a page -------------------------------------------------------------------------------------


def render_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: Iterable[int] = (1,),
    kind: str = "",
) -> str:
    """Render an HTML table whose first cell names each row; `numeric` columns align right.

    A table that is wider than the screen scrolls by itself.
    """
    classes = dict.fromkeys(numeric, ' class="num"')
    heads = "".join(f'<th scope="col"{classes.get(at, "")}>{cell}</th>' for at, cell in enumerate(head))
    lines = []
    for name, *cells in rows:
        others = "".join(f"<td{classes.get(at, '')}>{cell}</td>" for at, cell in enumerate(cells, 1))
        lines.append(f'<tr><th scope="row">{name}</th>{others}</tr>')
    opening = f'<table class="{kind}">' if kind else "<table>"
    body = f"{opening}<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll">{body}</div>'


def render_section(title: str, *parts: str) -> str:
    """Return an HTML section under its heading; an empty string where all parts are empty."""
    shown = [part for part in parts if part]
    return f'<section id="{_anchor(title)}"><h2>{title}</h2>{"".join(shown)}</section>' if shown else ""


def render_contents(sections: Mapping[str, str]) -> str:
    """Return a table of contents: HTML links to the sections that are not empty, by their titles."""
    links = [f'<a href="#{_anchor(title)}">{title}</a>' for title, part in sections.items() if part]
    return f'<nav aria-label="contents">{" ".join(links)}</nav>'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def render_bullets(lines: Iterable[object]) -> str:
    """Return untrusted lines of text as an HTML bullet list; an empty string where there are none."""
    items = "".join(f"<li>{escape(line, 1000)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def render_page(title: str, body: str, *, script: str = "", kind: str = "report") -> str:
    """Render a complete HTML file whose content security policy allows only its own style and script."""
    style = _read_style()
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src {_source_hash(style)}",
            f"script-src {_source_hash(script) if script else chr(39) + 'none' + chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    closing = f"<script>{script}</script>\n" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f'<body class="{kind}">\n{body}\n{closing}</body>\n</html>\n'
    )


def _source_hash(source: str) -> str:
    """Return the hash by which a content security policy allows one inline style or script."""
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def read_resource(name: str) -> str:
    """Return the text of a style sheet or script that is shipped beside this module, such as `report.css`."""
    return (resources.files("citeweave.evaluation") / name).read_text(encoding="utf-8")


@functools.cache
def _read_style() -> str:
    """Return the style sheet that all pages share: `report.css` with the palettes and heat map shades filled in."""
    light = _color_rules([*PALETTE, GRAY], (247, 251, 255), (125, 178, 224))
    dark = _color_rules([*DARK_PALETTE, DARK_GRAY], (24, 30, 38), (20, 98, 160))
    sheet = read_resource("report.css").strip()
    return sheet.replace("/* light colors */", light).replace("/* dark colors */", dark)


def _color_rules(topics: Sequence[str], palest: tuple[int, int, int], darkest: tuple[int, int, int]) -> str:
    """Return the CSS rules of the topic colors `c0`, `c1`, ... and of the heat map shades `h0` to `h10`."""
    shades = [
        "#" + "".join(f"{round(a + (b - a) * step / (SHADES - 1)):02x}" for a, b in zip(palest, darkest, strict=True))
        for step in range(SHADES)
    ]
    return "".join(
        [
            *(f".c{at}{{color:{color}}}" for at, color in enumerate(topics)),
            *(f".h{at}{{background:{color}}}" for at, color in enumerate(shades)),
        ]
    )


# --- charts ----------------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    """Return whether a value can be drawn: JSON holds null or NaN where nothing was measured."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def percent_span(values: Sequence[float]) -> Span:
    """Return the ends of a percent axis in HTML: 0 to 100, widened in steps of 25 for values outside, such as tau < 0.

    >>> percent_span([12.0, 99.0]), percent_span([-3.0, 20.0]), percent_span([])
    ((0.0, 100.0), (-25.0, 100.0), (0.0, 100.0))
    """
    drawn = [value for value in values if is_number(value)]
    low, high = min(drawn, default=0.0), max(drawn, default=0.0)
    return 25.0 * min(0, math.floor(low / 25)), 25.0 * max(4, math.ceil(high / 25))


def draw_bar(value: float, low: float | None, high: float | None, span: Span) -> str:
    """Return the HTML of an SVG bar from 0 to a value, with a whisker for its interval."""
    if not is_number(value):
        return ""
    at, zero = _place(value, span), _place(0, span)
    parts = [
        '<rect class="track" width="100" height="12"/>',
        f'<rect class="fill" x="{min(at, zero):.2f}" y="1.5" width="{abs(at - zero):.2f}" height="9"/>',
    ]
    if is_number(low) and is_number(high):
        assert low is not None and high is not None
        parts.append(_whisker(_place(low, span), _place(high, span)))
    return f'<svg class="bar" viewBox="0 0 100 12" {_STRETCH}>{"".join(parts)}</svg>'


def draw_axis(span: Span, marks: Sequence[float]) -> str:
    """Return the HTML of an SVG axis above a column of bars, its labels placed in percent of the column's width."""
    parts = []
    for mark in marks:
        at = _place(mark, span)
        anchor = "start" if at < 5 else "end" if at > 95 else "middle"
        parts.append(f'<text x="{at:.2f}%" y="1em" text-anchor="{anchor}">{_tick_label(mark)}</text>')
    return f'<svg class="axis" aria-hidden="true" focusable="false">{"".join(parts)}</svg>'


def draw_difference(points: float, low: float, high: float, reach: float) -> str:
    """Return the HTML of an SVG bar for a difference with its interval, on an axis from -reach over 0 to reach."""
    if not (is_number(points) and is_number(low) and is_number(high)):
        return ""
    span = (-reach, reach)
    at = _place(points, span)
    return (
        f'<svg class="bar" viewBox="0 0 100 12" {_STRETCH}><rect class="track" width="100" height="12"/>'
        f'<path class="grid" vector-effect="non-scaling-stroke" d="M50 0V12"/>'
        f'<rect class="fill" x="{min(at, 50):.2f}" y="3" width="{abs(at - 50):.2f}" height="6"/>'
        f"{_whisker(_place(low, span), _place(high, span))}</svg>"
    )


def _whisker(low: float, high: float) -> str:
    return (
        '<path class="mark" vector-effect="non-scaling-stroke" '
        f'd="M{low:.2f} 6H{high:.2f}M{low:.2f} 2.5V9.5M{high:.2f} 2.5V9.5"/>'
    )


def _place(value: float, span: Span) -> float:
    """Return how far along a chart axis a value lies, in percent; values beyond an end stand at that end."""
    return 100 * min(1.0, max(0.0, (value - span[0]) / (span[1] - span[0])))


def draw_histogram(values: Sequence[float], *, bins: int = 20) -> str:
    """Return the HTML of an SVG histogram of values in percent, with a dashed line at their mean."""
    drawn = np.array([value for value in values if is_number(value)], np.float64)
    if not len(drawn):
        return ""
    low, high = percent_span([float(drawn.min()), float(drawn.max())])
    counts, _ = np.histogram(drawn, bins, (low, high))
    highest, step = int(counts.max()), 280 / bins
    bars = "".join(
        f"M{36 + at * step + 0.7:.1f} 128v-{110 * count / highest:.1f}h{step - 1.4:.1f}v{110 * count / highest:.1f}z"
        for at, count in enumerate(counts.tolist())
        if count
    )
    mean = 36 + 2.8 * _place(float(drawn.mean()), (low, high))
    labels = "".join(
        f'<text x="{36 + 280 * share:.0f}" y="144" text-anchor="middle">{format_number(low + share * (high - low), 0)}</text>'
        for share in (0, 0.5, 1)
    )
    return (
        f'<svg viewBox="0 0 330 150" width="330" role="img" aria-label="histogram of {len(drawn):,} values">'
        f'<path class="grid" d="M36 18H316M36 73H316M36 128H316"/>'
        f'<text x="31" y="22" text-anchor="end">{highest:,}</text><text x="31" y="132" text-anchor="end">0</text>'
        f'<path class="fill" d="{bars}"/><path class="mark" stroke-dasharray="4 3" d="M{mean:.1f} 10V128"/>{labels}</svg>'
    )


def draw_curves(lines: Mapping[str, Curve]) -> str:
    """Return the HTML of named SVG curves over a shared x axis, each with its color and dash, and a legend below."""
    shown = {name: _thin(line) for name, line in lines.items()}
    every = [point for line in shown.values() for point in line]
    if not every:
        return ""
    xs, ys = _axis_ends([x for x, _ in every]), _axis_ends([y for _, y in every])
    parts = [_draw_axes(xs, ys)]
    for at, line in enumerate(shown.values()):
        spots = " ".join(f"{_across(x, xs):.1f} {_up(y, ys):.1f}" for x, y in line)
        parts.append(f'<path class="line c{at % len(PALETTE)}"{_dash(at)} d="M{spots}"/>' if spots else "")
    keys = "".join(_draw_key(name, at) for at, name in enumerate(shown))
    picture = f'<svg viewBox="0 0 400 226" width="460" role="img" aria-label="curves">{"".join(parts)}</svg>'
    return f"<figure>{picture}<figcaption>{keys}</figcaption></figure>"


def _draw_key(name: str, at: int) -> str:
    sample = f'<svg width="24" height="8" aria-hidden="true"><path class="line c{at % len(PALETTE)}"{_dash(at)} d="M0 4H24"/></svg>'
    return f'<span class="key">{sample}{escape(name, 60)}</span>'


def _dash(at: int) -> str:
    return f' stroke-dasharray="{_DASHES[at // 4 % 4]}"' if at >= 4 else ""


def _thin(line: Curve) -> list[tuple[float, float]]:
    """Return at most as many points of a curve as a chart can show, in the order of x; the last point stays."""
    points = sorted((float(x), float(y)) for x, y in line if is_number(x) and is_number(y))
    step = max(1, math.ceil(len(points) / _MAX_CURVE_POINTS))
    shown = points[::step]
    return shown if not points or shown[-1] == points[-1] else [*shown, points[-1]]


def _axis_ends(values: Sequence[float]) -> Span:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _across(x: float, xs: Span) -> float:
    return 56 + 3.3 * _place(x, xs)


def _up(y: float, ys: Span) -> float:
    return 196 - 1.8 * _place(y, ys)


def _draw_axes(xs: Span, ys: Span) -> str:
    parts = []
    for y in choose_ticks(*ys):
        at = _up(y, ys)
        parts.append(f'<path class="grid" d="M56 {at:.1f}H386"/>')
        parts.append(f'<text x="50" y="{at + 4:.1f}" text-anchor="end">{_tick_label(y)}</text>')
    for x in choose_ticks(*xs):
        parts.append(f'<text x="{_across(x, xs):.1f}" y="216" text-anchor="middle">{_tick_label(x)}</text>')
    return "".join(parts)


def choose_ticks(low: float, high: float, max_steps: int = 5) -> list[float]:
    """Return round numbers for an SVG axis in HTML between two ends, in steps of 1, 2 or 5 times a power of ten.

    >>> choose_ticks(3, 47), choose_ticks(0, 0.93)
    ([10.0, 20.0, 30.0, 40.0], [0.0, 0.2, 0.4, 0.6, 0.8])
    """
    raw = (high - low) / max_steps
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def _tick_label(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−")


def draw_dots(xy: NDArray[np.float32], topics: NDArray[np.int64], colors: int) -> str:
    """Return the HTML of SVG dots at points (n, 2), each in the color of its topic; one path per color keeps it small."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    size = max(float((high - low).max()), 1e-9)
    spots = np.rint(8 + 984 * (xy - (low + high) / 2 + size / 2) / size).astype(np.int64)  # (n, 2)
    top, bottom = int(spots[:, 1].min()) - 8, int(spots[:, 1].max()) + 8
    width = min(18.0, max(5.0, 400 / math.sqrt(len(xy))))
    paths = [
        f'<path class="dots c{topic}" stroke-width="{width:.1f}" d="'
        + "".join(f"M{x} {top + bottom - y}h0" for x, y in spots[topics == topic].tolist())
        + '"/>'
        for topic in range(colors)
        if (topics == topic).any()
    ]
    box = f'viewBox="0 {top} 1000 {bottom - top}"'
    return f'<svg {box} role="img" aria-label="map of {len(xy):,} papers">{"".join(paths)}</svg>'
