"""Zotero libraries as CSL JSON, which the reader `csl_json` understands: a Zotero database, or a Zotero RDF export.

    write_csl(Path("~/Zotero/zotero.sqlite"), Path("zotero.json"))      1,900

Zotero may be running: its database is copied, with the journal of a change in progress, and only the copy is opened.
Titles, abstracts, creators, dates, DOIs, venues, tags, collections, citation keys, the field Extra and the paths of attached
PDFs are read; notes, annotations, deleted items and the files in `storage/` themselves are not. An RDF export looks like this:

    <bib:Article rdf:about="..."><z:itemType>journalArticle</z:itemType><dc:title>T</dc:title>
      <dcterms:abstract>A</dcterms:abstract><dc:date>2019</dc:date>
      <dcterms:isPartOf><bib:Journal><dc:title>J</dc:title><dc:identifier>DOI 10.1/x</dc:identifier></bib:Journal>...

A journal may be an element of its own that several articles refer to; then its title is used, and a DOI in it is not, as
it belongs to no single article.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from citeweave.core.errors import InputError
from citeweave.core.files import write_atomically
from citeweave.core.inputs import Source
from citeweave.corpus.readers.xml_records import element_text, xml_records

DATABASE = "zotero.sqlite"
_JOURNALS = ("-journal", "-wal")
_EXCLUDED_TYPES = ("attachment", "note", "annotation")
_TYPES = {
    "journalArticle": "article-journal",
    "conferencePaper": "paper-conference",
    "book": "book",
    "bookSection": "chapter",
    "thesis": "thesis",
    "report": "report",
    "preprint": "article",
    "webpage": "webpage",
    "dataset": "dataset",
    "patent": "patent",
}
_TITLES = ("title", "caseName", "nameOfAct", "subject")
_VENUES = ("publicationTitle", "proceedingsTitle", "bookTitle", "conferenceName", "repository")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
"""Matches dates of Zotero, such as `2019-03-00 March 2019`."""

_FIELDS = """
    SELECT i.itemID, i.key, t.typeName, f.fieldName, v.value FROM items i
    JOIN itemTypes t ON t.itemTypeID = i.itemTypeID
    JOIN itemData d ON d.itemID = i.itemID
    JOIN fields f ON f.fieldID = d.fieldID
    JOIN itemDataValues v ON v.valueID = d.valueID
    WHERE i.itemID NOT IN (SELECT itemID FROM deletedItems)
    ORDER BY i.itemID
"""
_CREATORS = """
    SELECT ic.itemID, c.lastName, c.firstName FROM itemCreators ic JOIN creators c ON c.creatorID = ic.creatorID
    ORDER BY ic.itemID, ic.orderIndex
"""


_LISTS = {
    "keyword": ("itemTags", "SELECT j.itemID, t.name FROM itemTags j JOIN tags t ON t.tagID = j.tagID ORDER BY 1, 2"),
    "collections": (
        "collectionItems",
        "SELECT j.itemID, c.collectionName FROM collectionItems j JOIN collections c ON c.collectionID = j.collectionID ORDER BY 1, 2",
    ),
    "file": (
        "itemAttachments",
        "SELECT a.parentItemID, replace(a.path, 'storage:', 'storage/' || i.key || '/') FROM itemAttachments a "
        "JOIN items i ON i.itemID = a.itemID WHERE a.path LIKE '%.pdf' AND a.parentItemID IS NOT NULL ORDER BY 1, a.itemID",
    ),
}
"""Names of an item's tags and collections, and paths of its PDFs: the table they need, and how they are asked for."""


def find_database(folder: Path) -> Path | None:
    """Find the database of a Zotero data folder, or of the one that a folder `storage` belongs to."""
    for place in (folder, folder.parent) if folder.name == "storage" else (folder,):
        if (place / DATABASE).is_file():
            return place / DATABASE
    return None


def write_csl(database: Path, path: Path) -> int:
    """Write the items of a Zotero database to a CSL JSON file; return their number."""
    with tempfile.TemporaryDirectory(prefix="citeweave-zotero-") as scratch:
        copy = Path(scratch) / DATABASE
        try:
            shutil.copyfile(database, copy)
            for ending in _JOURNALS:
                journal = database.with_name(database.name + ending)
                if journal.is_file():
                    shutil.copyfile(journal, copy.with_name(copy.name + ending))
            with closing(sqlite3.connect(copy)) as opened:
                entries = list(_entries(opened, database.parent))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise InputError(
                f"{database} is not a database of Zotero 5 or later ({error}); export the library as CSL JSON or BibTeX instead"
            ) from None
        except OSError as error:
            raise InputError(f"{database} cannot be read: {error.strerror}; check its permissions") from None
    if not entries:
        raise InputError(f"{database} has no item with a title; open Zotero and check that it is the right folder")
    write_atomically(path, json.dumps(entries, ensure_ascii=False, indent=0).encode("utf-8", "replace"))
    return len(entries)


def _entries(opened: sqlite3.Connection, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the items of a Zotero database, whose data are in a folder, as CSL entries."""
    opened.execute("PRAGMA trusted_schema = OFF")  # nothing in an untrusted file may run functions
    opened.execute("PRAGMA query_only = ON")
    creators: dict[int, list[dict[str, str]]] = {}
    for item, last, first in opened.execute(_CREATORS):
        creators.setdefault(item, []).append({"family": _text(last), "given": _text(first)})
    more = {name: _listed(opened, *query) for name, query in _LISTS.items()}
    more["file"] = {item: str(folder / paths[0]) for item, paths in more["file"].items()}
    fields: dict[str, str] = {}
    current: tuple[int, str, str] | None = None
    for item, key, kind, name, value in opened.execute(_FIELDS):
        if current != (item, key, kind):
            yield from _entry(current, fields, creators, more)
            current, fields = (item, key, kind), {}
        fields[str(name)] = _text(value)
    yield from _entry(current, fields, creators, more)


def _listed(opened: sqlite3.Connection, table: str, query: str) -> dict[int, Any]:
    """Return texts by item, none where the database is of a version that lacks the table."""
    listed: dict[int, list[str]] = {}
    if opened.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone():
        for item, text in opened.execute(query):
            listed.setdefault(item, []).append(_text(text))
    return listed


def _entry(
    item: tuple[int, str, str] | None,
    fields: dict[str, str],
    creators: dict[int, list[dict[str, str]]],
    more: dict[str, dict[int, Any]],
) -> Iterator[dict[str, Any]]:
    title = next((fields[name] for name in _TITLES if fields.get(name)), "")
    if item is None or item[2] in _EXCLUDED_TYPES or not title:
        return
    number, key, kind = item
    entry: dict[str, Any] = {
        "id": f"zotero-{key}",
        "type": _TYPES.get(kind, "document"),
        "title": title,
        "author": creators.get(number, []),
        "abstract": fields.get("abstractNote", ""),
        "container-title": next((fields[name] for name in _VENUES if fields.get(name)), ""),
        "DOI": fields.get("DOI", ""),
        "URL": fields.get("url", ""),
        "language": fields.get("language", ""),
        "note": fields.get("extra", ""),
        "issued": _parse_date(fields.get("date", "")),
        "citation-key": fields.get("citationKey", ""),
        **{name: listed.get(number) for name, listed in more.items()},
    }
    yield {name: value for name, value in entry.items() if value}


def _parse_date(date: str) -> dict[str, Any]:
    """Parse a date of Zotero into the CSL field `issued`.

    >>> _parse_date("2019-03-00 March 2019"), _parse_date("circa 1950"), _parse_date("")
    ({'date-parts': [[2019]]}, {'literal': 'circa 1950'}, {})
    """
    match = _DATE.match(date)
    if match and int(match[1]):
        return {"date-parts": [[int(match[1])]]}
    return {"literal": date} if date else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


# --- Zotero RDF ---

_RECORDS = {"Article", "Book", "BookSection", "Document", "Report", "Thesis", "Patent", "Recording", "Letter"}
_RECORDS |= {"Manuscript", "ConferenceProceedings", "Journal", "Description"}
_RDF_VENUES = ("Journal", "Book", "Series", "ConferenceProceedings")


def write_csl_from_rdf(export: Path, path: Path) -> int:
    """Write the items of a Zotero RDF export to a CSL JSON file; return their number."""
    # read twice: a journal may come after the articles that refer to it
    venues = {
        item.get("about", ""): element_text(item.find("title")) for item in _items(export) if item.tag == "Journal"
    }
    entries = [entry for item in _items(export) for entry in _rdf_entry(item, venues)]
    if not entries:
        raise InputError(f"{export} has no item with a title; export the library as CSL JSON or BibTeX instead")
    write_atomically(path, json.dumps(entries, ensure_ascii=True, indent=0).encode())
    return len(entries)


def _items(export: Path) -> Iterator[Element]:
    return xml_records(Source(export), roots={"RDF"}, records=_RECORDS, what="an export of Zotero")


def _rdf_entry(item: Element, venues: dict[str, str]) -> Iterator[dict[str, Any]]:
    kind, title = element_text(item.find("itemType")), element_text(item.find("title"))
    if not title or not kind or kind in _EXCLUDED_TYPES or item.tag == "Journal":
        return
    part = item.find("isPartOf")
    venue = next((found for name in _RDF_VENUES if part is not None and (found := part.find(name)) is not None), None)
    resource = part.get("resource", "") if part is not None else ""
    elements = [item, *([venue] if venue is not None else [])]
    names = [element_text(one) for element in elements for one in element.findall("identifier")]
    entry: dict[str, Any] = {
        "id": item.get("about") or title[:200],
        "type": "paper-conference" if kind == "conferencePaper" else "article-journal",
        "title": title,
        "abstract": element_text(item.find("abstract")),
        "author": [_person(person) for person in item.iterfind("authors/Seq/li/Person")],
        "container-title": element_text(venue.find("title")) if venue is not None else venues.get(resource, ""),
        "issued": _parse_date(element_text(item.find("date"))),
        "DOI": next((name.partition(" ")[2] for name in names if name.upper().startswith("DOI ")), ""),
        "URL": element_text(item.find("identifier/URI/value")),
        "note": element_text(item.find("description")),
    }
    yield {name: value for name, value in entry.items() if value}


def _person(person: Element) -> dict[str, str]:
    given = element_text(person.find("givenName")) or element_text(person.find("givenname"))
    return {"family": element_text(person.find("surname")), "given": given}
