"""JATS XML papers (PubMed Central `.nxml`, eLife, PLOS, ...) with their references and citing sentences.

Reads one `article` per file, or many in a `pmc-articleset`. Does not read sub-articles and responses
(decision letters, replies, translations), tables, or supplements.

    <article article-type="research-article"><front><article-meta>
      <article-id pub-id-type="doi">10.1234/x</article-id>
      <title-group><article-title>On cells</article-title></title-group>
    </article-meta></front>
    <body><sec><title>Introduction</title><p>Cells divide [<xref ref-type="bibr" rid="B1">1</xref>].</p></sec></body>
    <back><ref-list><ref id="B1"><element-citation><article-title>...</article-title></element-citation></ref></ref-list>
    </back></article>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, spell_ids
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import day_of, filled, fold, names_of, year_of
from citeweave.corpus.readers import xml_records as xml
from citeweave.corpus.readers.paper_records import Marker, PaperLayout, Paragraph, Reference, file_id, read_full_text

_CITATION_TAGS = ("element-citation", "mixed-citation", "citation", "nlm-citation")
_SECONDARY_ABSTRACTS = frozenset(
    ["graphical", "teaser", "toc", "executive-summary", "plain-language-summary", "editor", "key-points"]
)
_UNPUBLISHED_DATES = frozenset(["pmc-release", "nihms-submitted", "received", "accepted", "retracted", "corrected"])
_PAPER_TYPES = {
    *("research article", "research articles", "article", "articles", "original article", "review", "review article"),
    *("editorial", "letter", "research paper", "original research", "case report", "commentary", "correspondence"),
    "short report",
}
_NAMES = ("name", "string-name", "collab")
_IN_TITLES = frozenset(["xref", "fn"])
_DOI_LINE = re.compile(r"\s*DOI:\s*https?://\S+$")
_ARXIV = re.compile(r"arxiv:\s?((?:[a-z.-]{2,20}/)?\d[\d.]{5,10}\d)", re.IGNORECASE)
_DASH = re.compile(r"\s*[-\u2010-\u2015\u2212]\s*")
_NUMBER = re.compile(r"\W*(\d{1,4})\W*")
_NUMBER_RANGE = re.compile(r"\W*(\d{1,4})\s*[-\u2010-\u2015\u2212]\s*(\d{1,4})\W*")
_MAX_RANGE = 100


def recognizes(head: FileHead) -> bool:
    """Return whether a file is JATS XML."""
    name = xml.root_name(head)
    marks = (b"<article-meta", b"<journal-meta", b"//NLM//DTD", b"JATS")
    return name == "pmc-articleset" or (name == "article" and any(mark in head.data for mark in marks))


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of JATS XML."""
    articles = xml.xml_records(source, roots={"article", "pmc-articleset"}, records={"article"}, what="a JATS paper")
    for number, article in enumerate(articles):
        _simplify_formulas(article)
        tally.note("sub-article left out", len([part for part in article if part.tag in ("sub-article", "response")]))
        listed = xml.outermost_elements(xml.find_or_empty(article, "back"), "ref")
        references = [reference for ref in listed for reference in _references(ref)]
        paper = _paper(article, file_id("jats", source, number))
        parts = [part for part in article if part.tag in ("body", "back", "floats-group")]
        yield from read_full_text(paper, references, parts, _LAYOUT, _CitedReferences(references), tally)


def _paper(article: Element, local_id: str) -> Paper:
    meta = xml.find_or_empty(article, "front/article-meta")
    ids = _ids(meta.findall("article-id"))
    title = xml.text_at(meta, "title-group/article-title", _IN_TITLES)
    subtitle = xml.text_at(meta, "title-group/subtitle", _IN_TITLES)
    extra: dict[str, object] = {
        "keywords": list(xml.element_texts(meta.findall("kwd-group/kwd"))),
        "article_type": article.get("article-type"),
        "language": article.get("lang"),
    }
    return Paper(
        id=ids[0] if ids else local_id,
        title=f"{title}: {subtitle}" if title and subtitle else title,
        abstract=_abstract(meta),
        year=_year(meta),
        venue=xml.element_text(next(xml.find_or_empty(article, "front").iter("journal-title"), None)),
        authors=_authors(meta),
        fields=_subjects(meta),
        ids=ids[1:],
        updated=_updated(meta),
        extra=filled(extra),
        local_id=not ids,
    )


def _abstract(meta: Element) -> str:
    candidates = [a for a in meta.findall("abstract") if a.get("abstract-type") not in _SECONDARY_ABSTRACTS]
    candidates.sort(key=lambda abstract: abstract.get("abstract-type") is not None)
    for abstract in candidates + meta.findall("trans-abstract"):
        pieces = []
        for part in abstract:
            label = xml.text_at(part, "title").rstrip(":.")
            text = (
                xml.element_text(part, {"title", "object-id"})
                if part.tag not in ("title", "object-id", "label")
                else ""
            )
            pieces.append(f"{label}: {text}" if label and text else text)
        # eLife closes every abstract with a paragraph that only repeats the DOI
        if text := _DOI_LINE.sub("", " ".join(piece for piece in pieces if piece)):
            return text
    return ""


def _authors(meta: Element) -> tuple[str, ...]:
    names = []
    for contributor in meta.findall("contrib-group/contrib"):
        if contributor.get("contrib-type", "author") == "author":
            names.append(_name(next((e for e in contributor.iter() if e.tag in _NAMES), None)))
    return names_of(names)


def _name(name: Element | None) -> str:
    if name is None or name.find("surname") is None:
        return xml.element_text(name, {"contrib-group"})
    return xml.joined_texts(name, "given-names", "surname", "suffix")


def _year(meta: Element) -> int | None:
    """Return the earliest year of publication; the arrival in an archive is not a publication."""
    dates = [d for d in meta.findall("pub-date") if not {d.get("pub-type"), d.get("date-type")} & _UNPUBLISHED_DATES]
    return min(filter(None, (year_of(xml.text_at(date, "year")) for date in dates)), default=None)


def _updated(meta: Element) -> int:
    dates = [*meta.findall("pub-date"), *meta.findall("history/date")]
    days = ("-".join(xml.text_at(date, part) for part in ("year", "month", "day")) for date in dates)
    return max(map(day_of, days), default=0)


def _subjects(meta: Element) -> tuple[str, ...]:
    groups = meta.findall("article-categories/subj-group")
    subjects = [
        s for g in groups if g.get("subj-group-type") != "display-channel" for s in xml.outermost_elements(g, "subject")
    ]
    return tuple(subject for subject in xml.element_texts(subjects) if fold(subject) not in _PAPER_TYPES)


def _ids(elements: list[Element]) -> tuple[str, ...]:
    """Return the ids of `article-id` or `pub-id` elements, strongest first."""
    by_kind = xml.texts_by_kind(elements, "pub-id-type")
    pmcid = by_kind.get("pmcid") or by_kind.get("pmc")
    return spell_ids(doi=by_kind.get("doi"), pmid=by_kind.get("pmid"), pmcid=pmcid, arxiv=by_kind.get("arxiv"))


def _references(ref: Element) -> list[Reference]:
    """Return the references behind one `ref`: usually one; chemists put several under one number."""
    citations = []
    for holder in ref:
        if holder.tag in _CITATION_TAGS:
            citations.append(holder)
        elif holder.tag == "citation-alternatives":
            # forms of the same reference: the most structured one is enough
            spellings = [inner for tag in _CITATION_TAGS for inner in holder.findall(tag)]
            citations.extend(spellings[:1])
    return [_reference(ref.get("id", ""), citation) for citation in citations] or [Reference(ref.get("id", ""))]


def _reference(key: str, citation: Element) -> Reference:
    links = [
        link.get("href", "") + " " + xml.element_text(link) for link in xml.outermost_elements(citation, "ext-link")
    ]
    loose = " ".join([*links, *xml.element_texts(citation.findall("comment"))])
    if citation.tag == "mixed-citation":
        loose += " " + xml.element_text(citation)
    arxiv = _ARXIV.search(loose)
    titles = ("article-title", "chapter-title", "data-title", "trans-title")
    title = next((text for tag in titles if (text := xml.text_at(citation, tag, _IN_TITLES))), "")
    source = xml.text_at(citation, "source")
    kind = citation.get("publication-type") or citation.get("citation-type") or ""
    if not title and kind in ("book", "thesis", "report", "preprint", "confproc"):
        title, source = source, ""
    groups = [g for g in citation.findall("person-group") if g.get("person-group-type", "author") == "author"]
    names = [name for group in groups for name in group if name.tag in _NAMES] + citation.findall("name")
    return Reference(
        key=key,
        ids=distinct(
            [*_ids(citation.findall("pub-id")), *spell_ids(doi=loose, arxiv=arxiv.group(1) if arxiv else None)]
        ),
        title=title.rstrip("."),
        year=year_of(xml.text_at(citation, "year")),
        venue=source,
        authors=names_of(list(map(_name, names))),
    )


class _CitedReferences:
    """The references of an article by key, and which of them the markers of a paragraph mean."""

    def __init__(self, references: list[Reference]) -> None:
        by_key: dict[str, list[Reference]] = {}
        for reference in references:
            if reference.key:
                by_key.setdefault(reference.key, []).append(reference)
        self._listed = list(by_key.values())
        self._places = {key: place for place, key in enumerate(by_key)}

    def __call__(self, paragraph: Paragraph) -> Iterator[list[Reference]]:
        """Yield what each marker means; in "[7-12]" only 7 and 12 are linked, and the dash means those between."""
        before: tuple[Marker, int] | None = None
        for marker in paragraph.markers:
            label = paragraph.text[marker.start : marker.end]
            places = [self._places[key] for key in marker.element.get("rid", "").split() if key in self._places]
            numbered = len(places) == 1 and _NUMBER.fullmatch(label)
            inner = _NUMBER_RANGE.fullmatch(label)
            cited: Sequence[int] = places
            if len(places) == 1 and inner:
                cited = _from_to(places[0], places[0] + int(inner.group(2)) - int(inner.group(1))) or places
            elif numbered and before and _DASH.fullmatch(paragraph.text[before[0].end : marker.start]):
                cited = _from_to(before[1] + 1, places[0]) or places
            before = (marker, places[0]) if numbered else None
            yield [reference for place in cited if place < len(self._listed) for reference in self._listed[place]]


def _from_to(first: int, last: int) -> range:
    return range(first, last + 1) if 0 <= last - first < _MAX_RANGE else range(0)


def _is_marker(element: Element) -> bool:
    return element.tag == "xref" and element.get("ref-type") == "bibr"


_LAYOUT = PaperLayout("sec", "title", _is_marker, {"ref-list", "sub-article", "response", "table", "front-stub"})


def _simplify_formulas(article: Element) -> None:
    """Keep one form per formula: MathML where there is one, else the body of a complete LaTeX document."""
    for alternatives in article.iter("alternatives"):
        if alternatives.find("math") is not None:
            for tex in alternatives.findall("tex-math"):
                tex.text = ""
    for tex in article.iter("tex-math"):
        _, begun, body = (tex.text or "").partition(r"\begin{document}")
        if begun:
            tex.text = body.partition(r"\end{document}")[0].replace("$$", "$")
