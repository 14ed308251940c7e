"""The inverted list of one segment, memory-mapped; `writing.py` says what its files hold.

    words = Words.open(folder / "words")
    words.find([b"deep", b"nowhere"])      [12, -1]
    words.postings(12)                     rows and marks of the papers that have "deep"
    words.beginning(b"dee")                (11, 15): the words 11 to 14 begin so

Does not score and knows nothing of deleted papers (`scoring.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn, open_numbers
from citeweave.errors import ArtefactError
from citeweave.search.words.writing import MARK_TYPES

ABSENT = -1
_PAST_UTF8 = b"\xff"
"""No UTF-8 text holds this byte: it sorts behind whatever may follow a prefix."""


class Postings(NamedTuple):
    """The papers of one word."""

    rows: NDArray[np.int32]
    """(papers,): rows of the segment, ascending."""

    marks: NDArray[Any]
    """(papers,): twice the count, plus 1 where the word stands in the title."""


class Words:
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
    def open(cls, folder: str | Path) -> Words:
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

    def damage(self) -> ArtefactError:
        return ArtefactError(f"{self.folder} is damaged: its tables do not fit together; build the index again")


def _open_marks(path: Path) -> NDArray[Any]:
    for kind in MARK_TYPES[:-1]:
        try:
            return open_numbers(path, kind)
        except ArtefactError:
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
