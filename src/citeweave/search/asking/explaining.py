"""Why two papers of an index are alike: sentences that match, references and citations they share, words.

    why = explain(index, index.row("rain"), index.row("flood"))
    why.pairs[0]                  Pair(left=0, right=0, mass=0.41, distance=0.2)
    why.cites, why.shared         "left": the left one cites the right one; papers that both cite

Shared references are bibliographic coupling (Kessler 1963), papers that cite both are co-citation (Small 1973). A part of
which the index knows nothing is empty, and `note` says so. Does not judge which reason counts most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.extras import require
from citeweave.search.index import Index, IndexedPaper
from citeweave.search.words import shared_words
from citeweave.similarity.explaining import Pair
from citeweave.similarity.matching.pairs import PaperPairs
from citeweave.similarity.transport import DocumentDistance, match

WHOLE = DocumentDistance("transport", temperature=5000.0, metric="cosine")
"""ASPIRE's temperature for whole abstracts: all sentences count alike."""

MOST_PAIRS, MOST_PAPERS, MOST_WORDS = 12, 50, 8


@dataclass(frozen=True, slots=True)
class Why:
    """The reasons."""

    left: IndexedPaper
    right: IndexedPaper
    left_sentences: list[str]
    right_sentences: list[str]
    pairs: list[Pair]
    """The pairs of sentences with the largest mass, as shares of 1; numbers as in the sentences."""

    distance: float | None
    """Of the papers; None where one has no vectors of sentences."""

    cites: str
    """`left` where the left paper cites the right one, `right`, `both`, or empty."""

    shared: list[IndexedPaper]
    """References of both that the index has, the first MOST_PAPERS by id."""

    shared_unknown: int
    """References of both that it does not have."""

    citing: list[IndexedPaper]
    """Papers that cite both, the first MOST_PAPERS by id."""

    counts: dict[str, int]
    """How many references and citations each has, and how many they share, those not listed included."""

    words: list[str]
    note: str

    def as_json(self) -> dict[str, Any]:
        return {
            "left": _told(self.left) | {"sentences": self.left_sentences},
            "right": _told(self.right) | {"sentences": self.right_sentences},
            "pairs": [pair._asdict() for pair in self.pairs],
            "distance": self.distance,
            "cites": self.cites,
            "shared_references": {"known": [_told(paper) for paper in self.shared], "unknown": self.shared_unknown},
            "co_cited_by": [_told(paper) for paper in self.citing],
            "counts": self.counts,
            "words": self.words,
            "note": self.note,
        }

    def brief(self) -> dict[str, Any]:
        """What stands under a hit."""
        return {
            "cites": self.cites,
            "shared_references": self.counts["shared_references"],
            "co_cited_by": self.counts["co_cited_by"],
            "pairs": [{"left": pair.left, "right": pair.right, "mass": pair.mass} for pair in self.pairs],
            "words": self.words,
        }


def explain(index: Index, left_row: int, right_row: int, distance: DocumentDistance = WHOLE) -> Why:
    """Why the papers in two rows are alike."""
    rows = (left_row, right_row)
    keys = [index.key_of(row) for row in rows]
    references = [index.references(row) for row in rows]
    cited_by = [index.citing(key) for key in keys]
    shared = np.intersect1d(references[0], references[1])
    known = index.rows_of_keys(shared)
    citing = np.intersect1d(cited_by[0], cited_by[1])
    pairs, total = _pairs(index, left_row, right_row, distance)
    counts = {
        "left_references": len(references[0]),
        "right_references": len(references[1]),
        "shared_references": len(shared),
        "left_cited_by": len(cited_by[0]),
        "right_cited_by": len(cited_by[1]),
        "co_cited_by": len(citing),
    }
    return Why(
        left=index.paper(left_row),
        right=index.paper(right_row),
        left_sentences=index.sentence_texts(left_row),
        right_sentences=index.sentence_texts(right_row),
        pairs=pairs,
        distance=total,
        cites=_cites(bool(np.isin(keys[1], references[0])), bool(np.isin(keys[0], references[1]))),
        shared=_papers(index, known[known >= 0]),
        shared_unknown=int((known < 0).sum()),
        citing=_papers(index, citing),
        counts=counts,
        words=[one.word for one in shared_words(index, left_row, right_row, MOST_WORDS) if one.score > 0],
        note="" if total is not None else "not both papers have vectors of sentences: no sentences are matched",
    )


def _pairs(index: Index, left: int, right: int, distance: DocumentDistance) -> tuple[list[Pair], float | None]:
    sentences = [index.sentence_vectors(row) for row in (left, right)]
    if sentences[0] is None or sentences[1] is None:
        return [], None
    torch = require("torch", extra="minilm")
    with torch.inference_mode():
        given = ([torch.from_numpy(np.array(own, np.float32))] for own in sentences)
        matched = match(PaperPairs.of(*given), distance)
    plan, apart = matched.plans[0].numpy(), matched.sentences[0].numpy()  # (left sentences, right sentences)
    shares = plan.ravel() / (float(plan.sum()) or 1.0)
    numbers = [index.sentence_numbers(row) for row in (left, right)]
    order = np.lexsort((apart.ravel(), -shares))[:MOST_PAIRS]
    found = []
    for at in order[shares[order] > 1e-4].tolist():
        i, j = divmod(at, plan.shape[1])
        found.append(Pair(int(numbers[0][i]), int(numbers[1][j]), float(shares[at]), float(apart[i, j])))
    return found, float(matched.distances[0])


def _cites(left: bool, right: bool) -> str:
    return "both" if left and right else "left" if left else "right" if right else ""


def _papers(index: Index, rows: NDArray[np.int64]) -> list[IndexedPaper]:
    chosen = sorted(rows.tolist(), key=index.id)[:MOST_PAPERS]
    return [index.paper(row) for row in chosen]


def _told(paper: IndexedPaper) -> dict[str, Any]:
    return {"id": paper.id, "title": paper.title, "year": paper.year}
