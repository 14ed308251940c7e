"""GROBID TEI: the header of a PDF and, where extracted, its full text, references and citing sentences.

Reads one `TEI` per file, or many in a `teiCorpus`. Does not read figures, tables and footnotes, and does not
link the in-text citations that GROBID left without a target.

    <TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><fileDesc>
      <titleStmt><title level="a" type="main">On graphs</title></titleStmt> ...
    <text><body><div><head>Introduction</head><p>Graphs <ref type="bibr" target="#b0">[1]</ref> matter.</p></div></body>
    <back><listBibl><biblStruct xml:id="b0"><analytic><title level="a">...</title></analytic></biblStruct></listBibl>
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from xml.etree.ElementTree import Element

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import spell_ids
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import filled, names_of, year_of
from citeweave.corpus.readers import xml_records as xml
from citeweave.corpus.readers.paper_records import PaperLayout, Paragraph, Reference, file_id, read_full_text


def recognizes(head: FileHead) -> bool:
    """Return whether a file is GROBID TEI."""
    return xml.root_name(head) in ("TEI", "teiCorpus") and b"<teiHeader" in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of GROBID TEI."""
    for number, tei in enumerate(
        xml.xml_records(source, roots={"TEI", "teiCorpus"}, records={"TEI"}, what="GROBID TEI")
    ):
        text = xml.find_or_empty(tei, "text")
        references = [_reference(entry) for entry in xml.outermost_elements(text, "biblStruct")]
        by_key = {reference.key: reference for reference in references if reference.key}
        paper = _paper(tei, file_id("grobid", source, number))
        parts = [part for part in text if part.tag in ("body", "back")]
        yield from read_full_text(paper, references, parts, _LAYOUT, partial(_find_cited, by_key), tally)


def _paper(tei: Element, local_id: str) -> Paper:
    entry = xml.find_or_empty(tei, "teiHeader/fileDesc/sourceDesc/biblStruct")
    hashes = [idno for idno in xml.outermost_elements(entry, "idno") if idno.get("type") == "MD5"]
    # a hash of the PDF identifies this paper for certain, but no other source knows it: it comes last
    ids = _ids(entry) + spell_ids(md5=xml.element_text(hashes[0]) if hashes else None)
    extra: dict[str, object] = {
        "keywords": list(_keywords(tei)),
        "language": xml.find_or_empty(tei, "text").get("lang"),
        "grobid_version": xml.find_or_empty(tei, "teiHeader/encodingDesc/appInfo/application").get("version"),
    }
    return Paper(
        id=ids[0] if ids else local_id,
        title=xml.text_at(tei, "teiHeader/fileDesc/titleStmt/title") or _title(entry),
        abstract=xml.text_at(tei, "teiHeader/profileDesc/abstract", {"head", "figure", "table"}),
        year=_year(entry) or _date(xml.find_or_empty(tei, "teiHeader/fileDesc/publicationStmt/date")),
        venue=xml.text_at(entry, "monogr/title"),
        authors=_authors(entry),
        ids=ids[1:],
        extra=filled(extra),
        local_id=not ids,
    )


def _keywords(tei: Element) -> tuple[str, ...]:
    keywords = xml.find_or_empty(tei, "teiHeader/profileDesc/textClass/keywords")
    terms = xml.element_texts(xml.outermost_elements(keywords, "term"))
    return terms or tuple(filter(None, map(str.strip, xml.element_text(keywords).split(";"))))


def _reference(entry: Element) -> Reference:
    title, venue = _title(entry), xml.text_at(entry, "monogr/title")
    venue = venue if venue != title else ""
    return Reference(entry.get("id", ""), _ids(entry), title, _year(entry), venue, _authors(entry))


def _title(entry: Element) -> str:
    """Return the title of the paper, or of the book or report itself; a journal name alone is no title."""
    for title in [*entry.findall("analytic/title"), *entry.findall("monogr/title")]:
        if title.get("level") in ("a", "m", None) and (text := xml.element_text(title)):
            return text
    return ""


def _authors(entry: Element) -> tuple[str, ...]:
    authors = entry.findall("analytic/author") or entry.findall("monogr/author")
    names = []
    for author in authors:
        # an author without a name is an affiliation that GROBID could not attach to anybody
        for person in author.findall("persName"):
            parts = [*person.findall("forename"), *person.findall("surname")]
            names.append(" ".join(filter(None, map(xml.element_text, parts))))
    return names_of(names)


def _year(entry: Element) -> int | None:
    dates = [*entry.findall("monogr/imprint/date"), *entry.findall("analytic/date")]
    return next(filter(None, map(_date, dates)), None)


def _date(date: Element) -> int | None:
    return year_of(date.get("when")) or year_of(xml.element_text(date))


def _ids(entry: Element) -> tuple[str, ...]:
    """Return the ids of a `biblStruct`, strongest first."""
    by_kind = xml.texts_by_kind(xml.outermost_elements(entry, "idno"), "type")
    arxiv = by_kind.get("arxiv", "").partition("[")[0].strip()
    pmcid = by_kind.get("pmcid") or by_kind.get("pmc")
    return spell_ids(doi=by_kind.get("doi"), arxiv=arxiv, pmid=by_kind.get("pmid"), pmcid=pmcid)


def _find_cited(by_key: dict[str, Reference], paragraph: Paragraph) -> Iterator[list[Reference]]:
    """Yield the references that each marker of a paragraph points at."""
    for marker in paragraph.markers:
        keys = [key.removeprefix("#") for key in marker.element.get("target", "").split()]
        yield [by_key[key] for key in keys if key in by_key]


def _is_marker(element: Element) -> bool:
    return element.tag == "ref" and element.get("type") == "bibr"


_LAYOUT = PaperLayout("div", "head", _is_marker, {"figure", "table", "listBibl"})
