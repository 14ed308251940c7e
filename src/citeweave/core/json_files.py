"""JSON files of any outer shape, value by value: lines, a list, a document, one object larger than memory.

    {"id": 1}                 [{"id": 1},            {
    {"id": 2}                  {"id": 2}]              "id": 1
                                                     }

All three give objects one by one. Lines are streamed; a list or a document is read into memory, within the bound of
`Source.read_document`; `read_members` streams an object that maps ids to records. Does not look inside the values:
envelopes are up to the readers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from citeweave.core.errors import InputError
from citeweave.core.inputs import MAX_LINE, BadRecordError, FileHead, Source, parse_json
from citeweave.core.progress import Tally


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
