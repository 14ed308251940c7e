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

Bytes = NDArray[np.uint8]

NO_ID = -1
_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COMMA, _COLON = 34, 92, 91, 93, 44, 58
_READ = np.uint8(1)
_CITING, _CITED, _INFLUENTIAL, _CONTEXTS, _INTENTS = (
    np.frombuffer(f'{key}"'.encode(), np.uint8)
    for key in ("citingcorpusid", "citedcorpusid", "isinfluential", "contexts", "intents")
)
_PLAIN = np.zeros(256, np.bool_)
"""Bytes that are copied as they are: printable ASCII without blank, quote and backslash."""
_PLAIN[33:127] = True
_PLAIN[[_QUOTE, _BACKSLASH]] = False


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
    starts, ends = _line_spans(data, lines)
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
def _line_spans(data: Bytes, lines: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where every line starts and ends, without its line feed."""
    starts, ends = np.empty(lines, np.int64), np.empty(lines, np.int64)
    line, start = 0, 0
    for at in range(len(data)):
        if data[at] == 10:
            starts[line], ends[line] = start, at
            line, start = line + 1, at + 1
    if line < lines:
        starts[line], ends[line] = start, len(data)
    return starts, ends


@numba.njit(cache=True, nogil=True)
def _skip_blanks(data: Bytes, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 9 or data[at] == 13):
        at += 1
    return at


@numba.njit(cache=True, nogil=True)
def _string_end(data: Bytes, at: int, end: int) -> int:
    """Position of the closing quote of the string whose content starts at `at`, or -1."""
    while at < end:
        byte = data[at]
        if _PLAIN[byte]:
            at += 1
        elif byte == _QUOTE:
            return at
        elif byte < 32:
            return -1
        else:
            at += 2 if byte == _BACKSLASH else 1
    return -1


@numba.njit(cache=True, nogil=True)
def _skip_value(data: Bytes, at: int, end: int) -> int:
    """Position after a scalar value that is not wanted, or -1; arrays and objects are left to the other reader."""
    if at >= end:
        return -1
    if data[at] == _QUOTE:
        close = _string_end(data, at + 1, end)
        return close + 1 if close >= 0 else -1
    if data[at] == 110 or data[at] == 116 or data[at] == 102:
        return _literal(data, at, end)
    start = at
    while at < end and (48 <= data[at] <= 57):
        at += 1
    return at if at > start else -1


@numba.njit(cache=True, nogil=True)
def _literal(data: Bytes, at: int, end: int) -> int:
    """Position after null, true or false, or -1."""
    if at + 4 <= end and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        return at + 4
    if at + 4 <= end and data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
        return at + 4
    if at + 5 <= end and data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108:
        return at + 5 if data[at + 3] == 115 and data[at + 4] == 101 else -1
    return -1


@numba.njit(cache=True, nogil=True)
def _id_value(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """An id (number, digits in quotes or null) and the position after it; position -1 if it is none of these."""
    if data[at] == 110:
        return NO_ID, _literal(data, at, end)
    quoted = data[at] == _QUOTE
    if quoted:
        at += 1
    value, start = 0, at
    while at < end and 48 <= data[at] <= 57 and at - start < 18:
        value = value * 10 + int(data[at]) - 48
        at += 1
    if at == start or at >= end or (data[start] == 48 and at - start > 1 and not quoted):
        return NO_ID, -1
    if quoted:
        return (value, at + 1) if data[at] == _QUOTE else (NO_ID, -1)
    plain = data[at] == _COMMA or data[at] == 125 or data[at] == 32
    return (value, at) if plain else (NO_ID, -1)


@numba.njit(cache=True, nogil=True)
def _intent_bit(data: Bytes, start: int, end: int) -> int:
    """Bit of one of the three words of Semantic Scholar, 0 for no word, -1 for any other."""
    size = end - start
    if size == 0:
        return 0
    if size == 10 and data[start] == 98 and data[start + 1] == 97 and data[start + 9] == 100:
        return 1  # background
    if size == 11 and data[start] == 109 and data[start + 1] == 101 and data[start + 10] == 121:
        return 2  # methodology
    if size == 6 and data[start] == 114 and data[start + 1] == 101 and data[start + 5] == 116:
        return 4  # result
    return -1


@numba.njit(cache=True, nogil=True)
def _intents_value(data: Bytes, at: int, end: int) -> tuple[int, int]:
    if data[at] == 110:
        return 0, _literal(data, at, end)
    if data[at] != _OPEN:
        return 0, -1
    mask = 0
    at = _skip_blanks(data, at + 1, end)
    if at < end and data[at] == _CLOSE:
        return 0, at + 1
    while at < end and data[at] == _QUOTE:
        close = _string_end(data, at + 1, end)
        if close < 0:
            return 0, -1
        bit = _intent_bit(data, at + 1, close)
        if bit < 0:
            return 0, -1
        mask |= bit
        at = _skip_blanks(data, close + 1, end)
        if at < end and data[at] == _CLOSE:
            return mask, at + 1
        if at >= end or data[at] != _COMMA:
            return 0, -1
        at = _skip_blanks(data, at + 1, end)
    return 0, -1


@numba.njit(cache=True, nogil=True)
def _is_space(point: int) -> bool:
    """White space as Python's regular expressions see it."""
    if point < 128:
        return point == 32 or 9 <= point <= 13
    return (
        point == 0x85
        or point == 0xA0
        or point == 0x1680
        or 0x2000 <= point <= 0x200A
        or point == 0x2028
        or point == 0x2029
        or point == 0x202F
        or point == 0x205F
        or point == 0x3000
    )


@numba.njit(cache=True, nogil=True)
def _hex4(data: Bytes, at: int, end: int) -> int:
    if at + 4 > end:
        return -1
    value = 0
    for i in range(at, at + 4):
        digit = int(data[i])
        if 48 <= digit <= 57:
            value = value * 16 + digit - 48
        elif 97 <= digit <= 102:
            value = value * 16 + digit - 87
        elif 65 <= digit <= 70:
            value = value * 16 + digit - 55
        else:
            return -1
    return value


@numba.njit(cache=True, nogil=True)
def _escape(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The sign that an escape stands for and the position after it; position -1 for a broken one."""
    kind = data[at + 1]
    if kind == 117:
        high = _hex4(data, at + 2, end)
        if 0xD800 <= high <= 0xDBFF and at + 12 <= end and data[at + 6] == _BACKSLASH and data[at + 7] == 117:
            low = _hex4(data, at + 8, end)
            if 0xDC00 <= low <= 0xDFFF:
                return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00), at + 12
        return (high, at + 6) if high >= 0 and not 0xD800 <= high <= 0xDFFF else (0, -1)
    for code, sign in (
        (110, 10),
        (116, 9),
        (114, 13),
        (98, 8),
        (102, 12),
        (_QUOTE, _QUOTE),
        (_BACKSLASH, _BACKSLASH),
        (47, 47),
    ):
        if kind == code:
            return sign, at + 2
    return 0, -1


@numba.njit(cache=True, nogil=True)
def _sign(data: Bytes, at: int) -> tuple[int, int]:
    """The sign that starts at a byte of valid UTF-8, and the position after it."""
    byte = int(data[at])
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | int(data[at + 1]) & 0x3F, at + 2
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | (int(data[at + 1]) & 0x3F) << 6 | int(data[at + 2]) & 0x3F, at + 3
    tail = (int(data[at + 1]) & 0x3F) << 12 | (int(data[at + 2]) & 0x3F) << 6 | int(data[at + 3]) & 0x3F
    return (byte & 0x07) << 18 | tail, at + 4


@numba.njit(cache=True, nogil=True)
def _write_sign(texts: Bytes, out: int, point: int) -> int:
    """Append one sign as UTF-8."""
    if point < 0x80:
        texts[out] = point
        return out + 1
    if point < 0x800:
        texts[out], texts[out + 1] = 0xC0 | point >> 6, 0x80 | point & 0x3F
        return out + 2
    if point < 0x10000:
        texts[out], texts[out + 1], texts[out + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
        return out + 3
    texts[out], texts[out + 1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 0x3F
    texts[out + 2], texts[out + 3] = 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
    return out + 4


@numba.njit(cache=True, nogil=True)
def _clean_string(data: Bytes, at: int, end: int, texts: Bytes, out: int) -> tuple[int, int]:
    """Write a JSON string as `clean_text` would; gives the positions after it in `texts` and in `data`, or -1."""
    first = out
    while at < end:
        byte = data[at]
        if _PLAIN[byte]:
            texts[out] = byte
            out += 1
            at += 1
            continue
        if byte == _QUOTE:
            return (out - 1 if out > first and texts[out - 1] == 32 else out), at + 1
        if byte < 32:
            return out, -1  # JSON allows no bare control signs
        point = int(byte)
        if byte == _BACKSLASH:
            point, at = _escape(data, at, end)
            if at < 0:
                return out, -1
        elif byte < 128:
            at += 1
        else:
            point, at = _sign(data, at)
        if _is_space(point):
            if out > first and texts[out - 1] != 32:
                texts[out] = 32
                out += 1
        elif point >= 32 and point != 127:
            out = _write_sign(texts, out, point)
    return out, -1


@numba.njit(cache=True, nogil=True)
def _contexts_value(
    data: Bytes, at: int, end: int, texts: Bytes, out: int, spans: Any, found: int
) -> tuple[int, int, int]:
    """Write the strings of an array; gives the positions after it in `texts`, `spans` and `data`, the last -1 to leave it."""
    if data[at] == 110:
        return out, found, _literal(data, at, end)
    if data[at] != _OPEN:
        return out, found, -1
    at = _skip_blanks(data, at + 1, end)
    if at < end and data[at] == _CLOSE:
        return out, found, at + 1
    while at < end and data[at] == _QUOTE:
        before = out
        out, at = _clean_string(data, at + 1, end, texts, out)
        if at < 0:
            return out, found, -1
        spans[1, found] = out - before
        found += 1
        at = _skip_blanks(data, at, end)
        if at < end and data[at] == _CLOSE:
            return out, found, at + 1
        if at >= end or data[at] != _COMMA:
            return out, found, -1
        at = _skip_blanks(data, at + 1, end)
    return out, found, -1


@numba.njit(cache=True, nogil=True)
def _after_key(data: Bytes, at: int, end: int, key: Bytes) -> int:
    """Position after the key and its closing quote if it stands here, else -1."""
    if at + len(key) > end:
        return -1
    for i in range(len(key)):
        if data[at + i] != key[i]:
            return -1
    return at + len(key)


@numba.njit(cache=True, nogil=True)
def _key(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Which key starts here (1 citing, 2 cited, 3 influential, 4 contexts, 5 intents, 0 another) and the position after its closing quote, or -1."""
    if at + 3 < end:
        code, after = 0, -1
        if data[at] == 99 and data[at + 1] == 105:  # ci
            code = 1 if data[at + 3] == 105 else 2
            after = _after_key(data, at, end, _CITING if code == 1 else _CITED)
        elif data[at] == 99:
            code, after = 4, _after_key(data, at, end, _CONTEXTS)
        elif data[at] == 105:
            code = 3 if data[at + 1] == 115 else 5
            after = _after_key(data, at, end, _INFLUENTIAL if code == 3 else _INTENTS)
        if after >= 0:
            return code, after
    close = _string_end(data, at, end)
    return 0, close + 1 if close >= 0 else -1


@numba.njit(cache=True, nogil=True)
def _scan_line(
    data: Bytes, at: int, end: int, line: int, numbers: Any, small: Any, texts: Bytes, out: int, spans: Any, found: int
) -> tuple[int, int]:
    """Read one object; gives the positions after its contexts in `texts` and `spans`, -1 to leave the line."""
    at = _skip_blanks(data, at, end)
    if at >= end or data[at] != 123:
        return out, -1
    seen = 0
    at = _skip_blanks(data, at + 1, end)
    while at < end and data[at] == _QUOTE:
        code, at = _key(data, at + 1, end)
        if at < 0:
            return out, -1
        at = _skip_blanks(data, at, end)
        if at >= end or data[at] != _COLON:
            return out, -1
        at = _skip_blanks(data, at + 1, end)
        if at >= end or (code and seen & (1 << code)):
            return out, -1
        seen |= 1 << code
        if code == 1 or code == 2:
            numbers[code - 1, line], at = _id_value(data, at, end)
        elif code == 3:
            small[1, line] = data[at] == 116
            at = _literal(data, at, end)
        elif code == 4:
            out, found, at = _contexts_value(data, at, end, texts, out, spans, found)
        elif code == 5:
            small[2, line], at = _intents_value(data, at, end)
        else:
            at = _skip_value(data, at, end)
        if at < 0:
            return out, -1
        at = _skip_blanks(data, at, end)
        if at < end and data[at] == 125:
            return out, found if _skip_blanks(data, at + 1, end) == end and seen & 6 == 6 else -1
        if at >= end or data[at] != _COMMA:
            return out, -1
        at = _skip_blanks(data, at + 1, end)
    return out, -1


@numba.njit(cache=True, nogil=True)
def _scan(data: Bytes, starts: Any, ends: Any, numbers: Any, small: Any, texts: Bytes, spans: Any) -> int:
    """Read every line; texts of contexts go to `texts`, their lines and lengths to `spans`; gives their number."""
    out, found = 0, 0
    for line in range(len(starts)):
        numbers[0, line] = numbers[1, line] = NO_ID
        after, last = _scan_line(data, starts[line], ends[line], line, numbers, small, texts, out, spans, found)
        if last < 0:
            small[1, line] = small[2, line] = 0
            continue
        small[0, line] = 1
        spans[0, found:last] = line
        out, found = after, last
    return found
