"""Reads Semantic Scholar's citation lines straight from bytes, without making a Python object of any.

    {"citingcorpusid": 101, "citedcorpusid": "202", "isinfluential": false, "contexts": ["..."], "intents": ["background"]}

Lines of the usual shape are read by compiled code at the speed of memory; every other line (nested
intents, odd ids, broken JSON) is left to the ordinary reader, which gives the same result for the
lines that both can read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.parsing.json_bytes import (
    BACKSLASH,
    CLOSE,
    COLON,
    COMMA,
    OPEN,
    QUOTE,
    Bytes,
    clean_string,
    line_end,
    literal,
    skip_blanks,
    skip_value,
    string_end,
    word_at,
)

NO_ID = -1
_READ = np.uint8(1)
_KEYS = [b'--------"', b'citingcorpusid"', b'citedcorpusid"', b'isinfluential"', b'contexts"', b'intents"']
"""The wanted keys with their closing quote, by code; 0 stands for all others."""
_KEY_HEADS = np.array([int.from_bytes(key[:8], "little") for key in _KEYS], np.uint64)
_KEY_TAILS = np.array([int.from_bytes(key[-8:], "little") for key in _KEYS], np.uint64)
_KEY_SIZES = np.array([len(key) for key in _KEYS], np.int64)
_BACKGROUND, _METHODOLOGY, _RESULT = (
    np.frombuffer(word, np.uint8) for word in (b"background", b"methodology", b"result")
)


@dataclass(frozen=True, slots=True)
class Scanned:
    """The lines of one block. Arrays over lines unless they say otherwise."""

    read: NDArray[np.bool_]
    """False for lines left to the ordinary reader."""
    citing: NDArray[np.int64]
    cited: NDArray[np.int64]
    influential: NDArray[np.bool_]
    intents: NDArray[np.uint8]
    context_line: NDArray[np.int64]
    """Line of every context. Shape (contexts,)."""
    context_length: NDArray[np.int64]
    context_bytes: Bytes


def scan_citations(block: bytes) -> tuple[Scanned, NDArray[np.int64], NDArray[np.int64]]:
    """Read a block of whole lines; also gives where each line starts and ends."""
    data = np.frombuffer(block, np.uint8)
    lines = int(np.count_nonzero(data == 10)) + (not block.endswith(b"\n"))
    starts, ends = np.empty(lines, np.int64), np.empty(lines, np.int64)
    numbers = np.empty((2, lines), np.int64)
    small = np.zeros((3, lines), np.uint8)  # read, influential, intents
    texts = np.empty(len(data), np.uint8)
    # a context takes two quotes and a comma or bracket, so there are at most a third as many as bytes
    spans = np.empty((2, len(data) // 3 + 1), np.int64)  # line, length
    found = _scan(data, starts, ends, numbers, small, texts, spans)
    line_of, length_of = spans[0, :found].copy(), spans[1, :found].copy()
    total = int(length_of.sum())
    scanned = Scanned(
        small[0] == _READ, numbers[0], numbers[1], small[1] == 1, small[2], line_of, length_of, texts[:total]
    )
    return scanned, starts, ends


@numba.njit(cache=True, nogil=True)
def _id_value(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """An id (number, digits in quotes or null) and the position after it; position -1 if it is none of these."""
    if data[at] == 110:
        return NO_ID, literal(data, at, end)
    quoted = data[at] == QUOTE
    if quoted:
        at += 1
    value, start = 0, at
    while at < end and 48 <= data[at] <= 57 and at - start < 18:
        value = value * 10 + int(data[at]) - 48
        at += 1
    if at == start or at >= end or (data[start] == 48 and at - start > 1 and not quoted):
        return NO_ID, -1
    if quoted:
        return (value, at + 1) if data[at] == QUOTE else (NO_ID, -1)
    plain = data[at] == COMMA or data[at] == 125 or data[at] == 32
    return (value, at) if plain else (NO_ID, -1)


@numba.njit(cache=True, nogil=True)
def _intent_bit(data: Bytes, start: int, end: int) -> int:
    """Bit of one of the three words of Semantic Scholar, 0 for no word, -1 for any other."""
    if end == start:
        return 0
    if _is_word(data, start, end, _BACKGROUND):
        return 1
    if _is_word(data, start, end, _METHODOLOGY):
        return 2
    return 4 if _is_word(data, start, end, _RESULT) else -1


@numba.njit(cache=True, nogil=True)
def _is_word(data: Bytes, start: int, end: int, word: Bytes) -> bool:
    if end - start != len(word):
        return False
    for i in range(len(word)):
        if data[start + i] != word[i]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _intents_value(data: Bytes, at: int, end: int) -> tuple[int, int]:
    if data[at] == 110:
        return 0, literal(data, at, end)
    if data[at] != OPEN:
        return 0, -1
    mask = 0
    at = skip_blanks(data, at + 1, end)
    if at < end and data[at] == CLOSE:
        return 0, at + 1
    while at < end and data[at] == QUOTE:
        close = string_end(data, at + 1, end)
        if close < 0:
            return 0, -1
        bit = _intent_bit(data, at + 1, close)
        if bit < 0:
            return 0, -1
        mask |= bit
        at = skip_blanks(data, close + 1, end)
        if at < end and data[at] == CLOSE:
            return mask, at + 1
        if at >= end or data[at] != COMMA:
            return 0, -1
        at = skip_blanks(data, at + 1, end)
    return 0, -1


@numba.njit(cache=True, nogil=True)
def _contexts_value(
    data: Bytes, at: int, end: int, texts: Bytes, out: int, spans: Any, found: int
) -> tuple[int, int, int]:
    """Write the strings of an array; gives the positions after it in `texts`, `spans` and `data`, the last -1 to leave it."""
    if data[at] == 110:
        return out, found, literal(data, at, end)
    if data[at] != OPEN:
        return out, found, -1
    at = skip_blanks(data, at + 1, end)
    if at < end and data[at] == CLOSE:
        return out, found, at + 1
    while at < end and data[at] == QUOTE:
        before = out
        out, at = clean_string(data, at + 1, end, texts, out)
        if at < 0:
            return out, found, -1
        spans[1, found] = out - before
        found += 1
        at = skip_blanks(data, at, end)
        if at < end and data[at] == CLOSE:
            return out, found, at + 1
        if at >= end or data[at] != COMMA:
            return out, found, -1
        at = skip_blanks(data, at + 1, end)
    return out, found, -1


@numba.njit(cache=True, nogil=True)
def _key(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Which key starts here (0 for one that is not wanted) and the position after its closing quote, or -1."""
    if at + 15 < end:
        first = word_at(data, at)
        for code in range(1, len(_KEY_HEADS)):
            if first == _KEY_HEADS[code]:
                after = at + _KEY_SIZES[code]
                if word_at(data, after - 8) == _KEY_TAILS[code]:
                    return code, after
    close = string_end(data, at, end)
    for i in range(at, close):
        if data[i] == BACKSLASH:
            return 0, -1  # may be a wanted key in another spelling
    return 0, close + 1 if close >= 0 else -1


@numba.njit(cache=True, nogil=True)
def _scan_line(
    data: Bytes, at: int, end: int, line: int, numbers: Any, small: Any, texts: Bytes, out: int, spans: Any, found: int
) -> tuple[int, int, int]:
    """Read one object; gives the positions after it in `texts`, `spans` (-1 to leave the line) and `data`."""
    start = at
    at = skip_blanks(data, at, end)
    if at >= end or data[at] != 123:
        return out, -1, start
    seen = 0
    at = skip_blanks(data, at + 1, end)
    while at < end and data[at] == QUOTE:
        code, at = _key(data, at + 1, end)
        if at < 0:
            return out, -1, start
        at = skip_blanks(data, at, end)
        if at >= end or data[at] != COLON:
            return out, -1, start
        at = skip_blanks(data, at + 1, end)
        if at >= end or (code and seen & (1 << code)):
            return out, -1, start
        seen |= 1 << code
        if code == 1 or code == 2:
            numbers[code - 1, line], at = _id_value(data, at, end)
        elif code == 3:
            small[1, line] = data[at] == 116
            at = literal(data, at, end)
        elif code == 4:
            out, found, at = _contexts_value(data, at, end, texts, out, spans, found)
        elif code == 5:
            small[2, line], at = _intents_value(data, at, end)
        else:
            at = skip_value(data, at, end)
        if at < 0:
            return out, -1, start
        at = skip_blanks(data, at, end)
        if at < end and data[at] == 125:
            after = skip_blanks(data, at + 1, end)
            whole = (after == end or data[after] == 10) and seen & 6 == 6
            return out, found if whole else -1, after
        if at >= end or data[at] != COMMA:
            return out, -1, start
        at = skip_blanks(data, at + 1, end)
    return out, -1, start


@numba.njit(cache=True, nogil=True)
def _scan(data: Bytes, starts: Any, ends: Any, numbers: Any, small: Any, texts: Bytes, spans: Any) -> int:
    """Read every line; texts of contexts go to `texts`, their lines and lengths to `spans`; gives their number."""
    at, out, found = 0, 0, 0
    for line in range(len(starts)):
        starts[line] = at
        numbers[0, line] = numbers[1, line] = NO_ID
        after, last, at = _scan_line(data, at, len(data), line, numbers, small, texts, out, spans, found)
        if last < 0:
            small[1, line] = small[2, line] = 0
        else:
            small[0, line] = 1
            spans[0, found:last] = line
            out, found = after, last
        ends[line] = line_end(data, at)
        at = ends[line] + 1
    return found
