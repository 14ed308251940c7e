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
from xml.etree.ElementTree import Element

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, pmc_id, text_id
from citeweave.corpus.paper import Context, Paper, Record
from citeweave.corpus.plain_text import year_of
from citeweave.corpus.readers.full_text import (
    Reference,
    cite_references,
    extract_contexts,
    file_id,
    read_paragraphs,
)
from citeweave.corpus.readers.xml_records import (
    element_text,
    element_texts,
    outermost_elements,
    root_name,
    xml_records,
)

_SKIPPED = frozenset(["figure", "table", "listBibl"])


def recognizes(head: FileHead) -> bool:
    """Return whether a file is GROBID TEI."""
    return root_name(head) in ("TEI", "teiCorpus") and b"<teiHeader" in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of GROBID TEI."""
    for number, tei in enumerate(xml_records(source, roots={"TEI", "teiCorpus"}, records={"TEI"}, what="GROBID TEI")):
        text = tei.find("text")
        listed = [] if text is None else outermost_elements(text, "biblStruct")
        references = [_reference(entry) for entry in listed]
        paper = _paper(tei, file_id("grobid", source, number))
        if not paper.title and not paper.abstract:
            tally.reject("papers", "no title and no abstract")
            tally.reject("citations", "citing paper rejected", len(references))
            continue
        yield paper
        # contexts come first to be counted: the number of mentions is the strength of a citation
        contexts = [] if text is None else list(_contexts(text, paper.id, references, tally))
        yield from cite_references(paper.id, references, tally)
        yield from contexts


def _paper(tei: Element, local_id: str) -> Paper:
    entry = tei.find("teiHeader/fileDesc/sourceDesc/biblStruct")
    entry = Element("none") if entry is None else entry
    md5 = next(
        (text_id("md5", element_text(i)) for i in outermost_elements(entry, "idno") if i.get("type") == "MD5"), None
    )
    # a hash of the PDF identifies this paper for certain, but no other source knows it: it comes last
    ids = distinct([*_ids(entry), md5])
    application = tei.find("teiHeader/encodingDesc/appInfo/application")
    text = tei.find("text")
    extra: dict[str, object] = {
        "keywords": list(_keywords(tei)),
        "language": "" if text is None else text.get("lang", ""),
        "grobid_version": "" if application is None else application.get("version", ""),
    }
    return Paper(
        id=ids[0] if ids else local_id,
        title=element_text(tei.find("teiHeader/fileDesc/titleStmt/title")) or _title(entry),
        abstract=element_text(tei.find("teiHeader/profileDesc/abstract"), {"head", "figure", "table"}),
        year=_year(entry) or _date(tei.find("teiHeader/fileDesc/publicationStmt/date")),
        venue=element_text(entry.find("monogr/title")),
        authors=_authors(entry),
        ids=ids[1:],
        extra={name: value for name, value in extra.items() if value},
        local_id=not ids,
    )


def _keywords(tei: Element) -> tuple[str, ...]:
    keywords = tei.find("teiHeader/profileDesc/textClass/keywords")
    if keywords is None:
        return ()
    terms = element_texts(outermost_elements(keywords, "term"))
    return terms or tuple(term for part in element_text(keywords).split(";") if (term := part.strip()))


def _reference(entry: Element) -> Reference:
    title = _title(entry)
    venue = element_text(entry.find("monogr/title"))
    return Reference(
        key=entry.get("id", ""),
        ids=_ids(entry),
        title=title,
        year=_year(entry),
        venue=venue if venue != title else "",
        authors=_authors(entry),
    )


def _title(entry: Element) -> str:
    """Return the title of the paper, or of the book or report itself; a journal name alone is no title."""
    for title in [*entry.findall("analytic/title"), *entry.findall("monogr/title")]:
        if title.get("level") in ("a", "m", None) and (text := element_text(title)):
            return text
    return ""


def _authors(entry: Element) -> tuple[str, ...]:
    authors = entry.findall("analytic/author") or entry.findall("monogr/author")
    names = []
    for author in authors:
        # an author without a name is an affiliation that GROBID could not attach to anybody
        for person in author.findall("persName"):
            parts = [*person.findall("forename"), *person.findall("surname")]
            names.append(" ".join(text for text in map(element_text, parts) if text))
    return tuple(dict.fromkeys(name for name in names if name))


def _year(entry: Element) -> int | None:
    dates = [*entry.findall("monogr/imprint/date"), *entry.findall("analytic/date")]
    return next((year for date in dates if (year := _date(date))), None)


def _date(date: Element | None) -> int | None:
    return None if date is None else year_of(date.get("when")) or year_of(element_text(date))


def _ids(entry: Element) -> tuple[str, ...]:
    """Return the ids of a `biblStruct`, strongest first."""
    by_kind: dict[str, str] = {}
    for idno in outermost_elements(entry, "idno"):
        by_kind.setdefault(idno.get("type", "").lower(), element_text(idno))
    arxiv = by_kind.get("arxiv", "").partition("[")[0].strip()
    return distinct(
        [
            doi_id(by_kind.get("doi")),
            arxiv_id(arxiv),
            number_id("pmid", by_kind.get("pmid")),
            pmc_id(by_kind.get("pmcid") or by_kind.get("pmc")),
        ]
    )


def _contexts(text: Element, citing: str, references: list[Reference], tally: Tally) -> Iterator[Context]:
    by_key = {reference.key: reference for reference in references if reference.key}
    links = inside = 0
    for part in [e for e in text if e.tag in ("body", "back")]:
        links += sum(map(_is_marker, part.iter()))
        for paragraph in read_paragraphs(part, section="div", heading="head", is_marker=_is_marker, skip=_SKIPPED):
            inside += len(paragraph.markers)
            cited: list[list[str]] = []
            for marker in paragraph.markers:
                keys = [key.removeprefix("#") for key in marker.element.get("target", "").split()]
                behind = [by_key[key] for key in keys if key in by_key]
                for reference in behind:
                    reference.mentions += 1
                cited.append([reference.id for reference in behind if reference.id])
            yield from extract_contexts(citing, paragraph, cited, tally)
    if links > inside:
        tally.note("in-text citation outside a paragraph", links - inside)


def _is_marker(element: Element) -> bool:
    return element.tag == "ref" and element.get("type") == "bibr"
