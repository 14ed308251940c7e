"""Completions for a search box: words of the index that continue the typed one, and titles with all words.

    suggest(index, "graph neu")    [Suggestion("graph neural", None, papers=52), Suggestion("Graph neural networks", 7, 1)]

Titles that begin with what was typed come first, then those that have it in one piece, then the shorter ones. Where very
many titles have the words, the shortest are compared. Does not depend on the index's history, and does not correct
spelling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.search.words import ABSENT, Mask, WordIndex, WordTable
from citeweave.vectors.bm25 import STOP_WORDS, words_of

MAX_WORDS = 3
"""Completed words among the suggestions."""

_MAX_TYPED = 200
"""Characters of the typed text that are read."""

_MAX_TITLES = 400
"""Titles that are compared closely."""

_ALL_WORDS: frozenset[str] = frozenset()
_LAST_WORD = re.compile(r"\w+$")


class TitleIndex(WordIndex, Protocol):
    """An index that gives the titles and words of its papers."""

    @property
    def titles(self) -> TextColumn: ...
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
    words = index.words
    low, high = words.prefix_range(begun.encode())
    papers = np.diff(words.starts[low : high + 1])
    best = np.argsort(-papers, kind="stable")[: max_words + 1]  # words stand in their order
    texts = words.words.take(low + best)
    pairs = [(text, int(papers[at])) for text, at in zip(texts, best.tolist(), strict=True) if text != begun]
    return [Suggestion(before + text, None, count) for text, count in pairs[:max_words]]


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
    """Return the rows of papers whose titles have all typed words: the shortest titles, ties by id."""
    rows = np.flatnonzero(_with_all_words(index.words, words, complete=complete))
    lengths = index.titles.lengths()[rows]
    return [int(row) for row in rows[np.argsort(lengths, kind="stable")[:_MAX_TITLES]]]  # rows are ordered by id


def _with_all_words(words: WordTable, typed: Sequence[str], *, complete: bool) -> Mask:
    """Return the mask of papers whose titles have every typed word, the last perhaps only begun."""
    mask = np.ones(words.size, np.bool_)
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
    """Mark the papers that have a word in the title; False where a row is not in the index."""
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= len(having):
            return False
        if marks[i] & 1:
            having[rows[i]] = True
    return True
