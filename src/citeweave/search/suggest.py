"""Completions for a search box: words of the index that continue the typed one, and titles with all words.

    suggest(index, "graph neu")    [Suggestion("graph neural", None, papers=52), Suggestion("Graph neural networks", 7, 1)]

Titles that begin with what was typed come first, then those that have it in one piece, then the shorter ones. Where very
many titles have the words, the shortest are compared. Does not depend on the index's history, and does not correct
spelling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.search.words import ABSENT, Mask, WordIndex, WordSegment, WordTable, statistics_of
from citeweave.vectors.bm25 import STOP_WORDS, words_of

MAX_WORDS = 3
"""Completed words among the suggestions."""

_MAX_TYPED = 200
"""Characters of the typed text that are read."""

_MAX_TITLES = 400
"""Titles that are compared closely."""

_FIRST_WORDS = 32
"""Words of each segment that are counted first; more where that does not settle which are the most frequent."""

_ALL_WORDS: frozenset[str] = frozenset()
_LAST_WORD = re.compile(r"\w+$")


class TitleSegment(WordSegment, Protocol):
    """A segment that gives the titles of its papers and their words."""

    @property
    def titles(self) -> TextColumn: ...


class TitleIndex(WordIndex, Protocol):
    """An index that gives the titles and words of its papers."""

    @property
    def segments(self) -> Sequence[TitleSegment]: ...
    def title(self, row: int, /) -> str: ...


class Suggestion(NamedTuple):
    """A completed word or a title that the text typed into a search box may become."""

    text: str
    row: int | None
    """Row of the paper with this title; None where the text is words to search for."""

    papers: int
    """Live papers that have the completed word; 1 for a title."""

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "row": self.row, "papers": self.papers}


def suggest(index: TitleIndex, prefix: str, max_suggestions: int = 8) -> list[Suggestion]:
    """Suggest completions of a text typed into a search box, words before titles; none where nothing was typed."""
    typed = prefix.lstrip()[:_MAX_TYPED]
    words = words_of(typed, stop_words=_ALL_WORDS)
    if not words or max_suggestions < 1:
        return []
    begun = _LAST_WORD.search(typed)  # a blank behind the last word says that it is complete
    completed = _complete(index, typed[: begun.start()], words[-1], min(MAX_WORDS, max_suggestions)) if begun else []
    return completed + _suggest_titles(index, words, max_suggestions - len(completed), complete=begun is None)


def _complete(index: WordIndex, before: str, begun: str, max_words: int) -> list[Suggestion]:
    """Complete the begun last word by words of the index, those of the most papers first, ties alphabetically."""
    parts = [_WordsWithPrefix.of(part.words, begun) for part in index.segments if part.words is not None]
    statistics, own, counted = statistics_of(index), begun.encode(), _FIRST_WORDS
    while True:
        words = {word for part in parts for word in part.first(counted)} - {own}
        ranked = sorted((-statistics.frequency(word), word) for word in words)[:max_words]
        # a word that no segment has among those may still have as many papers as the next of all segments together
        upper_bound = sum(part.papers_after(counted) for part in parts)
        if not upper_bound or (len(ranked) == max_words and -ranked[-1][0] > upper_bound):
            return [Suggestion(before + word.decode(), None, -papers) for papers, word in ranked if papers]
        counted *= 4


@dataclass(frozen=True, slots=True)
class _WordsWithPrefix:
    """The words of a segment that begin with the typed prefix."""

    words: WordTable
    order: NDArray[np.int64]
    """Their places in the table, those of the most papers first."""

    papers: NDArray[np.int64]
    """Papers of each in that order, deleted ones included: an upper bound of the live ones."""

    @classmethod
    def of(cls, words: WordTable, prefix: str) -> _WordsWithPrefix:
        low, high = words.prefix_range(prefix.encode())
        papers = np.diff(words.starts[low : high + 1])
        order = np.argsort(-papers, kind="stable")
        return cls(words, order + low, papers[order])

    def first(self, count: int) -> list[bytes]:
        return [word.encode() for word in self.words.words.take(self.order[:count])]

    def papers_after(self, count: int) -> int:
        """Return the papers of the word behind the first `count`."""
        return int(self.papers[count]) if count < len(self.papers) else 0


def _suggest_titles(index: TitleIndex, words: Sequence[str], max_titles: int, *, complete: bool) -> list[Suggestion]:
    """Suggest the titles that best continue the typed words."""
    ranked: list[tuple[tuple[bool, bool, int, str], str, int]] = []
    for row in _shortest_titles(index, words, complete=complete):
        title = index.title(row)
        rank = _rank_title(title, words, complete=complete)
        if rank is not None:
            ranked.append(((*rank, index.id(row)), title, row))
    titles: dict[str, Suggestion] = {}
    for _, title, row in sorted(ranked):
        titles.setdefault(title, Suggestion(title, row, 1))
    return list(titles.values())[:max_titles]


def _shortest_titles(index: TitleIndex, words: Sequence[str], *, complete: bool) -> list[int]:
    """Return the rows of live papers whose titles have all typed words: the shortest titles, ties by id."""
    candidates: list[tuple[int, str, int]] = []
    for segment, start in zip(index.segments, np.asarray(index.starts).tolist(), strict=False):
        if segment.words is None:
            continue
        rows = np.flatnonzero(_with_all_words(segment, segment.words, words, complete=complete))
        lengths = segment.titles.lengths()[rows]
        # rows of a segment are ordered by id
        shortest = np.argsort(lengths, kind="stable")[:_MAX_TITLES]
        candidates += [(int(lengths[at]), index.id(start + int(rows[at])), start + int(rows[at])) for at in shortest]
    return [row for _, _, row in sorted(candidates)[:_MAX_TITLES]]


def _with_all_words(segment: WordSegment, words: WordTable, typed: Sequence[str], *, complete: bool) -> Mask:
    """Return the mask of a segment's live papers whose titles have every typed word, the last perhaps only begun."""
    mask = segment.alive.copy()
    for number, word in enumerate(typed):
        if not complete and number == len(typed) - 1:
            low, high = words.prefix_range(word.encode())
        elif word in STOP_WORDS:
            continue
        else:
            place = int(words.find([word.encode()])[0])
            low, high = (place, place + 1) if place != ABSENT else (0, 0)
        part = slice(int(words.starts[low]), int(words.starts[high]))
        having = np.zeros(words.size, np.bool_)
        if not _mark_titles(words.rows[part], words.marks[part], having):
            raise words.damaged()
        mask &= having
    return mask


def _rank_title(title: str, typed: Sequence[str], *, complete: bool) -> tuple[bool, bool, int] | None:
    """Return how well a title continues the typed words, lower is better; None where it does not have them.

    >>> _rank_title("Deep neural nets", ["deep", "neu"], complete=False), _rank_title("Neural nets", ["deep"], complete=True)
    ((False, False, 16), None)
    """
    words = words_of(title, stop_words=_ALL_WORDS)
    last = typed[-1]
    if not all(word in words for word in (typed if complete else typed[:-1])):
        return None
    if not any(word.startswith(last) for word in words):
        return None
    line, phrase = f" {' '.join(words)} ", f" {' '.join(typed)}{' ' if complete else ''}"
    return not line.startswith(phrase), phrase not in line, len(title)


@numba.njit(cache=True, nogil=True)
def _mark_titles(rows: NDArray[np.int32], marks: NDArray[Any], having: Mask) -> bool:
    """Mark the papers that have a word in the title; False where a row is not in the segment."""
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= len(having):
            return False
        if marks[i] & 1:
            having[rows[i]] = True
    return True
