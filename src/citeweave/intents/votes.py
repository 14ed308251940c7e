"""Which citations a corpus's citing sentences belong to, and what these have told of each of them so far.

    context 0 of paper 5: cites 7, 9        mentions: (0, citation 5-7), (0, citation 5-9)
    context 1 of paper 5: cites 7                     (1, citation 5-7)
    votes for citation 5-7: those of contexts 0 and 1

Does not read sentences, and does not say which intents are sure: `annotating.py` does both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.graph.intent_overlay import LABELS, CitationPlaces
from citeweave.intents.annotation_facts import Reading


@dataclass(frozen=True, slots=True)
class Mentions:
    """Which citations the contexts of one block belong to; each pair once."""

    first: int
    last: int
    contexts: NDArray[np.int64]
    """Numbers of contexts, ascending; (mentions,)."""

    citations: NDArray[np.int64]
    """Numbers of citations, -1 where the pair is no citation of the corpus; (mentions,)."""


def mention_blocks(corpus: Corpus, places: CitationPlaces, size: int, *, limit: int = 0) -> Iterator[Mentions]:
    """The contexts in blocks, each with the citations that it counts for: at most so many of one citation, 0 = all."""
    table = corpus.contexts
    seen = np.zeros(len(corpus.citing) if limit else 0, np.int64)
    for first in range(0, len(table), size):
        last = min(first + size, len(table))
        ends = table.cited_offsets[first : last + 1]
        numbers = np.repeat(np.arange(last - first), np.diff(ends))  # (mentions,)
        pairs = np.unique(numbers * len(corpus) + table.cited[ends[0] : ends[-1]])  # a sentence may cite a paper twice
        numbers, cited = first + pairs // max(len(corpus), 1), pairs % max(len(corpus), 1)
        citations = places.find(table.citing[numbers], cited)
        if limit:
            known = citations >= 0
            keep = ~known
            keep[known] = _count_before(citations[known]) + seen[citations[known]] < limit
            np.add.at(seen, citations[known], 1)
            numbers, citations = numbers[keep], citations[keep]
        yield Mentions(first, last, numbers, citations)


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a block's contexts."""

    first: int
    mask: NDArray[np.uint8]
    confidence: NDArray[np.float16]
    given: NDArray[np.uint8]
    reading: Reading


@dataclass
class Votes:
    """What the contexts told of every citation so far."""

    citations: int
    confidence: NDArray[np.float16] = field(init=False)
    """Largest confidence of the classifier, (citations, 3)."""

    given: NDArray[np.uint8] = field(init=False)
    """Intents that the source gave to contexts, (citations,)."""

    contexts: NDArray[np.int64] = field(init=False)
    """Contexts that spoke, (citations,)."""

    tops: NDArray[np.uint32] = field(init=False)
    """How many contexts the classifier gave each label as the likeliest, (citations, 3)."""

    def __post_init__(self) -> None:
        self.confidence = np.zeros((self.citations, len(LABELS)), np.float16)
        self.given = np.zeros(self.citations, np.uint8)
        self.contexts = np.zeros(self.citations, np.int64)
        self.tops = np.zeros((self.citations, len(LABELS)), np.uint32)

    def add(self, block: Mentions, told: Told) -> None:
        known = block.citations >= 0
        citations, at = block.citations[known], block.contexts[known] - told.first
        spoke = told.confidence[at].any(axis=1) | (told.given[at] > 0)
        citations, at = citations[spoke], at[spoke]
        np.add.at(self.contexts, citations, 1)
        np.bitwise_or.at(self.given, citations, told.given[at])
        heard = told.given[at] == 0
        citations, confidence = citations[heard], told.confidence[at[heard]]  # (mentions, 3)
        np.maximum.at(self.confidence, citations, confidence)
        np.add.at(self.tops, (citations, confidence.argmax(axis=1)), 1)


def _count_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value stands before its own place.

    >>> _count_before(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=values[order[:1]] - 1))
    counts = np.diff(np.append(starts, len(values)))
    before = np.empty(len(values), np.int64)
    before[order] = np.arange(len(values)) - np.repeat(starts, counts)
    return before
