"""What to cite in a draft: papers near to a sentence of it, and papers that others cite in similar sentences.

    recommend(index, query_encoder, Passage("We split sentences with the parser of [CIT].", "method"), count=5)

    >>> _needing_citation(["Rain is rare [CIT].", "We count drops.", "Others did (Chen, 2014)."])
    [0, 2]
    >>> _needing_citation(["Rain is rare.", "We count drops."])
    [0, 1]

The score of a paper is p + GAIN max(0, s - p): p is the cosine of the sentence to the paper, in the space of the wanted
intent where the model has such an aspect, and s that of the nearest sentence that cites the paper, in the encoder's own
space. A citing sentence without the wanted intent loses OTHER_INTENT. The title and abstract of the draft, where given,
turn the vector that papers are compared with.

    p = 0.5, s = 0.7                                      0.5 + 0.5 x 0.2  = 0.6
    p = 0.5, s = 0.7, but cited with another intent       0.5 + 0.5 x 0.1  = 0.55
    p = 0.5, no sentence or s = 0.4                       0.5

The score grows with p and with s, so bounds of both, which a scan of quantized codes gives (`vectors/topk`), bound it: a
paper whose upper bound is below the lower bounds of `count` others is out, and only the rest is scored exactly. The
result is that of comparing every paper and sentence. docs/search.md has the measurement behind the numbers. Nothing is
learned here, how often a paper is cited does not count, and words do not decide whether a claim needs support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.corpus.paper import Intent
from citeweave.corpus.plain_text import clean_text
from citeweave.corpus.text import sentence_texts
from citeweave.search.citing_sentences import CitingSentences, without_marks
from citeweave.search.confidence import confidence_of, noise_level
from citeweave.search.index import Index
from citeweave.search.nearest import QueryEncoder, check_count
from citeweave.search.query import CitingEvidence, Hit, Passage
from citeweave.search.rankings import VECTOR_SHARE, rank_rows
from citeweave.vectors.topk import QueryScan, compare

GAIN = 0.5
"""Share of a citing sentence's lead over the paper itself that is added."""

OTHER_INTENT = 0.1
"""What a citing sentence without the wanted intent loses."""

_ROUNDING = 1e-6
"""Bound of the rounding error of a float32 score."""

DRAFT = 0.6
"""Length of the draft's vector when it is added to the sentence's, which has length 1."""

INTENTS = {str(bit.name).lower(): bit for bit in Intent if bit}

MAX_SENTENCES = 30
"""Sentences of one passage that are answered."""

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


def recommend(
    index: Index,
    query_encoder: QueryEncoder,
    passage: Passage,
    *,
    count: int = 10,
    allowed: NDArray[np.bool_] | None = None,
) -> list[Hit]:
    """Return the papers to cite in a passage of a draft, taken as one sentence, the best first; `allowed` is a mask of rows, (size,)."""
    check_count(count)
    bits, aspect = _wanted_intent(index, passage)
    text = without_marks(passage.text)
    if not text:
        raise UserError(f"--cite is {passage.text[:60]!r}: without its citation marks nothing is left; give a sentence")
    sentence = query_encoder.encode(text)  # (dimension,)
    about = _turn_toward(sentence, query_encoder.encode(passage.draft)) if passage.draft else sentence
    scores = DraftScores.of(index, query_encoder.project(about, aspect), aspect, sentence, bits)
    shares = _intent_shares(index, bits)  # (size,), NaN where nothing is known
    counted = index.with_vector if allowed is None else index.with_vector & allowed
    rows = scores.candidates(counted & (shares >= passage.min_share) if passage.min_share else counted, count)
    papers = scores.scan.exact(rows)  # (rows,)
    best = rank_rows(rows, _citation_score(papers, scores.sentences(rows)), count, name=index.id)
    paper_scores = dict(zip(rows.tolist(), papers.tolist(), strict=True))
    noise = noise_level(index, query_encoder, aspect)
    return [
        replace(
            index.hit(row, ranked),
            paper_score=paper_scores[row],
            share=None if np.isnan(shares[row]) else float(shares[row]),
            evidence=scores.mentions.evidence(index, row) if scores.mentions else None,
            confidence=confidence_of(VECTOR_SHARE * ranked, noise=noise),
        )
        for row, ranked in zip(best.rows.tolist(), best.scores.tolist(), strict=True)
    ]


def recommend_for_passage(
    index: Index,
    query_encoder: QueryEncoder,
    passage: Passage,
    *,
    count: int,
    offset: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[list[Hit], list[str]]:
    """Return papers to cite in a passage of a draft, for all of it or sentence by sentence, and its sentences.

    With `passage.each` every hit has the number of its sentence; without, there are no sentences.
    """

    def page(text: str) -> list[Hit]:
        part = replace(passage, text=text)
        return recommend(index, query_encoder, part, count=offset + count, allowed=allowed)[offset:]

    if not passage.each:
        return page(passage.text), []
    sentences = sentence_texts(passage.text)
    numbers = [number for number in _needing_citation(sentences) if without_marks(sentences[number])]
    if not numbers:
        raise UserError(f"cite is {passage.text[:60]!r}: without its citation marks nothing is left; give a passage")
    if len(numbers) > MAX_SENTENCES:
        raise UserError(
            f"{len(numbers)} sentences of the passage need a citation; ask for at most {MAX_SENTENCES} at once"
        )
    return [replace(hit, passage=number) for number in numbers for hit in page(sentences[number])], sentences


def _needing_citation(sentences: Sequence[str]) -> list[int]:
    """Return the numbers of the sentences with a citation mark, or of all sentences where none has one."""
    marked = [number for number, text in enumerate(sentences) if without_marks(text) != clean_text(text)]
    return marked or list(range(len(sentences)))


def _wanted_intent(index: Index, draft: Passage) -> tuple[int, str]:
    """Return the bits of a draft's intent and the aspect to compare papers in; refuse an intent unknown to the index."""
    if not draft.intent:
        if draft.min_share:
            raise UserError("--min-share is about a wanted intent; give --intent, or leave it out")
        return 0, ""
    choose(draft.intent, {*INTENTS, *index.aspects}, "--intent")
    bits = int(INTENTS.get(draft.intent, Intent.UNKNOWN))
    if draft.min_share and not bits:
        raise UserError(
            f"--min-share counts citations of an intent, and {draft.intent!r} is an aspect of the model but no intent; "
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


def _intent_shares(index: Index, bits: int) -> NDArray[np.float64]:
    """Return the share of the wanted intent among each paper's known ones, (size,); NaN where none is known."""
    if not bits:
        return np.full(index.size, np.nan)
    wanted, known = index.cited_as[:, bits.bit_length() - 1], index.cited_as.sum(axis=1)
    return np.where(known > 0, wanted / np.maximum(known, 1), np.nan)


def _turn_toward(sentence: NDArray[np.float32], draft: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn a sentence's vector toward the draft's, keeping its length, which aspect heads with a bias see."""
    return np.float32(np.linalg.norm(sentence)) * _unit(_unit(sentence) + DRAFT * _unit(draft))


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))


# --- scores of papers for a draft ------------------------------------------------------------------------


def _citation_score(papers: Any, sentences: Any) -> Any:
    """Return the score for a draft of papers with cosine p and best citing sentence s, minus infinity where none.

    >>> [float(_citation_score(0.5, s)) for s in (0.7, 0.4, -np.inf)]
    [0.6, 0.5, 0.5]
    """
    return papers + GAIN * np.maximum(0, sentences - papers)


@dataclass(frozen=True, slots=True)
class MentionScores:
    """Scores of papers to cite in a draft by how others cite them: citing sentences, compared with the draft."""

    table: CitingSentences
    scan: QueryScan
    penalties: Singles
    """What each mention loses for its intent, (mentions,)."""

    @classmethod
    def of(cls, table: CitingSentences, query: Singles, bits: int) -> MentionScores:
        other = (table.intents & bits == 0) if bits else np.zeros(len(table.intents), bool)
        return cls(table, compare(table.matrix, query, table.codes), np.float32(OTHER_INTENT) * other)

    def bounds(self, papers: int) -> tuple[Doubles, Doubles]:
        """Bound the best mention of each paper to cite from below and above, (papers,) each; minus infinity where none."""
        both = np.full(papers, -np.inf), np.full(papers, -np.inf)
        if len(self.table.paper):
            first = np.flatnonzero(np.diff(self.table.paper, prepend=-1))  # of each paper, which stand in order
            for bound, sides in zip(both, (self.scan.low, self.scan.high), strict=True):
                bound[self.table.paper[first]] = np.maximum.reduceat(sides[self.table.sentence] - self.penalties, first)
        return both

    def of_paper(self, row: int) -> tuple[int, Singles]:
        """Return where the mentions of the paper in a row begin, and their exact scores."""
        part = slice(*np.searchsorted(self.table.paper, [row, row + 1]).tolist())
        return part.start, self.scan.exact(self.table.sentence[part]) - self.penalties[part]

    def evidence(self, index: Index, row: int) -> CitingEvidence | None:
        """Return the citing sentence that speaks most for a paper to cite, the first of equal ones; None where none does."""
        table, (start, scores) = self.table, self.of_paper(row)
        if not len(scores):
            return None
        at = start + int(np.argmax(scores))
        sentence, mask = int(table.sentence[at]), int(table.intents[at])
        citing = table.citing[sentence]
        return CitingEvidence(
            table.texts[sentence],
            citing if index.rows([citing])[0] >= 0 else "",
            float(self.scan.exact(table.sentence[at : at + 1])[0]),
            tuple(name for name, bit in INTENTS.items() if mask & bit),
        )


@dataclass(frozen=True, slots=True)
class DraftScores:
    """Scores of what to cite in one draft: the papers and citing sentences of an index, compared with it."""

    index: Index
    scan: QueryScan
    """The papers, compared."""

    mentions: MentionScores | None
    """The citing sentences, compared."""

    @classmethod
    def of(cls, index: Index, about: Singles, aspect: str, sentence: Singles, bits: int) -> DraftScores:
        """Score what to cite: compare `about`, in an aspect's space, with all papers, `sentence` with citing sentences."""
        (matrix,) = index.spaces(aspect)
        table = index.citing_sentences
        mentions = None if table is None else MentionScores.of(table, sentence, bits)
        return cls(index, compare(matrix, about, index.codes(aspect)), mentions)

    def candidates(self, counted: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """Narrow the papers to cite down to rows that certainly include the best `count`; all must have a vector."""
        rows = np.flatnonzero(counted)
        if len(rows) <= count:
            return rows
        lowest, highest = (-np.inf, -np.inf) if self.mentions is None else self.mentions.bounds(self.index.size)
        low = np.asarray(_citation_score(self.scan.low, lowest))[rows]
        high = np.asarray(_citation_score(self.scan.high, highest))[rows]
        threshold = float(np.partition(low, len(rows) - count)[len(rows) - count])
        return rows[high >= threshold - _ROUNDING]

    def sentences(self, rows: NDArray[np.int64]) -> Singles:
        """Return the best exact score of a mention of each of these papers to cite, (rows,); minus infinity where none."""
        best = np.full(len(rows), -np.inf, np.float32)
        if self.mentions is not None:
            for place, row in enumerate(rows.tolist()):
                best[place] = self.mentions.of_paper(row)[1].max(initial=-np.inf)
        return best
