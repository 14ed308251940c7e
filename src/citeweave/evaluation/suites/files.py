"""The files of a benchmark: qrel, CSV, JSON and JSON lines, each read whole or refused with file, line and next step.

    q1 0 p7 1        a qrel line: query, nothing, candidate, grade

A benchmark is fixed: a line that cannot be read means a damaged or foreign file, so nothing is skipped or counted.
Files may be compressed; `x.jsonl.gz` stands for `x.jsonl`. Does not know what the files mean: each suite does.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from citeweave.errors import InputError
from citeweave.files import hash_file
from citeweave.opening import MAX_LINE, BadRecordError, Source, parse_json

_SUFFIXES = ("", ".gz", ".zst", ".bz2", ".xz")
HIGHEST_GRADE = 2**31 - 1
_AGAIN = "the file is damaged or half downloaded: get it again"


def find(path: Path) -> Path | None:
    """The file, or its compressed form; None where there is neither."""
    forms = (path.with_name(path.name + suffix) for suffix in _SUFFIXES)
    return next((form for form in forms if form.is_file()), None)


def existing(path: Path, holds: str) -> Path:
    """The file, or its compressed form; it must be there. `holds` says what is in it, for the message."""
    if found := find(path):
        return found
    what = "is a folder, not a file" if path.is_dir() else "is missing"
    raise InputError(f"{path} {what}: it holds {holds}; download it, or check the folder")


class DataFolder:
    """A folder with files of a benchmark; remembers which of them were read, so that a report can name them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[str, Path] = {}
        if not self.folder.is_dir():
            what = "is a file, not a folder" if self.folder.exists() else "is no folder"
            raise InputError(f"{self.folder} {what}; give the folder with the benchmark's files")

    def has(self, *names: str) -> bool:
        """Whether all of these files are there."""
        return all(find(self.folder / name) is not None for name in names)

    def absent(self, *names: str) -> list[str]:
        """Those of these files that are not there."""
        return [name for name in names if not self.has(name)]

    def file(self, name: str, holds: str) -> Path:
        """A file that must be there; it counts as read."""
        path = existing(self.folder / name, holds)
        self._read[name] = path
        return path

    def use(self, path: Path) -> Path:
        """A file that was found in another way; it counts as read."""
        inside = path.is_relative_to(self.folder)
        self._read[path.relative_to(self.folder).as_posix() if inside else str(path)] = path
        return path

    def hashes(self) -> dict[str, str]:
        """File -> sha256, of those that were read."""
        return {name: hash_file(path) for name, path in sorted(self._read.items())}


def read_json(path: Path) -> Any:
    """The whole file as one JSON value."""
    with Source(path).open() as stream:
        data = stream.read().removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise InputError(f"{path} is empty; {_AGAIN}")
    try:
        return parse_json(data)
    except BadRecordError:
        line, ends_early = _where_json_breaks(data)
        what = "ends in the middle of its JSON" if ends_early else "is not valid JSON"
        raise InputError(f"{path} {what} at line {line}; {_AGAIN}") from None


def read_json_lines(path: Path, *, keys: Sequence[str] = (), ids: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, one a line. `keys` and `ids` must be in each; ids become text.

    An id may be a text or a whole number: SciRepEval's files hold both.
    """
    empty = True
    for number, line in _lines(path):
        empty = False
        try:
            record = parse_json(line)
        except BadRecordError as error:
            raise InputError(f"{path} line {number} is {error}; {_AGAIN}") from None
        if not isinstance(record, dict):
            raise InputError(f"{path} line {number} is no JSON object; is it another file?")
        if absent := [key for key in (*ids, *keys) if key not in record]:
            raise InputError(f"{path} line {number} has no {absent[0]!r}; it has {_list(record)}; is it another file?")
        for key in ids:
            record[key] = as_id(record[key], f"{path} line {number}: {key}")
        yield record
    if empty:
        raise InputError(f"{path} is empty; {_AGAIN}")


def read_qrel(path: Path) -> dict[str, dict[str, int]]:
    """`{query: {candidate: grade}}`, in the order of the file.

    A pair that is given twice stops the reading, as it stops pytrec_eval's: either grade might be meant.
    """
    pools: dict[str, dict[str, int]] = {}
    for number, line in _lines(path):
        parts = _text(path, line).split()
        if len(parts) != 4:
            raise InputError(
                f"{path} line {number} has {len(parts)} of the 4 parts 'query 0 candidate grade'; {_AGAIN}"
            )
        query, _, candidate, grade = parts
        pool = pools.setdefault(query, {})
        if candidate in pool:
            raise InputError(
                f"{path} line {number} judges query {query} and candidate {candidate} a second time; "
                "remove one of the two lines"
            )
        pool[candidate] = as_grade(grade, f"{path} line {number}: the grade")
    if not pools:
        raise InputError(f"{path} is empty; {_AGAIN}")
    return pools


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV file with a header, each `{column: text}` of these columns; others are left out."""
    with Source(path).open() as stream:
        text = _text(path, stream.read())
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(rows, [])
        if not header:
            raise InputError(f"{path} is empty; {_AGAIN}")
        if absent := [name for name in columns if name not in header]:
            raise InputError(
                f"{path} has no column {absent[0]!r}; its first line is {_list(header)}; is it another file?"
            )
        places = [header.index(name) for name in columns]
        for row in rows:
            if row and len(row) < len(header):
                raise InputError(f"{path} line {rows.line_num} has {len(row)} of {len(header)} columns; {_AGAIN}")
            if row:
                yield {name: row[place] for name, place in zip(columns, places, strict=True)}
    except csv.Error as error:
        raise InputError(f"{path} line {rows.line_num} is no CSV ({error}); {_AGAIN}") from None


def as_id(value: object, what: str) -> str:
    """An id as text; `what` names it in the error."""
    if isinstance(value, str) and value:
        return value
    if type(value) is int:
        return str(value)
    raise InputError(f"{what} is {_short(value)}; an id is a text or a whole number")


def as_grade(value: object, what: str) -> int:
    """A grade as a whole number, also where it is written as `1.0` or as text."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) else float("nan")
        grade = int(number)
    except (ValueError, OverflowError):
        number, grade = float("nan"), 0
    if grade != number or abs(grade) > HIGHEST_GRADE or isinstance(value, bool):
        raise InputError(f"{what} is {_short(value)}; a grade is a whole number such as 0 or 1")
    return grade


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number."""
    with Source(path).open() as stream:
        number = 0
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise InputError(f"{path} line {number} is longer than {MAX_LINE >> 20} MiB; is it another file?")
            if line := line.strip().removeprefix(b"\xef\xbb\xbf"):
                yield number, line


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; {_AGAIN}") from None


def _where_json_breaks(data: bytes) -> tuple[int, bool]:
    """The line where JSON breaks, and whether the file ends too early there."""
    text = data.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        # a string that is cut off is told where it begins
        return error.lineno, error.pos >= len(text) - 1 or error.msg.startswith("Unterminated")
    except RecursionError:
        pass
    return 1, False


def _list(names: object) -> str:
    return _short(", ".join(str(name) for name in names)) if isinstance(names, (list, dict)) else _short(names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
