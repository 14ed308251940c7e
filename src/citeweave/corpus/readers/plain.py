"""Plain tables of papers (JSON lines or CSV), citations (tab-separated) and contexts (JSON lines).

    papers.jsonl      {"id": "a", "title": "T", "abstract": "A", "year": 2020, "references": ["b"], "field": "cs.CL"}
    papers.csv        id,title,abstract,year,doi,references
    papers.csv        doi,title,references: without an id column, the doi (or arxiv, pmid) is the id: `doi:10.1000/x`
    citations.tsv     citing TAB cited [TAB strength], or with a header that names its columns
    ids.tsv           id TAB year: papers of which nothing else is known
    contexts.jsonl    {"citing": "a", "text": "As shown in [1] ...", "cited": ["b"], "section": "Intro"}
    references.jsonl  {"citing": "a", "cited": ["b", "c"]}

Ids are taken as they are, so `arxiv:1706.03762` or `doi:10.1/x` match the same ids of other sources. Papers without an id column
get their ids, and those they cite, in canonical spelling: `https://doi.org/10.1000/X` is `doi:10.1000/x`.
Keys that are not listed here are kept in `extra`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import orjson

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source, read_json_lines
from citeweave.core.progress import Tally
from citeweave.corpus.identity import SPELLINGS, arxiv_id, distinct, likely_ids, spell_ids
from citeweave.corpus.paper import Citation, Context, Paper, Record, StagedRecord, parse_intents
from citeweave.corpus.plain_text import clean_text, count_of, day_of, filled, list_of, names_of, year_of
from citeweave.corpus.readers.edge_tables import (
    CITATION_HEADS,
    decode_rows,
    find_edge_columns,
    has_unknown_header,
    read_edge_table,
    strip_comments,
)
from citeweave.corpus.readers.paper_records import accepted

_ID_KEYS = ("id", "paper_id", "doc_id", "_id", "corpus_id", "corpusid")
PUBLIC_ID_KEYS = ("doi", "arxiv", "arxiv_id", "pmid")
"""They identify the papers of a table that has none of the other ids."""

_YEAR_KEYS = ("year", "date", "published", "publication_date")
_FIELD_KEYS = ("field", "fields", "subjects", "categories")
_REFERENCE_KEYS = ("references", "outbound_citations", "cited")
_KNOWN = {*_ID_KEYS, "title", "abstract", "text", "authors", "year", "venue", *_REFERENCE_KEYS}
_BARE_COLUMNS = {*_ID_KEYS, "year"}
"""A table without other columns holds papers that are known only by their ids."""

_NO_LIST = object()

_BETWEEN_IDS = re.compile(r"(?:[|\s]|;(?<!\.CO;)|;(?!2-))+", re.IGNORECASE)
"""What separates ids in a text; old DOIs end in `3.0.CO;2-B`."""


def recognizes(head: FileHead) -> bool:
    """Return whether a file is a plain table or JSON lines of papers, citations or contexts."""
    if (record := head.record) is not None:
        return _is_context(record) or _is_reference_list(record) or _is_paper(record)
    return _is_table(_uncommented(head)) and _table_kind(head) is not None


def read(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    """Yield the records of a plain table or JSON-lines file of papers, citations or contexts."""
    head = source.head()
    record = head.record
    if record is None:
        yield from _read_table(source, head, tally)
    elif _is_context(record):
        yield from _read_contexts(source, tally)
    elif _is_reference_list(record):
        yield from _read_references(source, tally)
    else:
        yield from read_papers(read_json_lines(source, tally, "papers"), tally)


def _is_context(record: dict[str, object]) -> bool:
    return "text" in record and "citing" in record


def _is_reference_list(record: dict[str, object]) -> bool:
    return "citing" in record and "cited" in record and "text" not in record


def _is_paper(record: dict[str, object]) -> bool:
    has_id = any(key in record for key in (*_ID_KEYS, *PUBLIC_ID_KEYS))
    return has_id and any(key in record for key in ("title", "abstract", "text"))


def _is_table(head: FileHead) -> bool:
    first = head.data.split(b"\n", 1)[0]
    return head.data.lstrip()[:1] not in (b"{", b"[", b"<", b"@") and (b"\t" in first or b"," in first)


def _table_kind(head: FileHead) -> str | None:
    """Return the kind of a table: `papers` by its header, `citations` by two short columns of ids, else None."""
    cells = _header(head)
    if any(key in cells for key in _ID_KEYS) and ("title" in cells or {"year"} < set(cells) <= _BARE_COLUMNS):
        return "papers"
    head = _uncommented(head)
    cells = _header(head)
    named = any(citing in cells and cited in cells for citing, cited in CITATION_HEADS)
    if not named and "title" in cells and any(key in cells for key in PUBLIC_ID_KEYS):
        return "papers"
    lines = head.data.split(b"\n")[:50]
    complete = lines[:-1] if len(head.data) >= 65536 or len(lines) > 1 else lines
    rows = [line.rstrip(b"\r").split(_delimiter(head)) for line in complete if line.strip()]
    columns = {len(row) for row in rows}
    short = all(len(cell.strip()) <= 1000 and b" " not in cell.strip() for row in rows for cell in row[:2])
    is_filled = sum(all(cell.strip() for cell in row[:2]) for row in rows) * 3 >= len(rows)
    looks_like_ids = columns <= {2, 3, 4, 5} and short and is_filled and _delimiter(head) == b"\t"
    return "citations" if rows and (named or looks_like_ids) else None


def _uncommented(head: FileHead) -> FileHead:
    return FileHead(head.name, strip_comments(head.data)[0])


def _delimiter(head: FileHead) -> bytes:
    return b"\t" if b"\t" in head.data.split(b"\n", 1)[0] else b","


def _header(head: FileHead) -> list[str]:
    line = head.data.split(b"\n", 1)[0].decode("utf-8", "replace")
    return [cell.strip().strip('"').lower() for cell in line.split(_delimiter(head).decode())]


def read_papers(records: Iterable[dict[str, object]], tally: Tally, *, bare: bool = False) -> Iterator[Record]:
    """Yield papers from records by their usual keys; those of a `bare` table need no title."""
    for record in records:
        paper, references = _paper(record), _references(record)
        if (bare and paper is not None) or accepted(paper, tally, len(references)):
            tally.note("year is not a year, left out", int(paper.year is None and _is_given(record.get("year"))))
            yield paper
            kind = "" if _has_id_key(record) else paper.id.partition(":")[0]
            yield from _citations_of(paper.id, references, tally, kind)


def _paper(record: dict[str, object]) -> Paper | None:
    id = _paper_id(record)
    if not id:
        return None
    return Paper(
        id=id,
        title=_first(record, "title"),
        abstract=_first(record, "abstract", "text"),
        year=next((year for key in _YEAR_KEYS if (year := year_of(_number(record.get(key))))), None),
        venue=_first(record, "venue", "journal"),
        authors=_authors(record.get("authors")),
        fields=names_of([name for key in _FIELD_KEYS for name in names_of(record.get(key))]),
        ids=tuple(other for other in _other_ids(record) if other != id),
        citation_count=count_of(record.get("citation_count")),
        updated=day_of(record.get("updated")),
        extra=filled({key: value for key, value in record.items() if key not in _KNOWN}),
    )


def _has_id_key(record: dict[str, object]) -> bool:
    return any(key in record for key in _ID_KEYS)


def _paper_id(record: dict[str, object]) -> str:
    """Return the id of a paper as it is written; without such a key, its DOI, arXiv or PubMed id."""
    if _has_id_key(record):
        return next((text for key in _ID_KEYS if (text := _id_text(record.get(key)))), "")
    return next(iter(_public_ids(record)), "")


def _is_given(value: object) -> bool:
    """Return whether a value is neither empty, blank nor NaN."""
    return value == value and bool(filled({"value": clean_text(value) if isinstance(value, str) else value}))


def _citations_of(id: str, references: list[object], tally: Tally, kind: str = "") -> Iterator[Citation]:
    """Yield the citations of a paper; the ids it cites are spelled like its own if that is of a `kind` such as doi."""
    for cited in references:
        if text := "" if cited is _NO_LIST else _id_text(cited):
            yield Citation(id, _canonical(text, kind) if kind else text)
        else:
            tally.reject("citations", "references are not a list of ids" if cited is _NO_LIST else "no cited paper")


def _canonical(text: str, kind: str) -> str:
    """Return an id in its canonical spelling; a bare one is of this kind if it is no DOI or arXiv id.

    >>> _canonical("https://doi.org/10.1000/Y", "doi"), _canonical("12", "pmid"), _canonical("s2:7", "doi")
    ('doi:10.1000/y', 'pmid:12', 's2:7')
    """
    return next(iter(likely_ids(text)[1:]), None) or SPELLINGS[kind](text) or text


def _references(record: dict[str, object]) -> list[object]:
    """Return what a record cites, as is; `_NO_LIST` for a value that is no list of ids."""
    references: list[object] = []
    for key in _REFERENCE_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            value = _listed(value)
        references += value if isinstance(value, list) else [_NO_LIST for _ in filled({key: value})]
    return references


def _listed(text: str) -> list[object]:
    """Return the ids in a text: a JSON list, or ids between semicolons, bars or white space; `[_NO_LIST]` for other texts.

    Commas separate ids if each of these has a digit: names and titles have commas, too.

    >>> _listed('["a", 7]'), _listed("a; b | c"), _listed("10.1000/x, 10.1000/y")
    (['a', 7], ['a', 'b', 'c'], ['10.1000/x', '10.1000/y'])
    >>> _listed("Turing, Computing machinery") == [_NO_LIST], _listed(" ")
    (True, [])
    """
    if text.lstrip().startswith("["):
        try:
            return list(orjson.loads(text))
        except orjson.JSONDecodeError:
            return [_NO_LIST]
    ids = [id for id in _BETWEEN_IDS.split(clean_text(text)) if id]
    if any("," in id for id in ids):
        ids = [part for id in ids for part in id.split(",") if part]
        if not all(any(map(str.isdigit, id)) for id in ids):
            return [_NO_LIST]
    return [*ids]


def _read_references(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the citations of reference lists; cited papers count as papers even where no record describes them."""
    for record in read_json_lines(source, tally, "citations"):
        cited = record.get("cited")
        listed = cited if isinstance(cited, list) else [cited]  # a single id needs no list
        if citing := _id_text(record.get("citing")):
            yield from _citations_of(citing, listed, tally)
        else:
            tally.reject("citations", "no citing paper", len(listed))


def _read_contexts(source: Source, tally: Tally) -> Iterator[Record]:
    for record in read_json_lines(source, tally, "contexts"):
        text = clean_text(record.get("text"))
        if not text:
            tally.reject("contexts", "no text")
            continue
        known = {"citing", "text", "cited", "section", "intents", "in_set", "in_set_abstract"}
        yield Context(
            citing=_id_text(record.get("citing")),
            text=text,
            cited=distinct([_id_text(one) for one in list_of(record.get("cited"))]),
            section=clean_text(record.get("section")),
            intents=parse_intents(record.get("intents") or record.get("intent")),
            extra=filled({key: value for key, value in record.items() if key not in known}),
        )


def _read_table(source: Source, head: FileHead, tally: Tally) -> Iterator[StagedRecord]:
    if head.data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{source.path} is a table in UTF-16; save it as UTF-8")
    kind = _table_kind(head)
    if kind is None:
        raise InputError(
            f"{source.path} is not a table of papers or citations: papers need the columns id (or doi) and title, "
            "citations two columns of ids; rename its columns or name the --format"
        )
    if kind == "citations":
        yield from _read_citations(source, _uncommented(head), tally)
        return
    rows = decode_rows(source.raw_lines(tally, kind), _delimiter(head), tally, kind)
    names = [name.strip().lower() for name in next(rows, [])]
    records: Iterator[dict[str, object]] = (dict(zip(names, row, strict=False)) for row in rows)
    yield from read_papers(records, tally, bare="title" not in names)


def _read_citations(source: Source, head: FileHead, tally: Tally) -> Iterator[StagedRecord]:
    columns, delimiter = find_edge_columns(_header(head)), _delimiter(head)
    if not columns.header and has_unknown_header(head.data.split(b"\n")[:-1], delimiter):
        columns = replace(columns, header=True)
        tally.note("first line of citations is words above numbers, taken for a header")
    yield from read_edge_table(source, columns, delimiter, tally)


def _first(record: dict[str, object], *keys: str) -> str:
    """Return the first of these texts that is not empty, even where it is blank."""
    return clean_text(next((value for key in keys if isinstance(value := record.get(key), str) and value), ""))


def _id_text(value: object) -> str:
    """Return an id as text: numbers without a needless `.0`, no blanks around it."""
    if isinstance(value, float) and abs(value) < 2**53 and value == math.floor(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return clean_text(str(value)) if isinstance(value, str) or abs(value) < 10**30 else ""


def _other_ids(record: dict[str, object]) -> tuple[str, ...]:
    """Return ids of the same paper elsewhere, from the keys that usually hold them."""
    listed = [_id_text(one) for key in ("ids", "other_ids") for one in list_of(record.get(key))]
    known = spell_ids(
        pmcid=record.get("pmcid"),
        openalex=record.get("openalex"),
        s2=record.get("corpus_id") or record.get("corpusid"),
        s2sha=record.get("id") or record.get("paper_id"),
    )
    return distinct([*_public_ids(record), *known, *listed])


def _public_ids(record: dict[str, object]) -> tuple[str, ...]:
    return spell_ids(
        doi=record.get("doi"),
        arxiv=record.get("arxiv") if arxiv_id(record.get("arxiv")) else record.get("arxiv_id"),
        pmid=_number(record.get("pmid")),
    )


def _authors(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return names_of(value.split(";"))
    return names_of([one.get("name") if isinstance(one, dict) else one for one in list_of(value)])


def _number(value: object) -> object:
    """Return a year or number without the `.0` that a CSV of numbers adds: `"2018.0"`."""
    return value.removesuffix(".0") if isinstance(value, str) else value
