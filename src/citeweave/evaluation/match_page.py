"""How the sentences of two papers match, as HTML: ribbons, the strongest pairs, the plan as a heat map.

    picture = draw_ribbons(explanation, PairTexts("A", "B", ["One.", "Two."], ["Three."]))
    Path("page.html").write_text(explanation_as_page(explanation, texts, distance), encoding="utf-8")

A ribbon is as wide as the pair's mass, has the color of its left sentence, and is denser the nearer the two sentences are.
Texts are inside the picture and wrap there; their heights are estimated from their lengths, since no script may measure
them. Everything that hovering shows is also in the tables. Titles and sentences are untrusted text, never markup. Does not
compute the match: see `vectors/explain.py`.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.html import (
    SHADES,
    escape,
    format_number,
    one_line,
    render_contents,
    render_page,
    render_section,
    render_table,
)
from citeweave.vectors.document_distance import DocumentDistance
from citeweave.vectors.explain import SentenceAlignment

WIDTH, TEXT_WIDTH, PORT_WIDTH = 1000, 372, 10
"""Of the picture, of a column of text, and of the bar beside it, in pixels."""

LINE_HEIGHT, LINE_CHARS, BOLD_LINE_CHARS, MAX_CHARS = 17, 46, 38, 600
"""Height of a line of text in pixels, cautious estimates of how many characters fit on it, and where a sentence is cut."""

MIN_SHARE = 0.005
"""Smallest share of all mass that is drawn."""

COLORS, STEPS = 8, 4
NO_TEXT, COMPLETE_PAPER = "(no text)", "(the whole paper)"
MAX_PAIRS = 12

MATCHING = {
    "single": "The nearest pair of sentences counts alone.",
    "top2": "The two nearest pairs of sentences count.",
    "mean_best": "Each sentence of the first paper counts by its nearest sentence of the second.",
    "attention": "All pairs count, the nearer the more.",
    "transport": "The mass of the first paper's sentences is carried to the second's at the least cost.",
}
"""Document distance -> how it matches sentences."""

_ABOUT_RIBBONS = (
    '<p class="muted">A ribbon is as wide as the share of the pair, has the color of its left sentence, and is denser '
    "where the sentences are nearer. Shares below 0.5 % are not drawn. Sentences are counted from 0.</p>"
)
_ABOUT_CELLS = (
    '<p class="muted">Rows are sentences of the first paper, columns of the second. Each cell has the share of the pair '
    "in percent, by which it is shaded, and below it the distance of the two sentences.</p>"
)


@dataclass(frozen=True)
class PairTexts:
    """Texts for a page about a match: the titles of two papers, and the sentences of their complete abstracts in order."""

    left_title: str
    right_title: str
    left: Sequence[str]
    right: Sequence[str]

    def of_left(self, at: int) -> str:
        return _sentence(self.left, at)

    def of_right(self, at: int) -> str:
        return _sentence(self.right, at)


def _sentence(sentences: Sequence[str], at: int) -> str:
    """Return the text of a matched sentence; -1 is the vector of the whole paper.

    >>> _sentence(["One."], 0), _sentence(["One."], -1), _sentence(["One."], 1)
    ('One.', '(the whole paper)', '(no text)')
    """
    if at < 0:
        return COMPLETE_PAPER
    return sentences[at] if at < len(sentences) else NO_TEXT


@dataclass(frozen=True)
class ExampleMatch:
    """A match to show on a report's page: how a query's sentences match those of the paper that was ranked first."""

    task: str
    query: str
    metric: str
    value: float
    """In percent."""

    grade: int
    explanation: SentenceAlignment
    texts: PairTexts


@dataclass(frozen=True)
class _Column:
    """The sentences of one paper as a column of the ribbon picture, from top to bottom."""

    texts: list[str]
    heights: list[int]
    masses: NDArray[np.float64]
    tops: NDArray[np.float64]
    """Where the space of each sentence begins, and where the last one's ends."""

    def middle(self, at: int) -> float:
        return float(self.tops[at] + self.tops[at + 1]) / 2


def draw_ribbons(explanation: SentenceAlignment, texts: PairTexts) -> str:
    """Draw a match of two papers for a page as SVG: their sentences side by side, ribbons between those that match."""
    shown = [_numbered(explanation.left, texts.of_left), _numbered(explanation.right, texts.of_right)]
    head = max(_height(title, BOLD_LINE_CHARS) for title in (texts.left_title, texts.right_title)) + 10
    total = max(sum(map(_height, own)) + 8 * len(own) for own in shown)
    masses = explanation.left_masses, explanation.right_masses
    left, right = (_column(own, mass, head, total) for own, mass in zip(shown, masses, strict=True))
    scale = _scale(left, right)
    parts = [
        _draw_text(0, 0, head, f"<b>{escape(texts.left_title or NO_TEXT, MAX_CHARS)}</b>"),
        _draw_text(WIDTH - TEXT_WIDTH, 0, head, f"<b>{escape(texts.right_title or NO_TEXT, MAX_CHARS)}</b>"),
        *_draw_flows(explanation, left, right, scale),
        *_draw_side(left, 0, TEXT_WIDTH + 6, scale),
        *_draw_side(right, WIDTH - TEXT_WIDTH, WIDTH - TEXT_WIDTH - 6 - PORT_WIDTH, scale),
    ]
    box = f'viewBox="0 0 {WIDTH} {head + total:.0f}" role="group" aria-label="which sentences match"'
    scroll = '<div class="scroll match" tabindex="0" role="region" aria-label="matching sentences">'
    return f"{scroll}<svg {box}>{''.join(parts)}</svg></div>"


def _render_strongest_pairs(explanation: SentenceAlignment, texts: PairTexts, max_pairs: int = MAX_PAIRS) -> str:
    """Return an HTML table of the pairs of sentences that count most, with their shares and distances."""
    total = float(explanation.plan.sum()) or 1.0
    rows = [
        [
            f"{format_number(100 * pair.mass / total, 1)} %",
            format_number(pair.distance, 3),
            f"<b>{pair.left}</b> {escape(texts.of_left(pair.left), MAX_CHARS)}",
            f"<b>{pair.right}</b> {escape(texts.of_right(pair.right), MAX_CHARS)}",
        ]
        for pair in explanation.strongest(max_pairs)
    ]
    return render_table(["share", "distance", "first paper", "second paper"], rows, numeric=[1], kind="pairs")


def _render_plan(explanation: SentenceAlignment, texts: PairTexts) -> str:
    """Return the matching plan as an HTML heat map of sentences by sentences: shares in percent, distances below."""
    total, largest = float(explanation.plan.sum()) or 1.0, float(explanation.plan.max()) or 1.0
    heads = "".join(
        f'<th scope="col" title="{escape(texts.of_right(at), MAX_CHARS)}">{at}</th>'
        for at in explanation.right.tolist()
    )
    lines = []
    for i, at in enumerate(explanation.left.tolist()):
        cells = "".join(
            f'<td class="h{round((SHADES - 1) * mass / largest)}">{_percent(100 * mass / total)}<small>{apart:.2f}</small></td>'
            for mass, apart in zip(explanation.plan[i].tolist(), explanation.distances[i].tolist(), strict=True)
        )
        name = f"<b>{at}</b> {escape(texts.of_left(at), 48)}"
        lines.append(f'<tr><th scope="row" title="{escape(texts.of_left(at), MAX_CHARS)}">{name}</th>{cells}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="heat map"><table class="heat plan"><thead><tr>'
        f"<th>first \\ second</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _percent(share: float) -> str:
    """Return a pair's share of the mass in percent, with a decimal only where it is small; a dot for none.

    >>> _percent(12.34), _percent(0.3), _percent(0.01), _percent(0.0)
    ('12', '0.3', '0.0', '·')
    """
    return "·" if share <= 0 else f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"


def render_matches(matches: Sequence[ExampleMatch]) -> list[str]:
    """Render example matches for a report's page: ribbons between the sentences of each query and the first paper."""
    parts = []
    for match in matches:
        value = f"{escape(match.metric, 40)} {format_number(match.value)}"
        about = f"ranked first, grade {match.grade}, distance {format_number(match.explanation.total, 3)}"
        parts.append(
            f"<h3>{escape(match.query, 100)} <small>{value}</small></h3>{draw_ribbons(match.explanation, match.texts)}"
        )
        parts.append(f'<p class="muted">Right: {about}.</p>')
    if parts:
        parts.insert(
            0, f"<p>Left a query of the task {escape(matches[0].task, 60)}, right the paper that was ranked first.</p>"
        )
        parts.append(_ABOUT_RIBBONS)
    return parts


def explanation_as_page(
    explanation: SentenceAlignment, texts: PairTexts, distance: DocumentDistance, *, model: str = ""
) -> str:
    """Return the match of two papers as an HTML page: how their sentences match under a document distance."""
    names = f"{texts.left_title} and {texts.right_title}"
    summary = [
        f"{distance.name} distance {format_number(explanation.total, 3)}",
        f"{len(explanation.left)} and {len(explanation.right)} sentences",
        distance.metric,
        *([f"temperature {distance.temperature:g}"] if distance.name in ("attention", "transport") else []),
        *([escape(model, 80)] if model else []),
    ]
    parts = {
        "Matching sentences": render_section("Matching sentences", draw_ribbons(explanation, texts), _ABOUT_RIBBONS),
        "Strongest pairs": render_section("Strongest pairs", _render_strongest_pairs(explanation, texts)),
        "All pairs": render_section("All pairs", _render_plan(explanation, texts), _ABOUT_CELLS),
    }
    header = (
        f"<header><h1>{escape(texts.left_title)} <small>and</small> {escape(texts.right_title)}</h1>"
        f'<p class="muted">{" · ".join(summary)}</p><p>{MATCHING[distance.name]}</p>{render_contents(parts)}</header>'
    )
    return render_page(names, "\n".join([header, "<main>", *parts.values(), "</main>"]))


# --- the layout ------------------------------------------------------------------------------------------


def _numbered(numbers: NDArray[np.int64], words: Callable[[int], str]) -> list[str]:
    return [f"{at} {one_line(words(at), MAX_CHARS)}" for at in numbers.tolist()]


def _height(words: str, per_line: int = LINE_CHARS) -> int:
    """Return the pixels that a wrapped text takes at most; East Asian characters are as wide as two others.

    >>> _height("short"), _height("word " * 20), _height("\u8bba" * 50)
    (17, 51, 51)
    """
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in words)
    return LINE_HEIGHT * max(1, math.ceil((min(len(words), MAX_CHARS) + wide) / per_line))


def _column(texts: list[str], masses: NDArray[np.float64], head: float, total: float) -> _Column:
    """Lay out one paper's sentences; leftover height is divided among them, so that both columns end together."""
    heights = list(map(_height, texts))
    spaces = np.array(heights) + (total - sum(heights)) / max(len(heights), 1)
    return _Column(texts, heights, masses, head + np.concatenate([[0.0], np.cumsum(spaces)]))


def _scale(left: _Column, right: _Column) -> float:
    """Return the pixels per unit of mass: as many as keep each sentence's share within its space."""
    fits = [
        (space - 6) / mass
        for side in (left, right)
        for space, mass in zip(np.diff(side.tops).tolist(), side.masses.tolist(), strict=True)
        if mass > 0
    ]
    return max(0.0, min(fits, default=0.0))


def _draw_side(side: _Column, x: float, port: float, scale: float) -> list[str]:
    parts = []
    for at, words in enumerate(side.texts):
        name, _, rest = words.partition(" ")
        top = side.middle(at) - side.heights[at] / 2
        parts.append(_draw_text(x, top, side.heights[at], f"<b>{name}</b> {escape(rest, MAX_CHARS)}"))
        size = max(1.5, scale * float(side.masses[at]))
        parts.append(
            f'<rect class="port" x="{port}" y="{side.middle(at) - size / 2:.1f}" width="{PORT_WIDTH}" height="{size:.1f}"/>'
        )
    return parts


def _draw_text(x: float, y: float, height: float, words: str) -> str:
    return (
        f'<foreignObject x="{x}" y="{y:.1f}" width="{TEXT_WIDTH}" height="{height:.0f}"><p>{words}</p></foreignObject>'
    )


def _draw_flows(explanation: SentenceAlignment, left: _Column, right: _Column, scale: float) -> list[str]:
    """Draw one ribbon per pair; at each sentence they are in the order of the other side, so that few cross."""
    plan, total = explanation.plan, float(explanation.plan.sum())
    above_left = np.cumsum(plan, axis=1) - plan  # (n, m) what lies above at the left sentence
    above_right = np.cumsum(plan, axis=0) - plan
    drawn = [(int(i), int(j)) for i, j in np.argwhere(plan >= MIN_SHARE * total) if plan[i, j] > 0]
    apart = [float(explanation.distances[pair]) for pair in drawn]
    low, high = min(apart, default=0.0), max(apart, default=0.0)
    parts = []
    for (i, j), distance in zip(drawn, apart, strict=True):
        width = scale * float(plan[i, j])
        y0 = left.middle(i) - scale * float(left.masses[i]) / 2 + scale * float(above_left[i, j])
        y1 = right.middle(j) - scale * float(right.masses[j]) / 2 + scale * float(above_right[i, j])
        near = STEPS - 1 - int((STEPS - 1) * (distance - low) / (high - low) + 0.5) if high > low else STEPS - 1
        about = f"{explanation.left[i]} and {explanation.right[j]}: {100 * plan[i, j] / total:.1f} %, distance {distance:.3f}"
        parts.append(
            f'<path class="ribbon c{i % COLORS} n{near}" d="{_ribbon_path(y0, y1, width)}"><title>{about}</title></path>'
        )
    return parts


def _ribbon_path(y0: float, y1: float, width: float) -> str:
    x0, x1 = TEXT_WIDTH + 6 + PORT_WIDTH, WIDTH - TEXT_WIDTH - 6 - PORT_WIDTH
    half = (x0 + x1) / 2
    return (
        f"M{x0} {y0:.1f}C{half} {y0:.1f} {half} {y1:.1f} {x1} {y1:.1f}V{y1 + width:.1f}"
        f"C{half} {y1 + width:.1f} {half} {y0 + width:.1f} {x0} {y0 + width:.1f}z"
    )
