"""A page of HTML that needs nothing else: escaped text, tables, and a policy that forbids whatever is not in it.

    >>> text("<b>")
    '&lt;b&gt;'
    >>> number(-1.25), number(float("nan")), number(12345, 0)
    ('−1.25', '–', '12,345')
    >>> table(["task", "map"], [[text("a & b"), "1.00"]])
    '<div class="scroll"><table><thead><tr><th scope="col">task</th><th scope="col" class="num">map</th></tr></thead><tbody><tr><th scope="row">a &amp; b</th><td class="num">1.00</td></tr></tbody></table></div>'

Ids, titles and names were written by others and are never markup: whatever comes from outside goes through `text`, and
data for a script through `json_text`. All other strings here are HTML. Draws nothing: see `drawing`.

Pictures as inline SVG: bars with intervals, differences, histograms, curves, a small map.

    >>> bar(50, 40, 60, (0, 100)).count("<path")
    1
    >>> ticks(0, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8]

Colors come from the page's style, so that one picture serves light, dark and paper. Bars and differences hold no text:
they stand in a table beside their numbers and take the width they get. Plain numbers only, no names: see `document`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.style import PALETTE, STYLE

_JOINERS = "\u200c\u200d"
"""Unprintable, yet parts of words in some scripts and of many emoji."""

_ESCAPES = {sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def one_line(value: object, most: int = 200) -> str:
    """Plain text on one line, without signs that cannot be shown or that turn the direction of writing.

    >>> one_line("a" + chr(10) + " b" + chr(0x202e) + "c", 4)
    'a bc'
    >>> one_line("abcdef", 4)
    'abc…'
    """
    # ten times as many are enough to find the signs that can be shown, however long the text is
    line = " ".join(str(value)[: 10 * most + 100].split())
    if not line.isprintable():
        line = "".join(sign for sign in line if sign.isprintable() or sign in _JOINERS)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def text(value: object, most: int = 200) -> str:
    """Anything, as text of a page."""
    return html.escape(one_line(value, most), quote=True)


def number(value: Any, decimals: int = 2) -> str:
    """A number to read; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{decimals}f}".replace("-", "−")


def json_text(value: object) -> str:
    """JSON that can stand inside a script element.

    >>> json_text({"title": "</script>"})
    '{"title":"\\\\u003c/script\\\\u003e"}'
    """
    found = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign, escape in _ESCAPES.items():  # far faster than str.translate on megabytes
        found = found.replace(sign, escape)
    return found


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: Iterable[int] = (1,),
    wide: int | None = None,
    kind: str = "",
) -> str:
    """Rows of cells, the first of each naming its row; `numeric` columns stand by their last digit, `wide` gets the room.

    A table that is wider than the screen scrolls by itself.
    """
    marks = dict.fromkeys(numeric, ' class="num"') | ({wide: ' class="wide"'} if wide is not None else {})
    heads = "".join(f'<th scope="col"{marks.get(at, "")}>{cell}</th>' for at, cell in enumerate(head))
    lines = []
    for name, *cells in rows:
        others = "".join(f"<td{marks.get(at, '')}>{cell}</td>" for at, cell in enumerate(cells, 1))
        lines.append(f'<tr><th scope="row">{name}</th>{others}</tr>')
    opening = f'<table class="{kind}">' if kind else "<table>"
    body = f"{opening}<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll">{body}</div>'


def section(title: str, *parts: str) -> str:
    """A part of a page under its heading; nothing where there is nothing to show."""
    shown = [part for part in parts if part]
    return f'<section id="{_anchor(title)}"><h2>{title}</h2>{"".join(shown)}</section>' if shown else ""


def contents(sections: Mapping[str, str]) -> str:
    """Links to the sections that are there, by their titles."""
    links = [f'<a href="#{_anchor(title)}">{title}</a>' for title, part in sections.items() if part]
    return f'<nav aria-label="contents">{" ".join(links)}</nav>'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def bullets(lines: Iterable[object]) -> str:
    """Lines of text."""
    items = "".join(f"<li>{text(line, 1000)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def page(title: str, body: str, *, script: str = "", kind: str = "report") -> str:
    """The whole file; only this very style and script may take effect in a browser."""
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src {_hash(STYLE)}",
            f"script-src {_hash(script) if script else chr(39) + 'none' + chr(39)}",
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
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body class="{kind}">\n{body}\n{closing}</body>\n</html>\n'
    )


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# Pictures as inline SVG: bars with intervals, differences, histograms, curves, a small map.

Span = tuple[float, float]
Curve = Sequence[tuple[float, float]]

_MOST_ON_A_CURVE = 400
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_STRETCH = 'preserveAspectRatio="none" aria-hidden="true" focusable="false"'


def is_number(value: object) -> bool:
    """Whether it can be drawn: JSON holds null or NaN where nothing was measured."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def span_of(values: Sequence[float]) -> Span:
    """0 to 100 for percents, widened by steps of 25 where a value lies outside, as a correlation below 0 does.

    >>> span_of([12.0, 99.0]), span_of([-3.0, 20.0]), span_of([])
    ((0.0, 100.0), (-25.0, 100.0), (0.0, 100.0))
    """
    drawn = [value for value in values if is_number(value)]
    low, high = min(drawn, default=0.0), max(drawn, default=0.0)
    return 25.0 * min(0, math.floor(low / 25)), 25.0 * max(4, math.ceil(high / 25))


def bar(value: float, low: float | None, high: float | None, span: Span) -> str:
    """A bar from 0 to the value, with its interval."""
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


def axis(span: Span, marks: Sequence[float]) -> str:
    """The numbers above a column of bars, in places that are shares of its width."""
    parts = []
    for mark in marks:
        at = _place(mark, span)
        anchor = "start" if at < 5 else "end" if at > 95 else "middle"
        parts.append(f'<text x="{at:.2f}%" y="1em" text-anchor="{anchor}">{_tick(mark)}</text>')
    return f'<svg class="axis" aria-hidden="true" focusable="false">{"".join(parts)}</svg>'


def difference(points: float, low: float, high: float, reach: float) -> str:
    """A difference and its interval on both sides of 0; `reach` is the end of the axis."""
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
    """Percent of the way along an axis; what lies beyond its ends stands at them."""
    return 100 * min(1.0, max(0.0, (value - span[0]) / (span[1] - span[0])))


def histogram(values: Sequence[float], *, bins: int = 20) -> str:
    """How values in percent are spread, with a line at their mean."""
    drawn = np.array([value for value in values if is_number(value)], np.float64)
    if not len(drawn):
        return ""
    low, high = span_of([float(drawn.min()), float(drawn.max())])
    counts, _ = np.histogram(drawn, bins, (low, high))
    most, step = int(counts.max()), 280 / bins
    bars = "".join(
        f"M{36 + at * step + 0.7:.1f} 128v-{110 * count / most:.1f}h{step - 1.4:.1f}v{110 * count / most:.1f}z"
        for at, count in enumerate(counts.tolist())
        if count
    )
    mean = 36 + 2.8 * _place(float(drawn.mean()), (low, high))
    labels = "".join(
        f'<text x="{36 + 280 * share:.0f}" y="144" text-anchor="middle">{number(low + share * (high - low), 0)}</text>'
        for share in (0, 0.5, 1)
    )
    return (
        f'<svg viewBox="0 0 330 150" width="330" role="img" aria-label="histogram of {len(drawn):,} values">'
        f'<path class="grid" d="M36 18H316M36 73H316M36 128H316"/>'
        f'<text x="31" y="22" text-anchor="end">{most:,}</text><text x="31" y="132" text-anchor="end">0</text>'
        f'<path class="fill" d="{bars}"/><path class="mark" stroke-dasharray="4 3" d="M{mean:.1f} 10V128"/>{labels}</svg>'
    )


def curves(lines: Mapping[str, Curve]) -> str:
    """Lines over one x, each with its own color and dash; names stand below in a key."""
    shown = {name: _thin(line) for name, line in lines.items()}
    every = [point for line in shown.values() for point in line]
    if not every:
        return ""
    xs, ys = _axis([x for x, _ in every]), _axis([y for _, y in every])
    parts = [_axes(xs, ys)]
    for at, line in enumerate(shown.values()):
        spots = " ".join(f"{_across(x, xs):.1f} {_up(y, ys):.1f}" for x, y in line)
        dash = f' stroke-dasharray="{_DASHES[at // 4 % 4]}"' if at >= 4 else ""
        parts.append(f'<path class="line c{at % len(PALETTE)}"{dash} d="M{spots}"/>' if spots else "")
    keys = "".join(_key(name, at) for at, name in enumerate(shown))
    picture = f'<svg viewBox="0 0 400 226" width="460" role="img" aria-label="curves">{"".join(parts)}</svg>'
    return f"<figure>{picture}<figcaption>{keys}</figcaption></figure>"


def _key(name: str, at: int) -> str:
    dash = f' stroke-dasharray="{_DASHES[at // 4 % 4]}"' if at >= 4 else ""
    sample = f'<svg width="24" height="8" aria-hidden="true"><path class="line c{at % len(PALETTE)}"{dash} d="M0 4H24"/></svg>'
    return f'<span class="key">{sample}{text(name, 60)}</span>'


def _thin(line: Curve) -> list[tuple[float, float]]:
    """At most so many points as a picture can show, in the order of x; the last one stays."""
    points = sorted((float(x), float(y)) for x, y in line if is_number(x) and is_number(y))
    step = max(1, math.ceil(len(points) / _MOST_ON_A_CURVE))
    kept = points[::step]
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def _axis(values: Sequence[float]) -> Span:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _across(x: float, xs: Span) -> float:
    return 56 + 3.3 * _place(x, xs)


def _up(y: float, ys: Span) -> float:
    return 196 - 1.8 * _place(y, ys)


def _axes(xs: Span, ys: Span) -> str:
    parts = []
    for y in ticks(*ys):
        at = _up(y, ys)
        parts.append(f'<path class="grid" d="M56 {at:.1f}H386"/>')
        parts.append(f'<text x="50" y="{at + 4:.1f}" text-anchor="end">{_tick(y)}</text>')
    for x in ticks(*xs):
        parts.append(f'<text x="{_across(x, xs):.1f}" y="216" text-anchor="middle">{_tick(x)}</text>')
    return "".join(parts)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two ends: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(3, 47)
    [10.0, 20.0, 30.0, 40.0]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:,.6g}".replace("-", "−")


def dots(xy: NDArray[np.float32], topics: NDArray[np.int64], colors: int) -> str:
    """A small map: (n, 2) points, each with the number of its color; as one path a color, since it is small so."""
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
