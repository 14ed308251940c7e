"""Explain why two papers of an index are alike: matching sentences, shared references, citations and words.

    explanation = explain(index, index.row("rain"), index.row("flood"))
    explanation.pairs[0]                             SentencePair(left=0, right=0, mass=0.41, distance=0.2)
    explanation.cites, explanation.shared            "left": the left one cites the right one; papers that both cite
    shared_words(index, 3, 7)                        [SharedWord("transformer", score=2.1), ...]

Shared references are bibliographic coupling (Kessler 1963), papers that cite both are co-citation (Small 1973). The
weight of a word in a paper is what BM25 would give the paper for it; in two papers, the smaller of both. A part of which
the index knows nothing is empty, and `note` says so. Does not say which reason counts most.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import require
from citeweave.search.index import Index, IndexedPaper
from citeweave.search.words import WordIndex, WordStatistics, length_norm, searchable_text
from citeweave.vectors.bm25 import words_of
from citeweave.vectors.document_distance import DocumentDistance, SentencePair, match
from citeweave.vectors.sentence_distances import PaperPairs

ABSTRACT_DISTANCE = DocumentDistance("transport", temperature=5000.0, metric="cosine")
"""ASPIRE's temperature for complete abstracts: all sentences count alike."""

MAX_PAIRS, MAX_PAPERS, MAX_WORDS = 12, 50, 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of why two papers of an index are alike: matching sentences, references, citations, words."""

    left: IndexedPaper
    right: IndexedPaper
    left_sentences: list[str]
    right_sentences: list[str]
    pairs: list[SentencePair]
    """The pairs of sentences with the largest mass, as shares of 1, by the numbers of the sentences."""

    distance: float | None
    """Distance of the papers; None where one has no sentence vectors."""

    cites: str
    """`left` where the left paper cites the right one, `right`, `both`, or empty."""

    shared: list[IndexedPaper]
    """References of both that the index has, the first MAX_PAPERS by id."""

    shared_unknown: int
    """Number of references of both that it does not have."""

    citing: list[IndexedPaper]
    """Papers that cite both, the first MAX_PAPERS by id."""

    counts: dict[str, int]
    """Numbers of references and citations of each paper and of those they share, including those not listed."""

    words: list[str]
    note: str

    def as_json(self) -> dict[str, Any]:
        return {
            "left": _summary(self.left) | {"sentences": self.left_sentences},
            "right": _summary(self.right) | {"sentences": self.right_sentences},
            "pairs": [pair._asdict() for pair in self.pairs],
            "distance": self.distance,
            "cites": self.cites,
            "shared_references": {"known": [_summary(paper) for paper in self.shared], "unknown": self.shared_unknown},
            "co_cited_by": [_summary(paper) for paper in self.citing],
            "counts": self.counts,
            "words": self.words,
            "note": self.note,
        }

    def brief(self) -> dict[str, Any]:
        """Return a short explanation of why a hit is like the other paper, to be shown below the hit."""
        return {
            "cites": self.cites,
            "shared_references": self.counts["shared_references"],
            "co_cited_by": self.counts["co_cited_by"],
            "pairs": [{"left": pair.left, "right": pair.right, "mass": pair.mass} for pair in self.pairs],
            "words": self.words,
        }


def explain(index: Index, left_row: int, right_row: int, distance: DocumentDistance = ABSTRACT_DISTANCE) -> Explanation:
    """Explain why the papers in two rows of an index are alike."""
    rows = (left_row, right_row)
    keys = [index.key_of(row) for row in rows]
    references = [index.references(row) for row in rows]
    cited_by = [index.citing(key) for key in keys]
    shared = np.intersect1d(references[0], references[1])
    known = index.rows_of_keys(shared)
    citing = np.intersect1d(cited_by[0], cited_by[1])
    pairs, total = _match_sentences(index, left_row, right_row, distance)
    counts = {
        "left_references": len(references[0]),
        "right_references": len(references[1]),
        "shared_references": len(shared),
        "left_cited_by": len(cited_by[0]),
        "right_cited_by": len(cited_by[1]),
        "co_cited_by": len(citing),
    }
    return Explanation(
        left=index.paper(left_row),
        right=index.paper(right_row),
        left_sentences=index.sentence_texts(left_row),
        right_sentences=index.sentence_texts(right_row),
        pairs=pairs,
        distance=total,
        cites=_citing_side(bool(np.isin(keys[1], references[0])), bool(np.isin(keys[0], references[1]))),
        shared=_papers(index, known[known >= 0]),
        shared_unknown=int((known < 0).sum()),
        citing=_papers(index, citing),
        counts=counts,
        words=[each.word for each in shared_words(index, left_row, right_row, MAX_WORDS) if each.score > 0],
        note="" if total is not None else "not both papers have sentence vectors: no sentences are matched",
    )


def _match_sentences(
    index: Index, left: int, right: int, distance: DocumentDistance
) -> tuple[list[SentencePair], float | None]:
    """Return the sentence pairs of two papers with the most mass, and the papers' distance."""
    sentences = [index.sentence_vectors(row) for row in (left, right)]
    if sentences[0] is None or sentences[1] is None:
        return [], None
    torch = require("torch", extra="minilm")
    with torch.inference_mode():
        tensors = ([torch.from_numpy(np.array(own, np.float32))] for own in sentences)
        matched = match(PaperPairs.of(*tensors), distance)
    plan, apart = matched.plans[0].numpy(), matched.sentences[0].numpy()  # (left sentences, right sentences)
    shares = plan.ravel() / (float(plan.sum()) or 1.0)
    numbers = [index.sentence_numbers(row) for row in (left, right)]
    order = np.lexsort((apart.ravel(), -shares))[:MAX_PAIRS]
    pairs = []
    for at in order[shares[order] > 1e-4].tolist():
        i, j = divmod(at, plan.shape[1])
        pairs.append(SentencePair(int(numbers[0][i]), int(numbers[1][j]), float(shares[at]), float(apart[i, j])))
    return pairs, float(matched.distances[0])


def _citing_side(left: bool, right: bool) -> str:
    return "both" if left and right else "left" if left else "right" if right else ""


def _papers(index: Index, rows: NDArray[np.int64]) -> list[IndexedPaper]:
    """Return the first MAX_PAPERS of these papers by id."""
    chosen = sorted(rows.tolist(), key=index.id)[:MAX_PAPERS]
    return [index.paper(row) for row in chosen]


def _summary(paper: IndexedPaper) -> dict[str, Any]:
    return {"id": paper.id, "title": paper.title, "year": paper.year}


# --- shared words ----------------------------------------------------------------------------------------


class PaperText(Protocol):
    """The text of a paper of which an explanation names the words shared with another."""

    @property
    def title(self) -> str: ...
    @property
    def abstract(self) -> str: ...


class PaperIndex(WordIndex, Protocol):
    """An index that gives the text and the word statistics of its papers."""

    def paper(self, row: int, /) -> PaperText: ...


class SharedWord(NamedTuple):
    """A word that two papers share."""

    word: str
    score: float
    """The smaller of the BM25 weights that it has in the two papers."""


def shared_words(index: PaperIndex, left_row: int, right_row: int, max_words: int = 8) -> list[SharedWord]:
    """Return the words that explain why two papers are alike: those they share, the heaviest first, ties alphabetically."""
    statistics = index.words.statistics
    left, right = (_count_words(index, row) for row in (left_row, right_row))
    shared = [
        SharedWord(word, min(_word_weight(statistics, left, word), _word_weight(statistics, right, word)))
        for word in left.keys() & right
    ]
    return sorted(shared, key=lambda word: (-word.score, word.word))[:max_words]


def _count_words(index: PaperIndex, row: int) -> Counter[str]:
    paper = index.paper(row)
    return Counter(words_of(searchable_text(paper.title, paper.abstract)))


def _word_weight(statistics: WordStatistics, counts: Counter[str], word: str) -> float:
    """Return what BM25 gives a paper with these word counts for a word."""
    times, norm = counts[word], float(length_norm(counts.total(), statistics.mean_length))
    return statistics.weight(word.encode("utf-8", "replace")) * times / (norm + times)
