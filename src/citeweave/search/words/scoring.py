"""BM25 over the live papers of all segments of an index, with Lucene's formula.

    found = search_words(index, "graph neural networks", 10)
    found.rows, found.scores                        papers that share no word with the query are not among them

The numbers are those of `similarity.lexical.Bm25` over the texts of the live papers: how many papers have a word, how
many papers there are and how long they are on average never counts a deleted one. They are taken when a word is first
asked for and kept as long as the opened state of the index.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.search.ranking import Ranked, rank_rows
from citeweave.search.words.table import ABSENT, Words
from citeweave.similarity.lexical import words_of

K1, B = 1.2, 0.75
"""As Lucene documents them."""

_MOST_KEPT = 100_000
"""Words of which the number of papers is kept."""

Mask = NDArray[np.bool_]


class WordSegment(Protocol):
    """What is asked of a segment."""

    @property
    def words(self) -> Words | None: ...
    @property
    def alive(self) -> Mask: ...


class WordIndex(Protocol):
    """What is asked of an index: rows are positions in the concatenation of its segments."""

    @property
    def segments(self) -> Sequence[WordSegment]: ...
    @property
    def starts(self) -> Any: ...
    def id(self, row: int, /) -> str: ...


class WordStatistics:
    """How many live papers an index has, how long they are and how many of them have a word."""

    def __init__(self, index: WordIndex) -> None:
        # no reference to the index itself: these numbers are kept as long as it lives
        self._parts = [(part.words, part.alive) for part in index.segments if part.words is not None]
        for words, alive in self._parts:
            if words.size != len(alive) or int(words.lengths.min(initial=0)) < 0:
                raise words.damage()
        self._whole = [bool(alive.all()) for _, alive in self._parts]
        self.papers = sum(int(alive.sum()) for _, alive in self._parts)
        total = sum(int(words.lengths[alive].sum(dtype=np.int64)) for words, alive in self._parts)
        self.mean_length = total / self.papers if self.papers else 0.0
        self.norms = [np.asarray(length_norm(words.lengths, self.mean_length)) for words, _ in self._parts]
        """`length_norm` of every paper; (papers,) for each segment with words."""
        self._frequencies: dict[bytes, int] = {}

    def frequency(self, word: bytes) -> int:
        """Live papers that have a word."""
        known = self._frequencies.get(word)
        if known is None:
            known = sum(
                _live_papers(words, alive, word, whole=whole)
                for (words, alive), whole in zip(self._parts, self._whole, strict=True)
            )
            if len(self._frequencies) >= _MOST_KEPT:
                self._frequencies.clear()
            if known:  # words of no paper are without number and may be long, and are soon looked up again
                self._frequencies[word] = known
        return known

    def weight(self, word: bytes) -> float:
        """What a word counts for, 0 where no live paper has it."""
        papers = self.frequency(word)
        return lucene_idf(papers, self.papers) if papers else 0.0


_statistics: weakref.WeakKeyDictionary[Any, WordStatistics] = weakref.WeakKeyDictionary()


def statistics_of(index: WordIndex) -> WordStatistics:
    """The numbers of an opened state, made once."""
    known = _statistics.get(index)
    if known is None:
        known = _statistics[index] = WordStatistics(index)
    return known


def search_words(index: WordIndex, query: str, count: int, *, allowed: Mask | None = None) -> Ranked:
    """The live papers that share words with a query, best first; only those that `allowed`, (size,), has."""
    numbers = statistics_of(index)
    # in the order of the words, so that a paper's sum is the same in every segment and for every order of a query
    asked = {word.encode("utf-8", "replace"): times for word, times in sorted(Counter(words_of(query)).items())}
    weights = {word: times * numbers.weight(word) for word, times in asked.items()}
    weights = {word: weight for word, weight in weights.items() if weight > 0}
    rows, scores = [np.empty(0, np.int64)], [np.empty(0)]
    norms = iter(numbers.norms)
    for segment, start in zip(index.segments, np.asarray(index.starts).tolist(), strict=False):
        if segment.words is None:
            continue
        mask = segment.alive
        if allowed is not None:
            mask = mask & allowed[start : start + segment.words.size]
        found = _score(segment.words, mask, weights, next(norms))  # (papers,)
        touched = np.flatnonzero(found)
        rows.append(touched + start)
        scores.append(found[touched])
    return rank_rows(np.concatenate(rows), np.concatenate(scores), count, name=index.id)


def _score(words: Words, mask: Mask, weights: dict[bytes, float], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    scores = np.zeros(words.size)
    for place, weight in zip(words.find(list(weights)).tolist(), weights.values(), strict=True):
        if place != ABSENT:
            postings = words.postings(place)
            if not _add(postings.rows, postings.marks, mask, norms, weight, scores):
                raise words.damage()
    return scores


def _live_papers(words: Words, alive: Mask, word: bytes, *, whole: bool) -> int:
    place = int(words.find([word])[0])
    if place == ABSENT:
        return 0
    if whole:
        return int(words.starts[place + 1] - words.starts[place])
    rows = words.postings(place).rows
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < words.size:
        raise words.damage()
    return int(np.count_nonzero(alive[rows]))


def length_norm(length: Any, mean: float) -> Any:
    """What a paper's length adds below the line of BM25 (Robertson and Zaragoza, 2009); a number or an array."""
    return K1 * ((1 - B) + B * length / (mean or 1.0))


def lucene_idf(papers_with_word: int, papers: int) -> float:
    """The weight of a word in Lucene (Kamphuis and others, 2020).

    >>> round(lucene_idf(1, 3), 3)
    0.981
    """
    return math.log(1 + (papers - papers_with_word + 0.5) / (papers_with_word + 0.5))


@numba.njit(cache=True, nogil=True)
def _add(
    rows: NDArray[np.int32], marks: NDArray[Any], mask: Mask, norms: NDArray[np.float64], weight: float,
    scores: NDArray[np.float64],
) -> bool:  # fmt: skip
    """Add one word's part to the papers that have it; False where a row is none of the segment."""
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(scores):
            return False
        if mask[row]:
            times = float(marks[i] >> 1)
            scores[row] += weight * times / (norms[row] + times)
    return True
