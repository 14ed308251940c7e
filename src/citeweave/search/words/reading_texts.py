"""Words out of UTF-8 bytes, counted by text: the compiled twin of `similarity.lexical.words_of`.

    >>> vocabulary = Vocabulary(["the"])
    >>> found = vocabulary.count(["The Cell\\nthe cell, a NAÏVE cell"], first_row=0)
    >>> [vocabulary.word(term).decode() for term in found.terms], found.marks.tolist(), found.lengths.tolist()
    (['cell', 'a', 'naïve'], [7, 2, 2], [5])

A mark is twice the number of times that a word stands in a text, plus 1 where it stands in the first line. The first
words of a vocabulary are its stop words: they are known, and never counted.

Does not write anything to disk: `writing.py`. What lies beyond ASCII is settled before by `beyond_ascii.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.search.words.beyond_ascii import to_bytes

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Places = NDArray[np.int64]

_FREE = -1
_NEW_LINE = 10


def _small_letters() -> Bytes:
    """(256,): each byte of a word in lower case, 0 for a byte that parts words."""
    table = np.zeros(256, np.uint8)
    for byte in range(256):
        if byte >= 128 or chr(byte).isalnum() or chr(byte) == "_":
            table[byte] = ord(chr(byte).lower()) if byte < 128 else byte
    return table


_SMALL = _small_letters()


class Counted(NamedTuple):
    """The words of some texts, text after text."""

    terms: Ints
    """(postings,): numbers of words in the vocabulary."""

    rows: Ints
    """(postings,)"""

    marks: NDArray[np.uint32]
    """(postings,): twice the count, plus 1 for the first line."""

    lengths: Ints
    """(texts,): words of each text, stop words left out."""


class Vocabulary:
    """Words with their numbers, in the order in which they were first met; grows as texts are counted."""

    def __init__(self, stop_words: Sequence[str]) -> None:
        self.size = self.stops = 0
        self._letters = np.empty(1 << 16, np.uint8)
        self._make_room(1 << 12)
        self.count(list(stop_words), first_row=-len(stop_words) - 2)
        self.stops = self.size
        self.papers[:] = 0

    def word(self, term: int) -> bytes:
        return self._letters[self._ends[term] : self._ends[term + 1]].tobytes()

    def words(self) -> list[bytes]:
        """All words by number."""
        ends = self._ends[: self.size + 1].tolist()
        letters = self._letters[: ends[-1]].tobytes()
        return [letters[start:end] for start, end in pairwise(ends)]

    def count(self, texts: Sequence[str], *, first_row: int) -> Counted:
        """The words of these texts, which are the rows from `first_row` on."""
        data, offsets = to_bytes(texts)
        most = len(data) // 2 + len(texts)  # a word takes a byte and, but for the last of a text, one that parts it
        terms, rows, marks = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.uint32)
        lengths = np.zeros(len(texts), np.int32)
        done = postings = 0
        while done < len(texts):
            done, self.size, postings = _count(
                data, offsets, done, first_row, _SMALL, self._letters, self._ends, self._hashes, self._slots,
                self.papers, self._rows, self._places, self.size, self.stops,
                terms, rows, marks, lengths, postings,
            )  # fmt: skip
            if done < len(texts):
                self._make_room(int(offsets[done + 1] - offsets[done]))
        return Counted(terms[:postings], rows[:postings], marks[:postings], lengths)

    def _make_room(self, length: int) -> None:
        """Twice the room, and enough for a text of so many bytes."""
        old = self.size
        room = 2 * (old + length)
        grown = np.empty(2 * (len(self._letters) + length), np.uint8)
        grown[: len(self._letters)] = self._letters
        self._letters = grown
        for name, fill, dtype in (
            ("_ends", 0, np.int64),
            ("_hashes", 0, np.uint64),
            ("papers", 0, np.int32),
            ("_rows", -1, np.int32),
            ("_places", 0, np.int64),
        ):
            column = np.full(room + 1, fill, dtype)
            if old:
                column[: old + 1] = getattr(self, name)[: old + 1]
            setattr(self, name, column)
        self._slots = np.full(1 << int(2 * room).bit_length(), _FREE, np.int32)
        _fill_slots(self._hashes, old, self._slots)

    papers: Ints
    """How many texts have each word; there is room for more words than there are."""

    _ends: Places
    _hashes: NDArray[np.uint64]
    _slots: Ints
    _rows: Ints
    _places: Places


@numba.njit(cache=True, nogil=True)
def _fill_slots(hashes: NDArray[np.uint64], words: int, slots: Ints) -> None:
    last = np.uint64(len(slots) - 1)
    for term in range(words):
        slot = hashes[term] & last
        while slots[slot] != _FREE:
            slot = (slot + np.uint64(1)) & last
        slots[slot] = term


@numba.njit(cache=True, nogil=True)
def _term(
    letters: Bytes, ends: Places, hashes: NDArray[np.uint64], slots: Ints, words: int, end: int, state: np.uint64
) -> int:
    """Number of the word that was just written behind the others; `words` itself where it is new."""
    state ^= state >> np.uint64(29)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(32)
    last = np.uint64(len(slots) - 1)
    start = ends[words]
    slot = state & last
    while slots[slot] != _FREE:
        term = slots[slot]
        begin = ends[term]
        if hashes[term] == state and ends[term + 1] - begin == end - start:
            same = True
            for i in range(end - start):
                if letters[begin + i] != letters[start + i]:
                    same = False
                    break
            if same:
                return int(term)
        slot = (slot + np.uint64(1)) & last
    slots[slot] = words
    hashes[words] = state
    ends[words + 1] = end
    return words


@numba.njit(cache=True, nogil=True)
def _count(
    data: Bytes, offsets: Places, first: int, first_row: int, small: Bytes, letters: Bytes, ends: Places,
    hashes: NDArray[np.uint64], slots: Ints, papers: Ints, seen_rows: Ints, places: Places, words: int, stops: int,
    terms: Ints, rows: Ints, marks: NDArray[np.uint32], lengths: Ints, postings: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Count texts from `first` on until one may not fit; how many are done, and the words and postings there are now."""
    for text in range(first, len(lengths)):
        length = offsets[text + 1] - offsets[text]
        if words + length // 2 + 1 >= len(papers) or ends[words] + length > len(letters):
            return text, words, postings
        row = first_row + text
        in_title, counted = np.uint32(1), 0
        at, stop = offsets[text], offsets[text + 1]
        while at < stop:
            letter = small[data[at]]
            if letter == 0:
                if data[at] == _NEW_LINE:
                    in_title = np.uint32(0)
                at += 1
                continue
            state, end = np.uint64(0xCBF29CE484222325), ends[words]
            while letter != 0:
                letters[end] = letter
                state = (state ^ np.uint64(letter)) * np.uint64(0x100000001B3)  # FNV-1a (Fowler, Noll, Vo)
                end += 1
                at += 1
                letter = small[data[at]] if at < stop else np.uint8(0)
            term = _term(letters, ends, hashes, slots, words, end, state)
            if term == words:
                words += 1
            if term < stops:
                continue
            counted += 1
            if seen_rows[term] == row:
                marks[places[term]] += np.uint32(2)
                continue
            terms[postings], rows[postings], marks[postings] = term, row, np.uint32(2) + in_title
            seen_rows[term], places[term] = row, postings
            papers[term] += 1
            postings += 1
        lengths[text] = counted
    return len(lengths), words, postings
