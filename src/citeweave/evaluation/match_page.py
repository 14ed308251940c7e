"""How the sentences of two papers match: ribbons as SVG, a table of the strongest pairs, the plan as a heat map.

    picture = ribbons(explanation, PairTexts("A", "B", ["One.", "Two."], ["Three."]))

A ribbon is as wide as the pair's mass, has the color of its left sentence, and is the denser the nearer the two are.
Texts stand in the picture and wrap there; heights are estimated from their lengths, as no script may measure them. All
that hovering shows stands in the tables as well. Computes no match: see `similarity.explaining`.

The page about one pair of papers: ribbons, the pairs of sentences that count most, and the whole plan.

    Path("page.html").write_text(explain_page(explanation, texts, distance), encoding="utf-8")

Titles and sentences were written by others and are only ever text. No script, nothing is loaded.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.html import (
    contents,
    number,
    one_line,
    page,
    section,
    table,
    text,
)
from citeweave.evaluation.style import SHADES
from citeweave.vectors.document_distance import DocumentDistance
from citeweave.vectors.explain import Explanation

WIDTH, TEXT, PORT = 1000, 372, 10
"""Of the picture, of a column of text, and of the bar beside it, in pixels."""

LINE, PER_LINE, BOLD, LONGEST = 17, 46, 38, 600
"""Height of a line of text, careful guesses of what fits on it, and where a sentence is cut."""

LEAST = 0.005
"""Smallest share of all mass that is drawn."""

COLORS, STEPS = 8, 4
ANONYMOUS, ALL_OF_IT = "(no text)", "(the whole paper)"


@dataclass(frozen=True)
class PairTexts:
    """What is known of two papers; sentences are those of the whole abstracts, in order."""

    left_title: str
    right_title: str
    left: Sequence[str]
    right: Sequence[str]

    def of_left(self, at: int) -> str:
        return _sentence(self.left, at)

    def of_right(self, at: int) -> str:
        return _sentence(self.right, at)


def _sentence(sentences: Sequence[str], at: int) -> str:
    """
    >>> _sentence(["One."], 0), _sentence(["One."], -1), _sentence(["One."], 1)
    ('One.', '(the whole paper)', '(no text)')
    """
    if at < 0:
        return ALL_OF_IT
    return sentences[at] if at < len(sentences) else ANONYMOUS


@dataclass(frozen=True)
class ExampleMatch:
    """One query and its first paper."""

    task: str
    query: str
    metric: str
    value: float
    """In percent."""

    grade: int
    found: Explanation
    texts: PairTexts


@dataclass(frozen=True)
class _Column:
    """Sentences of one paper, from top to bottom."""

    texts: list[str]
    heights: list[int]
    masses: NDArray[np.float64]
    tops: NDArray[np.float64]
    """Where the room of each sentence begins, and where the last one's ends."""

    def middle(self, at: int) -> float:
        return float(self.tops[at] + self.tops[at + 1]) / 2


def ribbons(found: Explanation, texts: PairTexts) -> str:
    """The picture: sentences of both papers side by side, and what flows between them."""
    shown = [_numbered(found.left, texts.of_left), _numbered(found.right, texts.of_right)]
    head = max(_height(title, BOLD) for title in (texts.left_title, texts.right_title)) + 10
    total = max(sum(map(_height, own)) + 8 * len(own) for own in shown)
    masses = found.left_masses, found.right_masses
    left, right = (_column(own, mass, head, total) for own, mass in zip(shown, masses, strict=True))
    scale = _scale(left, right)
    parts = [
        _words(0, 0, head, f"<b>{text(texts.left_title or ANONYMOUS, LONGEST)}</b>"),
        _words(WIDTH - TEXT, 0, head, f"<b>{text(texts.right_title or ANONYMOUS, LONGEST)}</b>"),
        *_flows(found, left, right, scale),
        *_side(left, 0, TEXT + 6, scale),
        *_side(right, WIDTH - TEXT, WIDTH - TEXT - 6 - PORT, scale),
    ]
    box = f'viewBox="0 0 {WIDTH} {head + total:.0f}" role="group" aria-label="which sentences match"'
    scroll = '<div class="scroll match" tabindex="0" role="region" aria-label="matching sentences">'
    return f"{scroll}<svg {box}>{''.join(parts)}</svg></div>"


def strongest_pairs(found: Explanation, texts: PairTexts, most: int = 12) -> str:
    """The pairs that count most, with their sentences."""
    whole = float(found.plan.sum()) or 1.0
    rows = [
        [
            f"{number(100 * pair.mass / whole, 1)} %",
            number(pair.distance, 3),
            f"<b>{pair.left}</b> {text(texts.of_left(pair.left), LONGEST)}",
            f"<b>{pair.right}</b> {text(texts.of_right(pair.right), LONGEST)}",
        ]
        for pair in found.strongest(most)
    ]
    return table(["share", "distance", "first paper", "second paper"], rows, numeric=[1], kind="pairs")


def plan_map(found: Explanation, texts: PairTexts) -> str:
    """Sentences by sentences: shares in percent, shaded from 0 to the largest, with the distances below."""
    whole, most = float(found.plan.sum()) or 1.0, float(found.plan.max()) or 1.0
    heads = "".join(
        f'<th scope="col" title="{text(texts.of_right(at), LONGEST)}">{at}</th>' for at in found.right.tolist()
    )
    lines = []
    for i, at in enumerate(found.left.tolist()):
        cells = "".join(
            f'<td class="h{round((SHADES - 1) * mass / most)}">{_percent(100 * mass / whole)}<small>{apart:.2f}</small></td>'
            for mass, apart in zip(found.plan[i].tolist(), found.distances[i].tolist(), strict=True)
        )
        name = f"<b>{at}</b> {text(texts.of_left(at), 48)}"
        lines.append(f'<tr><th scope="row" title="{text(texts.of_left(at), LONGEST)}">{name}</th>{cells}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="heat map"><table class="heat plan"><thead><tr>'
        f"<th>first \\ second</th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _percent(share: float) -> str:
    """
    >>> _percent(12.34), _percent(0.3), _percent(0.01), _percent(0.0)
    ('12', '0.3', '0.0', '·')
    """
    return "·" if share <= 0 else f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"


def match_parts(matches: Sequence[ExampleMatch]) -> list[str]:
    """Examples for a report: each query with its first paper."""
    parts = []
    for match in matches:
        value = f"{text(match.metric, 40)} {number(match.value)}"
        about = f"ranked first, grade {match.grade}, distance {number(match.found.total, 3)}"
        parts.append(f"<h3>{text(match.query, 100)} <small>{value}</small></h3>{ribbons(match.found, match.texts)}")
        parts.append(f'<p class="muted">Right: {about}.</p>')
    if parts:
        parts.insert(
            0, f"<p>Left a query of the task {text(matches[0].task, 60)}, right the paper that was ranked first.</p>"
        )
        parts.append(RIBBONS)
    return parts


RIBBONS = (
    '<p class="muted">A ribbon is as wide as the share of the pair, has the color of its left sentence, and is denser '
    "where the sentences are nearer. Shares below 0.5 % are not drawn. Sentences are counted from 0.</p>"
)


# --- the layout ------------------------------------------------------------------------------------------


def _numbered(numbers: NDArray[np.int64], words: Callable[[int], str]) -> list[str]:
    return [f"{at} {one_line(words(at), LONGEST)}" for at in numbers.tolist()]


def _height(words: str, per_line: int = PER_LINE) -> int:
    """Pixels that a wrapped text takes at most; signs of East Asian scripts are as wide as two.

    >>> _height("short"), _height("word " * 20), _height("\u8bba" * 50)
    (17, 51, 51)
    """
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in words)
    return LINE * max(1, math.ceil((min(len(words), LONGEST) + wide) / per_line))


def _column(texts: list[str], masses: NDArray[np.float64], head: float, total: float) -> _Column:
    """The rest of the height is shared out, so that both columns end together."""
    heights = list(map(_height, texts))
    rooms = np.array(heights) + (total - sum(heights)) / max(len(heights), 1)
    return _Column(texts, heights, masses, head + np.concatenate([[0.0], np.cumsum(rooms)]))


def _scale(left: _Column, right: _Column) -> float:
    """Pixels for all mass: as many as let each sentence's share stay in its room."""
    fits = [
        (room - 6) / mass
        for side in (left, right)
        for room, mass in zip(np.diff(side.tops).tolist(), side.masses.tolist(), strict=True)
        if mass > 0
    ]
    return max(0.0, min(fits, default=0.0))


def _side(side: _Column, x: float, port: float, scale: float) -> list[str]:
    parts = []
    for at, words in enumerate(side.texts):
        name, _, rest = words.partition(" ")
        top = side.middle(at) - side.heights[at] / 2
        parts.append(_words(x, top, side.heights[at], f"<b>{name}</b> {text(rest, LONGEST)}"))
        size = max(1.5, scale * float(side.masses[at]))
        parts.append(
            f'<rect class="port" x="{port}" y="{side.middle(at) - size / 2:.1f}" width="{PORT}" height="{size:.1f}"/>'
        )
    return parts


def _words(x: float, y: float, height: float, words: str) -> str:
    return f'<foreignObject x="{x}" y="{y:.1f}" width="{TEXT}" height="{height:.0f}"><p>{words}</p></foreignObject>'


def _flows(found: Explanation, left: _Column, right: _Column, scale: float) -> list[str]:
    """One ribbon a pair; at each sentence they lie in the order of the other side, so that few cross."""
    plan, whole = found.plan, float(found.plan.sum())
    above_left = np.cumsum(plan, axis=1) - plan  # (n, m) what lies above at the left sentence
    above_right = np.cumsum(plan, axis=0) - plan
    drawn = [(int(i), int(j)) for i, j in np.argwhere(plan >= LEAST * whole) if plan[i, j] > 0]
    apart = [float(found.distances[pair]) for pair in drawn]
    low, high = min(apart, default=0.0), max(apart, default=0.0)
    parts = []
    for (i, j), distance in zip(drawn, apart, strict=True):
        width = scale * float(plan[i, j])
        y0 = left.middle(i) - scale * float(left.masses[i]) / 2 + scale * float(above_left[i, j])
        y1 = right.middle(j) - scale * float(right.masses[j]) / 2 + scale * float(above_right[i, j])
        near = STEPS - 1 - int((STEPS - 1) * (distance - low) / (high - low) + 0.5) if high > low else STEPS - 1
        about = f"{found.left[i]} and {found.right[j]}: {100 * plan[i, j] / whole:.1f} %, distance {distance:.3f}"
        parts.append(
            f'<path class="ribbon c{i % COLORS} n{near}" d="{_ribbon(y0, y1, width)}"><title>{about}</title></path>'
        )
    return parts


def _ribbon(y0: float, y1: float, width: float) -> str:
    x0, x1 = TEXT + 6 + PORT, WIDTH - TEXT - 6 - PORT
    half = (x0 + x1) / 2
    return (
        f"M{x0} {y0:.1f}C{half} {y0:.1f} {half} {y1:.1f} {x1} {y1:.1f}V{y1 + width:.1f}"
        f"C{half} {y1 + width:.1f} {half} {y0 + width:.1f} {x0} {y0 + width:.1f}z"
    )


# The page about one pair of papers: ribbons, the pairs of sentences that count most, and the whole plan.

WORDS = {
    "single": "The nearest pair of sentences counts alone.",
    "top2": "The two nearest pairs of sentences count.",
    "mean_best": "Each sentence of the first paper counts by its nearest sentence of the second.",
    "attention": "All pairs count, the nearer the more.",
    "transport": "The mass of the first paper's sentences is carried to the second's at the least cost.",
}
MOST_PAIRS = 12


def explain_page(found: Explanation, texts: PairTexts, distance: DocumentDistance, *, model: str = "") -> str:
    """The whole file."""
    names = f"{texts.left_title} and {texts.right_title}"
    facts = [
        f"{distance.name} distance {number(found.total, 3)}",
        f"{len(found.left)} and {len(found.right)} sentences",
        distance.metric,
        *([f"temperature {distance.temperature:g}"] if distance.name in ("attention", "transport") else []),
        *([text(model, 80)] if model else []),
    ]
    parts = {
        "Matching sentences": section("Matching sentences", ribbons(found, texts), RIBBONS),
        "Strongest pairs": section("Strongest pairs", strongest_pairs(found, texts, MOST_PAIRS)),
        "All pairs": section("All pairs", plan_map(found, texts), _CELLS),
    }
    header = (
        f"<header><h1>{text(texts.left_title)} <small>and</small> {text(texts.right_title)}</h1>"
        f'<p class="muted">{" · ".join(facts)}</p><p>{WORDS[distance.name]}</p>{contents(parts)}</header>'
    )
    return page(names, "\n".join([header, "<main>", *parts.values(), "</main>"]))


_CELLS = (
    '<p class="muted">Rows are sentences of the first paper, columns of the second. Each cell has the share of the pair '
    "in percent, by which it is shaded, and below it the distance of the two sentences.</p>"
)
