"""A map of papers as one page: points on a canvas to move and zoom, titles to hover and search, topics to hide.

    Path("map.html").write_text(map_page(map_data), encoding="utf-8")

Points are packed as whole numbers of 16 bits, topics as 8, both in base64; 100,000 points and their titles are about
9 MB. The script is `map_script`; it loads nothing, and without it the page says so.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.reporting.document import json_text, number, one_line, page, text
from citeweave.evaluation.reporting.drawing import dots
from citeweave.evaluation.reporting.map_script import SCRIPT
from citeweave.evaluation.reporting.paper_map import MapData
from citeweave.evaluation.reporting.style import DARK_GREY, DARK_PALETTE, GREY, PALETTE
from citeweave.randomness import stream

MAP, REPORT = "map.html", "report.html"
"""Names of the files, side by side in a report's folder."""

NO_TOPIC = "no topic"
TITLE_SIGNS = (80, 60, 40, 25)
TITLE_BYTES = 8_500_000
"""Titles are cut to the first of these lengths by which all of them fit into so many bytes."""

MOST_TOPICS = 250
"""Of more topics the smallest share an entry of the legend."""

PREVIEW_POINTS = 3000
_EXTENT = 65535


class Topics(NamedTuple):
    """The topics of a map."""

    names: list[str]
    colours: list[int]
    """Places in the palette; its length stands for grey."""

    of_paper: NDArray[np.uint8]
    """(papers,) places among the names."""


def map_page(map_data: MapData, *, title: str = "Map of papers", back: str = "") -> str:
    """The page; `back` is the file of the report to link, such as `report.html`."""
    # in a random order, else the last topic lies over all others
    order = stream(0, "map page").permutation(len(map_data.xy))  # (n,)
    topics = number_topics(map_data.labels)
    counts = np.bincount(topics.of_paper, minlength=len(topics.names)).tolist()
    data = {
        "xy": _base64(pack(map_data.xy)[order], "<u2"),
        "topic": _base64(topics.of_paper[order], "u1"),
        "topics": list(zip(topics.names, counts, topics.colours, strict=True)),
        "palette": [[*PALETTE, GREY], [*DARK_PALETTE, DARK_GREY]],
    }
    titles = _titles([map_data.titles[row] for row in order.tolist()])
    link = f' <a href="{text(back)}">report</a>' if back else ""
    body = (
        f"<header><h1>{text(title)}</h1><p>{facts(map_data)}{link}</p></header>\n{_STAGE}\n{_ASIDE}\n"
        f'<script type="application/json" id="data">{json_text(data)}</script>\n'
        f'<script type="application/json" id="titles">{titles}</script>'
    )
    return page(title, body, script=SCRIPT, kind="map")


_STAGE = """<main id="stage">
<canvas id="plot" tabindex="0" role="img" aria-describedby="help" aria-label="map of papers"></canvas>
<div id="tip" role="status" aria-live="polite"></div>
<div id="tools"><button id="in" aria-label="zoom in">+</button><button id="out" aria-label="zoom out">−</button>
<button id="home" aria-label="show all">⌂</button></div>
<noscript><p>This map is drawn by a script in this page, and scripts are switched off. The report beside it needs none.</p></noscript>
</main>"""

_ASIDE = """<aside>
<label for="filter">Find in titles</label>
<input id="filter" type="search" autocomplete="off" spellcheck="false">
<p id="count" class="muted" role="status"></p>
<ul id="found"></ul>
<h2>Topics</h2>
<p><button id="all">show all</button> <button id="none">hide all</button></p>
<ul id="legend"></ul>
<p id="help" class="muted">Drag to move, wheel or pinch to zoom, point at a dot for its title. With the keyboard: arrows,
+, − and 0; the title is that of the dot nearest to the middle. Only nearness means something on this map.</p>
</aside>"""


def facts(map_data: MapData) -> str:
    """How many papers, how well topics hold together, and the map's note."""
    count = len(map_data.xy)
    told = f"{count:,} {'paper' if count == 1 else 'papers'}"
    if math.isfinite(map_data.homogeneity):
        told += f", homogeneity {number(map_data.homogeneity)}, completeness {number(map_data.completeness)}"
    return f"{told}. {text(map_data.note, 500)}".strip()


def preview(map_data: MapData) -> str:
    """A small picture of the map for the report, of some of its points."""
    topics = number_topics(map_data.labels)
    order = stream(0, "map page").permutation(len(map_data.xy))[:PREVIEW_POINTS]  # (shown,)
    colours = np.array(topics.colours)[topics.of_paper[order]]  # (shown,)
    picture = dots(map_data.xy[order], colours, len(PALETTE) + 1)
    named = [_key(*one) for one in zip(topics.names, topics.colours, strict=True)]
    more = len(named) - len(PALETTE) - 1
    keys = [*named[: len(PALETTE)], _key(f"{more + 1:,} more", len(PALETTE))] if more > 0 else named
    some = f" Shown: {len(order):,} of them." if len(order) < len(map_data.xy) else ""
    return f'<figure><div class="preview">{picture}</div><figcaption>{"".join(keys)}</figcaption></figure><p>{facts(map_data)}{some}</p>'


def _key(name: str, colour: int) -> str:
    dot = f'<svg width="10" height="10" aria-hidden="true"><path class="dots c{colour}" stroke-width="9" d="M5 5h0"/></svg>'
    return f'<span class="key">{dot}{text(name, 40)}</span>'


def number_topics(labels: Sequence[str]) -> Topics:
    """Number topics by their size, the largest first; small ones beyond the legend and papers without any come last.

    >>> found = number_topics(["a", "b", "b", ""])
    >>> found.names, found.colours, found.of_paper.tolist()
    (['b', 'a', 'no topic'], [0, 1, 20], [1, 0, 0, 2])
    """
    lines = [one_line(label, 80) for label in labels]
    sizes = Counter(lines)
    unnamed = sizes.pop("", 0)
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    names = ordered[:MOST_TOPICS]
    colours = [min(number, len(PALETTE)) for number in range(len(names))]
    place = {name: number for number, name in enumerate(names)}
    if rest := ordered[MOST_TOPICS:]:
        place |= dict.fromkeys(rest, len(names))
        names, colours = [*names, f"{len(rest):,} smaller topics"], [*colours, len(PALETTE)]
    if unnamed:
        place[""] = len(names)
        names, colours = [*names, NO_TOPIC], [*colours, len(PALETTE)]
    return Topics(names, colours, np.array([place[line] for line in lines], np.uint8))


def pack(xy: NDArray[Any]) -> NDArray[np.uint16]:
    """(n, 2) whole numbers from 0 to 65535, the same scale on both axes.

    >>> pack(np.array([[0.0, 0.0], [2.0, 1.0]])).tolist()
    [[0, 16384], [65535, 49151]]
    """
    wide = np.asarray(xy, np.float64)
    low, high = wide.min(axis=0), wide.max(axis=0)
    size = float((high - low).max()) or 1.0
    places = np.rint(_EXTENT * (0.5 + (wide - (low + high) / 2) / size)).clip(0, _EXTENT)
    return np.asarray(places, np.uint16)


def _base64(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def _titles(titles: Sequence[str]) -> str:
    """All titles as one JSON string, a line each."""
    found = ""
    for most in TITLE_SIGNS:
        found = json_text("\n".join(one_line(title, most) for title in titles))
        if len(found.encode()) <= TITLE_BYTES:
            break
    return found
