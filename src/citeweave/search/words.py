"""Search by words: the inverted index of an index's papers, BM25, and completions for a search box.

    words/
      word.utf8, word.offsets.npy    the words of `vectors.bm25.words_of`, in the order of their bytes
      start.npy                      int64, (words + 1,): where each word's postings begin
      row.npy                        int32, (postings,): papers of a word, ascending
      mark.npy                       uint8, uint16 or uint32, (postings,): twice the count, plus 1 where in the title
      length.npy                     int32, (papers,): words of each paper

    >>> from tempfile import mkdtemp
    >>> from citeweave.search.write_words import write_words
    >>> folder = Path(mkdtemp())
    >>> write_words(folder, [searchable_text("Deep forests", "Forests of trees."), searchable_text("Deep seas", "")])
    4
    >>> words = WordTable(folder)
    >>> words.find([b"deep", b"nowhere"]).tolist(), words.prefix_range(b"dee"), words.postings(0).rows.tolist()
    ([0, -1], (0, 1), [0, 1])

    search_words(index, "graph neural networks", 10)      papers that share no word with the query are left out
    suggest(index, "graph neu")    [Suggestion("graph neural", None, papers=52), Suggestion("Graph neural networks", 7, 1)]

Scores equal those of `vectors.bm25` over the papers' texts, by Lucene's formula. Of suggested titles, those that begin with
what was typed come first, then those that have it in one piece, then the shorter ones; where very many titles have the
words, the shortest are compared. Spelling is not corrected. `write_words.py` writes the files.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn, open_numbers
from citeweave.core.compiled import compiled, numba_is_loaded
from citeweave.core.errors import ArtifactError
from citeweave.core.ragged import to_offsets
from citeweave.search.rankings import RankedRows, rank_rows
from citeweave.search.write_words import MARK_TYPES
from citeweave.vectors.bm25 import STOP_WORDS, words_of


def searchable_text(title: str, abstract: str) -> str:
    """Return the text of a paper that is searched by its words: the title as first line, the abstract below it.

    >>> searchable_text("A title\\nin two lines", "Text.")
    'A title in two lines\\nText.'
    """
    return title.replace("\n", " ") + "\n" + abstract


# --- the inverted index, opened ------------------------------------------------------------------------

ABSENT = -1
_FEW_WORDS, _FEW_POSTINGS = 50, 1 << 20
"""Words that Python finds, and postings of a word that NumPy adds, sooner than numba is loaded."""
_PAST_UTF8 = b"\xff"
"""No UTF-8 text has this byte: it sorts behind whatever may follow a prefix."""


class Postings(NamedTuple):
    """Postings of one word in the inverted index: the papers that have it."""

    rows: NDArray[np.int32]
    """(papers,): ascending."""

    marks: NDArray[Any]
    """(papers,): twice the count, plus 1 where the word stands in the title."""


class WordTable:
    """An inverted index: its words, sorted, and the postings of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = TextColumn(folder, "word")
        """Sorted by their bytes."""
        self.starts: NDArray[np.int64] = open_numbers(folder / "start.npy", np.int64)
        self.rows: NDArray[np.int32] = open_numbers(folder / "row.npy", np.int32)
        self.marks = _open_marks(folder / "mark.npy")
        self.lengths: NDArray[np.int32] = open_numbers(folder / "length.npy", np.int32)
        """(papers,): words of each paper."""
        # compiled code uses these numbers unchecked: a damaged table must stop here
        sound = len(self.starts) == len(self.words) + 1 and len(self.rows) == len(self.marks)
        if not sound or self.starts[0] != 0 or self.starts[-1] != len(self.rows):
            raise self.damaged()
        if (np.diff(self.starts) < 0).any() or (np.diff(self.words.offsets) < 0).any():
            raise self.damaged()

    @property
    def size(self) -> int:
        """Number of papers."""
        return len(self.lengths)

    @cached_property
    def statistics(self) -> WordStatistics:
        """The statistics of BM25."""
        return WordStatistics(self)

    def find(self, words: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the place of each word among the sorted words, -1 where no paper has it; (words,)."""
        data = np.frombuffer(b"".join(words), np.uint8)
        offsets = to_offsets([len(word) for word in words])
        run = _find.small if len(words) <= _FEW_WORDS else _find
        return np.asarray(run(self.words.data, self.words.offsets, data, offsets))

    def prefix_range(self, prefix: bytes) -> tuple[int, int]:
        """Return the places from which and before which the sorted words begin with a prefix."""
        ends = (np.frombuffer(word, np.uint8) for word in (prefix, prefix + _PAST_UTF8))
        low, high = (_lower_bound.small(self.words.data, self.words.offsets, end) for end in ends)
        return low, high

    def postings(self, place: int) -> Postings:
        """Return the postings of the word at a place."""
        part = slice(int(self.starts[place]), int(self.starts[place + 1]))
        return Postings(self.rows[part], self.marks[part])

    def damaged(self) -> ArtifactError:
        """Return the error for an inverted index whose tables do not fit together."""
        return ArtifactError(f"{self.folder} is damaged: its tables do not fit together; build the index again")


def _open_marks(path: Path) -> NDArray[Any]:
    for kind in MARK_TYPES[:-1]:
        try:
            return open_numbers(path, kind)
        except ArtifactError:
            continue
    return open_numbers(path, MARK_TYPES[-1])


@compiled()
def _before(data: NDArray[np.uint8], start: int, end: int, word: NDArray[np.uint8]) -> bool:
    """Return whether data[start:end] sorts before a word."""
    for i in range(min(end - start, len(word))):
        if data[start + i] != word[i]:
            return bool(data[start + i] < word[i])
    return end - start < len(word)


@compiled()
def _lower_bound(data: NDArray[np.uint8], offsets: NDArray[np.int64], word: NDArray[np.uint8]) -> int:
    """Return the place of the first sorted word that is not before a given one."""
    low, high = 0, len(offsets) - 1
    while low < high:
        middle = (low + high) // 2
        if _before(data, offsets[middle], offsets[middle + 1], word):
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def _find(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], wanted: NDArray[np.uint8], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    places = np.full(len(ends) - 1, ABSENT, np.int64)
    for i in range(len(places)):
        word = wanted[ends[i] : ends[i + 1]]
        place = _lower_bound(data, offsets, word)
        if place == len(offsets) - 1 or offsets[place + 1] - offsets[place] != len(word):
            continue
        same = True
        for at in range(len(word)):
            same = same and data[offsets[place] + at] == word[at]
        if same:
            places[i] = place
    return places


# --- BM25 ------------------------------------------------------------------------------------------------

K1, B = 1.2, 0.75
"""The defaults of Lucene."""

Mask = NDArray[np.bool_]


class WordIndex(Protocol):
    """An index that gives the words and titles of its papers."""

    @property
    def words(self) -> WordTable: ...
    @property
    def titles(self) -> TextColumn: ...
    def id(self, row: int, /) -> str: ...


class WordStatistics:
    """BM25 statistics of an inverted index: mean length of its papers, and the weight of each word."""

    def __init__(self, words: WordTable) -> None:
        if int(words.lengths.min(initial=0)) < 0:
            raise words.damaged()
        self._words = words
        self.mean_length = int(words.lengths.sum(dtype=np.int64)) / words.size if words.size else 0.0
        self.norms = np.asarray(length_norm(words.lengths, self.mean_length))
        """`length_norm` of every paper, (papers,)."""

    def frequency(self, word: bytes) -> int:
        """Return the number of papers that have a word (its document frequency)."""
        place = int(self._words.find([word])[0])
        return 0 if place == ABSENT else int(self._words.starts[place + 1] - self._words.starts[place])

    def weight(self, word: bytes) -> float:
        """Return the BM25 weight (idf) of a word: the rarer, the higher, the highest where no paper has it."""
        return _lucene_idf(self.frequency(word), self._words.size)


class WordMatches(NamedTuple):
    """How well every paper of an index matches the words of a query."""

    scores: NDArray[np.float64]
    """BM25 of every paper, (size,); 0 where it shares no word with the query or is not allowed."""

    limit: float
    """BM25 of a paper that had nothing but the query's words: the sum of their weights, of unknown words too."""

    def best(self, count: int, *, name: Callable[[int], str]) -> RankedRows:
        """Rank the papers that share words with the query by BM25."""
        matching = np.flatnonzero(self.scores)
        return rank_rows(matching, self.scores[matching], count, name=name)

    def coverage(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the share of the query's words that papers have, by weight: their BM25 divided by the limit, (rows,)."""
        return self.scores[rows] / self.limit if self.limit else np.zeros(len(rows))


def match_words(index: WordIndex, query: str, *, allowed: Mask | None = None) -> WordMatches:
    """Match the words of a query with all papers by BM25; `allowed`, (size,), masks those that count."""
    words, statistics = index.words, index.words.statistics
    # in the order of the words, so that a paper's sum is the same for every order of a query
    query_words = {word.encode("utf-8", "replace"): times for word, times in sorted(Counter(words_of(query)).items())}
    weights = {word: times * statistics.weight(word) for word, times in query_words.items()}
    limit = sum(weights.values())
    mask = np.ones(words.size, np.bool_) if allowed is None else allowed
    scores = np.zeros(words.size)
    for place, weight in zip(words.find(list(weights)).tolist(), weights.values(), strict=True):
        if place == ABSENT:
            continue
        postings = words.postings(place)
        add = _add_scores if numba_is_loaded() or len(postings.rows) > _FEW_POSTINGS else _add_few_scores
        if not add(postings.rows, postings.marks, mask, statistics.norms, weight, scores):
            raise words.damaged()
    return WordMatches(scores, limit)


def search_words(index: WordIndex, query: str, count: int, *, allowed: Mask | None = None) -> RankedRows:
    """Rank the papers that share words with a query by BM25; `allowed`, (size,), masks those that count."""
    return match_words(index, query, allowed=allowed).best(count, name=index.id)


def length_norm(length: Any, mean: float) -> Any:
    """Return the length normalization of BM25 (Robertson and Zaragoza, 2009), of a number or an array of lengths."""
    return K1 * ((1 - B) + B * length / (mean or 1.0))


def _lucene_idf(papers_with_word: int, papers: int) -> float:
    """Return the idf weight of a word in Lucene's BM25 (Kamphuis et al., 2020).

    >>> round(_lucene_idf(1, 3), 3)
    0.981
    """
    return math.log(1 + (papers - papers_with_word + 0.5) / (papers_with_word + 0.5))


def _add_few_scores(
    rows: NDArray[np.int32], marks: NDArray[Any], mask: Mask, norms: NDArray[np.float64], weight: float,
    scores: NDArray[np.float64],
) -> bool:  # fmt: skip
    """Add one word's BM25 part as `_add_scores` does, with the same numbers, by NumPy."""
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(scores)):
        return False
    counted = mask[rows]
    chosen, times = rows[counted], (marks[counted] >> 1).astype(np.float64)
    scores[chosen] += weight * times / (norms[chosen] + times)
    return True


@compiled()
def _add_scores(
    rows: NDArray[np.int32], marks: NDArray[Any], mask: Mask, norms: NDArray[np.float64], weight: float,
    scores: NDArray[np.float64],
) -> bool:  # fmt: skip
    """Add one word's BM25 part to the scores of papers that have it; False where a row is not in the index."""
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(scores):
            return False
        if mask[row]:
            times = float(marks[i] >> 1)
            scores[row] += weight * times / (norms[row] + times)
    return True


# --- completions for a search box --------------------------------------------------------------------------

MAX_WORDS = 3
"""Completed words among the suggestions."""

_MAX_TYPED = 200
"""Characters of the typed text that are read."""

_MAX_TITLES = 400
"""Titles that are compared closely."""

_ALL_WORDS: frozenset[str] = frozenset()
_LAST_WORD = re.compile(r"\w+$")


class Suggestion(NamedTuple):
    """A completed word or a title that the text typed into a search box may become."""

    text: str
    row: int | None
    """Row of the paper with this title; None where the text is words to search for."""

    papers: int
    """Live papers that have the completed word; 1 for a title."""

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "row": self.row, "papers": self.papers}


def suggest(index: WordIndex, prefix: str, max_suggestions: int = 8) -> list[Suggestion]:
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


def _suggest_titles(index: WordIndex, words: Sequence[str], max_titles: int, *, complete: bool) -> list[Suggestion]:
    """Suggest the titles that best continue the typed words."""
    ranked: list[tuple[tuple[bool, bool, int, str], str, int]] = []
    for row in titles_with_words(index, words, complete=complete):
        title = index.titles[row]
        rank = _rank_title(title, words, complete=complete)
        if rank is not None:
            ranked.append(((*rank, index.id(row)), title, row))
    titles: dict[str, Suggestion] = {}
    for _, title, row in sorted(ranked):
        titles.setdefault(title, Suggestion(title, row, 1))
    return list(titles.values())[:max_titles]


def titles_with_words(index: WordIndex, words: Sequence[str], *, complete: bool = True) -> list[int]:
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
        rows = words.rows[part][(words.marks[part] & 1) == 1]
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < words.size:
            raise words.damaged()
        having[rows] = True
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
