"""How the sentences of two papers match, as HTML: ribbons, the strongest pairs, the plan as a heat map, examples.

    picture = ribbons(explanation, PairTexts("A", "B", ["One.", "Two."], ["Three."]))
    Path("page.html").write_text(explanation_as_page(explanation, texts, distance), encoding="utf-8")

A ribbon is as wide as the pair's mass, has the color of its left sentence, and is denser the nearer the two sentences are.
Texts are inside the picture and wrap there; their heights are estimated from their lengths, since no script may measure
them. Everything that hovering shows is also in the tables. Titles and sentences are untrusted text, never markup. Reports
of sentence-level models show a few queries with the sentences by which the first paper matched (`example_matches`). Does
not compute the match: see `vectors/document_distance.py`.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.files import open_input
from citeweave.evaluation.html import SHADES, Block, format_number, one_line, render_report, table
from citeweave.evaluation.query_tables import collect_spreads
from citeweave.evaluation.systems import ExplainingSystem, System
from citeweave.evaluation.tasks import RankingTask, Suite, TaskTexts
from citeweave.vectors.document_distance import DocumentDistance, SentenceAlignment

WIDTH, TEXT_WIDTH, PORT_WIDTH = 1000, 372, 10
"""Of the picture, of a column of text, and of the bar beside it, in pixels."""

LINE_HEIGHT, LINE_CHARS, BOLD_LINE_CHARS, MAX_CHARS = 17, 46, 38, 600
"""Height of a line of text in pixels, cautious estimates of how many characters fit on it, and where a sentence is cut."""

MIN_SHARE = 0.005
"""Smallest share of all mass that is drawn."""

Masses = NDArray[np.float64]
COLORS, STEPS, MAX_PAIRS = 8, 4, 12
MAX_EXAMPLES = 4
"""Queries of a report that are shown with their matching sentences."""

NO_TEXT, COMPLETE_PAPER = "(no text)", "(the whole paper)"

MATCHING = {
    "single": "The nearest pair of sentences counts alone.",
    "top2": "The two nearest pairs of sentences count.",
    "mean_best": "Each sentence of the first paper counts by its nearest sentence of the second.",
    "attention": "All pairs count, the nearer the more.",
    "transport": "The mass of the first paper's sentences is carried to the second's at the least cost.",
}
"""Document distance -> how it matches sentences."""

_ABOUT_RIBBONS = (
    "note",
    "A ribbon is as wide as the share of the pair, has the color of its left sentence, and is denser where the sentences "
    "are nearer. Shares below 0.5 % are not drawn. Sentences are counted from 0.",
)
_ABOUT_CELLS = (
    "note",
    "Rows are sentences of the first paper, columns of the second. Each cell has the share of the pair in percent, by "
    "which it is shaded, and below it the distance of the two sentences.",
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


def explanation_as_page(
    explanation: SentenceAlignment, texts: PairTexts, distance: DocumentDistance, *, model: str = ""
) -> str:
    """Return the match of two papers as an HTML page: how their sentences match under a document distance."""
    summary = [
        f"{distance.name} distance {format_number(explanation.total, 3)}",
        f"{len(explanation.left)} and {len(explanation.right)} sentences",
        distance.metric,
        f"temperature {distance.temperature:g}" if distance.name in ("attention", "transport") else "",
        one_line(model, 80),
    ]
    sections: dict[str, list[Block]] = {
        "Matching sentences": [ribbons(explanation, texts), _ABOUT_RIBBONS],
        "Strongest pairs": [_strongest_pairs(explanation, texts)],
        "All pairs": [_plan(explanation, texts), _ABOUT_CELLS],
    }
    heading = (texts.left_title, "and", texts.right_title)
    return render_report(heading, sections, summary=list(filter(None, summary)), lead=MATCHING[distance.name])


def match_blocks(matches: Sequence[ExampleMatch]) -> list[Block]:
    """Return example matches for a report's page: ribbons between the sentences of each query and the first paper."""
    if not matches:
        return []
    about = f"Left a query of the task {one_line(matches[0].task, 60)}, right the paper that was ranked first."
    blocks: list[Block] = [("lead", about)]
    for match in matches:
        distance = format_number(match.explanation.total, 3)
        blocks += [
            ("heading", (match.query, f"{match.metric} {format_number(match.value)}")),
            ribbons(match.explanation, match.texts),
            ("note", f"Right: ranked first, grade {match.grade}, distance {distance}."),
        ]
    return [*blocks, _ABOUT_RIBBONS]


def _strongest_pairs(explanation: SentenceAlignment, texts: PairTexts) -> Block:
    """Return a table of the pairs of sentences that count most, with their shares and distances."""
    total, rows = float(explanation.plan.sum()) or 1.0, []
    for pair in explanation.strongest(MAX_PAIRS):
        share, distance = f"{format_number(100 * pair.mass / total, 1)} %", format_number(pair.distance, 3)
        left, right = texts.of_left(pair.left), texts.of_right(pair.right)
        rows.append([share, distance, (pair.left, left), (pair.right, right)])
    return table(["share", "distance", "first paper", "second paper"], rows, numeric=[1], kind="pairs")


def _plan(explanation: SentenceAlignment, texts: PairTexts) -> Block:
    """Return the matching plan as a heat map of sentences by sentences: shares in percent, distances below."""
    total, largest = float(explanation.plan.sum()) or 1.0, float(explanation.plan.max()) or 1.0
    heads = [(str(at), one_line(texts.of_right(at), MAX_CHARS)) for at in explanation.right.tolist()]
    rows = []
    for at, plan, distances in zip(explanation.left.tolist(), explanation.plan, explanation.distances, strict=True):
        shades, shares = (plan / largest * (SHADES - 1)).round().astype(int), map(_percent, 100 * plan / total)
        cells = list(zip(shades.tolist(), shares, map("{:.2f}".format, distances), strict=True))
        sentence = texts.of_left(at)
        rows.append(((at, one_line(sentence, 48)), one_line(sentence, MAX_CHARS), cells))
    return "heat", {"heads": [("first \\ second", ""), *heads], "rows": rows, "kind": "plan"}


def _percent(share: float) -> str:
    """Return a pair's share of the mass in percent, with a decimal only where it is small; a dot for none.

    >>> _percent(12.34), _percent(0.3), _percent(0.01), _percent(0.0)
    ('12', '0.3', '0.0', '·')
    """
    return "·" if share <= 0 else f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"


# --- ribbons ---------------------------------------------------------------------------------------------


def ribbons(explanation: SentenceAlignment, texts: PairTexts) -> Block:
    """Lay out a match of two papers for a page: their sentences side by side, ribbons between those that match."""
    head = 10 + max(_height(title, BOLD_LINE_CHARS) for title in (texts.left_title, texts.right_title))
    left = _Column(texts.left_title, explanation.left, texts.of_left, explanation.left_masses)
    right = _Column(texts.right_title, explanation.right, texts.of_right, explanation.right_masses)
    total = max(sum(side.heights) + 8 * len(side.heights) for side in (left, right))
    scale = max(0.0, min(side.lay_out(head, total) for side in (left, right)))
    outside = WIDTH - TEXT_WIDTH
    sides = [left.view(0, TEXT_WIDTH + 6, scale), right.view(outside, outside - 6 - PORT_WIDTH, scale)]
    sizes = {"width": WIDTH, "height": head + total, "head": head, "text_width": TEXT_WIDTH, "port_width": PORT_WIDTH}
    return "ribbons", {**sizes, "sides": sides, "flows": _flows(explanation, left, right, scale)}


class _Column:
    """The sentences of one paper as a column of the ribbon picture, from top to bottom."""

    def __init__(self, title: str, numbers: NDArray[np.int64], words: Callable[[int], str], masses: Masses) -> None:
        self.title, self.masses = title or NO_TEXT, masses
        self.sentences = [(at, one_line(words(at), MAX_CHARS)) for at in numbers.tolist()]
        self.heights = [_height(f"{at} {words}") for at, words in self.sentences]

    def lay_out(self, head: float, total: float) -> float:
        """Divide the leftover height, so that both columns end together; return the pixels per unit of mass that fit."""
        spaces = np.array(self.heights) + (total - sum(self.heights)) / max(len(self.heights), 1)
        self.middles = head + np.cumsum(spaces) - spaces / 2  # (sentences,)
        return float(min((spaces - 6)[self.masses > 0] / self.masses[self.masses > 0], default=0.0))

    def view(self, x: float, port: float, scale: float) -> dict[str, Any]:
        """Return where the column stands, and each sentence with its height, its middle and the size of its port."""
        ports = np.maximum(1.5, scale * self.masses).tolist()
        rows = zip(self.sentences, self.heights, self.middles.tolist(), ports, strict=True)
        return {"x": x, "port": port, "title": self.title, "rows": list(rows)}


def _height(words: str, per_line: int = LINE_CHARS) -> int:
    """Return the pixels that a wrapped text takes at most; East Asian characters are as wide as two others.

    >>> _height("short"), _height("word " * 20), _height("\u8bba" * 50)
    (17, 51, 51)
    """
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in words)
    return LINE_HEIGHT * max(1, math.ceil((min(len(words), MAX_CHARS) + wide) / per_line))


def _flows(explanation: SentenceAlignment, left: _Column, right: _Column, scale: float) -> list[dict[str, Any]]:
    """Lay out one ribbon per pair; at each sentence they are in the order of the other side, so that few cross."""
    plan, total = explanation.plan, float(explanation.plan.sum())
    # (n, m) where the ribbon of a pair begins at the left and at the right sentence
    y0 = (left.middles - scale * left.masses / 2)[:, None] + scale * (np.cumsum(plan, axis=1) - plan)
    y1 = (right.middles - scale * right.masses / 2)[None] + scale * (np.cumsum(plan, axis=0) - plan)
    drawn = [(int(i), int(j)) for i, j in np.argwhere(plan >= MIN_SHARE * total) if plan[i, j] > 0]
    apart = [float(explanation.distances[pair]) for pair in drawn]
    low, high = min(apart, default=0.0), max(apart, default=0.0)
    flows = []
    for (i, j), distance in zip(drawn, apart, strict=True):
        near = STEPS - 1 - int((STEPS - 1) * (distance - low) / (high - low) + 0.5) if high > low else STEPS - 1
        share = f"{100 * plan[i, j] / total:.1f} %, distance {distance:.3f}"
        about = f"{explanation.left[i]} and {explanation.right[j]}: {share}"
        path = _ribbon_path(y0[i, j], y1[i, j], scale * plan[i, j])
        flows.append({"color": i % COLORS, "near": near, "about": about, "path": path})
    return flows


def _ribbon_path(y0: float, y1: float, width: float) -> str:
    x0, x1 = TEXT_WIDTH + 6 + PORT_WIDTH, WIDTH - TEXT_WIDTH - 6 - PORT_WIDTH
    half = (x0 + x1) / 2
    return (
        f"M{x0} {y0:.1f}C{half} {y0:.1f} {half} {y1:.1f} {x1} {y1:.1f}V{y1 + width:.1f}"
        f"C{half} {y1 + width:.1f} {half} {y0 + width:.1f} {x0} {y0 + width:.1f}z"
    )


# --- examples of a report --------------------------------------------------------------------------------


def example_matches(
    system: System, suite: Suite, value: Mapping[str, Any], runs: Mapping[str, Path]
) -> list[ExampleMatch]:
    """Choose a few queries of an evaluation, best to worst, with the sentences by which the first paper matched.

    They are of the first headline task that ranks pools. What was ranked first is read from the TREC run, so only the
    papers shown are encoded again. A system without sentences and a suite without texts have none.
    """
    tasks = {task.name: task for task in suite.tasks if isinstance(task, RankingTask) and task.reviewers is None}
    shown = [each for each in collect_spreads(value) if each.task in tasks and each.task in runs]
    if not isinstance(system, ExplainingSystem) or not shown or tasks[shown[0].task].texts.lacking:
        return []
    spread, task = shown[0], tasks[shown[0].task]
    order = sorted(spread.values, key=lambda query: (-spread.values[query], query))
    queries = [order[at] for at in np.unique(np.linspace(0, len(order) - 1, MAX_EXAMPLES).round().astype(int)).tolist()]
    first, distance = _first_papers(runs[spread.task], queries), value["tasks"][spread.task]["chosen"]["distance"]
    examples = []
    for query in queries:
        pair = _find_pair(task, query, first.get(query, ""))
        if pair and (explained := _explain(system, task, *pair, distance)):
            number, row = pair
            span, texts = task.pools.span(number), _pair_texts(task.texts, int(task.pools.queries[number]), row)
            grade = int(task.pools.grades[span][task.pools.candidates[span] == row][0])
            percent = spread.values[query]
            examples.append(ExampleMatch(task.name, query, spread.metric, percent, grade, explained, texts))
    return examples


def _first_papers(run: Path, queries: Sequence[str]) -> dict[str, str]:
    """Read from a TREC run which paper is ranked first for each of these queries: query -> id."""
    names = {"_".join(query.split()): query for query in queries}
    first: dict[str, str] = {}
    with io.TextIOWrapper(open_input(run), encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) == 6 and words[3] == "1" and words[0] in names:
                first[names[words[0]]] = words[2]
                if len(first) == len(names):
                    break
    return first


def _find_pair(task: RankingTask, query: str, paper: str) -> tuple[int, int] | None:
    """Return the number of a query in its pools and the row of a paper, or None where one is unknown."""
    row = int(task.texts.rows([paper])[0])
    return (list(task.pools.names).index(query), row) if row >= 0 and query in task.pools.names else None


def _explain(
    system: ExplainingSystem, task: RankingTask, number: int, row: int, distance: str
) -> SentenceAlignment | None:
    """Explain the match of a query and a paper from their two texts alone."""
    texts, rows = task.texts, [int(task.pools.queries[number]), row]
    pair = TaskTexts(
        [texts.ids[at] for at in rows],
        [texts.titles[at] for at in rows],
        [texts.abstracts[at] for at in rows],
        None if texts.sentences is None else [texts.sentences[at] for at in rows],
    )
    if task.pools.sentences is None:
        return system.explain(pair, 0, 1, distance)
    # a query without a sentence of its facet takes part with all sentences, at the temperature of its task
    chosen = task.pools.sentences[number]
    all_sentences = np.arange(len(texts.sentences_of(rows[0])))
    return system.explain(pair, 0, 1, distance, all_sentences if chosen is None else chosen)


def _pair_texts(texts: TaskTexts, query: int, candidate: int) -> PairTexts:
    """Return titles and sentences of a query and a candidate for the page."""
    return PairTexts(
        texts.titles[query] or texts.ids[query],
        texts.titles[candidate] or texts.ids[candidate],
        texts.sentences_of(query),
        texts.sentences_of(candidate),
    )
