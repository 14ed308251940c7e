"""Crossref works, as its REST API and its data dumps have them, and CSL JSON bibliographies, which share their fields.

    {"status": "ok", "message-type": "work", "message": {"DOI": "10.1/x", "title": ["T"],
     "abstract": "<jats:p>A.</jats:p>", "issued": {"date-parts": [[2020, 1]]},
     "reference": [{"key": "r1", "DOI": "10.2/y"}, {"key": "r2", "article-title": "U", "year": "1999"}]}}

Crossref has one work, a list, JSON lines, or the files of the public data dump (`{"items": [...]}`). A reference counts as a
citation by its DOI, by the only DOI in its `unstructured` text, or by title and year. The deposit date of a work says nothing
about its year: where `issued` is `[[null]]`, the year stays unknown. XML deposits, journals, funders and members are not read.

    [{"id": "turing1950", "type": "article-journal", "title": "T", "author": [{"family": "Turing", "given": "Alan"}],
      "issued": {"date-parts": [["1950", 10]]}, "DOI": "10.1093/mind/LIX.236.433"}]

CSL JSON is what Zotero, Better BibTeX, Pandoc and Manubot write. The id of an entry is a name inside its file (`local_id`),
unless it is an identifier by itself: `doi:10.1000/182`, `pmid:123`, `arxiv:1706.03762`, `url:https://...` or a plain DOI.
Short DOIs (`10/fqd6hj`) can only be resolved by asking doi.org: they are noted, and the full DOI is taken from the URL where
it stands there. The format has no citations; CSL styles are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, doi_id, only_doi_in, title_key
from citeweave.corpus.paper import Citation, Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    count_of,
    day_of,
    dict_of,
    filled,
    list_of,
    names_of,
    person_name,
    strip_markup,
    year_of,
    year_of_date,
)
from citeweave.corpus.readers.json_records import (
    extra_of,
    first_plain,
    first_text,
    read_json_objects,
    starts_as_json,
    value_at,
)
from citeweave.corpus.readers.paper_records import SPELLINGS, accepted, spell_ids

_HEADING = re.compile(r"\s*(?:<(?:jats:)?(?:sec|p|title)\b[^<>]{0,200}>\s*){1,4}(?:Abstract|ABSTRACT)[.:]?\s*<")
_DATES = ("issued", "published", "published-print", "published-online", "published-other", "posted")


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds works of Crossref."""
    return starts_as_json(head, "DOI", "is-referenced-by-count|references-count|message-type")


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of Crossref works."""
    for record in read_json_objects(source, tally, "papers"):
        message = record.get("message")
        inner = message if isinstance(message, dict) else record
        items = inner.get("items")
        for work in items if isinstance(items, list) else [inner]:
            yield from _read_work(dict_of(work), tally)


def _read_work(work: dict[str, object], tally: Tally) -> Iterator[Record]:
    own, references = doi_id(work.get("DOI")), list_of(work.get("reference"))
    if not own:
        tally.reject("papers", "no DOI")
        tally.reject("citations", "citing paper rejected", len(references))
        return
    paper = _paper(own, work)
    if accepted(paper, tally):
        yield paper
    for reference in references:
        yield from _read_reference(own, dict_of(reference), tally)


def _paper(own: str, work: dict[str, object]) -> Paper:
    return Paper(
        own,
        first_plain(work.get("title")),
        _abstract(work.get("abstract")),
        next(filter(None, (year_of_date(work.get(name)) for name in _DATES)), None),
        first_text(work, "container-title", "group-title", clean=first_plain),
        names_of([person_name(author) for author in list_of(work.get("author"))]),
        names_of(work.get("subject")),
        citation_count=count_of(work.get("is-referenced-by-count")),
        updated=day_of(value_at(work, "deposited.date-time")) or day_of(value_at(work, "indexed.date-time")),
        extra=filled(
            {
                "type": clean_text(work.get("type")),
                "subtype": clean_text(work.get("subtype")),
                "subtitle": first_plain(work.get("subtitle")),
                "language": clean_text(work.get("language")),
                "publisher": clean_text(work.get("publisher")),
                "reference_count": count_of(work.get("references-count")),
            }
        ),
    )


def _abstract(value: object) -> str:
    """Return an abstract without markup, and without the heading "Abstract" that many JATS abstracts begin with.

    >>> _abstract("<jats:title>Abstract</jats:title><jats:p>We <jats:italic>did</jats:italic> it.</jats:p>")
    'We did it.'
    >>> _abstract("&lt;p&gt;Escaped twice.&lt;/p&gt;")
    'Escaped twice.'
    """
    if not isinstance(value, str):
        return ""
    heading = _HEADING.match(value)
    text = strip_markup(value[heading.end() - 1 :] if heading else value)
    # a closing tag that was text before is markup that was escaped once too often; a lone "<" is not
    return strip_markup(text) if "</" in text else text


def _read_reference(citing: str, reference: dict[str, object], tally: Tally) -> Iterator[Record]:
    title = first_text(reference, "article-title", "volume-title", "series-title", clean=strip_markup)
    year = year_of(reference.get("year"))
    cited = doi_id(reference.get("DOI"))
    if not cited and (cited := only_doi_in(reference.get("unstructured"))):
        tally.note("reference identified by the DOI in its text")
    cited = cited or title_key(title, year)
    if not cited:
        tally.reject("citations", "reference without a usable id")
        return
    if title:
        venue, authors = clean_text(reference.get("journal-title")), names_of(reference.get("author"))
        yield Paper(cited, title, year=year, venue=venue, authors=authors, stub=True)
    yield Citation(citing, cited)


# CSL JSON.

_CSL_TYPE = re.compile(
    rb'"type"\s*:\s*"(?:article(?:-journal|-magazine|-newspaper)?|bill|book|broadcast|chapter|dataset|document|'
    rb"entry(?:-dictionary|-encyclopedia)?|event|graphic|hearing|interview|legal_case|legislation|manuscript|map|"
    rb"motion_picture|musical_score|pamphlet|paper-conference|patent|performance|periodical|personal_communication|"
    rb'post(?:-weblog)?|regulation|report|review(?:-book)?|software|song|speech|standard|thesis|treaty|webpage)"'
)
_OTHER_FORMATS = (b'"is-referenced-by-count"', b'"message-type"', b"openalex.org/W", b'"paperId"', b'"bib_entries"')
_KINDS = {"pmc": "pmcid", **{kind: kind for kind in ("doi", "arxiv", "pmid", "pmcid", "url", "isbn", "wikidata")}}
"""What an id may name as its kind -> its kind."""
_ID_IN_NOTE = re.compile(r"^\s*(standard_id|doi|pmid|pmcid|arxiv)\s*:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_CSL_EXTRA = {"type": "type", "genre": "genre", "language": "language", "publisher": "publisher", "url": "URL"}
_SHORT_DOI = re.compile(r"10/[a-z0-9]+", re.IGNORECASE)


def recognizes_csl_json(head: FileHead) -> bool:
    """Return whether a file is a CSL JSON bibliography."""
    has_entry = starts_as_json(head, "id", "issued|container-title|author")
    is_other = any(mark in head.data for mark in _OTHER_FORMATS)
    return has_entry and not is_other and _CSL_TYPE.search(head.data) is not None


def read_csl_json(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers of a CSL JSON bibliography."""
    for record in read_json_objects(source, tally, "papers"):
        items = record.get("items")  # Better CSL JSON and some servers wrap the list
        for entry in items if isinstance(items, list) and "type" not in record else [record]:
            paper = _csl_paper(dict_of(entry), tally)
            if accepted(paper, tally):
                yield paper


def _csl_paper(entry: dict[str, object], tally: Tally) -> Paper | None:
    title, abstract = strip_markup(entry.get("title")), strip_markup(entry.get("abstract"))
    year = year_of_date(entry.get("issued"))
    others = _other_ids(entry, tally)
    key = entry.get("id")
    named = clean_text(str(key) if type(key) is int else key)[:500]
    own = _parse_identifier(named)
    best = own or named or next(iter(others), None) or title_key(title, year)
    if not best:
        return None
    keywords = entry.get("keyword")
    keywords = names_of(keywords.split(",") if isinstance(keywords, str) else keywords)
    return Paper(
        best,
        title,
        abstract,
        year,
        first_text(entry, "container-title", "event-title", clean=first_plain),
        names_of([person_name(author) for author in list_of(entry.get("author"))]),
        names_of(entry.get("categories")),
        tuple(other for other in others if other != best),
        extra=extra_of(entry, _CSL_EXTRA) | ({"keywords": list(keywords)} if keywords else {}),
        local_id=bool(named) and not own,
    )


def _parse_identifier(text: str) -> str | None:
    """Return the id in a text that is one by itself, None for keys that people choose.

    >>> _parse_identifier("doi:10.1000/182"), _parse_identifier("https://doi.org/10.1000/182"), _parse_identifier("PMCID:PMC12")
    ('doi:10.1000/182', 'doi:10.1000/182', 'pmcid:12')
    >>> _parse_identifier("url:https://example.org/a"), _parse_identifier("turing1950"), _parse_identifier("note:10")
    ('url:https://example.org/a', None, None)
    """
    kind, colon, value = text.partition(":")
    if colon and kind.lower() in _KINDS:
        return SPELLINGS[_KINDS[kind.lower()]](value)
    if text.startswith(("10.", "https://doi.org/", "http://doi.org/", "https://dx.doi.org/", "http://dx.doi.org/")):
        return doi_id(text)
    return None


def _other_ids(entry: dict[str, object], tally: Tally) -> tuple[str, ...]:
    address = entry.get("URL") if isinstance(entry.get("URL"), str) else ""
    doi = doi_id(entry.get("DOI")) or (doi_id(address) if "doi.org/" in str(address) else None)
    if not doi and _SHORT_DOI.fullmatch(clean_text(entry.get("DOI"))):
        tally.note("short DOI that only doi.org could resolve")
    note = entry.get("note")
    in_note = _ID_IN_NOTE.findall(note[:10_000]) if isinstance(note, str) else []
    ids = [_parse_identifier(value if kind == "standard_id" else f"{kind}:{value}") for kind, value in in_note]
    # a web address in a note is not an id of the paper
    known = [i for i in ids if i and not i.startswith("url:")]
    return distinct([doi, *spell_ids(arxiv=address, pmid=entry.get("PMID"), pmcid=entry.get("PMCID")), *known])
