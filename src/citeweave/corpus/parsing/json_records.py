"""The records of a JSON file, whatever its outer shape: one a line, one list, or one document.

    {"id": 1}                 [{"id": 1},            {
    {"id": 2}                  {"id": 2}]              "id": 1
                                                     }

All three give objects one by one. Lines are streamed; a list or a document is read as a whole, within
the bound of `Source.whole`. Does not look inside the records: envelopes are the readers' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from citeweave.opening import MAX_LINE, BadRecordError, Head, Source, parse_json
from citeweave.tally import Tally


def starts_as_json(head: Head) -> bool:
    """Whether the file begins as a JSON object or list does."""
    return head.data.lstrip()[:1] in (b"{", b"[")


def read_json_values(source: Source, tally: Tally, kind: str) -> Iterator[object]:
    """Every value of the file, of any type; a list gives its items. Broken lines are counted under `kind`."""
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
    """Every object of the file; what is not an object is counted under `kind`."""
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
    """Told by the first two lines: one damaged line at the top must not turn the file into a broken document."""
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
