"""Rows of broken CSV files: none lost, in linear time and bounded memory."""

import pytest

from citeweave.core.progress import Tally
from citeweave.corpus.readers import edge_tables

OPENS = 'x","\n'
"""Opens a cell that the next line of this kind closes, and opens the next one."""


def read(lines: list[str]) -> tuple[list[list[str]], int]:
    tally = Tally()
    rows = list(edge_tables.read_csv_rows(lines, ",", tally, "papers"))
    return rows, sum(tally.counts["papers"].rejected.values())


def test_rows_after_broken_ones_are_read():
    rows, rejected = read(['a,"open\n', 'b,"two\n', 'lines"\n', "c,d\n"])
    assert ["c", "d"] in rows and rejected >= 1
    # without a bound this takes hours: every line would be read again for every line before it
    assert read([OPENS] * 200_000 + ["a,b\n"]) == ([["a", "b"]], 200_000)


@pytest.mark.parametrize(
    "lines",
    [['a,"open\n'] * 3000, ['a,"open\n', *['b,""\n'] * 3000], ['a,"open\n', 'b,""\n'] * 1500, ['""",\n'] * 3000],
    ids=["open", "one open, then pairs", "open and pairs", "three"],
)
def test_lines_with_broken_quotes_are_read_a_few_times_only(lines, monkeypatch):
    requests, take = 0, edge_tables._CsvLines.__next__

    def counted(self):
        nonlocal requests
        requests += 1
        return str(take(self))

    monkeypatch.setattr(edge_tables._CsvLines, "__next__", counted)
    read(lines)
    assert requests <= 4 * 3000 + 10


def test_a_row_that_never_ends_is_not_kept_in_memory(monkeypatch):
    class RejectedError(Exception):
        """Stops a reader at the first row that it rejects."""

    def refuse(*_):
        raise RejectedError

    monkeypatch.setattr(edge_tables, "MAX_ROW", 10_000)
    monkeypatch.setattr(Tally, "reject", refuse)
    handed_out: list[str] = []
    lines = (handed_out.append(OPENS) or OPENS for _ in range(50_000))
    with pytest.raises(RejectedError):
        next(edge_tables.read_csv_rows(lines, ",", Tally(), "papers"))
    assert len(handed_out) * len(OPENS) < 11_000
