"""Search by words: the inverted index of an index's papers, and BM25.

    words/
      word.utf8, word.offsets.npy    the words of `vectors.bm25.words_of`, in the order of their bytes
      start.npy                      int64, (words + 1,): where each word's postings begin
      row.npy                        int32, (postings,): papers of a word, ascending
      mark.npy                       uint8, uint16 or uint32, (postings,): twice the count, plus 1 where in the title
      length.npy                     int32, (papers,): words of each paper

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> write_words(folder, [searchable_text("Deep forests", "Forests of trees."), searchable_text("Deep seas", "")])
    4
    >>> words = WordTable.open(folder)
    >>> words.find([b"deep", b"nowhere"]).tolist(), words.prefix_range(b"dee"), words.postings(0).rows.tolist()
    ([0, -1], (0, 1), [0, 1])

    search_words(index, "graph neural networks", 10)      papers that share no word with the query are left out

Writing reads texts in blocks, puts their postings into scratch files and merges them by word at the end: what stays in
memory is one block, a part of the merge and the words themselves, never the postings of all papers. Scores equal those
of `vectors.bm25` over the papers' texts, by Lucene's formula. Words are split by `word_tokens.py`.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import (
    NumberWriter,
    TextColumn,
    TextWriter,
    open_numbers,
    release,
    write_numbers,
)
from citeweave.core.errors import ArtifactError
from citeweave.core.progress import Advance
from citeweave.search.rankings import RankedRows, rank_rows
from citeweave.search.word_tokens import Ints, Places, Vocabulary
from citeweave.vectors.bm25 import STOP_WORDS, words_of

BLOCK = 1 << 22
"""Characters of text read at a time."""

MERGED = 1 << 24
"""Postings merged at a time."""

MARK_TYPES = (np.uint8, np.uint16, np.uint32)
_MAX_TEXTS = 1 << 14
_READ = 1 << 22
"""Unsorted postings that are read at a time and released again."""

_PARTS = {"term": np.int32, "row": np.int32, "mark": np.uint32}


def searchable_text(title: str, abstract: str) -> str:
    """Return the text of a paper that is searched by its words: the title as first line, the abstract below it.

    >>> searchable_text("A title\\nin two lines", "Text.")
    'A title in two lines\\nText.'
    """
    return title.replace("\n", " ") + "\n" + abstract


def write_words(
    folder: Path, texts: Iterable[str], *, block: int = BLOCK, merged: int = MERGED, advance: Advance | None = None
) -> int:
    """Write the inverted index of papers' texts, in the order of their rows; return its number of words."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = Vocabulary(sorted(STOP_WORDS))
    lengths = NumberWriter(folder / "length.npy", np.int32)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".words") as scratch:
        writers = {name: NumberWriter(Path(scratch) / f"{name}.npy", dtype) for name, dtype in _PARTS.items()}
        max_mark = 2
        for part in _blocks(texts, block):
            counted = vocabulary.count(part, first_row=lengths.count)
            max_mark = max(max_mark, int(counted.marks.max(initial=0)))
            for name, column in zip(_PARTS, (counted.terms, counted.rows, counted.marks), strict=True):
                writers[name].append(column)
            lengths.append(counted.lengths)
            if advance is not None:
                advance(len(part))
        for writer in (lengths, *writers.values()):
            writer.close()
        plan = _write_vocabulary(vocabulary, folder)
        _merge_postings(Path(scratch), folder, plan, max_mark, merged)
    return len(plan.starts) - 1


def _blocks(texts: Iterable[str], block: int) -> Iterator[list[str]]:
    part: list[str] = []
    held = 0
    for text in texts:
        part.append(text)
        held += len(part[-1])
        if held >= block or len(part) == _MAX_TEXTS:
            yield part
            part, held = [], 0
    if part:
        yield part


class _PostingPlan(NamedTuple):
    """Where the postings of every word go in the inverted index."""

    ranks: Ints
    """(words of the vocabulary,): place of a word among the sorted ones; -1 for stop words."""

    starts: Places
    """(sorted words + 1,)"""


def _write_vocabulary(vocabulary: Vocabulary, folder: Path) -> _PostingPlan:
    """Write the sorted words and where their postings begin."""
    words = vocabulary.words()
    order = sorted(range(vocabulary.stops, len(words)), key=words.__getitem__)
    ranks = np.full(len(words), -1, np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(vocabulary.papers[order], dtype=np.int64)]).astype(np.int64)
    writer = TextWriter(folder, "word")
    writer.append_bytes(
        np.array([len(words[term]) for term in order], np.int64), b"".join([words[term] for term in order])
    )
    writer.close()
    write_numbers(folder / "start.npy", starts)
    return _PostingPlan(ranks, starts)


def _merge_postings(scratch: Path, folder: Path, plan: _PostingPlan, max_mark: int, merged: int) -> None:
    """Sort the postings by word, as many words at a time as `merged` postings allow, at least one."""
    kind = next(kind for kind in MARK_TYPES if max_mark <= np.iinfo(kind).max)
    terms, rows, marks = (open_numbers(scratch / f"{name}.npy", dtype) for name, dtype in _PARTS.items())
    row_writer, mark_writer = NumberWriter(folder / "row.npy", np.int32), NumberWriter(folder / "mark.npy", kind)
    low, words = 0, len(plan.starts) - 1
    while low < words:
        high = max(low + 1, int(np.searchsorted(plan.starts, plan.starts[low] + merged, "right")) - 1)
        size = int(plan.starts[high] - plan.starts[low])
        sorted_rows, sorted_marks = np.empty(size, np.int32), np.empty(size, kind)
        places = plan.starts[low:high] - plan.starts[low]  # (words,): where each word's next posting goes
        for start in range(0, len(terms), _READ):
            part = slice(start, start + _READ)
            _place_postings(terms[part], rows[part], marks[part], plan.ranks, low, places, sorted_rows, sorted_marks)
            release(terms, rows, marks)
        row_writer.append(sorted_rows)
        mark_writer.append(sorted_marks)
        low = high
    row_writer.close()
    mark_writer.close()


@numba.njit(cache=True, nogil=True)
def _place_postings(
    terms: Ints, rows: Ints, marks: NDArray[np.uint32], ranks: Ints, low: int, places: Places,
    out_rows: Ints, out_marks: NDArray[Any],
) -> None:  # fmt: skip
    """Place the postings of sorted words from `low` on, as many as there are places; each word's by ascending row."""
    for i in range(len(terms)):
        word = ranks[terms[i]] - low
        if 0 <= word < len(places):
            place = places[word]
            out_rows[place] = rows[i]
            out_marks[place] = marks[i]
            places[word] = place + 1


# --- the inverted index, opened ------------------------------------------------------------------------

ABSENT = -1
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

    @classmethod
    def open(cls, folder: str | Path) -> WordTable:
        return cls(Path(folder))

    @property
    def size(self) -> int:
        """Number of papers."""
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"WordTable({str(self.folder)!r}: {len(self.words):,} words of {self.size:,} papers)"

    @cached_property
    def statistics(self) -> WordStatistics:
        """The statistics of BM25."""
        return WordStatistics(self)

    def find(self, words: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the place of each word among the sorted words, -1 where no paper has it; (words,)."""
        data = np.frombuffer(b"".join(words), np.uint8)
        offsets = np.concatenate([[0], np.cumsum([len(word) for word in words], dtype=np.int64)]).astype(np.int64)
        return np.asarray(_find(self.words.data, self.words.offsets, data, offsets))

    def prefix_range(self, prefix: bytes) -> tuple[int, int]:
        """Return the places from which and before which the sorted words begin with a prefix."""
        ends = [
            _lower_bound(self.words.data, self.words.offsets, _bytes(word)) for word in (prefix, prefix + _PAST_UTF8)
        ]
        return ends[0], ends[1]

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


def _bytes(word: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(word, np.uint8)


@numba.njit(cache=True, nogil=True)
def _before(data: NDArray[np.uint8], start: int, end: int, word: NDArray[np.uint8]) -> bool:
    """Return whether data[start:end] sorts before a word."""
    for i in range(min(end - start, len(word))):
        if data[start + i] != word[i]:
            return bool(data[start + i] < word[i])
    return end - start < len(word)


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


# --- BM25 over all segments ------------------------------------------------------------------------------

K1, B = 1.2, 0.75
"""The defaults of Lucene."""

Mask = NDArray[np.bool_]


class WordIndex(Protocol):
    """An index that can be searched by words."""

    @property
    def words(self) -> WordTable: ...
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
        """Return the BM25 weight (idf) of a word, 0 where no paper has it."""
        papers = self.frequency(word)
        return _lucene_idf(papers, self._words.size) if papers else 0.0


def search_words(index: WordIndex, query: str, count: int, *, allowed: Mask | None = None) -> RankedRows:
    """Rank the papers that share words with a query by BM25; `allowed`, (size,), masks those that count."""
    words, statistics = index.words, index.words.statistics
    # in the order of the words, so that a paper's sum is the same for every order of a query
    query_words = {word.encode("utf-8", "replace"): times for word, times in sorted(Counter(words_of(query)).items())}
    weights = {word: times * statistics.weight(word) for word, times in query_words.items()}
    weights = {word: weight for word, weight in weights.items() if weight > 0}
    mask = np.ones(words.size, np.bool_) if allowed is None else allowed
    scores = np.zeros(words.size)
    for place, weight in zip(words.find(list(weights)).tolist(), weights.values(), strict=True):
        postings = words.postings(place)
        if not _add_scores(postings.rows, postings.marks, mask, statistics.norms, weight, scores):
            raise words.damaged()
    matching = np.flatnonzero(scores)
    return rank_rows(matching, scores[matching], count, name=index.id)


def length_norm(length: Any, mean: float) -> Any:
    """Return the length normalization of BM25 (Robertson and Zaragoza, 2009), of a number or an array of lengths."""
    return K1 * ((1 - B) + B * length / (mean or 1.0))


def _lucene_idf(papers_with_word: int, papers: int) -> float:
    """Return the idf weight of a word in Lucene's BM25 (Kamphuis et al., 2020).

    >>> round(_lucene_idf(1, 3), 3)
    0.981
    """
    return math.log(1 + (papers - papers_with_word + 0.5) / (papers_with_word + 0.5))


@numba.njit(cache=True, nogil=True)
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
