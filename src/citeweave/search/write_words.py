"""Write the inverted index of texts: words, split and counted by compiled code on UTF-8 bytes, sorted and merged on disk.

    >>> vocabulary = Vocabulary(["the"])
    >>> counts = vocabulary.count(["The Cell\\nthe cell, a NAÏVE cell"], first_row=0)
    >>> [vocabulary.word(term).decode() for term in counts.terms], counts.marks.tolist(), counts.lengths.tolist()
    (['cell', 'a', 'naïve'], [7, 2, 2], [5])

    >>> data, offsets = to_bytes(["As is", "n–gram É", "ΟΔΟΣ"])
    >>> data.tobytes().decode(), offsets.tolist()
    ('As isn   gram éοδος', [0, 5, 16, 24])

The fast twin of `vectors.bm25.words_of`. A word is a run of ASCII letters, digits, underscores and letters beyond ASCII. A
mark is twice the number of times that a word stands in a text, plus 1 where it stands in the first line. The first words
of a vocabulary are its stop words: they are known, and never counted. Letters beyond ASCII are lowered as by `str.lower`,
other characters beyond ASCII become blanks; ASCII capitals stay until words are counted. Compiled code does it letter by
letter from a table of Unicode's first plane; a text with a letter that is lowered in another way (to another length, or,
as the Greek sigma, by the letters around it) or that lies beyond that plane goes through Python's own rule.

Writing reads texts in blocks, puts their postings into scratch files and merges them by word at the end: what stays in
memory is one block, a part of the merge and the words themselves, never the postings of all papers. `words.py` reads.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import NumberWriter, TextWriter, open_numbers, release, write_numbers
from citeweave.core.compiled import compiled
from citeweave.core.ragged import to_offsets
from citeweave.vectors.bm25 import STOP_WORDS

_NO_WORD = re.compile(r"[^\w\x00-\x7f]+")
_FIRST_PLANE = 1 << 16
_NOT_IN_TABLE = -1
_SIGMA = ord("Σ")


class TextBytes(NamedTuple):
    """Concatenated texts as UTF-8 bytes."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """(texts + 1,)"""


def to_bytes(texts: Sequence[str]) -> TextBytes:
    """Return texts as UTF-8 bytes to split into word tokens: runs of word bytes, in lower case beyond ASCII."""
    parts = [text.encode("utf-8", "replace") for text in texts]  # lone surrogates are no part of a word, nor is "?"
    joined = _join(parts)
    if not joined.data.size or int(joined.data.max()) < 0x80:
        return joined
    odd = np.flatnonzero(_lower_words(joined.data, joined.offsets, _lower_case_word()))
    if not len(odd):
        return joined
    for number in odd.tolist():
        parts[number] = _NO_WORD.sub(" ", texts[number].lower()).encode()
    joined = _join(parts)
    _lower_words(joined.data, joined.offsets, _lower_case_word())
    return joined


def _join(parts: Sequence[bytes]) -> TextBytes:
    return TextBytes(np.frombuffer(bytearray(b"".join(parts)), np.uint8), to_offsets([len(part) for part in parts]))


@cache
def _lower_case_word() -> NDArray[np.int32]:
    """Return a table (65536,) of each letter in lower case, 0 for word separators, -1 where a table cannot tell."""
    table = np.zeros(_FIRST_PLANE, np.int32)
    for code in range(0x80, _FIRST_PLANE):
        letter = chr(code)
        small = letter.lower()
        if code == _SIGMA or (small != letter and (len(small) > 1 or _width(ord(small)) != _width(code))):
            table[code] = _NOT_IN_TABLE
        elif letter.isalnum():
            table[code] = ord(small)
    return table


def _width(code: int) -> int:
    """Return the bytes of a letter in UTF-8."""
    return 1 if code < 0x80 else 2 if code < 0x800 else 3


@compiled()
def _lower_words(data: NDArray[np.uint8], offsets: NDArray[np.int64], small: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Lower letters and blank other characters beyond ASCII, in place; return which texts need Python's own rule."""
    odd = np.zeros(len(offsets) - 1, np.bool_)
    for text in range(len(odd)):
        at = offsets[text]
        while at < offsets[text + 1]:
            first = data[at]
            if first < 0x80:
                at += 1
                continue
            if first >= 0xF0:
                odd[text] = True
                at += 4
                continue
            wide = first >= 0xE0
            code = np.int32(data[at + 1] & 0x3F)
            if wide:
                code = (np.int32(first & 0x0F) << 12) | (code << 6) | np.int32(data[at + 2] & 0x3F)
            else:
                code |= np.int32(first & 0x1F) << 6
            letter = small[code]
            if letter < 0:
                odd[text] = True
            elif letter == 0:
                data[at : at + 2 + wide] = 32
            elif wide:
                data[at] = 0xE0 | (letter >> 12)
                data[at + 1] = 0x80 | ((letter >> 6) & 0x3F)
                data[at + 2] = 0x80 | (letter & 0x3F)
            else:
                data[at] = 0xC0 | (letter >> 6)
                data[at + 1] = 0x80 | (letter & 0x3F)
            at += 2 + wide
    return odd


# --- counting words --------------------------------------------------------------------------------------

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Places = NDArray[np.int64]

_FREE = -1
_NEW_LINE = 10


def _lower_case_bytes() -> Bytes:
    """Return a table (256,) of each byte of a word in lower case, 0 for a byte that separates words."""
    table = np.zeros(256, np.uint8)
    for byte in range(256):
        if byte >= 128 or chr(byte).isalnum() or chr(byte) == "_":
            table[byte] = ord(chr(byte).lower()) if byte < 128 else byte
    return table


_SMALL = _lower_case_bytes()


class WordCounts(NamedTuple):
    """Word tokens of some texts, split and counted: postings, text after text."""

    terms: Ints
    """(postings,): numbers of words in the vocabulary."""

    rows: Ints
    """(postings,)"""

    marks: NDArray[np.uint32]
    """(postings,): twice the count, plus 1 for the first line."""

    lengths: Ints
    """(texts,): words of each text, stop words left out."""


class Vocabulary:
    """Word tokens numbered in the order of their first occurrence; grows as texts are counted."""

    def __init__(self, stop_words: Sequence[str]) -> None:
        self.size = self.stops = 0
        self._letters = np.empty(1 << 16, np.uint8)
        self._grow(1 << 12)
        self.count(list(stop_words), first_row=-len(stop_words) - 2)
        self.stops = self.size
        self.papers[:] = 0

    def word(self, term: int) -> bytes:
        """Return the word with a number of the vocabulary."""
        return self._letters[self._ends[term] : self._ends[term + 1]].tobytes()

    def words(self) -> list[bytes]:
        """Return all words of the vocabulary by number."""
        ends = self._ends[: self.size + 1].tolist()
        letters = self._letters[: ends[-1]].tobytes()
        return [letters[start:end] for start, end in pairwise(ends)]

    def count(self, texts: Sequence[str], *, first_row: int) -> WordCounts:
        """Split these texts, the rows from `first_row` on, into word tokens and count them."""
        data, offsets = to_bytes(texts)
        max_postings = len(data) // 2 + len(texts)  # a word takes a byte and, except the last of a text, a separator
        terms, rows = np.empty(max_postings, np.int32), np.empty(max_postings, np.int32)
        marks = np.empty(max_postings, np.uint32)
        lengths = np.zeros(len(texts), np.int32)
        done = postings = 0
        while done < len(texts):
            done, self.size, postings = _count_words(
                data, offsets, done, first_row, _SMALL, self._letters, self._ends, self._hashes, self._slots,
                self.papers, self._rows, self._places, self.size, self.stops,
                terms, rows, marks, lengths, postings,
            )  # fmt: skip
            if done < len(texts):
                self._grow(int(offsets[done + 1] - offsets[done]))
        return WordCounts(terms[:postings], rows[:postings], marks[:postings], lengths)

    def _grow(self, length: int) -> None:
        """Double the capacity of the vocabulary, with room for a text of so many bytes."""
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
    """How many texts have each word; longer than the vocabulary, which grows into it."""

    _ends: Places
    _hashes: NDArray[np.uint64]
    _slots: Ints
    _rows: Ints
    _places: Places


@compiled()
def _fill_slots(hashes: NDArray[np.uint64], words: int, slots: Ints) -> None:
    """Fill the hash table of the vocabulary with its words."""
    last = np.uint64(len(slots) - 1)
    for term in range(words):
        slot = hashes[term] & last
        while slots[slot] != _FREE:
            slot = (slot + np.uint64(1)) & last
        slots[slot] = term


@compiled()
def _find_or_add(
    letters: Bytes, ends: Places, hashes: NDArray[np.uint64], slots: Ints, words: int, end: int, state: np.uint64
) -> int:
    """Return the number of the word just written behind the others; `words` itself where it is new."""
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


@compiled()
def _count_words(
    data: Bytes, offsets: Places, first: int, first_row: int, small: Bytes, letters: Bytes, ends: Places,
    hashes: NDArray[np.uint64], slots: Ints, papers: Ints, seen_rows: Ints, places: Places, words: int, stops: int,
    terms: Ints, rows: Ints, marks: NDArray[np.uint32], lengths: Ints, postings: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Count the words of texts from `first` on until one may not fit; return the texts done, words and postings."""
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
            term = _find_or_add(letters, ends, hashes, slots, words, end, state)
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


# --- writing the inverted index ---------------------------------------------------------------------------

BLOCK = 1 << 22
"""Characters of text read at a time."""

MERGED = 1 << 24
"""Postings merged at a time."""

MARK_TYPES = (np.uint8, np.uint16, np.uint32)
_MAX_TEXTS = 1 << 14
_READ = 1 << 22
"""Unsorted postings that are read at a time and released again."""

_PARTS = {"term": np.int32, "row": np.int32, "mark": np.uint32}


def write_words(folder: Path, texts: Iterable[str], *, block: int = BLOCK, merged: int = MERGED) -> int:
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
    starts = to_offsets(vocabulary.papers[order])
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


@compiled()
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
