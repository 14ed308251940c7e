"""Writing the inverted list of one segment: which papers have each word, how often, and whether in the title.

    words/
      word.utf8, word.offsets.npy    the words of `similarity.lexical.words_of`, in the order of their bytes
      start.npy                      int64, (words + 1,): where each word's postings begin
      row.npy                        int32, (postings,): papers of a word, ascending
      mark.npy                       uint8, uint16 or uint32, (postings,): twice the count, plus 1 where in the title
      length.npy                     int32, (papers,): words of each paper

    >>> from tempfile import mkdtemp
    >>> write_words(Path(mkdtemp()), [text_of("Deep forests", "Forests of trees."), text_of("Deep seas", "")])
    4

Texts are read in blocks, their postings put aside on disk and merged by word at the end: what stays in memory is one
block, a part of the merge and the words themselves, never the postings of all papers.

The inverted list of one segment, memory-mapped; `writing.py` says what its files hold.

    words = Words.open(folder / "words")
    words.find([b"deep", b"nowhere"])      [12, -1]
    words.postings(12)                     rows and marks of the papers that have "deep"
    words.beginning(b"dee")                (11, 15): the words 11 to 14 begin so

Does not score and knows nothing of deleted papers (`scoring.py`).

BM25 over the live papers of all segments of an index, with Lucene's formula.

    found = search_words(index, "graph neural networks", 10)
    found.rows, found.scores                        papers that share no word with the query are not among them

The numbers are those of `similarity.lexical.Bm25` over the texts of the live papers: how many papers have a word, how
many papers there are and how long they are on average never counts a deleted one. They are taken when a word is first
asked for and kept as long as the opened state of the index.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from citeweave.search.ranked_rows import RankedRows, rank_rows
from citeweave.search.word_tokens import Ints, Places, Vocabulary, WordCounts
from citeweave.vectors.bm25 import STOP_WORDS, words_of

BLOCK = 1 << 22
"""Letters of text read at a time."""

MERGED = 1 << 24
"""Postings merged at a time."""

MARK_TYPES = (np.uint8, np.uint16, np.uint32)
_MOST_TEXTS = 1 << 14
_READ = 1 << 22
"""Postings put aside that are read at a time: what was read does not stay in memory."""

_PARTS = {"term": np.int32, "row": np.int32, "mark": np.uint32}


def text_of(title: str, abstract: str) -> str:
    """What of a paper is searched by its words: the title as the first line, the abstract below it.

    >>> text_of("A title\\nin two lines", "Text.")
    'A title in two lines\\nText.'
    """
    return title.replace("\n", " ") + "\n" + abstract


def write_words(
    folder: Path, texts: Iterable[str], *, block: int = BLOCK, merged: int = MERGED, advance: Advance | None = None
) -> int:
    """Write the words of one segment's papers, in the order of its rows; how many different words they have."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = Vocabulary(sorted(STOP_WORDS))
    lengths = NumberWriter(folder / "length.npy", np.int32)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".words") as aside:
        writers = {name: NumberWriter(Path(aside) / f"{name}.npy", dtype) for name, dtype in _PARTS.items()}
        most = 2
        for part in _blocks(texts, block):
            counted = vocabulary.count(part, first_row=lengths.count)
            most = max(most, int(counted.marks.max(initial=0)))
            _put_aside(counted, writers, lengths)
            if advance is not None:
                advance(len(part))
        for writer in (lengths, *writers.values()):
            writer.close()
        plan = _plan(vocabulary, folder)
        _merge(Path(aside), folder, plan, most, merged)
    return len(plan.starts) - 1


def _blocks(texts: Iterable[str], block: int) -> Iterator[list[str]]:
    part: list[str] = []
    held = 0
    for text in texts:
        part.append(text)
        held += len(part[-1])
        if held >= block or len(part) == _MOST_TEXTS:
            yield part
            part, held = [], 0
    if part:
        yield part


def _put_aside(counted: WordCounts, writers: dict[str, NumberWriter], lengths: NumberWriter) -> None:
    writers["term"].append(counted.terms)
    writers["row"].append(counted.rows)
    writers["mark"].append(counted.marks)
    lengths.append(counted.lengths)


class _PostingPlan(NamedTuple):
    """Where every word's postings go."""

    ranks: Ints
    """(words of the vocabulary,): place of a word among the sorted ones; -1 for stop words."""

    starts: Places
    """(sorted words + 1,)"""


def _plan(vocabulary: Vocabulary, folder: Path) -> _PostingPlan:
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


def _merge(aside: Path, folder: Path, plan: _PostingPlan, most: int, merged: int) -> None:
    """Sort the postings by word; those of as many words at a time as `merged` postings allow, of one at least."""
    kind = next(kind for kind in MARK_TYPES if most <= np.iinfo(kind).max)
    terms, rows, marks = (open_numbers(aside / f"{name}.npy", dtype) for name, dtype in _PARTS.items())
    row_writer, mark_writer = NumberWriter(folder / "row.npy", np.int32), NumberWriter(folder / "mark.npy", kind)
    low, words = 0, len(plan.starts) - 1
    while low < words:
        high = max(low + 1, int(np.searchsorted(plan.starts, plan.starts[low] + merged, "right")) - 1)
        size = int(plan.starts[high] - plan.starts[low])
        sorted_rows, sorted_marks = np.empty(size, np.int32), np.empty(size, kind)
        places = plan.starts[low:high] - plan.starts[low]  # (words,): where each word's next posting goes
        for start in range(0, len(terms), _READ):
            part = slice(start, start + _READ)
            _place(terms[part], rows[part], marks[part], plan.ranks, low, places, sorted_rows, sorted_marks)
            release(terms, rows, marks)
        row_writer.append(sorted_rows)
        mark_writer.append(sorted_marks)
        low = high
    row_writer.close()
    mark_writer.close()


@numba.njit(cache=True, nogil=True)
def _place(
    terms: Ints, rows: Ints, marks: NDArray[np.uint32], ranks: Ints, low: int, places: Places,
    out_rows: Ints, out_marks: NDArray[Any],
) -> None:  # fmt: skip
    """Postings of as many sorted words from `low` on as there are places; of one word in the order of their rows."""
    for i in range(len(terms)):
        word = ranks[terms[i]] - low
        if 0 <= word < len(places):
            place = places[word]
            out_rows[place] = rows[i]
            out_marks[place] = marks[i]
            places[word] = place + 1


# The inverted list of one segment, memory-mapped; `writing.py` says what its files hold.

ABSENT = -1
_PAST_UTF8 = b"\xff"
"""No UTF-8 text holds this byte: it sorts behind whatever may follow a prefix."""


class Postings(NamedTuple):
    """The papers of one word."""

    rows: NDArray[np.int32]
    """(papers,): rows of the segment, ascending."""

    marks: NDArray[Any]
    """(papers,): twice the count, plus 1 where the word stands in the title."""


class WordTable:
    """The words of a segment's papers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = TextColumn(folder, "word")
        """Sorted by their bytes."""
        self.starts: NDArray[np.int64] = open_numbers(folder / "start.npy", np.int64)
        self.rows: NDArray[np.int32] = open_numbers(folder / "row.npy", np.int32)
        self.marks = _open_marks(folder / "mark.npy")
        self.lengths: NDArray[np.int32] = open_numbers(folder / "length.npy", np.int32)
        """(papers,): words of each paper."""
        # compiled code follows these numbers without looking: a damaged table must stop here
        sound = len(self.starts) == len(self.words) + 1 and len(self.rows) == len(self.marks)
        if not sound or self.starts[0] != 0 or self.starts[-1] != len(self.rows):
            raise self.damage()
        if (np.diff(self.starts) < 0).any() or (np.diff(self.words.offsets) < 0).any():
            raise self.damage()

    @classmethod
    def open(cls, folder: str | Path) -> WordTable:
        return cls(Path(folder))

    @property
    def size(self) -> int:
        """Papers of the segment."""
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Words({str(self.folder)!r}: {len(self.words):,} words of {self.size:,} papers)"

    def find(self, words: Sequence[bytes]) -> NDArray[np.int64]:
        """The place of each word, -1 where no paper has it; (words,)."""
        data = np.frombuffer(b"".join(words), np.uint8)
        offsets = np.concatenate([[0], np.cumsum([len(word) for word in words], dtype=np.int64)]).astype(np.int64)
        return np.asarray(_find(self.words.data, self.words.offsets, data, offsets))

    def beginning(self, prefix: bytes) -> tuple[int, int]:
        """The places from which and before which words begin with a prefix."""
        ends = [_at_least(self.words.data, self.words.offsets, _bytes(word)) for word in (prefix, prefix + _PAST_UTF8)]
        return ends[0], ends[1]

    def postings(self, place: int) -> Postings:
        part = slice(int(self.starts[place]), int(self.starts[place + 1]))
        return Postings(self.rows[part], self.marks[part])

    def damage(self) -> ArtifactError:
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
    """Whether data[start:end] sorts before a word."""
    for i in range(min(end - start, len(word))):
        if data[start + i] != word[i]:
            return bool(data[start + i] < word[i])
    return end - start < len(word)


@numba.njit(cache=True, nogil=True)
def _at_least(data: NDArray[np.uint8], offsets: NDArray[np.int64], word: NDArray[np.uint8]) -> int:
    """Place of the first sorted text that is not before a word."""
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
        place = _at_least(data, offsets, word)
        if place == len(offsets) - 1 or offsets[place + 1] - offsets[place] != len(word):
            continue
        same = True
        for at in range(len(word)):
            same = same and data[offsets[place] + at] == word[at]
        if same:
            places[i] = place
    return places


# BM25 over the live papers of all segments of an index, with Lucene's formula.

K1, B = 1.2, 0.75
"""As Lucene documents them."""

_MOST_KEPT = 100_000
"""Words of which the number of papers is kept."""

Mask = NDArray[np.bool_]


class WordSegment(Protocol):
    """What is asked of a segment."""

    @property
    def words(self) -> WordTable | None: ...
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


def search_words(index: WordIndex, query: str, count: int, *, allowed: Mask | None = None) -> RankedRows:
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


def _score(
    words: WordTable, mask: Mask, weights: dict[bytes, float], norms: NDArray[np.float64]
) -> NDArray[np.float64]:
    scores = np.zeros(words.size)
    for place, weight in zip(words.find(list(weights)).tolist(), weights.values(), strict=True):
        if place != ABSENT:
            postings = words.postings(place)
            if not _add(postings.rows, postings.marks, mask, norms, weight, scores):
                raise words.damage()
    return scores


def _live_papers(words: WordTable, alive: Mask, word: bytes, *, whole: bool) -> int:
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
