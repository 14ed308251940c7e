"""S2ORC release 20200705v1: the lines of its `metadata` files and of its `pdf_parses` files.

    {"paper_id": "77499681", "title": "T", "abstract": null, "year": 2016, "doi": "10.1/x", "mag_id": "24",
     "mag_field_of_study": ["Medicine"], "outbound_citations": ["71492442"], "inbound_citations": []}
    {"paper_id": "18980380", "_pdf_hash": "...", "abstract": [{"text": "A"}], "body_text": [{"section": "Intro",
     "text": "As in [1].", "cite_spans": [{"start": 6, "end": 9, "ref_id": "BIBREF0"}]}],
     "bib_entries": {"BIBREF0": {"title": "U", "year": 2012, "link": "7229756"}}}

`paper_id` and `link` are Semantic Scholar's corpus ids. A parse has no title: its paper holds the abstract alone and
joins the one of the metadata. `inbound_citations` only repeat what other papers list as outbound; they are not read,
their number goes to `extra`. Does not read the bulk data sets that came later, nor the text of tables and figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.citation_marks import CitationMark, citing_sentences
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, pmc_id, text_id, title_key
from citeweave.corpus.paper import Citation, Context, Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    dict_of,
    filled,
    list_of,
    names_of,
    strip_markup,
    year_of,
)
from citeweave.corpus.readers.json_records import read_json_objects, starts_as_json


def recognizes(head: FileHead) -> bool:
    """Return whether a file is metadata or a PDF parse of S2ORC 2020."""
    if not starts_as_json(head) or b'"paper_id"' not in head.data:
        return False
    # unarXive has parses of the same make, which also name their LaTeX source
    is_parse = b'"_pdf_hash"' in head.data and b'"_source_hash"' not in head.data
    return is_parse or b'"outbound_citations"' in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of S2ORC 2020."""
    for record in read_json_objects(source, tally, "papers"):
        own = number_id("s2", record.get("paper_id"))
        if not own:
            tally.reject("papers", "no id")
        elif "body_text" in record or "bib_entries" in record:
            yield from _read_parse(own, record, tally)
        else:
            yield from _read_metadata(own, record, tally)


def _read_metadata(own: str, record: dict[str, object], tally: Tally) -> Iterator[Record]:
    paper = Paper(
        own,
        strip_markup(record.get("title")),
        strip_markup(record.get("abstract")),
        year_of(record.get("year")),
        clean_text(record.get("venue")) or clean_text(record.get("journal")),
        _authors(record),
        names_of(record.get("mag_field_of_study")),
        _other_ids(record),
        extra=filled({"inbound_citations": len(list_of(record.get("inbound_citations"))) or None}),
    )
    if paper.title or paper.abstract:
        yield paper
    else:
        tally.reject("papers", "no title and no abstract")
    for reference in list_of(record.get("outbound_citations")):
        cited = number_id("s2", reference)
        if cited:
            yield Citation(own, cited)
        else:
            tally.reject("citations", "reference without a usable id")


def _other_ids(record: dict[str, object]) -> tuple[str, ...]:
    candidates = [
        doi_id(record.get("doi")),
        arxiv_id(record.get("arxiv_id")),
        number_id("pmid", record.get("pubmed_id")),
        pmc_id(record.get("pmc_id")),
        text_id("acl", record.get("acl_id")),
        number_id("mag", record.get("mag_id")),
    ]
    return distinct(candidates)


def _authors(record: dict[str, object]) -> tuple[str, ...]:
    names = []
    for author in list_of(record.get("authors")):
        parts = dict_of(author)
        middle = names_of(parts.get("middle"))
        names.append(" ".join((clean_text(parts.get("first")), *middle, clean_text(parts.get("last")))))
    return names_of(names)


def _read_parse(own: str, record: dict[str, object], tally: Tally) -> Iterator[Record]:
    passages = [dict_of(p) for p in list_of(record.get("abstract"))]
    abstract = " ".join(filter(None, (clean_text(passage.get("text")) for passage in passages)))
    if abstract:
        yield Paper(own, abstract=abstract)
    else:
        tally.reject("papers", "no title and no abstract")
    passages += [dict_of(p) for p in list_of(record.get("body_text"))]
    entries = {key: _reference(dict_of(entry)) for key, entry in dict_of(record.get("bib_entries")).items()}
    ids = {key: paper.id for key, paper in entries.items() if paper}
    mentions: Counter[str] = Counter()
    for passage in passages:
        yield from _read_passage(own, passage, ids, mentions, tally)
    for paper in entries.values():
        if paper is None:
            tally.reject("citations", "reference without a usable id")
            continue
        if paper.title:
            yield paper
        yield Citation(own, paper.id, strength=float(max(1, mentions[paper.id])))


def _reference(entry: dict[str, object]) -> Paper | None:
    title, year = clean_text(entry.get("title")), year_of(entry.get("year"))
    cited = number_id("s2", entry.get("link")) or title_key(title, year)
    if not cited:
        return None
    return Paper(cited, title, year=year, venue=clean_text(entry.get("venue")), authors=_authors(entry), stub=True)


def _read_passage(
    own: str, passage: dict[str, object], ids: dict[str, str], mentions: Counter[str], tally: Tally
) -> Iterator[Context]:
    """Yield the contexts of one paragraph, and count how often each paper is mentioned."""
    text = passage.get("text")
    if not isinstance(text, str):
        return
    marks = []
    for value in list_of(passage.get("cite_spans")):
        span = dict_of(value)
        start, end, key = span.get("start"), span.get("end"), span.get("ref_id")
        if type(start) is int and type(end) is int and 0 <= start < end <= len(text):
            marks.append(CitationMark(start, end, ids.get(key) if isinstance(key, str) else None))
        else:
            tally.note("citation mark outside its paragraph")
    mentions.update(mark.cited for mark in marks if mark.cited)
    section = clean_text(passage.get("section"))
    for sentence in citing_sentences(text, marks):
        if sentence.cited:
            yield Context(own, sentence.text, sentence.cited, section)
        else:
            tally.reject("contexts", "no cited paper")
