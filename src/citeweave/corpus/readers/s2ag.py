"""Semantic Scholar Academic Graph (S2AG) bulk datasets: papers, abstracts, citations, paper ids, TLDRs.

    papers     {"corpusid": 1, "externalids": {"DOI": "10.1/x", ...}, "title": "T", "year": 2018, ...}
    abstracts  {"corpusid": 1, "abstract": "...", "openaccessinfo": {"externalids": {...}}}
    citations  {"citingcorpusid": 1, "citedcorpusid": 2, "isinfluential": false, "contexts": [...], "intents": [...]}
    paper-ids  {"corpusid": 1, "sha": "40 hex digits", "primary": true}
    tldrs      {"corpusid": 1, "text": "..."}

Each dataset is recognized by its keys. Citations may have strings or numbers as ids, no cited paper at all, null contexts,
and intents either for the citation or, in newer releases, a list for every context. Citation lines of the usual shape are
read by compiled code at the speed of memory, without a Python object for any of them; every other line (nested intents,
odd ids, broken JSON) is left to the ordinary reader, which gives the same result for lines that both can read.

Full texts (`s2orc`) have a reader of their own; `embeddings` are vectors and not papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.hash_keys import hash_numbers
from citeweave.core.inputs import BadRecordError, FileHead, Source, parse_json_object, read_json_lines
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, number_id, semantic_scholar_ids, sha_id
from citeweave.corpus.paper import (
    Citation,
    CitationBlock,
    Context,
    ContextBlock,
    Intent,
    Paper,
    StagedRecord,
    parse_intents,
)
from citeweave.corpus.plain_text import clean_text, count_of, day_of, names_of, year_of
from citeweave.corpus.readers.json_records import (
    BACKSLASH,
    CLOSE,
    COLON,
    COMMA,
    OPEN,
    QUOTE,
    Bytes,
    clean_string,
    first_text,
    is_word,
    line_end,
    literal,
    names_at,
    skip_blanks,
    skip_value,
    string_end,
    value_at,
    word_at,
)
from citeweave.corpus.readers.paper_records import accepted

NO_ID = -1
_READ = np.uint8(1)
_KEYS = [b'--------"', b'citingcorpusid"', b'citedcorpusid"', b'isinfluential"', b'contexts"', b'intents"']
"""The wanted keys with their closing quotes, by code; 0 means any other."""
_KEY_HEADS = np.array([int.from_bytes(key[:8], "little") for key in _KEYS], np.uint64)
_KEY_TAILS = np.array([int.from_bytes(key[-8:], "little") for key in _KEYS], np.uint64)
_KEY_SIZES = np.array([len(key) for key in _KEYS], np.int64)
_INTENT_WORDS = tuple(np.frombuffer(word, np.uint8) for word in (b"background", b"methodology", b"result"))


@dataclass(frozen=True, slots=True)
class ScannedCitations:
    """Citations and contexts that compiled code read from one block of lines; arrays over lines unless noted."""

    read: NDArray[np.bool_]
    """False for lines left to the ordinary reader."""
    citing: NDArray[np.int64]
    cited: NDArray[np.int64]
    influential: NDArray[np.bool_]
    intents: NDArray[np.uint8]
    context_line: NDArray[np.int64]
    """Line of every context. Shape (contexts,)."""
    context_length: NDArray[np.int64]
    context_bytes: Bytes


def scan_citations(block: bytes) -> tuple[ScannedCitations, NDArray[np.int64], NDArray[np.int64]]:
    """Scan a block of lines of S2AG's `citations` dataset with compiled code; also return where each line starts and ends."""
    data = np.frombuffer(block, np.uint8)
    lines = int(np.count_nonzero(data == 10)) + (not block.endswith(b"\n"))
    starts, ends = np.empty(lines, np.int64), np.empty(lines, np.int64)
    numbers = np.empty((2, lines), np.int64)
    small = np.zeros((3, lines), np.uint8)  # read, influential, intents
    texts = np.empty(len(data), np.uint8)
    # a context takes two quotes and a comma or bracket, so there are at most a third as many as bytes
    spans = np.empty((2, len(data) // 3 + 1), np.int64)  # line, length
    count = _scan(data, starts, ends, numbers, small, texts, spans)
    line_of, length_of = spans[0, :count].copy(), spans[1, :count].copy()
    total = int(length_of.sum())
    scanned = ScannedCitations(
        small[0] == _READ, numbers[0], numbers[1], small[1] == 1, small[2], line_of, length_of, texts[:total]
    )
    return scanned, starts, ends


@compiled()
def _id_value(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read an id (number, digits in quotes or null) and the position after it; position -1 if it is none of these."""
    if data[at] == 110:
        return NO_ID, literal(data, at, end)
    quoted = data[at] == QUOTE
    if quoted:
        at += 1
    value, start = 0, at
    while at < end and 48 <= data[at] <= 57 and at - start < 18:
        value = value * 10 + int(data[at]) - 48
        at += 1
    if at == start or at >= end or (data[start] == 48 and at - start > 1 and not quoted):
        return NO_ID, -1
    if quoted:
        return (value, at + 1) if data[at] == QUOTE else (NO_ID, -1)
    plain = data[at] == COMMA or data[at] == 125 or data[at] == 32
    return (value, at) if plain else (NO_ID, -1)


@compiled()
def _intent_bit(data: Bytes, start: int, end: int) -> int:
    """Return the bit of one of the three intents of Semantic Scholar, 0 for an empty word, -1 for any other."""
    if end == start:
        return 0
    for code in range(3):
        if is_word(data, start, end, _INTENT_WORDS[code]):
            return 1 << code
    return -1


@compiled()
def _intents_value(data: Bytes, at: int, end: int) -> tuple[int, int]:
    if data[at] == 110:
        return 0, literal(data, at, end)
    if data[at] != OPEN:
        return 0, -1
    mask = 0
    at = skip_blanks(data, at + 1, end)
    if at < end and data[at] == CLOSE:
        return 0, at + 1
    while at < end and data[at] == QUOTE:
        close = string_end(data, at + 1, end)
        if close < 0:
            return 0, -1
        bit = _intent_bit(data, at + 1, close)
        if bit < 0:
            return 0, -1
        mask |= bit
        at = skip_blanks(data, close + 1, end)
        if at < end and data[at] == CLOSE:
            return mask, at + 1
        if at >= end or data[at] != COMMA:
            return 0, -1
        at = skip_blanks(data, at + 1, end)
    return 0, -1


@compiled()
def _contexts_value(
    data: Bytes, at: int, end: int, texts: Bytes, out: int, spans: Any, count: int
) -> tuple[int, int, int]:
    """Write the strings of an array; return the positions after it in `texts`, `spans` and `data`, the last -1 to leave it."""
    if data[at] == 110:
        return out, count, literal(data, at, end)
    if data[at] != OPEN:
        return out, count, -1
    at = skip_blanks(data, at + 1, end)
    if at < end and data[at] == CLOSE:
        return out, count, at + 1
    while at < end and data[at] == QUOTE:
        before = out
        out, at = clean_string(data, at + 1, end, texts, out)
        if at < 0:
            return out, count, -1
        spans[1, count] = out - before
        count += 1
        at = skip_blanks(data, at, end)
        if at < end and data[at] == CLOSE:
            return out, count, at + 1
        if at >= end or data[at] != COMMA:
            return out, count, -1
        at = skip_blanks(data, at + 1, end)
    return out, count, -1


@compiled()
def _key(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return which citation key starts here (0 for one that is not wanted) and the position after its quote, or -1."""
    if at + 15 < end:
        first = word_at(data, at)
        for code in range(1, len(_KEY_HEADS)):
            if first == _KEY_HEADS[code]:
                after = at + _KEY_SIZES[code]
                if word_at(data, after - 8) == _KEY_TAILS[code]:
                    return code, after
    close = string_end(data, at, end)
    for i in range(at, close):
        if data[i] == BACKSLASH:
            return 0, -1  # may be a wanted key spelled with escapes
    return 0, close + 1 if close >= 0 else -1


@compiled()
def _scan_line(
    data: Bytes, at: int, end: int, line: int, numbers: Any, small: Any, texts: Bytes, out: int, spans: Any, count: int
) -> tuple[int, int, int]:
    """Scan one citation object; return the positions after it in `texts`, `spans` (-1 to leave the line) and `data`."""
    start = at
    at = skip_blanks(data, at, end)
    if at >= end or data[at] != 123:
        return out, -1, start
    seen = 0
    at = skip_blanks(data, at + 1, end)
    while at < end and data[at] == QUOTE:
        code, at = _key(data, at + 1, end)
        if at < 0:
            return out, -1, start
        at = skip_blanks(data, at, end)
        if at >= end or data[at] != COLON:
            return out, -1, start
        at = skip_blanks(data, at + 1, end)
        if at >= end or (code and seen & (1 << code)):
            return out, -1, start
        seen |= 1 << code
        if code == 1 or code == 2:
            numbers[code - 1, line], at = _id_value(data, at, end)
        elif code == 3:
            small[1, line] = data[at] == 116
            at = literal(data, at, end)
        elif code == 4:
            out, count, at = _contexts_value(data, at, end, texts, out, spans, count)
        elif code == 5:
            small[2, line], at = _intents_value(data, at, end)
        else:
            at = skip_value(data, at, end)
        if at < 0:
            return out, -1, start
        at = skip_blanks(data, at, end)
        if at < end and data[at] == 125:
            after = skip_blanks(data, at + 1, end)
            is_complete = (after == end or data[after] == 10) and seen & 6 == 6
            return out, count if is_complete else -1, after
        if at >= end or data[at] != COMMA:
            return out, -1, start
        at = skip_blanks(data, at + 1, end)
    return out, -1, start


@compiled()
def _scan(data: Bytes, starts: Any, ends: Any, numbers: Any, small: Any, texts: Bytes, spans: Any) -> int:
    """Scan every line; contexts go to `texts`, their lines and lengths to `spans`; return the number of contexts."""
    at, out, count = 0, 0, 0
    for line in range(len(starts)):
        starts[line] = at
        numbers[0, line] = numbers[1, line] = NO_ID
        after, last, at = _scan_line(data, at, len(data), line, numbers, small, texts, out, spans, count)
        if last < 0:
            small[1, line] = small[2, line] = 0
        else:
            small[0, line] = 1
            spans[0, count:last] = line
            out, count = after, last
        ends[line] = line_end(data, at)
        at = ends[line] + 1
    return count


# From lines to records.

_PREFIX = "s2:"


def recognizes(head: FileHead) -> bool:
    """Return whether a file is a Semantic Scholar bulk dataset of papers, abstracts, citations, ids or TLDRs."""
    record = head.record or {}
    is_full_text = "body" in record or "content" in record
    is_known = "corpusid" in record and any(key in record for key in _KEYS_OF_PAPERS) and not is_full_text
    return _is_citation(record) or is_known


def read(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    """Yield the records of a Semantic Scholar bulk dataset."""
    if _is_citation(source.head().record or {}):
        yield from _read_citations(source, tally)
        return
    for record in read_json_lines(source, tally, "papers"):
        paper = _paper(record)
        if (paper is not None and paper.stub) or accepted(paper, tally):
            yield paper


_KEYS_OF_PAPERS = ("title", "abstract", "sha", "text")
"""Of papers, abstracts, paper ids and TLDRs."""


def _is_citation(record: dict[str, object]) -> bool:
    return "citingcorpusid" in record and "citedcorpusid" in record


def _paper(record: dict[str, object]) -> Paper | None:
    id = number_id("s2", record.get("corpusid"))
    if id is None:
        return None
    if "sha" in record:
        return Paper(id, ids=distinct([sha_id(record["sha"])]), stub=True)
    if "text" in record and "title" not in record:
        return Paper(id, extra={"tldr": clean_text(record["text"])}, stub=True)
    external = record.get("externalids") or value_at(record, "openaccessinfo.externalids")
    return Paper(
        id=id,
        title=clean_text(record.get("title")),
        abstract=clean_text(record.get("abstract")),
        year=year_of(record.get("year")) or year_of(record.get("publicationdate")),
        venue=first_text(record, "venue", "journal.name"),
        authors=names_at(record, "authors[].name"),
        fields=names_at(record, "s2fieldsofstudy[].category"),
        ids=tuple(other for other in semantic_scholar_ids(external) if other != id),
        citation_count=count_of(record.get("citationcount")),
        updated=day_of(record.get("updated")),
        extra={"types": types} if (types := names_of(record.get("publicationtypes"))) else {},
    )


def _read_citations(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    for block in source.line_blocks(tally, "citations"):
        if not _is_utf8(block):
            # compiled code requires valid UTF-8; a block with one bad byte is read line by line
            for line in block.split(b"\n"):
                yield from _read_line(line.strip(), tally)
            continue
        scanned, starts, ends = scan_citations(block)
        yield from _blocks(scanned, tally)
        for number in np.flatnonzero(~scanned.read).tolist():
            yield from _read_line(block[starts[number] : ends[number]].strip(), tally)


def _is_utf8(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _blocks(scanned: ScannedCitations, tally: Tally) -> Iterator[StagedRecord]:
    """Yield the citations and contexts of the lines that compiled code read."""
    read, citing, cited = scanned.read, scanned.citing, scanned.cited
    good = read & (citing != NO_ID) & (cited != NO_ID)
    _reject_citations(tally, int((read & (citing == NO_ID)).sum()), int((read & (citing != NO_ID) & ~good).sum()))
    lines = np.flatnonzero(good)
    if len(lines):
        yield CitationBlock(
            hash_numbers(_PREFIX, citing[lines]),
            hash_numbers(_PREFIX, cited[lines]),
            scanned.intents[lines],
            np.ones(len(lines), np.float32),
            scanned.influential[lines],
            lambda: (_ids(citing[lines]), _ids(cited[lines])),
        )
    yield from _context_blocks(scanned, good, tally)


def _context_blocks(scanned: ScannedCitations, good: NDArray[np.bool_], tally: Tally) -> Iterator[ContextBlock]:
    read, line, length = scanned.read, scanned.context_line, scanned.context_length
    chosen = good[line] & (length > 0)
    tally.reject("contexts", "citation without both papers", int((read[line] & ~good[line]).sum()))
    tally.reject("contexts", "no text", int((good[line] & (length == 0)).sum()))
    if not chosen.any():
        return
    bytes_kept = scanned.context_bytes if chosen.all() else scanned.context_bytes[np.repeat(chosen, length)]
    # intents belong to the citation: it is not known which of several contexts they are about
    alone = np.bincount(line, minlength=len(read))[line] == 1
    intents = np.where(alone, scanned.intents[line], 0).astype(np.uint8)
    line = line[chosen]
    yield ContextBlock(
        hash_numbers(_PREFIX, scanned.citing[line]),
        (length[chosen], bytes_kept),
        np.ones(len(line), np.int64),
        hash_numbers(_PREFIX, scanned.cited[line]),
        intents[chosen],
    )


def _ids(numbers: NDArray[np.int64]) -> list[str]:
    return [f"{_PREFIX}{number}" for number in numbers.tolist()]


def _reject_citations(tally: Tally, without_citing: int, without_cited: int) -> None:
    tally.reject("citations", "no citing paper", without_citing)
    tally.reject("citations", "no cited paper", without_cited)


def _read_line(line: bytes, tally: Tally) -> Iterator[Citation | Context]:
    """Read one citation line of any shape, with the same result as the compiled code."""
    line = line.removeprefix(b"\xef\xbb\xbf")
    if not line:
        return
    try:
        record = parse_json_object(line)
    except BadRecordError as error:
        tally.reject("citations", str(error))
        return
    contexts = record.get("contexts")
    texts = [clean_text(text) for text in contexts] if isinstance(contexts, list) else []
    citing, cited = number_id("s2", record.get("citingcorpusid")), number_id("s2", record.get("citedcorpusid"))
    if citing is None or cited is None:
        _reject_citations(tally, int(citing is None), int(citing is not None))
        tally.reject("contexts", "citation without both papers", len(texts))
        return
    influential = record.get("isinfluential") is True
    yield Citation(citing, cited, parse_intents(record.get("intents")), influential=influential)
    for text, intents in zip(texts, _context_intents(record.get("intents"), len(texts)), strict=True):
        if text:
            yield Context(citing, text, (cited,), intents=intents)
        else:
            tally.reject("contexts", "no text")


def _context_intents(intents: object, contexts: int) -> list[Intent]:
    """Return the intents of every context: its own list, or those of the citation where it has one context."""
    if isinstance(intents, list) and len(intents) == contexts and any(isinstance(one, list) for one in intents):
        return [parse_intents(one) for one in intents]
    return [parse_intents(intents) if contexts == 1 else Intent.UNKNOWN] * contexts
