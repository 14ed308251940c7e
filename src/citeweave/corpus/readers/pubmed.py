"""PubMed XML (papers and books) and tagged MEDLINE text.

The first character of the file tells them apart. Does not read abstracts in other languages, and does not follow deletion
notices. Only `Cites` links count as citations: comments, errata and retractions are links of another kind.

    <PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>9997</PMID><Article><ArticleTitle>...</ArticleTitle>...

    PMID- 9997
    TI  - Magnetic studies of Chromatium flavocytochrome C552. A mechanism for
          heme-flavin interaction.
    AID - 10.1016/0005-2795(76)90109-4 [doi]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element

from citeweave.core.errors import InputError
from citeweave.core.inputs import MAX_LINE, FileHead, Source, decode_line
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, doi_id, number_id, pmc_id, spell_ids
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import clean_text, day_of, names_of, year_of
from citeweave.corpus.readers import xml_records as xml
from citeweave.corpus.readers.paper_records import Reference, accepted, cite_references

_PAPERS = frozenset({"PubmedArticle", "PubmedBookArticle"})
_RECORDS = _PAPERS | {"DeleteCitation"}
_ROOTS = _PAPERS | {"PubmedArticleSet", "PubmedBookArticleSet"}
_MEDLINE = re.compile(rb"(?:\xef\xbb\xbf)?\s*PMID- *\d")
_TAG = re.compile(r"([A-Z][A-Z0-9]{1,3}) {0,2}-(?: |$)")
_NO_TITLE = re.compile(r"\[?(?:not available|in process citation)\]?\.?", re.IGNORECASE)
_RETRACTED = "Retracted Publication"


def recognizes(head: FileHead) -> bool:
    """Return whether a file is PubMed XML or MEDLINE text."""
    return xml.root_name(head) in _ROOTS or bool(_MEDLINE.match(head.data))


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of PubMed XML or MEDLINE text."""
    if source.start(1024).lstrip().startswith(b"<"):
        pairs = _from_xml(source, tally)
    else:
        pairs = ((_medline_paper(tags), []) for tags in _medline_records(source, tally))
    for paper, references in pairs:
        if accepted(paper, tally, len(references)):
            yield paper
            yield from cite_references(paper.id, references, tally)


def _from_xml(source: Source, tally: Tally) -> Iterator[tuple[Paper | None, list[Reference]]]:
    for element in xml.xml_records(source, roots=_ROOTS, records=_RECORDS, what="PubMed XML"):
        if element.tag == "DeleteCitation":
            tally.note("deletion notice left out", len(element.findall("PMID")))
        else:
            yield _paper(element), list(_references(element, tally))


def _paper(element: Element) -> Paper | None:
    book = element.find("BookDocument")
    citation = xml.find_or_empty(element, "MedlineCitation") if book is None else book
    paper_id = number_id("pmid", xml.text_at(citation, "PMID"))
    if paper_id is None:
        return None
    article = xml.find_or_empty(citation, "Article") if book is None else citation
    book_title, collection = xml.text_at(citation, "Book/BookTitle"), xml.text_at(citation, "Book/CollectionTitle")
    title = _title(xml.text_at(article, "ArticleTitle")) or xml.text_at(article, "VernacularTitle")
    ids = _article_ids([*citation.findall("ArticleIdList/ArticleId"), *element.findall("*/ArticleIdList/ArticleId")])
    authors = article.find("AuthorList")
    authors = xml.find_or_empty(citation, "Book/AuthorList") if authors is None else authors
    revised = citation.find("DateRevised")
    return Paper(
        id=paper_id,
        title=title or book_title,
        abstract=_abstract(article),
        year=_year(article),
        venue=xml.text_at(article, "Journal/Title") or (book_title if title else collection),
        authors=names_of(list(map(_author, authors.findall("Author")))),
        fields=_mesh(citation),
        ids=tuple(i for i in distinct([*ids, *_electronic_dois(article)]) if i != paper_id),
        updated=0
        if revised is None
        else day_of("-".join(xml.text_at(revised, part) for part in ("Year", "Month", "Day"))),
        extra=_extra(
            keywords=xml.element_texts(citation.findall("KeywordList/Keyword")),
            publication_types=xml.element_texts(xml.outermost_elements(article, "PublicationType")),
            languages=xml.element_texts(article.findall("Language")),
        ),
    )


def _title(text: str) -> str:
    return "" if _NO_TITLE.fullmatch(text) else text


def _abstract(article: Element) -> str:
    pieces = []
    for section in article.findall("Abstract/AbstractText"):
        label = clean_text(section.get("Label")).rstrip(":")
        text = xml.element_text(section)
        pieces.append(f"{label}: {text}" if label and text and label != "UNLABELED" else text)
    return " ".join(piece for piece in pieces if piece)


def _year(article: Element) -> int | None:
    for path in ("Journal/JournalIssue/PubDate", "ContributionDate", "Book/PubDate", "ArticleDate"):
        date = xml.find_or_empty(article, path)
        # "1998 Dec-1999 Jan" stands in MedlineDate, which then replaces Year
        if year := year_of(xml.text_at(date, "Year")) or year_of(xml.text_at(date, "MedlineDate")):
            return year
    return None


def _author(author: Element) -> str:
    return xml.joined_texts(author, "ForeName", "LastName", "Suffix") or xml.text_at(author, "CollectiveName")


def _mesh(citation: Element) -> tuple[str, ...]:
    """Return the MeSH descriptors, the major topics of the paper first."""
    headings = citation.findall("MeshHeadingList/MeshHeading")
    headings.sort(key=lambda heading: all(part.get("MajorTopicYN") != "Y" for part in heading))
    return xml.element_texts([name for heading in headings for name in heading.findall("DescriptorName")])


def _article_ids(elements: Iterable[Element]) -> tuple[str, ...]:
    """Return the ids of a paper, PubMed's own first: every paper there has one, and it is verified, unlike many DOIs."""
    by_kind = xml.texts_by_kind(elements, "IdType")
    pmcid = by_kind.get("pmc") or by_kind.get("pmcid")
    return spell_ids(pmid=by_kind.get("pubmed"), doi=by_kind.get("doi"), pmcid=pmcid)


def _electronic_dois(article: Element) -> list[str | None]:
    places = [e for e in article.findall("ELocationID") if e.get("EIdType") == "doi" and e.get("ValidYN") != "N"]
    return [doi_id(xml.element_text(place)) for place in places]


def _references(element: Element, tally: Tally) -> Iterator[Reference]:
    """Yield the references of `ReferenceList` (which may nest), then the older `Cites` links."""
    for reference in xml.outermost_elements(element, "Reference"):
        yield Reference("", _article_ids(reference.findall("ArticleIdList/ArticleId")))
    for link in element.findall("MedlineCitation/CommentsCorrectionsList/CommentsCorrections"):
        if link.get("RefType") == "Cites":
            yield Reference("", spell_ids(pmid=xml.text_at(link, "PMID")))
        else:
            tally.note("link that is not a citation (comment, erratum, retraction)")


def _extra(**lists: tuple[str, ...]) -> dict[str, object]:
    extra: dict[str, object] = {name: list(values) for name, values in lists.items() if values}
    if _RETRACTED in lists["publication_types"]:
        extra["retracted"] = True
    return extra


def _medline_records(source: Source, tally: Tally) -> Iterator[dict[str, list[str]]]:
    """Yield the values of every tag of MEDLINE text, record by record; a record starts with PMID."""
    tags: dict[str, list[list[str]]] = {}
    value: list[str] = []
    size = records = 0
    for line in _text_lines(source, tally):
        match = _TAG.match(line)
        # the dash is in a fixed column: "PT  - x", never "PT - x"
        name = match.group(1) if match and line[4:5] == "-" else ""
        if name == "PMID":
            if tags:
                yield _joined(tags)
            tags, size, records = {}, 0, records + 1
        size += len(line)
        if not line.strip():
            continue
        if not tags and name != "PMID":
            tally.note("line outside a record")
        elif size > MAX_LINE:
            tally.note("line beyond the first 64 MiB of a record")
        elif name:
            value = [line[6:]]
            tags.setdefault(name, []).append(value)
        elif line.startswith(" "):
            value.append(line)
        else:
            tally.note("line without a tag")
    if tags:
        yield _joined(tags)
    if not records:
        raise InputError(f"{source.path} is neither PubMed XML nor MEDLINE text; name its format with --format")


def _text_lines(source: Source, tally: Tally) -> Iterator[str]:
    with source.open() as stream:
        while line := stream.readline(MAX_LINE):
            yield decode_line(line, tally).rstrip("\r\n")


def _joined(tags: dict[str, list[list[str]]]) -> dict[str, list[str]]:
    return {name: [clean_text(" ".join(lines)) for lines in values] for name, values in tags.items()}


def _medline_paper(tags: dict[str, list[str]]) -> Paper | None:
    first = {name: values[0] for name, values in tags.items()}
    paper_id = number_id("pmid", first.get("PMID"))
    if paper_id is None:
        return None
    title = _title(first.get("TI", "")) or first.get("TT", "")
    book = first.get("BTI", "")
    dois = [value for value in [*tags.get("AID", []), *tags.get("LID", [])] if value.endswith("[doi]")]
    authors = [*map(_first_name_first, tags.get("FAU") or tags.get("AU", [])), *tags.get("CN", [])]
    revised = first.get("LR", "")
    return Paper(
        id=paper_id,
        title=title or book,
        abstract=first.get("AB", ""),
        year=year_of(first.get("DP")) or year_of(first.get("DEP", "")[:4]),
        venue=first.get("JT") or first.get("TA") or (book if title else first.get("CTI", "")),
        authors=names_of(authors),
        fields=_medline_mesh(tags.get("MH", [])),
        ids=distinct([*(doi_id(doi.removesuffix("[doi]")) for doi in dois), pmc_id(first.get("PMC"))]),
        updated=day_of(f"{revised[:4]}-{revised[4:6]}-{revised[6:8]}"),
        extra=_extra(
            keywords=names_of([word.lstrip("*") for word in tags.get("OT", [])]),
            publication_types=names_of(tags.get("PT", [])),
            languages=names_of(tags.get("LA", [])),
        ),
    )


def _first_name_first(name: str) -> str:
    """Return a MEDLINE name with the first name first.

    >>> _first_name_first("Casbon, James A"), _first_name_first("Casbon JA")
    ('James A Casbon', 'Casbon JA')
    """
    last, comma, given = name.partition(",")
    return f"{given.strip()} {last.strip()}" if comma else name


def _medline_mesh(headings: list[str]) -> tuple[str, ...]:
    """Return MeSH descriptors without their qualifiers, those with a starred part first.

    >>> _medline_mesh(["Humans", "Sequence Alignment/*methods", "*Software"])
    ('Sequence Alignment', 'Software', 'Humans')
    """
    ordered = sorted(headings, key=lambda heading: "*" not in heading)
    return names_of([heading.split("/")[0].lstrip("*") for heading in ordered])
