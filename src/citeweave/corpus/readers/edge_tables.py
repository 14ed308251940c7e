"""Tables of citations with one citation a line: tab-separated or comma-separated, with or without a header.

    citing TAB cited [TAB strength]
    citing,cited,count,intents          a header may name the columns in any order

Lines whose two ids are whole numbers go by compiled code (`edge_scan.py`), all others one by one. Does not tell a table
of citations from one of papers; `plain.py` does.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from citeweave.corpus.cleaning import clean_text
from citeweave.corpus.paper import Citation, NumberedCitations, StagedRecord, parse_intents
from citeweave.corpus.readers.edge_scan import EdgeColumns, scan_edges
from citeweave.opening import Source
from citeweave.tally import Tally

CITATION_HEADS = (("citing", "cited"), ("source", "target"), ("from", "to"), ("citing_id", "cited_id"))
STRENGTHS = ("strength", "weight", "count", "mentions")
INTENTS = ("intents", "intent")
_KIND = "citations"
_MAX_CELL = 2**24
_BETWEEN_INTENTS = re.compile(r"[|;,]")


def columns_of(header: list[str]) -> EdgeColumns:
    """Where a table has what, by the cells of its first line in small letters.

    >>> columns_of(["year", "citing", "cited", "count"])
    EdgeColumns(citing=1, cited=2, strength=3, intents=-1, header=True)
    >>> columns_of(["a", "b"])
    EdgeColumns(citing=0, cited=1, strength=2, intents=-1, header=False)
    """
    ends = next((pair for pair in CITATION_HEADS if set(pair) <= set(header)), None)
    if ends is None:
        return EdgeColumns()
    strength, intents = (
        next((header.index(name) for name in names if name in header), -1) for names in (STRENGTHS, INTENTS)
    )
    return EdgeColumns(header.index(ends[0]), header.index(ends[1]), strength, intents, header=True)


def read_edge_table(source: Source, columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[StagedRecord]:
    """The citations of a table; quotes are honoured in comma-separated files only, as tab-separated ones have none."""
    blocks = source.line_blocks(tally, _KIND)
    skip = columns.header
    for block in blocks:
        if skip:
            block, skip = block.partition(b"\n")[2], False
        if delimiter == b"," and b'"' in block:
            # a quoted cell may go on in the next line, so that lines cannot be read one by one from here on
            later = (line for block in blocks for line in _lines(block))
            yield from _read_rows(chain(_lines(block), later), columns, delimiter, tally)
            return
        yield from _read_block(block, columns, delimiter, tally)


def _read_block(block: bytes, columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[StagedRecord]:
    found = scan_edges(block, columns, delimiter)
    good = found.read
    if good.any():
        strength = found.strength[good].astype(np.float32)
        known = None if (strength == 1.0).all() else strength
        yield NumberedCitations("", found.citing[good], found.cited[good], strength=known)
    left = np.flatnonzero(~good)
    lines = (block[found.starts[line] : found.ends[line] + 1] for line in left.tolist())
    yield from _read_rows(lines, columns, delimiter, tally)


def _lines(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block.removesuffix(b"\n").split(b"\n")]


def _read_rows(lines: Iterable[bytes], columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[Citation]:
    """One citation after the other, for lines of any shape."""
    for row in rows_of(lines, delimiter, tally, _KIND):
        citing, cited, strength, intents = (
            row[at] if 0 <= at < len(row) else ""
            for at in (columns.citing, columns.cited, columns.strength, columns.intents)
        )
        citing, cited = clean_text(citing), clean_text(cited)
        if not citing or not cited:
            tally.reject(_KIND, "no citing paper" if not citing else "no cited paper")
            continue
        why = parse_intents(_BETWEEN_INTENTS.split(intents)) if intents else parse_intents(None)
        yield Citation(citing, cited, why, _strength(strength, tally))


def rows_of(lines: Iterable[bytes], delimiter: bytes, tally: Tally, kind: str) -> Iterator[list[str]]:
    """Cells of the rows that are not empty."""
    csv.field_size_limit(_MAX_CELL)
    texts = (_decode(line, tally).replace("\0", "") for line in lines)
    if delimiter == b"\t":
        reader = csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(texts, delimiter=",")
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            tally.reject(kind, f"cell longer than {_MAX_CELL >> 20} MiB or broken quotes")
            continue
        if any(cell.strip() for cell in row):
            yield row


def _decode(line: bytes, tally: Tally) -> str:
    line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.decode()
    except UnicodeDecodeError:
        tally.note("line is not UTF-8, read as Latin-1")
        return line.decode("cp1252", errors="replace")


def _strength(cell: str, tally: Tally) -> float:
    """A column of strengths where it holds a number; a word there names the kind of link and says no strength."""
    if not cell.strip():
        return 1.0
    try:
        value = float(cell)
    except ValueError:
        tally.note("third column of citations is not a number, strength 1 taken")
        return 1.0
    return value if math.isfinite(value) and 0 <= value < 1e9 else 1.0
