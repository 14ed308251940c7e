"""JSON records of a file of any outer shape (lines, a list, a document, one large object), and a compiled JSON scanner.

    {"id": 1}                 [{"id": 1},            {
    {"id": 2}                  {"id": 2}]              "id": 1
                                                     }

All three give objects one by one. Lines are streamed; a list or a document is read into memory, within the bound of
`Source.read_document`; `read_members` streams an object that maps ids to records. Does not look inside the records:
envelopes are up to the readers.

The scanner reads JSON byte by byte in compiled code: positions of values, and strings cleaned as `clean_text` does. Every
function takes the bytes, a position and where to stop, and returns the position after what it read, or -1 for what it
cannot read. Callers pass valid UTF-8. It knows no format; `s2ag.py` uses it for citations.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from typing import BinaryIO, TextIO

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError
from citeweave.core.inputs import MAX_LINE, BadRecordError, FileHead, Source, parse_json
from citeweave.core.progress import Tally
from citeweave.corpus.plain_text import clean_text, filled, list_of, names_of, strip_markup

Bytes = NDArray[np.uint8]

QUOTE, OPEN, CLOSE, COMMA, COLON, BACKSLASH = 34, 91, 93, 44, 58, 92
_ESCAPES = ((110, 10), (116, 9), (114, 13), (98, 8), (102, 12), (QUOTE, QUOTE), (BACKSLASH, BACKSLASH), (47, 47))
_EACH, _UPPER = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_PLAIN = np.zeros(256, np.bool_)
"""Bytes that are copied unchanged: printable ASCII without blank, quote and backslash."""
_PLAIN[33:127] = True
_PLAIN[[QUOTE, BACKSLASH]] = False


@numba.njit(cache=True, nogil=True)
def line_end(data: Bytes, at: int) -> int:
    while at < len(data) and data[at] != 10:
        at += 1
    return at


@numba.njit(cache=True, nogil=True)
def skip_blanks(data: Bytes, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 9 or data[at] == 13):
        at += 1
    return at


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def literal(data: Bytes, at: int, end: int) -> int:
    """Return the position after null, true or false, or -1."""
    if at + 4 <= end and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        return at + 4
    if at + 4 <= end and data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
        return at + 4
    if at + 5 <= end and data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108:
        return at + 5 if data[at + 3] == 115 and data[at + 4] == 101 else -1
    return -1


@numba.njit(cache=True, nogil=True)
def _is_space(point: int) -> bool:
    """Return whether a code point is white space to Python's regular expressions."""
    if point < 128:
        return point == 32 or 9 <= point <= 13
    return point in (0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000) or 0x2000 <= point <= 0x200A


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


@numba.njit(cache=True, nogil=True)
def _code_point(data: Bytes, at: int) -> tuple[int, int]:
    """Return the code point that starts at a byte of valid UTF-8, and the position after it."""
    byte = int(data[at])
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | int(data[at + 1]) & 0x3F, at + 2
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | (int(data[at + 1]) & 0x3F) << 6 | int(data[at + 2]) & 0x3F, at + 3
    tail = (int(data[at + 1]) & 0x3F) << 12 | (int(data[at + 2]) & 0x3F) << 6 | int(data[at + 3]) & 0x3F
    return (byte & 0x07) << 18 | tail, at + 4


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def word_at(data: Bytes, at: int) -> np.uint64:
    """Return eight bytes as one number; the unsigned position lets the compiler merge the loads."""
    start, word = np.uintp(at), np.uint64(0)
    for i in range(8):
        word |= np.uint64(data[start + np.uintp(i)]) << np.uint64(8 * i)
    return word


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


# Records of a JSON file.


def starts_as_json(head: FileHead, *keys: str) -> bool:
    """Return whether a file begins like a JSON object or list and has these keys; "a|b" is one of two keys.

    >>> head = FileHead("x.json", b' [{"DOI": "10.1/x", "title": []}]')
    >>> starts_as_json(head), starts_as_json(head, "DOI", "author|title"), starts_as_json(head, "author")
    (True, True, False)
    >>> starts_as_json(FileHead("x.bib", b"@article{a,"))
    False
    """
    if head.data.lstrip()[:1] not in (b"{", b"["):
        return False
    return all(any(b'"%b"' % key.encode() in head.data for key in choice.split("|")) for choice in keys)


def read_json_values(source: Source, tally: Tally, kind: str) -> Iterator[object]:
    """Yield every JSON value of a file, of any type; a list yields its items. Broken lines are counted under `kind`."""
    if not _has_one_value_per_line(source):
        yield from _items(source.json())
        return
    for line in source.lines(tally, kind):
        try:
            value = parse_json(line)
        except BadRecordError as error:
            tally.reject(kind, str(error))
            continue
        yield from _items(value)


def read_json_objects(source: Source, tally: Tally, kind: str) -> Iterator[dict[str, object]]:
    """Yield every JSON object of a file; other values are counted under `kind`."""
    for value in read_json_values(source, tally, kind):
        if isinstance(value, dict):
            yield value
        else:
            tally.reject(kind, "not a JSON object")


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


def _items(value: object) -> Iterator[object]:
    if isinstance(value, list):
        yield from value
    else:
        yield value


def _has_one_value_per_line(source: Source) -> bool:
    """Return whether a file holds JSON lines, by its first two: one damaged line on top must not make it a document."""
    with source.open() as stream:
        first, second = _next_line(stream), _next_line(stream)
    if len(first) > MAX_LINE or first.startswith(b"["):
        return False
    return _is_json(first) or (second.startswith(b"{") and _is_json(second))


def _next_line(stream: BinaryIO) -> bytes:
    while line := stream.readline(MAX_LINE + 1):
        if text := line.strip().removeprefix(b"\xef\xbb\xbf"):
            return text
    return b""


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except BadRecordError:
        return not line
    return True


# Members of one large JSON object.

MAX_MEMBER = 64 * 2**20
"""Longest member, in characters."""

_SPACES = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def read_members(source: Source, chunk: int = 2**20) -> Iterator[tuple[str, object]]:
    """Yield key and value of a file that is one JSON object, which may be larger than memory; a key may come twice.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "data.json"
    >>> _ = path.write_text('{"q1": {"p": {"count": 5}}, "q2": {}}')
    >>> list(read_members(Source(path)))
    [('q1', {'p': {'count': 5}}), ('q2', {})]
    """
    with source.open() as stream:
        window = _JsonWindow(io.TextIOWrapper(stream, "utf-8-sig", errors="replace"), chunk)
        try:
            window.expect("{")
            separator = window.expect("}") if window.peek() == "}" else ","
            while separator == ",":
                key = window.value()
                if not isinstance(key, str):
                    raise BadRecordError("a key is not a text")
                window.expect(":")
                yield key, window.value()
                separator = window.expect(",}")
            if window.peek():
                raise BadRecordError("something follows the object")
        except BadRecordError as error:
            raise InputError(
                f"{source.path} cannot be read near character {window.place:,} ({error}): it is not one JSON object; get the "
                "file again if it is truncated"
            ) from None


class _JsonWindow:
    """The part of a JSON text that is in memory; it grows until it holds a complete value."""

    def __init__(self, stream: TextIO, chunk: int) -> None:
        self._stream, self._chunk = stream, chunk
        self._text, self._at, self._before, self._is_over = "", 0, 0, False

    @property
    def place(self) -> int:
        """Return the number of characters before the next one."""
        return self._before + self._at

    def peek(self) -> str:
        """Return the next character that is not white space, "" at the end of the text."""
        while True:
            self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches nothing, too
            if self._at < len(self._text) or self._is_over:
                return self._text[self._at : self._at + 1]
            self._grow()

    def expect(self, characters: str) -> str:
        """Step over the next character, which must be one of these."""
        character = self.peek()
        if not character or character not in characters:
            raise BadRecordError(f"{' or '.join(map(repr, characters))} is missing")
        self._at += 1
        return character

    def value(self) -> object:
        """Step over the next complete JSON value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise BadRecordError("nested too deeply") from None
            except ValueError:
                if self._is_over:
                    raise BadRecordError("not valid JSON") from None
            else:
                # "1.5e-7" cut off reads as 1.5 with "e-" behind it: a value is complete if more than that follows
                if len(self._text) - end > 2 or self._is_over:
                    self._at = end
                    return value
            self._grow()

    def _grow(self) -> None:
        """Read more of the file, twice as much each time, so that a long value is not parsed too often."""
        self._before += self._at
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > MAX_MEMBER:
            raise BadRecordError(f"not valid JSON, or a member longer than {MAX_MEMBER >> 20} MiB")
        more = self._stream.read(max(self._chunk, len(self._text)))
        self._is_over = not more
        self._text += more
