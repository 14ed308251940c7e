"""Rows of broken CSV files: none lost, in linear time and bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from citeweave.core.progress import Tally
from citeweave.corpus.readers import edge_tables

OPENS = 'x","\n'
"""Opens a cell that the next line of this kind closes, and opens the next one."""


def read(lines: Iterator[str] | list[str]) -> tuple[list[list[str]], dict[str, int]]:
    tally = Tally()
    return list(edge_tables.read_csv_rows(lines, ",", tally, "papers")), tally.counts["papers"].rejected


def test_many_open_quotes_are_read_a_bounded_number_of_times() -> None:
    """Without the bound this takes hours: every line would be read again for every line before it."""
    rows, rejected = read([OPENS] * 200_000 + ["a,b\n"])
    assert rows == [["a", "b"]] and sum(rejected.values()) == 200_000


def test_a_row_that_never_ends_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_tables, "MAX_ROW", 10_000)
    handed_out: list[str] = []
    lines = (handed_out.append(OPENS) or OPENS for _ in range(50_000))
    found = edge_tables.read_csv_rows(lines, ",", Tally(), "papers")
    monkeypatch.setattr(Tally, "reject", _refuse)
    with pytest.raises(_RejectedError):
        next(found)
    assert len(handed_out) * len(OPENS) < 11_000


class _RejectedError(Exception):
    """Stops a reader at the first row that it rejects."""


def _refuse(tally: Tally, kind: str, reason: str, number: int = 1) -> None:
    raise _RejectedError(reason)


def test_rows_of_several_lines_after_a_broken_one_are_read() -> None:
    rows, rejected = read(['a,"open\n', 'b,"two\n', 'lines"\n', "c,d\n"])
    assert ["c", "d"] in rows and sum(rejected.values()) >= 1
