"""The words that speak most for two papers being alike: those that weigh much in both.

    shared_words(index, 3, 7)        [SharedWord("transformer", score=2.1), ...]

A word weighs in a paper what BM25 would give the paper for it; in two papers, the smaller of both.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from citeweave.search.words.scoring import WordIndex, WordStatistics, length_norm, statistics_of
from citeweave.search.words.writing import text_of
from citeweave.similarity.lexical import words_of


class PaperText(Protocol):
    """What is asked of a paper."""

    @property
    def title(self) -> str: ...
    @property
    def abstract(self) -> str: ...


class PaperIndex(WordIndex, Protocol):
    """An index that gives the text of a row."""

    def paper(self, row: int, /) -> PaperText: ...


class SharedWord(NamedTuple):
    """A word of two papers."""

    word: str
    score: float
    """What BM25 gives for it to the paper that it matters less to."""


def shared_words(index: PaperIndex, left_row: int, right_row: int, most: int = 8) -> list[SharedWord]:
    """The words that both papers have, the weightiest first, of equal ones by the alphabet."""
    numbers = statistics_of(index)
    left, right = (_counts(index, row) for row in (left_row, right_row))
    shared = [
        SharedWord(word, min(_part(numbers, left, word), _part(numbers, right, word))) for word in left.keys() & right
    ]
    return sorted(shared, key=lambda found: (-found.score, found.word))[:most]


def _counts(index: PaperIndex, row: int) -> Counter[str]:
    paper = index.paper(row)
    return Counter(words_of(text_of(paper.title, paper.abstract)))


def _part(numbers: WordStatistics, counts: Counter[str], word: str) -> float:
    times, norm = counts[word], float(length_norm(counts.total(), numbers.mean_length))
    return numbers.weight(word.encode("utf-8", "replace")) * times / (norm + times)
