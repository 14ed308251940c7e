"""Zotero's export "Zotero RDF" as CSL JSON, which the reader `csl_json` understands.

    <bib:Article rdf:about="..."><z:itemType>journalArticle</z:itemType><dc:title>T</dc:title>
      <dcterms:abstract>A</dcterms:abstract><dc:date>2019</dc:date>
      <dcterms:isPartOf><bib:Journal><dc:title>J</dc:title><dc:identifier>DOI 10.1/x</dc:identifier></bib:Journal>...

A journal may stand by itself and be named by several articles; its title is found then, a DOI in it is not, as it belongs to
no one article. Notes, attachments and collections are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from citeweave.corpus.parsing.xml_records import plain_text, xml_records
from citeweave.errors import InputError
from citeweave.files import write_whole
from citeweave.opening import Source
from citeweave.serve.libraries.zotero import issued

_RECORDS = {"Article", "Book", "BookSection", "Document", "Report", "Thesis", "Patent", "Recording", "Letter"}
_RECORDS |= {"Manuscript", "ConferenceProceedings", "Journal", "Description"}
_LEFT_OUT = ("attachment", "note", "annotation")
_VENUES = ("Journal", "Book", "Series", "ConferenceProceedings")


def write_csl_of_rdf(export: Path, path: Path) -> int:
    """Write the items of an export to a file; how many they are."""
    # read twice: a journal may stand after the articles that name it
    venues = {item.get("about", ""): plain_text(item.find("title")) for item in _items(export) if item.tag == "Journal"}
    entries = [entry for item in _items(export) for entry in _entry(item, venues)]
    if not entries:
        raise InputError(f"{export} has no item with a title; export the library as CSL JSON or BibTeX instead")
    write_whole(path, json.dumps(entries, ensure_ascii=True, indent=0).encode())
    return len(entries)


def _items(export: Path) -> Iterator[Element]:
    return xml_records(Source(export), roots={"RDF"}, records=_RECORDS, what="an export of Zotero")


def _entry(item: Element, venues: dict[str, str]) -> Iterator[dict[str, Any]]:
    kind, title = plain_text(item.find("itemType")), plain_text(item.find("title"))
    if not title or not kind or kind in _LEFT_OUT or item.tag == "Journal":
        return
    part = item.find("isPartOf")
    venue = next((found for name in _VENUES if part is not None and (found := part.find(name)) is not None), None)
    resource = part.get("resource", "") if part is not None else ""
    told = [item, *([venue] if venue is not None else [])]
    names = [plain_text(one) for element in told for one in element.findall("identifier")]
    entry: dict[str, Any] = {
        "id": item.get("about") or title[:200],
        "type": "paper-conference" if kind == "conferencePaper" else "article-journal",
        "title": title,
        "abstract": plain_text(item.find("abstract")),
        "author": [_person(person) for person in item.iterfind("authors/Seq/li/Person")],
        "container-title": plain_text(venue.find("title")) if venue is not None else venues.get(resource, ""),
        "issued": issued(plain_text(item.find("date"))),
        "DOI": next((name.partition(" ")[2] for name in names if name.upper().startswith("DOI ")), ""),
        "URL": plain_text(item.find("identifier/URI/value")),
        "note": plain_text(item.find("description")),
    }
    yield {name: value for name, value in entry.items() if value}


def _person(person: Element) -> dict[str, str]:
    given = plain_text(person.find("givenName")) or plain_text(person.find("givenname"))
    return {"family": plain_text(person.find("surname")), "given": given}
