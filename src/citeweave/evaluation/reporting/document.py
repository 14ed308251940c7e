"""A page of HTML that needs nothing else: escaped text, tables, and a policy that forbids whatever is not in it.

    >>> text("<b>")
    '&lt;b&gt;'
    >>> number(-1.25), number(float("nan")), number(12345, 0)
    ('−1.25', '–', '12,345')
    >>> table(["task", "map"], [[text("a & b"), "1.00"]])
    '<div class="scroll"><table><thead><tr><th scope="col">task</th><th scope="col" class="num">map</th></tr></thead><tbody><tr><th scope="row">a &amp; b</th><td class="num">1.00</td></tr></tbody></table></div>'

Ids, titles and names were written by others and are never markup: whatever comes from outside goes through `text`, and
data for a script through `json_text`. All other strings here are HTML. Draws nothing: see `drawing`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from citeweave.evaluation.reporting.style import STYLE

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
