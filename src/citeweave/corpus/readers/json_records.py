"""Values inside JSON records, found by their paths, and a compiled JSON scanner. Files are read by `core/json_files.py`.

    value_at(record, "journal.name")          "Mind"
    names_at(record, "authors[].name")        ("A. Turing",)

The scanner reads JSON byte by byte in compiled code: positions of values, and strings cleaned as `clean_text` does. Every
function takes the bytes, a position and where to stop, and returns the position after what it read, or -1 for what it
cannot read. Callers pass valid UTF-8. It knows no format; `s2ag.py` uses it for citations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.corpus.plain_text import clean_text, filled, list_of, names_of, strip_markup

Bytes = NDArray[np.uint8]

QUOTE, OPEN, CLOSE, COMMA, COLON, BACKSLASH = 34, 91, 93, 44, 58, 92
_ESCAPES = ((110, 10), (116, 9), (114, 13), (98, 8), (102, 12), (QUOTE, QUOTE), (BACKSLASH, BACKSLASH), (47, 47))
_LITERALS = tuple(np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_HEX = np.array([int(chr(byte), 16) if chr(byte) in "0123456789abcdefABCDEF" else -1 for byte in range(256)], np.int8)
"""Value of every byte as a hexadecimal digit, -1 for other bytes."""
_EACH, _UPPER = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_PLAIN = np.zeros(256, np.bool_)
"""Bytes that are copied unchanged: printable ASCII without blank, quote and backslash."""
_PLAIN[33:127] = True
_PLAIN[[QUOTE, BACKSLASH]] = False


@compiled()
def line_end(data: Bytes, at: int) -> int:
    while at < len(data) and data[at] != 10:
        at += 1
    return at


@compiled()
def skip_blanks(data: Bytes, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 9 or data[at] == 13):
        at += 1
    return at


@compiled()
def string_end(data: Bytes, at: int, end: int) -> int:
    """Return the position of the closing quote of the JSON string whose content starts at `at`, or -1."""
    while at < end:
        byte = data[at]
        if _PLAIN[byte]:
            at += 1
        elif byte == QUOTE:
            return at
        elif byte < 32:
            return -1
        elif byte == BACKSLASH:
            _, at = _escape(data, at, end)
            if at < 0:
                return -1
        else:
            at += 1
    return -1


@compiled()
def skip_value(data: Bytes, at: int, end: int) -> int:
    """Return the position after an unwanted JSON scalar, or -1; arrays and objects are left to the ordinary reader."""
    if at >= end:
        return -1
    if data[at] == QUOTE:
        close = string_end(data, at + 1, end)
        return close + 1 if close >= 0 else -1
    if data[at] == 110 or data[at] == 116 or data[at] == 102:
        return literal(data, at, end)
    start = at
    while at < end and (48 <= data[at] <= 57):
        at += 1
    # JSON has no numbers with leading zeros
    return at if at == start + 1 or (at > start and data[start] != 48) else -1


@compiled()
def literal(data: Bytes, at: int, end: int) -> int:
    """Return the position after null, true or false, or -1."""
    for word in _LITERALS:
        if at + len(word) <= end and is_word(data, at, at + len(word), word):
            return at + len(word)
    return -1


@compiled()
def is_word(data: Bytes, start: int, end: int, word: Bytes) -> bool:
    """Return whether a span of bytes is this word."""
    if end - start != len(word):
        return False
    for i in range(len(word)):
        if data[start + i] != word[i]:
            return False
    return True


@compiled()
def _is_space(point: int) -> bool:
    """Return whether a code point is white space to Python's regular expressions."""
    if point < 128:
        return point == 32 or 9 <= point <= 13
    return point in (0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000) or 0x2000 <= point <= 0x200A


@compiled()
def _hex4(data: Bytes, at: int, end: int) -> int:
    if at + 4 > end:
        return -1
    value = 0
    for i in range(at, at + 4):
        if _HEX[data[i]] < 0:
            return -1
        value = value * 16 + int(_HEX[data[i]])
    return value


@compiled()
def _escape(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the code point of a JSON escape and the position after it; position -1 for a broken one."""
    if at + 1 >= end:
        return 0, -1
    kind = data[at + 1]
    if kind == 117:
        high = _hex4(data, at + 2, end)
        if 0xD800 <= high <= 0xDBFF and at + 12 <= end and data[at + 6] == BACKSLASH and data[at + 7] == 117:
            low = _hex4(data, at + 8, end)
            if 0xDC00 <= low <= 0xDFFF:
                return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00), at + 12
        return (high, at + 6) if high >= 0 and not 0xD800 <= high <= 0xDFFF else (0, -1)
    for code, point in _ESCAPES:
        if kind == code:
            return point, at + 2
    return 0, -1


@compiled()
def _code_point(data: Bytes, at: int) -> tuple[int, int]:
    """Return the code point that starts at a byte of valid UTF-8, and the position after it."""
    byte = int(data[at])
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | int(data[at + 1]) & 0x3F, at + 2
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | (int(data[at + 1]) & 0x3F) << 6 | int(data[at + 2]) & 0x3F, at + 3
    tail = (int(data[at + 1]) & 0x3F) << 12 | (int(data[at + 2]) & 0x3F) << 6 | int(data[at + 3]) & 0x3F
    return (byte & 0x07) << 18 | tail, at + 4


@compiled()
def _write_code_point(texts: Bytes, out: int, point: int) -> int:
    """Append one code point as UTF-8."""
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


@compiled()
def word_at(data: Bytes, at: int) -> np.uint64:
    """Return eight bytes as one number; the unsigned position lets the compiler merge the loads."""
    start, word = np.uintp(at), np.uint64(0)
    for i in range(8):
        word |= np.uint64(data[start + np.uintp(i)]) << np.uint64(8 * i)
    return word


@compiled()
def _needs_no_cleaning(word: np.uint64) -> bool:
    """Return whether eight bytes are printable ASCII without quote, backslash or two blanks in a row.

    The usual trick for eight bytes at a time: (x - 1) & ~x has the upper bit of a byte set if x is zero there.
    """
    quote, backslash = word ^ _EACH * np.uint64(QUOTE), word ^ _EACH * np.uint64(BACKSLASH)
    delete = word ^ _EACH * np.uint64(127)
    odd = (quote - _EACH) & ~quote | (backslash - _EACH) & ~backslash | (delete - _EACH) & ~delete
    odd |= (word - _EACH * np.uint64(32)) & ~word | word  # below 32, above 127
    blank = word ^ _EACH * np.uint64(32)
    blanks = (blank - _EACH) & ~blank & _UPPER
    return bool(odd & _UPPER == 0 and blanks & (blanks << np.uint64(8)) == 0)


@compiled()
def _copy_words(data: Bytes, at: int, end: int, texts: Bytes, out: int) -> int:
    """Copy eight bytes at a time as long as they need no cleaning; return how many bytes were copied."""
    copied = 0
    while at + copied + 8 <= end:
        word = word_at(data, at + copied)
        if not _needs_no_cleaning(word):
            break
        # a blank after a blank is dropped, also where two words meet
        if word & np.uint64(255) == 32 and (copied == 0 or texts[out + copied - 1] == 32):
            break
        target = np.uintp(out + copied)
        for i in range(8):
            texts[target + np.uintp(i)] = np.uint8(word >> np.uint64(8 * i))
        copied += 8
    return copied


@compiled()
def clean_string(data: Bytes, at: int, end: int, texts: Bytes, out: int) -> tuple[int, int]:
    """Write a JSON string as `clean_text` would; return the positions after it in `texts` and in `data`, or -1."""
    first = out
    while at < end:
        byte = data[at]
        if _PLAIN[byte]:
            copied = _copy_words(data, at, end, texts, out)
            out += copied
            at += copied
            while at < end and _PLAIN[data[at]]:
                texts[out] = data[at]
                out += 1
                at += 1
            continue
        if byte == QUOTE:
            return (out - 1 if out > first and texts[out - 1] == 32 else out), at + 1
        if byte < 32:
            return out, -1  # JSON allows no bare control characters
        point = int(byte)
        if byte == BACKSLASH:
            point, at = _escape(data, at, end)
            if at < 0:
                return out, -1
        elif byte < 128:
            at += 1
        else:
            point, at = _code_point(data, at)
        if _is_space(point):
            if out > first and texts[out - 1] != 32:
                texts[out] = 32
                out += 1
        elif point >= 32 and not 127 <= point < 160:
            out = _write_code_point(texts, out, point)
    return out, -1


# Values inside a record.


def value_at(value: object, path: str) -> object:
    """Return what stands at a path in a JSON value, None where nothing does; `a[].b` lists the `b` of every item of `a`.

    >>> record = {"journal": {"name": "Mind"}, "authors": [{"name": "A. Turing"}, 7]}
    >>> value_at(record, "journal.name"), value_at(record, "authors[].name"), value_at(record, "authors.name")
    ('Mind', ['A. Turing', None], None)
    """
    keys, inner = _steps(path)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return [value_at(item, inner) for item in list_of(value)] if inner else value


@cache
def _steps(path: str) -> tuple[list[str], str]:
    """Return the keys of a path up to its first list, and the path inside the items of that list."""
    keys, _, inner = path.partition("[].")
    return keys.split("."), inner


def names_at(record: object, *paths: str) -> tuple[str, ...]:
    """Return the names in the lists at these paths of a JSON object, without empty ones and repeats."""
    names = [names_of(value_at(record, path)) for path in paths]
    return names[0] if len(names) == 1 else tuple(dict.fromkeys(chain.from_iterable(names)))


def first_text(record: object, *paths: str, clean: Callable[[object], str] = clean_text) -> str:
    """Return the text at the first of these paths of a JSON object where there is one, "" where there is none."""
    return next((text for path in paths if (text := clean(value_at(record, path)))), "")


def first_plain(value: object) -> str:
    """Return the first text of a JSON list, or the text itself, without markup: Crossref and CSL have titles of both kinds."""
    return next(filter(None, map(strip_markup, value if isinstance(value, list) else [value])), "")


def extra_of(record: object, paths: dict[str, str]) -> dict[str, object]:
    """Return the `extra` of a paper by the paths of its texts, and of its lists of names, which end in `[]` or hold it.

    >>> extra_of({"type": "book", "tags": ["a", None], "lang": ""}, {"kind": "type", "tags": "tags[]", "lang": "lang"})
    {'kind': 'book', 'tags': ['a']}
    """
    return filled(
        {
            name: list(names_at(record, path.removesuffix("[]")))
            if "[]" in path
            else clean_text(value_at(record, path))
            for name, path in paths.items()
        }
    )
