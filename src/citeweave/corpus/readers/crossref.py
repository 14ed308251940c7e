"""Crossref works, as its REST API and its data dumps have them.

    {"status": "ok", "message-type": "work", "message": {"DOI": "10.1/x", "title": ["T"],
     "abstract": "<jats:p>A.</jats:p>", "issued": {"date-parts": [[2020, 1]]},
     "reference": [{"key": "r1", "DOI": "10.2/y"}, {"key": "r2", "article-title": "U", "year": "1999"}]}}

A file has one work, a list, JSON lines, or the files of the public data dump (`{"items": [...]}`). A reference counts as a
citation by its DOI, by the only DOI in its `unstructured` text, or by title and year. The deposit date of a work says nothing
about its year: where `issued` is `[[null]]`, the year stays unknown. XML deposits, journals, funders and members are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.identity import doi_id, only_doi_in, title_key
from citeweave.corpus.paper import Citation, Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    count_of,
    day_of,
    dict_of,
    filled,
    list_of,
    names_of,
    person_name,
    strip_markup,
    year_of,
    year_of_date,
)
from citeweave.corpus.readers.json_records import extra_of, first_plain, first_text, value_at
from citeweave.corpus.readers.paper_records import accepted

_HEADING = re.compile(r"\s*(?:<(?:jats:)?(?:sec|p|title)\b[^<>]{0,200}>\s*){1,4}(?:Abstract|ABSTRACT)[.:]?\s*<")
_EXTRA = {name: name for name in ("type", "subtype", "language", "publisher")}
_DATES = ("issued", "published", "published-print", "published-online", "published-other", "posted")


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds works of Crossref."""
    return starts_as_json(head, "DOI", "is-referenced-by-count|references-count|message-type")


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of Crossref works."""
    for record in read_json_objects(source, tally, "papers"):
        message = record.get("message")
        inner = message if isinstance(message, dict) else record
        items = inner.get("items")
        for work in items if isinstance(items, list) else [inner]:
            yield from _read_work(dict_of(work), tally)


def _read_work(work: dict[str, object], tally: Tally) -> Iterator[Record]:
    own, references = doi_id(work.get("DOI")), list_of(work.get("reference"))
    if not own:
        tally.reject("papers", "no DOI")
        tally.reject("citations", "citing paper rejected", len(references))
        return
    paper = _paper(own, work)
    if accepted(paper, tally):
        yield paper
    for reference in references:
        yield from _read_reference(own, dict_of(reference), tally)


def _paper(own: str, work: dict[str, object]) -> Paper:
    known: dict[str, object] = {
        "subtitle": first_plain(work.get("subtitle")),
        "reference_count": count_of(work.get("references-count")),
    }
    return Paper(
        own,
        first_plain(work.get("title")),
        _abstract(work.get("abstract")),
        next(filter(None, (year_of_date(work.get(name)) for name in _DATES)), None),
        first_text(work, "container-title", "group-title", clean=first_plain),
        names_of([person_name(author) for author in list_of(work.get("author"))]),
        names_of(work.get("subject")),
        citation_count=count_of(work.get("is-referenced-by-count")),
        updated=day_of(value_at(work, "deposited.date-time")) or day_of(value_at(work, "indexed.date-time")),
        extra=extra_of(work, _EXTRA) | filled(known),
    )


def _abstract(value: object) -> str:
    """Return an abstract without markup, and without the heading "Abstract" that many JATS abstracts begin with.

    >>> _abstract("<jats:title>Abstract</jats:title><jats:p>We <jats:italic>did</jats:italic> it.</jats:p>")
    'We did it.'
    >>> _abstract("&lt;p&gt;Escaped twice.&lt;/p&gt;")
    'Escaped twice.'
    """
    if not isinstance(value, str):
        return ""
    heading = _HEADING.match(value)
    text = strip_markup(value[heading.end() - 1 :] if heading else value)
    # a closing tag that was text before is markup that was escaped once too often; a lone "<" is not
    return strip_markup(text) if "</" in text else text


def _read_reference(citing: str, reference: dict[str, object], tally: Tally) -> Iterator[Record]:
    title = first_text(reference, "article-title", "volume-title", "series-title", clean=strip_markup)
    year = year_of(reference.get("year"))
    cited = doi_id(reference.get("DOI"))
    if not cited and (cited := only_doi_in(reference.get("unstructured"))):
        tally.note("reference identified by the DOI in its text")
    cited = cited or title_key(title, year)
    if not cited:
        tally.reject("citations", "reference without a usable id")
        return
    if title:
        venue, authors = clean_text(reference.get("journal-title")), names_of(reference.get("author"))
        yield Paper(cited, title, year=year, venue=venue, authors=authors, stub=True)
    yield Citation(citing, cited)
