"""Confidence in a search: whether the best paper fits a query text, hardly fits it, or is no nearer than noise.

    "graph neural networks"     in a library of machine learning     high
    "granite in the Alps"       there                                low: hits are listed, with a note
    "zzzzqqq"                   there                                none: no hits in the default mode, only the note

    >>> [confidence_of(score, noise=0.3) for score in (0.6, 0.3, 0.22)]
    ['high', 'low', 'none']

A cosine alone says little: how near a random text gets to its nearest paper depends on the model and on the library. So a few
PROBES, texts about nothing that a library of papers treats, are compared with all papers once per open index: the median of
their best cosines is the noise. The score of a query's best paper is compared with what this cosine alone would score,
`VECTOR_SHARE` x noise; a paper that has the query's words is above it by their coverage. Where a paper has most of the
query's words, it is listed however far its vector is: a model may not know a rare word. docs/search.md has the rates of false
alarms and of detection. Does not judge single hits, nor queries by papers.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from citeweave.search.index import Index
from citeweave.search.nearest import QueryEncoder
from citeweave.search.rankings import VECTOR_SHARE, Ranking
from citeweave.vectors.vectors import unit_rows

HIGH, LOW, NONE = "high", "low", "none"

NOTES = {
    HIGH: "",
    LOW: "no close match: these are the nearest",
    NONE: "nothing in this library is close to this query",
}

LOW_MARGIN, NONE_MARGIN = 0.1, 0.03
"""How far a best score is above the noise, at least, for confidence that is high and that is not none."""

MOST_WORDS = 0.4
"""Coverage of a query by which a paper has most of its words: all of a text of average length, or a title of little else."""

PROBES = (
    "vbnhj wqpor",
    "zmxk",
    "tyghbn oklm jjp",
    "brumfel",
    "skwizzle plonk",
    "two tickets please",
    "sunny with light wind",
    "the cat sat on the mat",
    "red shoes size nine",
    "happy birthday to you",
    "chocolate cake",
    "leather sofa for sale",
    "guten Morgen",
    "buenas tardes",
    "the price of milk",
    "a walk in the park",
)
"""Texts whose nearest paper means nothing. A few may be a library's topic, which the median ignores."""

_BLOCK = 65_536
"""Papers that are compared with the probes at a time."""

_noise: WeakKeyDictionary[Index, dict[str, float]] = WeakKeyDictionary()
"""Noise of an open index by aspect; its model is always the same one."""


def noise_level(index: Index, query_encoder: QueryEncoder, aspect: str = "") -> float:
    """Return the median cosine of the probes to their nearest papers in a space of the index, computed once."""
    known = _noise.setdefault(index, {})
    if aspect not in known:
        vectors = query_encoder.encoder.encode(list(PROBES))  # (probes, dimension)
        known[aspect] = _noise_of(index, np.stack([query_encoder.project(each, aspect) for each in vectors]), aspect)
    return known[aspect]


def _noise_of(index: Index, probes: NDArray[np.float32], aspect: str) -> float:
    """Return the median of the best cosines of probes, (probes, dimension), with the papers of an index; 0 without vectors."""
    rows, units = np.flatnonzero(index.with_vector), unit_rows(probes)
    if not len(rows):
        return 0.0
    blocks = (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
    best = [(unit_rows(index.take(block, aspect)) @ units.T).max(axis=0) for block in blocks]  # (blocks, probes)
    return float(np.median(np.max(best, axis=0)))


def confidence_of(score: float, *, noise: float) -> str:
    """Return the confidence in a search by the fused score of its best paper and the noise of the index."""
    above = score - VECTOR_SHARE * noise
    return HIGH if above >= LOW_MARGIN else LOW if above >= NONE_MARGIN else NONE


def judge_ranking(ranking: Ranking, noise: float, *, keep: bool) -> Ranking:
    """Judge the ranking of a query text: return it with its confidence and a note, without papers if none fits.

    With `keep`, papers are listed all the same. A ranking by words has no cosines: it is judged by whether it has papers.
    """
    if not len(ranking.rows):
        confidence = NONE
    elif ranking.by == "words":
        confidence = HIGH
    else:
        best = float(ranking.scores[0]) * (VECTOR_SHARE if ranking.by == "vectors" else 1)
        confidence = confidence_of(best, noise=noise)
        if confidence == NONE and ranking.coverage >= MOST_WORDS:
            confidence = LOW
    note = NOTES[confidence]
    if keep and confidence == NONE:
        note = NOTES[LOW] if len(ranking.rows) else ""
    ranking = ranking._replace(confidence=confidence, note="; ".join(filter(None, (note, ranking.note))))
    return ranking if keep or confidence != NONE else ranking._replace(rows=ranking.rows[:0], scores=ranking.scores[:0])


def name_ranking(ranking: Ranking) -> Ranking:
    """Return a ranking that begins with papers named by the query: with high confidence, whatever the others are."""
    note = "; ".join(part for part in ranking.note.split("; ") if part not in NOTES.values())
    return ranking._replace(confidence=HIGH, note=note)
