r"""arXiv: its metadata (Atom feeds of its API, JSON lines of its Kaggle snapshot), and its full texts as unarXive has them.

    {"id":"0704.0001","title":"Calculation of\n  everything","categories":"hep-ph cs.LG","abstract":"  We ...",
     "versions":[{"version":"v1","created":"Mon, 2 Apr 2007 19:18:42 GMT"}],"authors_parsed":[["Doe","J.",""]]}
    <feed xmlns="http://www.w3.org/2005/Atom"><entry><id>http://arxiv.org/abs/0704.0001v2</id><title>...</title>...

The first character tells feed and snapshot apart. Both give Paper(id="arxiv:0704.0001", year=2007, ...): the year is that of
the first version. They list no references; OAI-PMH responses are not read.

    {"paper_id": "2105.05862", "metadata": {"title": "T", "abstract": "A"}, "body_text": [{"section": "Intro",
     "text": "Known since {{cite:9d0c...}} that {{formula:7fd8...}} holds."}], "bib_entries": {"9d0c...":
     {"bib_entry_raw": "A. Author, Journal 1 (1999)", "ids": {"doi": "10.1/x", "arxiv_id": ""}}}}

That is a line of unarXive's layout of 2022; the release of 2024 has `"sections": {"Intro": {"text": "..."}}` instead of
`body_text`, its paragraphs joined. In contexts a citation mark becomes [CIT], a formula [MATH]; figures and tables disappear.
A reference is cited by its arXiv id, DOI, OpenAlex or PubMed id, in this order; where unarXive resolved none, by the only such
id in its links or its text. References have no title of their own here, so there are no stubs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from citeweave.core.inputs import FileHead, Source, read_json_lines
from citeweave.core.progress import Tally
from citeweave.corpus.citation_marks import CitationMark
from citeweave.corpus.identity import arxiv_id, only_arxiv_in, only_doi_in
from citeweave.corpus.paper import Citation, Paper, Record
from citeweave.corpus.plain_text import clean_text, count_of, day_of, dict_of, list_of, names_of, year_of
from citeweave.corpus.readers.json_records import extra_of, first_text, read_json_objects, starts_as_json, value_at
from citeweave.corpus.readers.openalex import last_part
from citeweave.corpus.readers.paper_records import accepted, mark_contexts, spell_ids
from citeweave.corpus.readers.xml_records import element_texts, root_name, text_at, xml_records

_WITHDRAWN = re.compile(
    r"^withdrawn\b|\b(?:paper|article|manuscript|submission|preprint|work|version|letter|note|it)\b.{0,60}?\bwithdrawn\b",
    re.IGNORECASE,
)
_AFFILIATION = re.compile(r"\([^()]{0,2000}\)")
_AND = re.compile(r",\s*and\s+|,\s*|\s+and\s+")


def recognizes(head: FileHead) -> bool:
    """Return whether a file is an arXiv Atom feed or the arXiv snapshot."""
    if root_name(head) == "feed":
        return b"arxiv.org" in head.data
    record = head.record or {}
    return {"id", "abstract", "categories"} <= record.keys() and bool({"versions", "authors_parsed"} & record.keys())


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers of an arXiv Atom feed or snapshot."""
    if source.start(1024).lstrip().startswith(b"<"):
        entries = xml_records(source, roots={"feed", "entry"}, records={"entry"}, what="an arXiv Atom feed")
        papers: Iterator[Paper | None] = (_from_atom(entry) for entry in entries if not _is_error(entry, tally))
    else:
        papers = map(_from_snapshot, read_json_lines(source, tally, "papers"))
    yield from (paper for paper in papers if accepted(paper, tally))


def _from_atom(entry: Element) -> Paper | None:
    paper_id = arxiv_id(text_at(entry, "id"))
    if paper_id is None:
        return None
    abstract, comments = text_at(entry, "summary"), text_at(entry, "comment")
    primary = [e for e in entry.findall("primary_category") if e.get("term")]
    categories = names_of([e.get("term") for e in primary + entry.findall("category")])
    return Paper(
        id=paper_id,
        title=text_at(entry, "title"),
        abstract=abstract,
        year=year_of(text_at(entry, "published")),
        authors=element_texts(entry.findall("author/name")),
        fields=categories,
        ids=spell_ids(doi=text_at(entry, "doi")),
        updated=day_of(text_at(entry, "updated")),
        extra=_extra(abstract, comments, journal_ref=text_at(entry, "journal_ref")),
    )


def _is_error(entry: Element, tally: Tally) -> bool:
    """Return whether an entry is an error of the API, which reports it as an entry like any other, named "Error"."""
    is_error = text_at(entry, "title") == "Error" and arxiv_id(text_at(entry, "id")) is None
    tally.reject("papers", "error message of the arXiv API", int(is_error))
    return is_error


def _from_snapshot(record: dict[str, object]) -> Paper | None:
    paper_id = arxiv_id(record.get("id"))
    if paper_id is None:
        return None
    abstract, comments = clean_text(record.get("abstract")), clean_text(record.get("comments"))
    return Paper(
        id=paper_id,
        title=clean_text(record.get("title")),
        abstract=abstract,
        year=_first_year(record),
        authors=_authors(record),
        fields=names_of(clean_text(record.get("categories")).split()),
        ids=spell_ids(doi=record.get("doi")),
        updated=day_of(record.get("update_date")),
        extra=_extra(
            abstract,
            comments,
            journal_ref=clean_text(record.get("journal-ref")),
            report_no=clean_text(record.get("report-no")),
            license=clean_text(record.get("license")),
        ),
    )


def _first_year(record: dict[str, object]) -> int | None:
    """Return the year of version 1; without versions that of the last update, which may be later."""
    listed = [version for version in list_of(record.get("versions")) if isinstance(version, dict)]
    first = next((version for version in listed if version.get("version") == "v1"), dict_of(next(iter(listed), None)))
    return year_of(first.get("created")) or year_of(record.get("update_date"))


def _authors(record: dict[str, object]) -> tuple[str, ...]:
    """Return author names as "First Last Suffix", from the parsed list, whose accents are letters and not LaTeX."""
    parsed = record.get("authors_parsed")
    if isinstance(parsed, list) and parsed:
        # last, first, suffix; what follows is the affiliation
        parts = [map(clean_text, [*name[1:2], *name[:1], *name[2:3]]) for name in parsed if isinstance(name, list)]
        return names_of([" ".join(filter(None, name)) for name in parts])
    # affiliations are in parentheses, their numbers in parentheses inside them
    listed = _AFFILIATION.sub("", _AFFILIATION.sub("", clean_text(record.get("authors"))))
    return names_of(_AND.split(listed))


def _extra(abstract: str, comments: str, **texts: str) -> dict[str, object]:
    extra: dict[str, object] = {name: text for name, text in {"comments": comments, **texts}.items() if text}
    if any(_WITHDRAWN.search(text[:200]) for text in (abstract, comments)):
        extra["withdrawn"] = True
    return extra


# unarXive.

_MARKER = re.compile(r"\{\{([a-z]{1,20}):([^{}\s]{1,200})\}\}")
_OLD_ID_WITHOUT_SLASH = re.compile(r"([a-z-]+(?:\.[A-Za-z]{2})?)(\d{7})")
_JOINED_PARAGRAPHS = re.compile(r"(?<=\}\}[.?!])(?=[A-Z])")
_REPLACEMENTS = {"cite": "[CIT]", "formula": "[MATH]"}
_TEXT_EXTRA = {"license": "license", "language": "language", "comments": "comments"}


def recognizes_unarxive(head: FileHead) -> bool:
    """Return whether a file is unarXive JSON lines."""
    # the first line is often longer than the head, so only its beginning can be checked
    has_text = starts_as_json(head, "paper_id", "metadata", "body_text|sections|bib_entries|_source_name")
    return has_text and starts_as_json(head, "_source_hash|update_date")


def read_unarxive(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of unarXive."""
    for record in read_json_objects(source, tally, "papers"):
        metadata = dict_of(record.get("metadata"))
        own = _own_id(record.get("paper_id")) or _own_id(metadata.get("id"))
        if not own:
            tally.reject("papers", "no arXiv id")
            continue
        paper = _paper(own, record, metadata)
        if accepted(paper, tally):
            yield paper
        yield from _read_text(own, record, tally)


def _own_id(value: object) -> str | None:
    """Return the arXiv id of a paper; old ids are also written without their slash: `hep-th9901001`."""
    old = _OLD_ID_WITHOUT_SLASH.fullmatch(value) if isinstance(value, str) else None
    return arxiv_id(f"{old.group(1)}/{old.group(2)}" if old else value)


def _paper(own: str, record: dict[str, object], metadata: dict[str, object]) -> Paper:
    first_version = dict_of(next(iter(list_of(metadata.get("versions"))), None))
    disciplines = names_of([record.get("discipline"), metadata.get("discipline")])
    categories = names_of(clean_text(metadata.get("categories")).split(" "))
    return Paper(
        own,
        clean_text(metadata.get("title")),
        clean_text(metadata.get("abstract")) or _abstract(record.get("abstract")),
        year_of(first_version.get("created")) or year_of(metadata.get("update_date")),
        clean_text(metadata.get("journal-ref")),
        _names(metadata),
        disciplines + categories,
        spell_ids(doi=metadata.get("doi")),
        count_of(metadata.get("cited_by_count")),
        day_of(metadata.get("update_date")),
        ({"categories": list(categories)} if categories else {}) | extra_of(metadata, _TEXT_EXTRA),
    )


def _abstract(value: object) -> str:
    """Return the abstract from a text, an object with a text, or a list of these: it changed between releases."""
    parts = value if isinstance(value, list) else [value]
    return " ".join(filter(None, (first_text(part, "text") or clean_text(part) for part in parts)))


def _names(metadata: dict[str, object]) -> tuple[str, ...]:
    """Return author names from `authors_parsed`: [["Last", "First", "suffix"], ...]."""
    parsed = [names_of(name) for name in list_of(metadata.get("authors_parsed"))]
    names = names_of([" ".join((*name[1:2], *name[:1], *name[2:3])) for name in parsed])
    return names or names_of([name.strip() for name in clean_text(metadata.get("authors")).split(",")])


def _read_text(own: str, record: dict[str, object], tally: Tally) -> Iterator[Record]:
    entries = {key: _cited_id(dict_of(entry), tally) for key, entry in dict_of(record.get("bib_entries")).items()}
    mentions: Counter[str] = Counter()
    for section, raw in _passages(record):
        text, marks = _replace_markers(raw, entries)
        mentions.update(mark.cited for mark in marks if mark.cited)
        yield from mark_contexts(own, text, marks, section, tally)
    for cited in entries.values():
        if cited:
            yield Citation(own, cited, strength=float(max(1, mentions[cited])))
        else:
            tally.reject("citations", "reference without a usable id")


def _passages(record: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (section title, text with markers) of every paragraph or section."""
    for paragraph in map(dict_of, list_of(record.get("body_text"))):
        if isinstance(text := paragraph.get("text"), str):
            yield clean_text(paragraph.get("section")), text
    for title, value in dict_of(record.get("sections")).items():
        for part in value if isinstance(value, list) else [value]:
            text = part if isinstance(part, str) else value_at(part, "text")
            if isinstance(text, str):
                yield clean_text(title), _JOINED_PARAGRAPHS.sub(" ", text)


def _replace_markers(raw: str, entries: dict[str, str | None]) -> tuple[str, list[CitationMark]]:
    """Return the text with readable marks, and the positions of its citations; offsets of the file are not trusted.

    >>> _replace_markers("By {{cite:ab}}, {{formula:1}} holds.", {"ab": "doi:10.1/x"})
    ('By [CIT], [MATH] holds.', [CitationMark(start=3, end=8, cited='doi:10.1/x')])
    """
    pieces: list[str] = []
    marks: list[CitationMark] = []
    done = length = 0
    for marker in _MARKER.finditer(raw):
        kind, key = marker.groups()
        replacement = _REPLACEMENTS.get(kind, "")
        pieces += (raw[done : marker.start()], replacement)
        length += marker.start() - done + len(replacement)
        done = marker.end()
        if kind == "cite":
            marks.append(CitationMark(length - len(replacement), length, entries.get(key)))
    return "".join((*pieces, raw[done:])), marks


def _cited_id(entry: dict[str, object], tally: Tally) -> str | None:
    ids = dict_of(entry.get("ids"))
    resolved = spell_ids(
        arxiv=ids.get("arxiv_id"),
        doi=ids.get("doi"),
        openalex=ids.get("open_alex_id"),
        pmid=last_part(ids.get("pubmed_id")),
        pmcid=ids.get("pmc_id"),
    )
    if resolved:
        return resolved[0]
    mentioned = next((i for text in _id_texts(entry) if (i := only_arxiv_in(text) or only_doi_in(text))), None)
    if mentioned:
        tally.note("reference identified by the id in its text")
    return mentioned


def _id_texts(entry: dict[str, object]) -> Iterator[str]:
    """Yield the texts of a reference that may hold its id, most reliable first."""
    contained = [value_at(item, "id") or item for item in list_of(entry.get("contained_arXiv_ids"))]
    yield " ".join(f"arXiv:{clean_text(item)}" for item in contained if isinstance(item, str))
    yield " ".join(first_text(link, "url") for link in list_of(entry.get("contained_links")))
    yield clean_text(entry.get("bib_entry_raw"))
