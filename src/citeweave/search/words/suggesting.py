"""Completions for a search box: words that go on as the last one begins, and titles that have all of the words.

    suggest(index, "graph neu")    [Suggestion("graph neural", None, papers=52), Suggestion("Graph neural networks", 7, 1)]

Titles that begin with what was typed come first, then those that have it in one piece, then the shorter ones. Of words
that very many titles have, the shortest titles are looked at. Does not show how the index came to be, and does not
correct spelling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn
from citeweave.search.words.scoring import Mask, WordIndex, WordSegment, statistics_of
from citeweave.search.words.table import ABSENT, Words
from citeweave.similarity.lexical import STOP_WORDS, words_of

MOST_WORDS = 3
"""Completed words among the suggestions."""

_LONGEST = 200
"""Letters of a query that are looked at."""

_LOOKED_AT = 400
"""Titles that are compared closely."""

_WORDS_LOOKED_AT = 32
"""Words of each segment that are looked at first; more where that does not settle which are the most frequent."""

_ALL_WORDS: frozenset[str] = frozenset()
_LAST_WORD = re.compile(r"\w+$")


class TitleSegment(WordSegment, Protocol):
    """What is asked of a segment."""

    @property
    def titles(self) -> TextColumn: ...


class TitleIndex(WordIndex, Protocol):
    """An index that gives the title of a row."""

    @property
    def segments(self) -> Sequence[TitleSegment]: ...
    def title(self, row: int, /) -> str: ...


class Suggestion(NamedTuple):
    """What a person may have meant to type."""

    text: str
    row: int | None
    """Of the paper with this title; None where the text is words to search for."""

    papers: int
    """Live papers that have the completed word; 1 for a title."""

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "row": self.row, "papers": self.papers}


def suggest(index: TitleIndex, prefix: str, most: int = 8) -> list[Suggestion]:
    """At most so many completions, words before titles; none where nothing was typed."""
    typed = prefix.lstrip()[:_LONGEST]
    words = words_of(typed, stop_words=_ALL_WORDS)
    if not words or most < 1:
        return []
    begun = _LAST_WORD.search(typed)  # a blank behind the last word says that it is whole
    completed = _complete(index, typed[: begun.start()], words[-1], min(MOST_WORDS, most)) if begun else []
    return completed + _titles(index, words, most - len(completed), whole=begun is None)


def _complete(index: WordIndex, before: str, begun: str, most: int) -> list[Suggestion]:
    """Words that begin so, those of the most papers first, of equal ones by the alphabet."""
    parts = [_Begun.of(part.words, begun) for part in index.segments if part.words is not None]
    numbers, own, looked = statistics_of(index), begun.encode(), _WORDS_LOOKED_AT
    while True:
        found = {word for part in parts for word in part.most(looked)} - {own}
        ranked = sorted((-numbers.frequency(word), word) for word in found)[:most]
        # a word that no segment has among those may still have as many papers as the next of all segments together
        next_ones = sum(part.after(looked) for part in parts)
        if not next_ones or (len(ranked) == most and -ranked[-1][0] > next_ones):
            return [Suggestion(before + word.decode(), None, -papers) for papers, word in ranked if papers]
        looked *= 4


@dataclass(frozen=True, slots=True)
class _Begun:
    """The words of a segment that begin as one was typed."""

    words: Words
    order: NDArray[np.int64]
    """Their places, those of the most papers first."""

    papers: NDArray[np.int64]
    """Papers of each, deleted ones included, in that order: no more live ones has it."""

    @classmethod
    def of(cls, words: Words, begun: str) -> _Begun:
        low, high = words.beginning(begun.encode())
        papers = np.diff(words.starts[low : high + 1])
        order = np.argsort(-papers, kind="stable")
        return cls(words, order + low, papers[order])

    def most(self, count: int) -> list[bytes]:
        return [word.encode() for word in self.words.words.take(self.order[:count])]

    def after(self, count: int) -> int:
        """Papers of the next word."""
        return int(self.papers[count]) if count < len(self.papers) else 0


def _titles(index: TitleIndex, words: Sequence[str], most: int, *, whole: bool) -> list[Suggestion]:
    ranked: list[tuple[tuple[bool, bool, int, str], str, int]] = []
    for row in _shortest(index, words, whole=whole):
        title = index.title(row)
        rank = _rank(title, words, whole=whole)
        if rank is not None:
            ranked.append(((*rank, index.id(row)), title, row))
    titles: dict[str, Suggestion] = {}
    for _, title, row in sorted(ranked):
        titles.setdefault(title, Suggestion(title, row, 1))
    return list(titles.values())[:most]


def _shortest(index: TitleIndex, words: Sequence[str], *, whole: bool) -> list[int]:
    """Live papers whose titles have all of the words: those with the shortest titles, of equal ones by id."""
    found: list[tuple[int, str, int]] = []
    for segment, start in zip(index.segments, np.asarray(index.starts).tolist(), strict=False):
        if segment.words is None:
            continue
        rows = np.flatnonzero(_with_all(segment, segment.words, words, whole=whole))
        lengths = segment.titles.lengths()[rows]
        # rows of a segment stand by id
        some = np.argsort(lengths, kind="stable")[:_LOOKED_AT]
        found += [(int(lengths[at]), index.id(start + int(rows[at])), start + int(rows[at])) for at in some]
    return [row for _, _, row in sorted(found)[:_LOOKED_AT]]


def _with_all(segment: WordSegment, words: Words, typed: Sequence[str], *, whole: bool) -> Mask:
    """The live papers of a segment whose titles have every typed word, the last one perhaps only begun; (papers,)."""
    mask = segment.alive.copy()
    for number, word in enumerate(typed):
        if not whole and number == len(typed) - 1:
            low, high = words.beginning(word.encode())
        elif word in STOP_WORDS:
            continue
        else:
            place = int(words.find([word.encode()])[0])
            low, high = (place, place + 1) if place != ABSENT else (0, 0)
        part = slice(int(words.starts[low]), int(words.starts[high]))
        having = np.zeros(words.size, np.bool_)
        if not _mark_titles(words.rows[part], words.marks[part], having):
            raise words.damage()
        mask &= having
    return mask


def _rank(title: str, typed: Sequence[str], *, whole: bool) -> tuple[bool, bool, int] | None:
    """How well a title goes on from the typed words, less is better; None where it does not have them.

    >>> _rank("Deep neural nets", ["deep", "neu"], whole=False), _rank("Neural nets", ["deep"], whole=True)
    ((False, False, 16), None)
    """
    words = words_of(title, stop_words=_ALL_WORDS)
    last = typed[-1]
    if not all(word in words for word in (typed if whole else typed[:-1])):
        return None
    if not any(word.startswith(last) for word in words):
        return None
    line, asked = f" {' '.join(words)} ", f" {' '.join(typed)}{' ' if whole else ''}"
    return not line.startswith(asked), asked not in line, len(title)


@numba.njit(cache=True, nogil=True)
def _mark_titles(rows: NDArray[np.int32], marks: NDArray[Any], having: Mask) -> bool:
    """Set the papers that have a word in the title; False where a row is none of the segment."""
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= len(having):
            return False
        if marks[i] & 1:
            having[rows[i]] = True
    return True
