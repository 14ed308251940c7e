"""Semantic Scholar Academic Graph bulk datasets: shards of JSON lines.

Reads `papers`, `abstracts`, `citations`, `paper-ids` and `tldrs`; each is told by its keys. Full texts
(`s2orc`) have a reader of their own, `embeddings` are vectors and not papers.

    papers     {"corpusid": 1, "externalids": {"DOI": "10.1/x", ...}, "title": "T", "year": 2018, ...}
    abstracts  {"corpusid": 1, "abstract": "...", "openaccessinfo": {"externalids": {...}}}
    citations  {"citingcorpusid": 1, "citedcorpusid": 2, "isinfluential": false, "contexts": [...], "intents": [...]}
    paper-ids  {"corpusid": 1, "sha": "40 hex digits", "primary": true}
    tldrs      {"corpusid": 1, "text": "..."}

Citations may have strings or numbers as ids, no cited paper at all, null contexts, and intents either
for the citation or, in newer releases, a list for every context.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.cleaning import clean_text, count_of, day_of, names_of, year_of
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
from citeweave.corpus.readers.citation_scan import NO_ID, Scanned, scan_citations
from citeweave.hashing import hash_numbers
from citeweave.opening import BadRecordError, Head, Source, parse_json_object, read_json_lines
from citeweave.tally import Tally

_PREFIX = "s2:"


def recognises(head: Head) -> bool:
    record = head.record or {}
    is_full_text = "body" in record or "content" in record
    is_known = "corpusid" in record and bool(_KINDS_BY_KEY.keys() & record.keys()) and not is_full_text
    return _is_citation(record) or is_known


def read(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    if _is_citation(source.head().record or {}):
        yield from _read_citations(source, tally)
        return
    for record in read_json_lines(source, tally, "papers"):
        paper = _paper(record)
        if paper is None:
            tally.reject("papers", "no id")
        elif not (paper.title or paper.abstract or paper.stub):
            tally.reject("papers", "no title and no abstract")
        else:
            yield paper


_KINDS_BY_KEY = {"title": "papers", "abstract": "abstracts", "sha": "paper-ids", "text": "tldrs"}


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
    access = record.get("openaccessinfo")
    external = record.get("externalids") or (access.get("externalids") if isinstance(access, dict) else None)
    journal = record.get("journal")
    journal_name = journal.get("name") if isinstance(journal, dict) else ""
    return Paper(
        id=id,
        title=clean_text(record.get("title")),
        abstract=clean_text(record.get("abstract")),
        year=year_of(record.get("year")) or year_of(record.get("publicationdate")),
        venue=clean_text(record.get("venue")) or clean_text(journal_name),
        authors=names_of(_values(record.get("authors"), "name")),
        fields=names_of(_values(record.get("s2fieldsofstudy"), "category")),
        ids=tuple(other for other in semantic_scholar_ids(external) if other != id),
        citation_count=count_of(record.get("citationcount")),
        updated=day_of(record.get("updated")),
        extra={"types": types} if (types := names_of(record.get("publicationtypes"))) else {},
    )


def _values(entries: object, key: str) -> list[object]:
    return [entry.get(key) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _read_citations(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    for block in source.line_blocks(tally, "citations"):
        if not _is_utf8(block):
            # the compiled reader takes valid UTF-8 for granted; a block with one bad byte goes the slow way whole
            for line in block.split(b"\n"):
                yield from _read_line(line.strip(), tally)
            continue
        scanned, starts, ends = scan_citations(block)
        yield from _blocks(scanned, scanned.read, tally)
        for number in np.flatnonzero(~scanned.read).tolist():
            yield from _read_line(block[starts[number] : ends[number]].strip(), tally)


def _is_utf8(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _blocks(scanned: Scanned, read: NDArray[np.bool_], tally: Tally) -> Iterator[StagedRecord]:
    """The citations and contexts of the lines that the compiled reader took."""
    citing, cited = scanned.citing, scanned.cited
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
    yield from _context_blocks(scanned, read, good, tally)


def _context_blocks(
    scanned: Scanned, read: NDArray[np.bool_], good: NDArray[np.bool_], tally: Tally
) -> Iterator[ContextBlock]:
    line, length = scanned.context_line, scanned.context_length
    kept = good[line] & (length > 0)
    tally.reject("contexts", "citation without both papers", int((read[line] & ~good[line]).sum()))
    tally.reject("contexts", "no text", int((good[line] & (length == 0)).sum()))
    if not kept.any():
        return
    bytes_kept = scanned.context_bytes if kept.all() else scanned.context_bytes[np.repeat(kept, length)]
    # intents belong to the citation: which of several contexts they are about is not said
    alone = np.bincount(line, minlength=len(read))[line] == 1
    intents = np.where(alone, scanned.intents[line], 0).astype(np.uint8)
    line = line[kept]
    yield ContextBlock(
        hash_numbers(_PREFIX, scanned.citing[line]),
        (length[kept], bytes_kept),
        np.ones(len(line), np.int64),
        hash_numbers(_PREFIX, scanned.cited[line]),
        intents[kept],
    )


def _ids(numbers: NDArray[np.int64]) -> list[str]:
    return [f"{_PREFIX}{number}" for number in numbers.tolist()]


def _reject_citations(tally: Tally, without_citing: int, without_cited: int) -> None:
    tally.reject("citations", "no citing paper", without_citing)
    tally.reject("citations", "no cited paper", without_cited)


def _read_line(line: bytes, tally: Tally) -> Iterator[Citation | Context]:
    """One line as an object: the same result as the compiled reader, for any shape."""
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
    """Intents of every context: its own list where there is one, the citation's where it has one context."""
    if isinstance(intents, list) and len(intents) == contexts and any(isinstance(one, list) for one in intents):
        return [parse_intents(one) for one in intents]
    return [parse_intents(intents) if contexts == 1 else Intent.UNKNOWN] * contexts
