"""Tables of citations with one citation a line: tab-separated or comma-separated, with or without a header.

    citing TAB cited [TAB strength]
    citing,cited,count,intents          a header may name the columns in any order

Lines whose two ids are whole numbers go by compiled code (`edge_scan.py`), all others one by one. Does not tell a table
of citations from one of papers; `plain.py` does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from citeweave.corpus.cleaning import clean_text
from citeweave.corpus.paper import Citation, NumberedCitations, StagedRecord, parse_intents
from citeweave.corpus.parsing.csv_rows import rows_of_lines
from citeweave.corpus.readers.edge_scan import EdgeColumns, scan_edges
from citeweave.opening import Source
from citeweave.tally import Tally

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
_BETWEEN_INTENTS = re.compile(r"[|;,]")
_MARK = b"\xef\xbb\xbf"
_LOOKED_AT = 50


def columns_of(header: list[str]) -> EdgeColumns:
    """Where a table has what, by the cells of its first line in small letters.

    >>> columns_of(["year", "citing", "cited", "count"])
    EdgeColumns(citing=1, cited=2, strength=3, intents=-1, header=True, prefix='')
    >>> columns_of(["a", "b"])
    EdgeColumns(citing=0, cited=1, strength=2, intents=-1, header=False, prefix='')
    """
    ends = next((pair for pair in CITATION_HEADS if set(pair) <= set(header)), None)
    if ends is None:
        return EdgeColumns()
    strength, intents = (
        next((header.index(name) for name in names if name in header), -1) for names in (STRENGTHS, INTENTS)
    )
    places = header.index(ends[0]), header.index(ends[1]), strength, intents
    return EdgeColumns(*places, header=True, prefix=prefix_of(ends[0]))


def prefix_of(name: str) -> str:
    """What stands before the numbers of a column: columns named after Semantic Scholar's corpus ids hold those.

    >>> prefix_of("citingcorpusid"), prefix_of("citing")
    ('s2:', '')
    """
    return "s2:" if "corpus" in name else ""


def names_nothing_known(lines: list[bytes], delimiter: bytes) -> bool:
    r"""Whether the first of some lines is a header of other words: no digit in it, and all below are numbers.

    >>> names_nothing_known([b"src\tdst", b"1\t2", b"3\t4"], b"\t"), names_nothing_known([b"a\tb", b"c\td"], b"\t")
    (True, False)
    """
    rows = [[cell.strip() for cell in line.split(delimiter)[:2]] for line in lines[:_LOOKED_AT] if line.strip()]
    wordy = len(rows) > 1 and not any(byte in b"0123456789" for byte in b"".join(rows[0]))
    return wordy and all(cell.isdigit() for row in rows[1:] for cell in row)


def without_comments(data: bytes) -> tuple[bytes, int]:
    r"""The rest after lines that begin with # at the top of a table, and how many of those there are.

    >>> without_comments(b"# Nodes: 2\n# from\tto\n1\t2\n")
    (b'1\t2\n', 2)
    """
    data, comments = data.removeprefix(_MARK), 0
    while data.startswith(b"#"):
        data, comments = data.partition(b"\n")[2], comments + 1
    return data, comments


def read_edge_table(source: Source, columns: EdgeColumns, delimiter: bytes, tally: Tally) -> Iterator[StagedRecord]:
    """The citations of a table; quotes are honoured in comma-separated files only, as tab-separated ones have none."""
    blocks, is_top = source.line_blocks(tally, _KIND), True
    for block in blocks:
        if is_top:
            block, comments = without_comments(block)
            is_top = not block
            tally.note("line that begins with # at the top of a table, left out", comments)
            if columns.header and block:
                block = block.partition(b"\n")[2]
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
        yield NumberedCitations(columns.prefix, found.citing[good], found.cited[good], strength=known)
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
        if columns.prefix:
            citing, cited = (columns.prefix + id if id.isdecimal() else id for id in (citing, cited))
        why = parse_intents(_BETWEEN_INTENTS.split(intents)) if intents else parse_intents(None)
        yield Citation(citing, cited, why, _strength(strength, tally))


def rows_of(lines: Iterable[bytes], delimiter: bytes, tally: Tally, kind: str) -> Iterator[list[str]]:
    """Cells of the rows that are not empty."""
    texts = (_decode(line, tally).replace("\0", "") for line in lines)
    return rows_of_lines(texts, delimiter.decode(), tally, kind)


def _decode(line: bytes, tally: Tally) -> str:
    line = line.removeprefix(_MARK)
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
