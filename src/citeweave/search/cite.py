"""The scores by which `citing.py` ranks papers for a draft: bounds of all of them, and exact ones of those that may win.

    scores = DraftScores.of(index, about, aspect, sentence, bits)
    rows = scores.likely(allowed, 10)        surely the ten best are among these rows
    scores.papers(rows), scores.sentences(rows), scores.evidence(row)

A score p + GAIN max(0, s - p) = max(p, (1 - GAIN) p + GAIN s) grows with p and with s. So bounds of both, which a scan of
codes gives (`similarity/topk`), bound it: a paper whose upper bound is below the lower bounds of `count` others is out.
Exact cosines are those of `exact.py`, which do not depend on where a row lies.

What to cite in a sentence of a draft: papers near to it, and papers that others cited in sentences like it.

    recommend(index, reader, "We split sentences with the parser of [CIT].", intent="method", count=5)

The score of a paper is p + GAIN max(0, s - p): p the cosine of the sentence to the paper, in the space of the wanted
intent where the model has such an aspect, and s that of the nearest sentence that cites the paper, by the encoder
itself. A sentence that does not cite with the wanted intent counts as OTHER_INTENT less. The title and abstract of
the draft, where given, turn the vector that papers are compared with. Every paper and sentence is compared
(`citing_scores.py`).

    p = 0.5, s = 0.7                                      0.5 + 0.5 x 0.2  = 0.6
    p = 0.5, s = 0.7, but cited with another intent       0.5 + 0.5 x 0.1  = 0.55
    p = 0.5, no sentence or s = 0.4                       0.5

docs/search.md has the measurement behind the numbers. Nothing is learned here, and how often a paper is cited does
not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.corpus.paper import Intent
from citeweave.search.index import Hit, Index
from citeweave.search.nearest import QueryEncoder, check_count
from citeweave.search.ranked_rows import rank_rows
from citeweave.search.segment import CitingSentences, without_marks
from citeweave.vectors.topk import QueryScan, compare

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
class MentionScores:
    """The mentions of a segment's papers, compared with one draft."""

    table: CitingSentences
    compared: QueryScan
    less: Singles
    """What each mention loses for its intent, (mentions,)."""

    @classmethod
    def of(cls, table: CitingSentences, query: Singles, bits: int) -> MentionScores:
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
    compared: list[QueryScan | None]
    """The papers of each segment."""

    mentions: list[MentionScores | None]
    """Of each segment."""

    @classmethod
    def of(cls, index: Index, about: Singles, aspect: str, sentence: Singles, bits: int) -> DraftScores:
        """`about`, in the space of an aspect, is compared with papers, `sentence` with citing sentences."""
        compared: list[QueryScan | None] = []
        for segment in index.segments:
            if segment.matrix is None:
                compared.append(None)
                continue
            (matrix,) = index.spaces(segment, aspect)
            compared.append(compare(matrix, about, index.codes(segment, aspect)))
        tables = [segment.citing_sentences for segment in index.segments]
        return cls(
            index, compared, [None if table is None else MentionScores.of(table, sentence, bits) for table in tables]
        )

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


# What to cite in a sentence of a draft: papers near to it, and papers that others cited in sentences like it.

DRAFT = 0.6
"""Length of the draft's own vector beside the sentence's 1."""

INTENTS = {str(bit.name).lower(): bit for bit in Intent if bit}


@dataclass(frozen=True, slots=True)
class CitingEvidence:
    """A sentence in which a paper is cited."""

    text: str
    citing: str
    """Id of the paper that it stands in, empty where the index does not have it."""

    score: float
    """Cosine to the draft's sentence."""

    intents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A paper to cite, and why."""

    hit: Hit
    """Its score is what the papers are ranked by."""

    paper_score: float
    """Cosine of the draft's sentence to the paper itself."""

    share: float | None
    """Share of the wanted intent among the known intents with which the paper is cited; None where nothing is known."""

    evidence: CitingEvidence | None
    """The nearest sentence that cites the paper, by the same rule; None where none is known."""

    def as_json(self) -> dict[str, Any]:
        told = self.evidence and {
            "text": self.evidence.text,
            "citing": self.evidence.citing,
            "score": self.evidence.score,
            "intents": list(self.evidence.intents),
        }
        return {**self.hit.as_json(), "paper_score": self.paper_score, "share": self.share, "evidence": told}


@dataclass(frozen=True, slots=True)
class Draft:
    """A sentence that needs a citation, and what is known about it."""

    sentence: str
    intent: str = ""
    """A word of `Intent` or an aspect of the model; empty = any."""

    context: str = ""
    """Title and abstract of the draft, or whatever says what it is about."""

    least_share: float = 0.0
    """Only papers that are cited with the wanted intent at least so often, as a share."""


def recommend(
    index: Index, reader: QueryEncoder, draft: Draft, *, count: int = 10, allowed: NDArray[np.bool_] | None = None
) -> list[Recommendation]:
    """The papers to cite in the draft's sentence, the best first, equal ones by id; `allowed` is a mask of rows."""
    check_count(count)
    bits, aspect = _wanted(index, draft)
    text = without_marks(draft.sentence)
    if not text:
        raise UserError(
            f"--cite is {draft.sentence[:60]!r}: without its citation marks nothing is left; give a sentence"
        )
    sentence = reader.read(text)  # (dimension,)
    about = sentence if not draft.context else _turned(sentence, reader.read(draft.context))
    scores = DraftScores.of(index, reader.into(about, aspect), aspect, sentence, bits)
    shares = _shares(index, bits)  # (size,), NaN where nothing is known
    counted = index.with_vector if allowed is None else index.with_vector & allowed
    rows = scores.likely(counted & (shares >= draft.least_share) if draft.least_share else counted, count)
    papers = scores.papers(rows)  # (rows,)
    best = rank_rows(rows, score(papers, scores.sentences(rows)), count, name=index.id)
    known = dict(zip(rows.tolist(), papers.tolist(), strict=True))
    return [
        Recommendation(
            index.hit(row, ranked),
            known[row],
            None if np.isnan(shares[row]) else float(shares[row]),
            _evidence(scores, row),
        )
        for row, ranked in zip(best.rows.tolist(), best.scores.tolist(), strict=True)
    ]


def _wanted(index: Index, draft: Draft) -> tuple[int, str]:
    """Bits of the intent and the space to compare papers in, after a look at whether the index can know."""
    if not 0 <= draft.least_share <= 1:
        raise UserError(f"--least-share is {draft.least_share}; it must be from 0 to 1")
    if not draft.intent:
        if draft.least_share:
            raise UserError("--least-share is about a wanted intent; give --intent, or leave it out")
        return 0, ""
    choose(draft.intent, {*INTENTS, *index.aspects}, "--intent")
    bits = int(INTENTS.get(draft.intent, Intent.UNKNOWN))
    if draft.least_share and not bits:
        raise UserError(
            f"--least-share counts citations of an intent, and {draft.intent!r} is an aspect of the model but no intent; "
            "leave it out"
        )
    if draft.intent not in index.aspects and not index.known_intents:
        raise UserError(
            f"--intent is {draft.intent!r}, but {index.folder} knows no intents and its model no such aspect; run "
            "`citeweave annotate` and build the index with --intents and --contexts, or leave --intent out"
        )
    if draft.intent not in index.aspects and not bits & index.known_intents:
        names = [word for word, intent in INTENTS.items() if intent & index.known_intents]
        raise UserError(
            f"--intent is {draft.intent!r}, and no citation of {index.folder} is known to have it; it knows {', '.join(names)}"
        )
    return bits, draft.intent if draft.intent in index.aspects else ""


def _shares(index: Index, bits: int) -> NDArray[np.float64]:
    """Share of the wanted intent among a paper's known intents, (size,); NaN where none is known or wanted."""
    found = np.full(index.size, np.nan)
    for segment in index.segments if bits else ():
        wanted, known = segment.cited_as[:, bits.bit_length() - 1], segment.cited_as.sum(axis=1)
        shares = np.where(known > 0, wanted / np.maximum(known, 1), np.nan)
        found[segment.start : segment.start + segment.size] = shares
    return found


def _evidence(scores: DraftScores, row: int) -> CitingEvidence | None:
    found = scores.evidence(row)
    if found is None:
        return None
    table, at, cosine = found
    sentence, mask = int(table.sentence[at]), int(table.intents[at])
    citing = table.citing[sentence]
    return CitingEvidence(
        table.texts[sentence],
        citing if scores.index.rows([citing])[0] >= 0 else "",
        cosine,
        tuple(name for name, bit in INTENTS.items() if mask & bit),
    )


def _turned(sentence: NDArray[np.float32], draft: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sentence's vector turned toward the draft's; as long as before, as heads with a bias see the length."""
    return np.float32(np.linalg.norm(sentence)) * _unit(_unit(sentence) + DRAFT * _unit(draft))


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))
