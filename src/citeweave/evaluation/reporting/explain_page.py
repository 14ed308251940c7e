"""The page about one pair of papers: ribbons, the pairs of sentences that count most, and the whole plan.

    Path("page.html").write_text(explain_page(explanation, texts, distance), encoding="utf-8")

Titles and sentences were written by others and are only ever text. No script, nothing is loaded.
"""

from __future__ import annotations

from citeweave.evaluation.reporting.document import contents, number, page, section, text
from citeweave.evaluation.reporting.matches import RIBBONS, PairTexts, plan_map, ribbons, strongest_pairs
from citeweave.similarity.explaining import Explanation
from citeweave.similarity.transport import DocumentDistance

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
