"""CSL JSON bibliographies, as Zotero, Better BibTeX, Pandoc and Manubot write them.

    [{"id": "turing1950", "type": "article-journal", "title": "T", "author": [{"family": "Turing", "given": "Alan"}],
      "issued": {"date-parts": [["1950", 10]]}, "DOI": "10.1093/mind/LIX.236.433"}]

The id of an entry is a name inside its file (`local_id`), unless it is an identifier by itself: `doi:10.1000/182`,
`pmid:123`, `arxiv:1706.03762`, `url:https://...` or a plain DOI. Short DOIs (`10/fqd6hj`) can only be resolved by
asking doi.org: they are noted, and the full DOI is taken from the URL where it stands there.

Does not read citations, which the format does not have, nor CSL styles, nor Crossref's API (see `crossref.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, pmc_id, text_id, title_key
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    dict_of,
    filled,
    list_of,
    names_of,
    person_name,
    strip_markup,
    year_of_date,
)
from citeweave.corpus.readers.json_records import read_json_objects, starts_as_json

_CSL_TYPE = re.compile(
    rb'"type"\s*:\s*"(?:article(?:-journal|-magazine|-newspaper)?|bill|book|broadcast|chapter|dataset|document|'
    rb"entry(?:-dictionary|-encyclopedia)?|event|graphic|hearing|interview|legal_case|legislation|manuscript|map|"
    rb"motion_picture|musical_score|pamphlet|paper-conference|patent|performance|periodical|personal_communication|"
    rb'post(?:-weblog)?|regulation|report|review(?:-book)?|software|song|speech|standard|thesis|treaty|webpage)"'
)
_OTHER_FORMATS = (b'"is-referenced-by-count"', b'"message-type"', b"openalex.org/W", b'"paperId"', b'"bib_entries"')
_ID_IN_NOTE = re.compile(r"^\s*(standard_id|doi|pmid|pmcid|arxiv)\s*:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_SHORT_DOI = re.compile(r"10/[a-z0-9]+", re.IGNORECASE)


def recognizes(head: FileHead) -> bool:
    """Return whether a file is a CSL JSON bibliography."""
    if not starts_as_json(head) or any(mark in head.data for mark in _OTHER_FORMATS):
        return False
    has_entry = any(key in head.data for key in (b'"issued"', b'"container-title"', b'"author"'))
    return has_entry and b'"id"' in head.data and _CSL_TYPE.search(head.data) is not None


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers of a CSL JSON bibliography."""
    for record in read_json_objects(source, tally, "papers"):
        items = record.get("items")  # Better CSL JSON and some servers wrap the list
        for entry in items if isinstance(items, list) and "type" not in record else [record]:
            paper = _paper(dict_of(entry), tally)
            if paper:
                yield paper


def _paper(entry: dict[str, object], tally: Tally) -> Paper | None:
    title, abstract = strip_markup(entry.get("title")), strip_markup(entry.get("abstract"))
    year = year_of_date(entry.get("issued"))
    others = _other_ids(entry, tally)
    key = entry.get("id")
    named = clean_text(str(key) if type(key) is int else key)[:500]
    own = _parse_identifier(named)
    best = own or named or next(iter(others), None) or title_key(title, year)
    if not best or not (title or abstract):
        tally.reject("papers", "no title and no abstract" if best else "no id")
        return None
    return Paper(
        best,
        title,
        abstract,
        year,
        _text(entry.get("container-title")) or _text(entry.get("event-title")),
        names_of([person_name(author) for author in list_of(entry.get("author"))]),
        names_of(entry.get("categories")),
        tuple(other for other in others if other != best),
        extra=_extra(entry),
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
    match kind.lower() if colon else "":
        case "doi":
            return doi_id(value)
        case "arxiv":
            return arxiv_id(value)
        case "pmid":
            return number_id("pmid", value)
        case "pmcid" | "pmc":
            return pmc_id(value)
        case "url" | "isbn" | "wikidata":
            return text_id(kind.lower(), value)
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
    return distinct([doi, arxiv_id(address), number_id("pmid", entry.get("PMID")), pmc_id(entry.get("PMCID")), *known])


def _text(value: object) -> str:
    """Return a text, or the first of a list of texts."""
    return next(iter(names_of([strip_markup(v) for v in (value if isinstance(value, list) else [value])])), "")


def _extra(entry: dict[str, object]) -> dict[str, object]:
    keywords = entry.get("keyword")
    return filled(
        {
            "type": clean_text(entry.get("type")),
            "genre": clean_text(entry.get("genre")),
            "language": clean_text(entry.get("language")),
            "publisher": clean_text(entry.get("publisher")),
            "url": clean_text(entry.get("URL")),
            "keywords": list(names_of(keywords.split(",") if isinstance(keywords, str) else keywords)),
        }
    )
