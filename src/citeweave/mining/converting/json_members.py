"""The members of one large JSON object, one after the other: `{"a": {...}, "b": {...}}` gives a, then b.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "data.json"
    >>> _ = path.write_text('{"q1": {"p": {"count": 5}}, "q2": {}}')
    >>> list(read_members(Source(path)))
    [('q1', {'p': {'count': 5}}), ('q2', {})]

Holds one member at a time, so that a file may be larger than memory. Does not look inside the members.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from citeweave.errors import InputError
from citeweave.opening import BadRecordError, Source

MAX_MEMBER = 64 * 2**20
"""Longest member, in characters."""

_PIECE = 2**20
_SPACES = re.compile(r"[ \t\r\n]*")


def read_members(source: Source) -> Iterator[tuple[str, object]]:
    """Key and value of every member; a file that is not one whole JSON object is an `InputError`."""
    try:
        with source.open() as stream:
            yield from _members(_Window(stream))
    except BadRecordError as error:
        raise InputError(
            f"{source.path} is not one JSON object ({error}); get the file again if it was cut off"
        ) from None


def _members(window: _Window) -> Iterator[tuple[str, object]]:
    window.expect("{")
    end = "}" if window.peek() == "}" else ","
    while end == ",":
        key = window.value()
        if not isinstance(key, str):
            raise BadRecordError("a key is not a text")
        window.expect(":")
        yield key, window.value()
        end = window.peek()
        if end == ",":
            window.expect(",")
    window.expect("}")
    if window.peek():
        raise BadRecordError("something follows the object")


class _Window:
    """The part of the text that is being read; it grows until a value is whole in it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._text, self._at = stream, "", 0
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._is_over = False

    def peek(self) -> str:
        """The next sign that is no white space, "" at the end."""
        while True:
            space = _SPACES.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or self._is_over:
                return self._text[self._at : self._at + 1]
            self._grow()

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise BadRecordError(f"{sign!r} is missing")
        self._at += 1

    def value(self) -> object:
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
                # "1.5e-7" cut off reads as 1.5 with "e-" behind it: a value is whole where more than that follows
                if len(self._text) - end > 2 or self._is_over:
                    self._at = end
                    return value
            self._grow()

    def _grow(self) -> None:
        """Read on, twice as far each time, so that a long value is not tried too often."""
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > MAX_MEMBER:
            raise BadRecordError(f"not valid JSON, or a member longer than {MAX_MEMBER >> 20} MiB")
        data = self._stream.read(max(_PIECE, len(self._text)))
        self._is_over = not data
        self._text += self._decode(data, final=self._is_over)


_DECODER = json.JSONDecoder()
