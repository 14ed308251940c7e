"""S2ORC, release 20200705v1: lines of `metadata` and of `pdf_parses`.

    {"paper_id": "77499681", "title": "T", "abstract": null, "year": 2016, "doi": "10.1/x", "mag_id": "24",
     "mag_field_of_study": ["Medicine"], "outbound_citations": ["71492442"], "inbound_citations": []}
    {"paper_id": "18980380", "_pdf_hash": "...", "abstract": [{"text": "A"}], "body_text": [{"section": "Intro",
     "text": "As in [1].", "cite_spans": [{"start": 6, "end": 9, "ref_id": "BIBREF0"}]}],
     "bib_entries": {"BIBREF0": {"title": "U", "year": 2012, "link": "7229756"}}}

`paper_id` and `link` are Semantic Scholar's corpus ids. A parse has no title: its paper holds the abstract alone and joins
the one of the metadata. `inbound_citations` only repeat what other papers list as outbound; they are not read, their number
goes to `extra`. Tables, figures and formulas are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.citation_marks import CitationMark
from citeweave.corpus.identity import number_id, spell_ids
from citeweave.corpus.paper import Context, Paper, Record
from citeweave.corpus.plain_text import dict_of, list_of, names_of, strip_markup, year_of
from citeweave.corpus.readers.json_records import first_text
from citeweave.corpus.readers.paper_records import Reference, accepted, cite_ids, cite_references, mark_contexts

_ID_KEYS = {"doi": "doi", "arxiv": "arxiv_id", "pmid": "pubmed_id", "pmcid": "pmc_id", "acl": "acl_id", "mag": "mag_id"}
"""Kind of an id -> its key in the metadata."""


def recognizes(head: FileHead) -> bool:
    """Return whether a file is metadata or a PDF parse of S2ORC 2020."""
    # unarXive has parses of the same make, which also name their LaTeX source
    is_parse = starts_as_json(head, "paper_id", "_pdf_hash") and not starts_as_json(head, "_source_hash")
    return is_parse or starts_as_json(head, "paper_id", "outbound_citations")


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
    inbound = list_of(record.get("inbound_citations"))
    paper = Paper(
        own,
        strip_markup(record.get("title")),
        strip_markup(record.get("abstract")),
        year_of(record.get("year")),
        first_text(record, "venue", "journal"),
        _authors(record),
        names_of(record.get("mag_field_of_study")),
        spell_ids(**{kind: record.get(key) for kind, key in _ID_KEYS.items()}),
        extra={"inbound_citations": len(inbound)} if inbound else {},
    )
    if accepted(paper, tally):
        yield paper
    outbound = (number_id("s2", reference) for reference in list_of(record.get("outbound_citations")))
    yield from cite_ids(own, outbound, tally)


def _authors(record: dict[str, object]) -> tuple[str, ...]:
    people = map(dict_of, list_of(record.get("authors")))
    parts = [(first_text(one, "first"), *names_of(one.get("middle")), first_text(one, "last")) for one in people]
    return names_of([" ".join(names) for names in parts])


def _read_parse(own: str, record: dict[str, object], tally: Tally) -> Iterator[Record]:
    passages = list_of(record.get("abstract"))
    paper = Paper(own, abstract=" ".join(filter(None, (first_text(passage, "text") for passage in passages))))
    if accepted(paper, tally):
        yield paper
    references = [_reference(key, dict_of(entry)) for key, entry in dict_of(record.get("bib_entries")).items()]
    ids = {reference.key: reference.id for reference in references}
    mentions: Counter[str | None] = Counter()
    for passage in map(dict_of, [*passages, *list_of(record.get("body_text"))]):
        yield from _read_passage(own, passage, ids, mentions, tally)
    for reference in references:
        reference.mentions = mentions[ids[reference.key]]
        yield from cite_references(own, [reference], tally)  # one by one: repeated ones stay


def _reference(key: str, entry: dict[str, object]) -> Reference:
    title, venue = first_text(entry, "title"), first_text(entry, "venue")
    return Reference(key, spell_ids(s2=entry.get("link")), title, year_of(entry.get("year")), venue, _authors(entry))


def _read_passage(
    own: str, passage: dict[str, object], ids: dict[str, str | None], mentions: Counter[str | None], tally: Tally
) -> Iterator[Context]:
    """Yield the contexts of one paragraph, and count how often each paper is mentioned."""
    text = passage.get("text")
    if not isinstance(text, str):
        return
    marks = []
    for span in map(dict_of, list_of(passage.get("cite_spans"))):
        start, end, key = span.get("start"), span.get("end"), span.get("ref_id")
        if type(start) is int and type(end) is int and 0 <= start < end <= len(text):
            marks.append(CitationMark(start, end, ids.get(key) if isinstance(key, str) else None))
        else:
            tally.note("citation mark outside its paragraph")
    mentions.update(mark.cited for mark in marks)
    yield from mark_contexts(own, text, marks, first_text(passage, "section"), tally)
