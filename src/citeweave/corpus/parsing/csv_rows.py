"""The rows of a CSV file, one by one, none of them lost to a quote that another forgot to close.

    id,title
    a,"never closed        one rejected row; without this, a cell of all that follows
    b,two                  a row

A cell in quotes may hold line ends. Where the quotes of such a row are broken or never closed, its first line is rejected
and the others are read again as rows of their own. Does not know headers; see `plain.py` and `edge_tables.py`.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator

from citeweave.tally import Tally

MAX_CELL = 2**24
MAX_ROW = 2**26
"""Most characters of a row: one whose cells are closed and opened again on every line has no long cell."""

MAX_REREAD = 2**26
"""Characters of broken rows that are read again as rows of several lines; beyond, every such line is a row of its own."""

TOO_LONG = f"cell longer than {MAX_CELL >> 20} MiB or broken quotes"
BROKEN = "quotes that are broken or never closed"


class _Tabs(csv.excel_tab):
    quoting = csv.QUOTE_NONE


def rows_of_lines(lines: Iterable[str], delimiter: str, tally: Tally, kind: str) -> Iterator[list[str]]:
    r"""Cells of the rows that are not empty; a row that cannot be read is counted under `kind`.

    >>> tally = Tally()
    >>> list(rows_of_lines(['a,"never closed\n', "b,two\n"], ",", tally, "papers")), tally.counts["papers"].rejected
    ([['b', 'two']], {'quotes that are broken or never closed': 1})
    """
    csv.field_size_limit(MAX_CELL)
    source = _Lines(lines)
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


class _Lines:
    """Lines for a csv reader, which remembers those of the current row and takes them back."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._waiting = iter(lines), deque[str]()
        self.taken: list[str] = []
        self._ended = False
        self._size = self._reread = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.taken and (self._size > MAX_ROW or (self._waiting and self._reread > MAX_REREAD)):
            raise csv.Error("the row is too long, or of lines that were read often enough")
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
        """Whether the row has several lines, or the file ended inside it."""
        return len(self.taken) > 1 or self._ended

    def give_back(self) -> None:
        """All lines of the row but its first are lines to be read again."""
        self._waiting.extendleft(reversed(self.taken[1:]))
        self._reread += self._size


def _is_one_row(lines: list[str], dialect: type[csv.Dialect]) -> bool:
    try:
        return len(list(csv.reader(lines, dialect, strict=True))) == 1
    except csv.Error:
        return False
