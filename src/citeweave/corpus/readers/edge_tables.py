r"""Tables of citations as text, tab- or comma-separated, read in compiled code; CSV rows with broken quotes.

    citing TAB cited [TAB strength]
    citing,cited,count,intents          a header may name the columns in any order

Lines whose two ids are integers are read by compiled code at the speed of memory, without a Python object for any of them;
every other line (text ids, blanks around them, leading zeros, intents) goes to the ordinary reader. Does not distinguish
tables of citations from tables of papers; `plain.py` does.

    >>> scanned = scan_edges(b"7\t42\n7\tx\n8\t42\t2.5\n", EdgeColumns(), b"\t")
    >>> scanned.read.tolist(), scanned.citing[scanned.read].tolist(), scanned.strength[scanned.read].tolist()
    ([True, False, True], [7, 8], [1.0, 2.5])

No row of a CSV file is lost to a quote that another row forgot to close:

    id,title
    a,"never closed        one rejected row; otherwise it would swallow all that follows
    b,two                  a row

A cell in quotes may hold line breaks. Where the quotes of such a row are broken or never closed, its first line is rejected
and the others are read again as rows of their own.
"""

from __future__ import annotations

import csv
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.inputs import Source, decode_line
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, NumberedCitations, StagedRecord, parse_intents
from citeweave.corpus.plain_text import clean_text

MAX_CELL = 2**24
MAX_ROW = 2**26
"""Most characters of a row: one whose cells close and open again on every line has no long cell."""

MAX_REREAD = 2**26
"""Most characters of broken rows that are reread as rows of several lines; beyond, every line is a row."""

TOO_LONG = f"cell longer than {MAX_CELL >> 20} MiB or broken quotes"
BROKEN = "quotes that are broken or never closed"


class _Tabs(csv.excel_tab):
    quoting = csv.QUOTE_NONE


def read_csv_rows(lines: Iterable[str], delimiter: str, tally: Tally, kind: str) -> Iterator[list[str]]:
    r"""Yield the cells of CSV rows of a table, also after broken quotes; a row that cannot be read is counted under `kind`.

    >>> tally = Tally()
    >>> list(read_csv_rows(['a,"never closed\n', "b,two\n"], ",", tally, "papers")), tally.counts["papers"].rejected
    ([['b', 'two']], {'quotes that are broken or never closed': 1})
    """
    csv.field_size_limit(MAX_CELL)
    source = _CsvLines(lines)
    dialect = _Tabs if delimiter == "\t" else csv.excel
    reader = csv.reader(source, dialect)
    while True:
        source.begin_row()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            tally.reject(kind, TOO_LONG)
            source.give_back()
            continue
        if source.may_be_broken() and not _is_one_row(source.taken, dialect):
            tally.reject(kind, BROKEN)
            source.give_back()
        elif any(cell.strip() for cell in row):
            yield row


class _CsvLines:
    """Lines for a csv reader, which remembers those of the current row and can take them back."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._waiting = iter(lines), deque[str]()
        self.taken: list[str] = []
        self._ended = False
        self._size = self._reread = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.taken and (self._size > MAX_ROW or (self._waiting and self._reread > MAX_REREAD)):
            raise csv.Error("the row is too long, or its lines were reread often enough")
        line = self._waiting.popleft() if self._waiting else next(self._lines, None)
        self._ended = line is None
        if line is None:
            raise StopIteration
        self.taken.append(line)
        self._size += len(line)
        return line

    def begin_row(self) -> None:
        self.taken, self._size = [], 0

    def may_be_broken(self) -> bool:
        """Return whether the CSV row has several lines, or the file ended inside it."""
        return len(self.taken) > 1 or self._ended

    def give_back(self) -> None:
        """Put back all lines of the CSV row but its first, to be read again."""
        self._waiting.extendleft(reversed(self.taken[1:]))
        self._reread += self._size


def _is_one_row(lines: list[str], dialect: type[csv.Dialect]) -> bool:
    """Return whether lines form exactly one CSV row with correct quotes."""
    try:
        return len(list(csv.reader(lines, dialect, strict=True))) == 1
    except csv.Error:
        return False


# Tables with one citation per line, with or without a header.

CITATION_HEADS = (
    ("citing", "cited"),
    ("citing_id", "cited_id"),
    ("citing_paper_id", "cited_paper_id"),
    ("citingcorpusid", "citedcorpusid"),
    ("source", "target"),
    ("from", "to"),
)
STRENGTHS = ("strength", "weight", "count", "mentions")
INTENTS = ("intents", "intent")
_KIND = "citations"
BETWEEN_INTENTS = re.compile(r"[|;,]")
_UTF_8_MARK = b"\xef\xbb\xbf"
_HEADER_LINES = 50


def find_edge_columns(header: list[str]) -> EdgeColumns:
    """Return which column of a citation table holds what, by the lower-case cells of its first line.

    >>> find_edge_columns(["year", "citing", "cited", "count"])
    EdgeColumns(citing=1, cited=2, strength=3, intents=-1, header=True, prefix='')
    >>> find_edge_columns(["a", "b"])
    EdgeColumns(citing=0, cited=1, strength=2, intents=-1, header=False, prefix='')
    """
    ends = next((pair for pair in CITATION_HEADS if set(pair) <= set(header)), None)
    if ends is None:
        return EdgeColumns()
    strength, intents = (
        next((header.index(name) for name in names if name in header), -1) for names in (STRENGTHS, INTENTS)
    )
    places = header.index(ends[0]), header.index(ends[1]), strength, intents
    return EdgeColumns(*places, header=True, prefix=id_prefix(ends[0]))


def id_prefix(name: str) -> str:
    """Return the prefix of the numbers in a column: columns named after Semantic Scholar's corpus ids hold those.

    >>> id_prefix("citingcorpusid"), id_prefix("citing")
    ('s2:', '')
    """
    return "s2:" if "corpus" in name else ""


def has_unknown_header(lines: list[bytes], delimiter: bytes) -> bool:
    r"""Return whether the first line is a header of unknown words: no digits in it, and only numbers below.

    >>> has_unknown_header([b"src\tdst", b"1\t2", b"3\t4"], b"\t"), has_unknown_header([b"a\tb", b"c\td"], b"\t")
    (True, False)
    """
    rows = [[cell.strip() for cell in line.split(delimiter)[:2]] for line in lines[:_HEADER_LINES] if line.strip()]
    wordy = len(rows) > 1 and not any(byte in b"0123456789" for byte in b"".join(rows[0]))
    return wordy and all(cell.isdigit() for row in rows[1:] for cell in row)


def strip_comments(data: bytes) -> tuple[bytes, int]:
    r"""Return a table without the lines at its top that begin with #, and how many of those there are.

    >>> strip_comments(b"# Nodes: 2\n# from\tto\n1\t2\n")
    (b'1\t2\n', 2)
    """
    data, comments = data.removeprefix(_UTF_8_MARK), 0
    while data.startswith(b"#"):
        data, comments = data.partition(b"\n")[2], comments + 1
    return data, comments


def read_edge_table(source: Source, columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[StagedRecord]:
    """Yield the citations of a table; quotes count only in comma-separated files, as tab-separated ones have none."""
    blocks, is_top = source.line_blocks(tally, _KIND), True
    for block in blocks:
        if is_top:
            block, comments = strip_comments(block)
            is_top = not block
            tally.note("line that begins with # at the top of a table, left out", comments)
            if columns.header and block:
                block = block.partition(b"\n")[2]
        if delimiter == b"," and b'"' in block:
            # a quoted cell may continue on the next line, so lines cannot be read one by one from here on
            later = (line for block in blocks for line in _lines(block))
            yield from _read_rows(chain(_lines(block), later), columns, delimiter, tally)
            return
        yield from _read_block(block, columns, delimiter, tally)


def _read_block(block: bytes, columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[StagedRecord]:
    scanned = scan_edges(block, columns, delimiter)
    good = scanned.read
    if good.any():
        strength = scanned.strength[good].astype(np.float32)
        strengths = None if (strength == 1.0).all() else strength
        yield NumberedCitations(columns.prefix, scanned.citing[good], scanned.cited[good], strength=strengths)
    remaining = np.flatnonzero(~good)
    lines = (block[scanned.starts[line] : scanned.ends[line] + 1] for line in remaining.tolist())
    yield from _read_rows(lines, columns, delimiter, tally)


def _lines(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block.removesuffix(b"\n").split(b"\n")]


def _read_rows(lines: Iterable[bytes], columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[Citation]:
    """Yield citations row by row, for lines of any shape."""
    for row in decode_rows(lines, delimiter, tally, _KIND):
        citing, cited, strength, intents = (
            row[at] if 0 <= at < len(row) else ""
            for at in (columns.citing, columns.cited, columns.strength, columns.intents)
        )
        citing, cited = clean_text(citing), clean_text(cited)
        if not citing or not cited:
            tally.reject(_KIND, "no citing paper" if not citing else "no cited paper")
            continue
        if columns.prefix:
            citing, cited = (columns.prefix + id if id.isdecimal() else id for id in (citing, cited))
        yield Citation(
            citing,
            cited,
            parse_intents(BETWEEN_INTENTS.split(intents) if intents else None),
            _strength(strength, tally),
        )


def decode_rows(lines: Iterable[bytes], delimiter: bytes, tally: Tally, kind: str) -> Iterator[list[str]]:
    """Yield the cells of CSV rows that are not empty, decoded from bytes."""
    texts = (decode_line(line, tally).replace("\0", "") for line in lines)
    return read_csv_rows(texts, delimiter.decode(), tally, kind)


def _strength(cell: str, tally: Tally) -> float:
    """Return the strength in a cell, 1 where it is empty or not a number: a word there names the kind of link."""
    if not cell.strip():
        return 1.0
    try:
        value = float(cell)
    except ValueError:
        tally.note("third column of citations is not a number, strength 1 taken")
        return 1.0
    return value if math.isfinite(value) and 0 <= value < 1e9 else 1.0


# Compiled scan of tables whose ids are numbers.

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_MAX_UNUSED_CELL = 1000
_NEWLINE, _RETURN, _POINT, _ZERO = 10, 13, 46, 48


@dataclass(frozen=True, slots=True)
class EdgeColumns:
    """Which column of a citation table holds what; -1 for none."""

    citing: int = 0
    cited: int = 1
    strength: int = 2
    intents: int = -1
    header: bool = False
    """The first line names the columns."""

    prefix: str = ""
    """Put before ids that are numbers."""


@dataclass(frozen=True, slots=True)
class ScannedEdges:
    """The citations in one block of lines of an edge table; arrays over lines."""

    read: Mask
    """False for lines left to the ordinary reader."""
    citing: Longs
    cited: Longs
    strength: Floats
    starts: Longs
    ends: Longs


def scan_edges(block: bytes, columns: EdgeColumns, delimiter: bytes) -> ScannedEdges:
    """Scan a block of lines of a citation table with compiled code."""
    data = np.frombuffer(block, np.uint8)
    lines = int(np.count_nonzero(data == _NEWLINE)) + (not block.endswith(b"\n"))
    read, strength = np.zeros(lines, np.bool_), np.ones(lines, np.float64)
    numbers, spans = np.zeros((2, lines), np.int64), np.zeros((2, lines), np.int64)
    places = np.array([columns.citing, columns.cited, columns.strength, columns.intents])
    _scan(data, places, delimiter[0], read, numbers, strength, spans)
    return ScannedEdges(read, numbers[0], numbers[1], strength, spans[0], spans[1])


@compiled()
def _integer(data: Bytes, start: int, end: int) -> int:
    """Return the integer in a cell in its canonical spelling; -1 for any other cell."""
    if end == start or end - start > 18 or (data[start] == _ZERO and end - start > 1):
        return -1
    value = 0
    for at in range(start, end):
        digit = int(data[at]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@compiled()
def _decimal(data: Bytes, start: int, end: int) -> float:
    """Return a strength such as 3 or 2.5, exactly: digits over a power of ten; -1 for any other spelling."""
    if end - start > 15:
        return -1.0
    value, scale, behind, digits = 0, 1.0, False, 0
    for at in range(start, end):
        if data[at] == _POINT and not behind:
            behind = True
            continue
        digit = int(data[at]) - _ZERO
        if digit < 0 or digit > 9:
            return -1.0
        value, digits = value * 10 + digit, digits + 1
        if behind:
            scale *= 10.0
    result = value / scale
    return result if digits and result < 1e9 else -1.0


@compiled()
def _is_harmless(data: Bytes, start: int, end: int) -> bool:
    """Return whether an unused cell is harmless: neither long nor with control characters."""
    worst = 32
    for at in range(start, min(end, start + _MAX_UNUSED_CELL)):
        worst = min(worst, int(data[at]))
    return worst >= 32 and end - start <= _MAX_UNUSED_CELL


@compiled()
def _read_cell(
    data: Bytes, start: int, end: int, column: int, places: Longs, line: int, numbers: Longs, strength: Floats
) -> bool:
    """Read one cell of a line; return False where the line must be left to the ordinary reader."""
    if column == places[0] or column == places[1]:
        value = _integer(data, start, end)
        numbers[0 if column == places[0] else 1, line] = value
        return value >= 0
    if column == places[2] and end > start:
        strength[line] = _decimal(data, start, end)
        return bool(strength[line] >= 0)
    if column == places[3]:
        return end == start
    return _is_harmless(data, start, end)


@compiled()
def _scan(
    data: Bytes, places: Longs, delimiter: int, read: Mask, numbers: Longs, strength: Floats, spans: Longs
) -> None:
    at, size = 0, len(data)
    last = max(places[0], places[1])
    for line in range(len(read)):
        spans[0, line] = cell = at
        column, good = 0, True
        while True:
            is_end = at >= size or data[at] == _NEWLINE
            if is_end or data[at] == delimiter:
                end = at - 1 if is_end and at > cell and data[at - 1] == _RETURN else at
                good = good and _read_cell(data, cell, end, column, places, line, numbers, strength)
                column, cell = column + 1, at + 1
                if is_end:
                    break
            at += 1
        spans[1, line] = min(at, size)
        at += 1
        read[line] = good and column > last
        if not read[line]:
            strength[line] = 1.0
