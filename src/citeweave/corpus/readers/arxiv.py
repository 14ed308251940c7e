r"""arXiv metadata: Atom feeds of its API, and the JSON lines of its Kaggle snapshot.

    {"id":"0704.0001","title":"Calculation of\n  everything","categories":"hep-ph cs.LG","abstract":"  We ...",
     "versions":[{"version":"v1","created":"Mon, 2 Apr 2007 19:18:42 GMT"}],"authors_parsed":[["Doe","J.",""]]}
    <feed xmlns="http://www.w3.org/2005/Atom"><entry><id>http://arxiv.org/abs/0704.0001v2</id><title>...</title>...

The first character tells feed and snapshot apart. Both give Paper(id="arxiv:0704.0001", year=2007, ...): the year is that of
the first version. They list no references; OAI-PMH responses are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from citeweave.core.inputs import FileHead, Source, read_json_lines
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, spell_ids
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import clean_text, day_of, dict_of, list_of, names_of, year_of
from citeweave.corpus.readers.paper_records import accepted
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
