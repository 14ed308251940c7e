"""CSL JSON bibliographies, as Zotero, Better BibTeX, Pandoc and Manubot write them.

    [{"id": "turing1950", "type": "article-journal", "title": "T", "author": [{"family": "Turing", "given": "Alan"}],
      "issued": {"date-parts": [["1950", 10]]}, "DOI": "10.1093/mind/LIX.236.433"}]

The id of an entry is a name inside its file (`local_id`), unless it is an identifier by itself: `doi:10.1000/182`,
`pmid:123`, `arxiv:1706.03762`, `url:https://...` or a plain DOI. Short DOIs (`10/fqd6hj`) can only be resolved by asking
doi.org: they are noted, and the full DOI is taken from the URL where it stands there. The format has no citations; CSL styles are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.identity import SPELLINGS, distinct, doi_id, spell_ids, title_key
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
from citeweave.corpus.readers.json_records import extra_of, first_plain, first_text
from citeweave.corpus.readers.paper_records import accepted

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
_KEY_IN_NOTE = re.compile(r"^\s*Citation Key\s*:\s*(\S{1,200})", re.IGNORECASE | re.MULTILINE)
_CSL_EXTRA = {"type": "type", "genre": "genre", "language": "language", "publisher": "publisher", "url": "URL"}
_SHORT_DOI = re.compile(r"10/[a-z0-9]+", re.IGNORECASE)


def recognizes(head: FileHead) -> bool:
    """Return whether a file is a CSL JSON bibliography."""
    has_entry = starts_as_json(head, "id", "issued|container-title|author")
    is_other = any(mark in head.data for mark in _OTHER_FORMATS)
    return has_entry and not is_other and _CSL_TYPE.search(head.data) is not None


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers of a CSL JSON bibliography."""
    for number, entry in enumerate(_entries(source, tally), 1):
        paper = _csl_paper(entry, tally)
        if accepted(paper, tally, key=clean_text(entry.get("id")) or f"entry {number:,}"):
            yield paper


def _entries(source: Source, tally: Tally) -> Iterator[dict[str, object]]:
    for record in read_json_objects(source, tally, "papers"):
        items = record.get("items")  # Better CSL JSON and some servers wrap the list
        yield from map(dict_of, items) if isinstance(items, list) and "type" not in record else [record]


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
    note = entry.get("note")
    in_note = _KEY_IN_NOTE.search(note[:10_000]) if isinstance(note, str) else None
    chosen = named if named and not own and not named.startswith(("http:", "https:", "zotero-")) else ""
    details: dict[str, object] = {
        "keywords": list(keywords),
        "collections": list(names_of(entry.get("collections"))),
        "key": clean_text(entry.get("citation-key")) or (in_note[1] if in_note else chosen),
        "file": clean_text(entry.get("file")),
    }
    return Paper(
        best,
        title,
        abstract,
        year,
        first_text(entry, "container-title", "event-title", clean=first_plain),
        names_of([person_name(author) for author in list_of(entry.get("author"))]),
        names_of(entry.get("categories")),
        tuple(other for other in others if other != best),
        extra=extra_of(entry, _CSL_EXTRA) | filled(details),
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
