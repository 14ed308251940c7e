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
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.columns import NumberWriter, TextWriter, open_numbers, release, write_numbers
from citeweave.progress import Advance
from citeweave.search.words.reading_texts import Counted, Ints, Places, Vocabulary
from citeweave.similarity.lexical import STOP_WORDS

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


def _put_aside(counted: Counted, writers: dict[str, NumberWriter], lengths: NumberWriter) -> None:
    writers["term"].append(counted.terms)
    writers["row"].append(counted.rows)
    writers["mark"].append(counted.marks)
    lengths.append(counted.lengths)


class _Plan(NamedTuple):
    """Where every word's postings go."""

    ranks: Ints
    """(words of the vocabulary,): place of a word among the sorted ones; -1 for stop words."""

    starts: Places
    """(sorted words + 1,)"""


def _plan(vocabulary: Vocabulary, folder: Path) -> _Plan:
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
    return _Plan(ranks, starts)


def _merge(aside: Path, folder: Path, plan: _Plan, most: int, merged: int) -> None:
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
