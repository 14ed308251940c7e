"""The table in benchmarks/results.md: everything that the benchmark suite measured.

    build_table([record, ...])             Markdown; a record is what `run_all.py` keeps of a benchmark
    write_page(page, [record, ...])     the same between the markers of a page

Computes nothing: ratios and exponents come with the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- suite: begin -->", "<!-- suite: end -->"
HEAD = ("", "CPU s", "wall s", "peak MiB", "ratio", "")
KNOWN = ("label", "cpu", "wall", "peak", "ratio", "remark")


def build_table(records: Sequence[Mapping[str, Any]]) -> str:
    """All figures, benchmark by benchmark; date and machine stand where they differ from those above.

    >>> print(build_table([{"command": "a.py", "date": "d", "machine": "m", "versions": "", "tables": [
    ...     {"title": "t", "rows": [{"label": "x", "cpu": 2.0, "ratio": 1.5, "growth": 1.02}]}]}]))
    | | CPU s | wall s | peak MiB | ratio | |
    |---|---|---|---|---|---|
    | **`a.py`**: t | | | | | d, m |
    | x | 2.00 | | | 1.50 | growth 1.02 |
    """
    lines, said = [_line(HEAD), f"|{'---|' * len(HEAD)}"], ""
    for record in records:
        about = f"{record['date']}, {record['machine']}"
        for table in record["tables"]:
            title = f"**`{record['command'].removeprefix('python ')}`**: {table['title']}"
            lines.append(_line([title, *[""] * 4, "" if about == said else about]))
            said = about
            lines += [_line(_cells(row)) for row in table["rows"]]
    return "\n".join(lines)


def write_page(page: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace what stands between the markers; add both at the end where the page has none."""
    text = page.read_text()
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n\n{build_table(records)}\n\n{END}{after}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    peak = row.get("peak")
    numbers = [_number(row.get(name)) for name in ("cpu", "wall")]
    others = [f"{name} {_number(value)}" for name, value in row.items() if name not in KNOWN and value is not None]
    remark = ", ".join(part for part in (str(row.get("remark") or ""), *others) if part)
    return [
        str(row["label"]).strip(),
        *numbers,
        "" if peak is None else f"{peak / 2**20:,.0f}",
        _number(row.get("ratio")),
        remark,
    ]


def _number(value: Any) -> str:
    """
    >>> _number(None), _number(0.00123), _number(12.3456), _number(12345.6), _number("of it")
    ('', '0.0012', '12.35', '12,346', 'of it')
    """
    if value is None or isinstance(value, str):
        return value or ""
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell.replace('|', '/')} |" if cell else " |" for cell in cells)
