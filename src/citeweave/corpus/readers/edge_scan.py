r"""Reads tables of numbered citations straight from bytes, without making a Python object of any line.

    >>> scanned = scan_edges(b"7\t42\n7\tx\n8\t42\t2.5\n", EdgeColumns(), b"\t")
    >>> scanned.read.tolist(), scanned.citing[scanned.read].tolist(), scanned.strength[scanned.read].tolist()
    ([True, False, True], [7, 8], [1.0, 2.5])

Lines whose ids are plain numbers are read by compiled code at the speed of memory; every other line (ids that are texts,
blanks around them, leading zeros, intents) is left to the ordinary reader, `edge_tables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_LONGEST_CELL = 1000
_NEWLINE, _RETURN, _POINT, _ZERO = 10, 13, 46, 48


@dataclass(frozen=True, slots=True)
class EdgeColumns:
    """Where a table has what; -1 for nowhere."""

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
    """The lines of one block; arrays over lines."""

    read: NDArray[np.bool_]
    """False for lines left to the ordinary reader."""
    citing: NDArray[np.int64]
    cited: NDArray[np.int64]
    strength: NDArray[np.float64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def scan_edges(block: bytes, columns: EdgeColumns, delimiter: bytes) -> ScannedEdges:
    """Read a block of whole lines."""
    data = np.frombuffer(block, np.uint8)
    lines = int(np.count_nonzero(data == _NEWLINE)) + (not block.endswith(b"\n"))
    read, strength = np.zeros(lines, np.bool_), np.ones(lines, np.float64)
    numbers, spans = np.zeros((2, lines), np.int64), np.zeros((2, lines), np.int64)
    places = np.array([columns.citing, columns.cited, columns.strength, columns.intents])
    _scan(data, places, delimiter[0], read, numbers, strength, spans)
    return ScannedEdges(read, numbers[0], numbers[1], strength, spans[0], spans[1])


@numba.njit(cache=True, nogil=True)
def _whole_number(data: Bytes, start: int, end: int) -> int:
    """The number that a cell is, in its only spelling; -1 for any other cell."""
    if end == start or end - start > 18 or (data[start] == _ZERO and end - start > 1):
        return -1
    value = 0
    for at in range(start, end):
        digit = int(data[at]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@numba.njit(cache=True, nogil=True)
def _decimal(data: Bytes, start: int, end: int) -> float:
    """A strength such as 3 or 2.5, exact: whole digits over a power of ten; -1 for any other spelling."""
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


@numba.njit(cache=True, nogil=True)
def _is_skipped(data: Bytes, start: int, end: int) -> bool:
    """Whether a cell that nobody asks for is harmless: neither long nor with control signs."""
    worst = 32
    for at in range(start, min(end, start + _LONGEST_CELL)):
        worst = min(worst, int(data[at]))
    return worst >= 32 and end - start <= _LONGEST_CELL


@numba.njit(cache=True, nogil=True)
def _read_cell(
    data: Bytes,
    start: int,
    end: int,
    column: int,
    places: NDArray[np.int64],
    line: int,
    numbers: NDArray[np.int64],
    strength: NDArray[np.float64],
) -> bool:
    """Take one cell of a line; False where the line has to be left."""
    if column == places[0] or column == places[1]:
        value = _whole_number(data, start, end)
        numbers[0 if column == places[0] else 1, line] = value
        return value >= 0
    if column == places[2] and end > start:
        strength[line] = _decimal(data, start, end)
        return bool(strength[line] >= 0)
    if column == places[3]:
        return end == start
    return _is_skipped(data, start, end)


@numba.njit(cache=True, nogil=True)
def _scan(
    data: Bytes,
    places: NDArray[np.int64],
    delimiter: int,
    read: NDArray[np.bool_],
    numbers: NDArray[np.int64],
    strength: NDArray[np.float64],
    spans: NDArray[np.int64],
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
