"""The scores by which `citing.py` ranks papers for a draft: bounds of all of them, and exact ones of those that may win.

    scores = DraftScores.of(index, about, aspect, sentence, bits)
    rows = scores.likely(allowed, 10)        surely the ten best are among these rows
    scores.papers(rows), scores.sentences(rows), scores.evidence(row)

A score p + GAIN max(0, s - p) = max(p, (1 - GAIN) p + GAIN s) grows with p and with s. So bounds of both, which a scan of
codes gives (`similarity/topk`), bound it: a paper whose upper bound is below the lower bounds of `count` others is out.
Exact cosines are those of `exact.py`, which do not depend on where a row lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.search.citing_sentences import CitingSentences
from citeweave.search.index import Index
from citeweave.similarity.topk import Comparison, compare

GAIN = 0.5
"""How much of its lead over the paper itself a citing sentence adds."""

OTHER_INTENT = 0.1
"""What a citing sentence loses that does not cite with the wanted intent."""

_ROUNDING = 1e-6
"""More than float32 can get wrong about a score."""

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


def score(papers: Any, sentences: Any) -> Any:
    """The score of a paper with the cosine p whose best citing sentence has the cosine s; minus infinity where none.

    >>> [float(score(0.5, s)) for s in (0.7, 0.4, -np.inf)]
    [0.6, 0.5, 0.5]
    """
    return papers + GAIN * np.maximum(0, sentences - papers)


@dataclass(frozen=True, slots=True)
class Mentions:
    """The mentions of a segment's papers, compared with one draft."""

    table: CitingSentences
    compared: Comparison
    less: Singles
    """What each mention loses for its intent, (mentions,)."""

    @classmethod
    def of(cls, table: CitingSentences, query: Singles, bits: int) -> Mentions:
        other = (table.intents & bits == 0) if bits else np.zeros(len(table.intents), bool)
        return cls(table, compare(table.matrix, query, table.codes), np.float32(OTHER_INTENT) * other)

    def bounds(self, papers: int) -> tuple[Doubles, Doubles]:
        """Between which numbers the best mention of each paper lies, (papers,); minus infinity where it has none."""
        both = np.full(papers, -np.inf), np.full(papers, -np.inf)
        if len(self.table.paper):
            first = np.flatnonzero(np.diff(self.table.paper, prepend=-1))  # of each paper, which stand in order
            for found, sides in zip(both, (self.compared.low, self.compared.high), strict=True):
                found[self.table.paper[first]] = np.maximum.reduceat(sides[self.table.sentence] - self.less, first)
        return both

    def span(self, row: int) -> slice:
        """Where the mentions of a paper are."""
        first, last = np.searchsorted(self.table.paper, [row, row + 1]).tolist()
        return slice(first, last)

    def exact(self, part: slice) -> Singles:
        """Scores of some mentions."""
        return self.compared.exact(self.table.sentence[part]) - self.less[part]


@dataclass(frozen=True, slots=True)
class DraftScores:
    """The papers and citing sentences of an index, compared with one draft."""

    index: Index
    compared: list[Comparison | None]
    """The papers of each segment."""

    mentions: list[Mentions | None]
    """Of each segment."""

    @classmethod
    def of(cls, index: Index, about: Singles, aspect: str, sentence: Singles, bits: int) -> DraftScores:
        """`about`, in the space of an aspect, is compared with papers, `sentence` with citing sentences."""
        compared: list[Comparison | None] = []
        for segment in index.segments:
            if segment.matrix is None:
                compared.append(None)
                continue
            (matrix,) = index.spaces(segment, aspect)
            compared.append(compare(matrix, about, index.codes(segment, aspect)))
        tables = [segment.citing_sentences for segment in index.segments]
        return cls(index, compared, [None if table is None else Mentions.of(table, sentence, bits) for table in tables])

    def likely(self, counted: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """Rows among which the best `count` of those that are counted surely are; counted rows must have a vector."""
        low, high = np.full(self.index.size, -np.inf), np.full(self.index.size, -np.inf)
        for segment, papers, mentions in zip(self.index.segments, self.compared, self.mentions, strict=True):
            if papers is None:
                continue
            span = slice(segment.start, segment.start + segment.size)
            lowest, highest = (-np.inf, -np.inf) if mentions is None else mentions.bounds(segment.size)
            low[span], high[span] = score(papers.low, lowest), score(papers.high, highest)
        rows = np.flatnonzero(counted)
        if len(rows) <= count:
            return rows
        sure = float(np.partition(low[rows], len(rows) - count)[len(rows) - count])
        return rows[high[rows] >= sure - _ROUNDING]

    def papers(self, rows: NDArray[np.int64]) -> Singles:
        """Cosines of these rows, (rows,)."""
        found = np.zeros(len(rows), np.float32)
        for segment, at, own in self.index.split(rows):
            compared = self.compared[self.index.segments.index(segment)]
            assert compared is not None
            found[at] = compared.exact(own)
        return found

    def sentences(self, rows: NDArray[np.int64]) -> Singles:
        """The best scores of mentions of these rows, (rows,); minus infinity where there are none."""
        found = np.full(len(rows), -np.inf, np.float32)
        for segment, at, own in self.index.split(rows):
            mentions = self.mentions[self.index.segments.index(segment)]
            if mentions is not None:
                for place, row in zip(at.tolist(), own.tolist(), strict=True):
                    found[place] = mentions.exact(mentions.span(row)).max(initial=-np.inf)
        return found

    def evidence(self, row: int) -> tuple[CitingSentences, int, float] | None:
        """The best mention of a paper, the first of equal ones: its table, its place there, and the plain cosine."""
        segment, at = self.index.place(row)
        mentions = self.mentions[self.index.segments.index(segment)]
        part = slice(0, 0) if mentions is None else mentions.span(at)
        if mentions is None or part.start == part.stop:
            return None
        best = part.start + int(np.argmax(mentions.exact(part)))
        return mentions.table, best, float(mentions.compared.exact(mentions.table.sentence[best : best + 1])[0])
