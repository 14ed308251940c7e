"""The entries of one large JSON object, one at a time: `{"p1": {...}, "p2": {...}}` gives ("p1", {...}), ("p2", {...}).

Memory holds a few megabytes and the largest entry, never the file. Of an entry nothing is checked here but that it is
JSON; a key that comes twice is given twice.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import TextIO

from citeweave.errors import InputError
from citeweave.opening import MAX_LINE, Source

_CHUNK = 4 * 2**20
_AFTER = frozenset(" \t\r\n:,}")
_BLANKS = re.compile(r"[ \t\r\n]*")


def read_entries(source: Source, chunk: int = _CHUNK) -> Iterator[tuple[str, object]]:
    """Every key of the file's one object with its value, in order."""
    with source.open() as stream:
        window = _Window(source, io.TextIOWrapper(stream, "utf-8-sig", errors="replace"), chunk)
        window.expect("{")
        sign = window.expect("}") if window.peek() == "}" else ","
        while sign == ",":
            key = window.value()
            if not isinstance(key, str):
                raise window.broken("a key is no string")
            window.expect(":")
            yield key, window.value()
            sign = window.expect(",}")
        if window.peek():
            raise window.broken("something follows the object")


class _Window:
    """The part of the text that is in memory; `at` is where reading stands."""

    def __init__(self, source: Source, stream: TextIO, chunk: int) -> None:
        self._source, self._stream, self._chunk = source, stream, chunk
        self._text, self._at, self._before = "", 0, 0
        self._is_whole = False
        self._decode = json.JSONDecoder().raw_decode

    def broken(self, reason: str) -> InputError:
        return InputError(
            f"{self._source.path} cannot be read near character {self._before + self._at:,} ({reason}); it must be one "
            "JSON object of papers by id: get the file again"
        )

    def peek(self) -> str:
        """The next sign that is not blank; nothing at the end."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            assert blanks is not None  # the pattern matches nothing, too
            self._at = blanks.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def expect(self, signs: str) -> str:
        """Step over the next sign, which must be one of these."""
        sign = self.peek()
        if not sign:
            raise self.broken("the file ends too early")
        if sign not in signs:
            raise self.broken(f"{sign!r} where {' or '.join(signs)} belongs")
        self._at += 1
        return sign

    def value(self) -> object:
        """Step over the next value. It ends where a sign of the object follows: of `1.5e3` the window may show `1.5e`."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._grow():
                    raise self.broken("no JSON, or cut off") from None
                continue
            except RecursionError:
                raise self.broken("nested too deeply") from None
            if self._text[end : end + 1] in _AFTER or not self._grow():
                self._at = end
                return value

    def _grow(self) -> bool:
        """Reads on, twice as much where an entry is larger than the window; False at the end of the file."""
        if self._is_whole:
            return False
        rest = self._text[self._at :]
        if len(rest) > MAX_LINE:
            raise self.broken(f"no end of an entry within {MAX_LINE >> 20} Mi characters")
        more = self._stream.read(max(self._chunk, len(rest)))
        self._before += self._at
        self._text, self._at = rest + more, 0
        self._is_whole = not more
        return not self._is_whole
