"""unarXive: full texts of arXiv papers with their references and citing sentences, as JSON lines.

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

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.citation_marks import CitationMark
from citeweave.corpus.identity import arxiv_id, only_arxiv_in, only_doi_in, spell_ids
from citeweave.corpus.paper import Citation, Paper, Record
from citeweave.corpus.plain_text import clean_text, count_of, day_of, dict_of, list_of, names_of, year_of
from citeweave.corpus.readers.json_records import extra_of, first_text, value_at
from citeweave.corpus.readers.openalex import last_part
from citeweave.corpus.readers.paper_records import accepted, mark_contexts

_MARKER = re.compile(r"\{\{([a-z]{1,20}):([^{}\s]{1,200})\}\}")
_OLD_ID_WITHOUT_SLASH = re.compile(r"([a-z-]+(?:\.[A-Za-z]{2})?)(\d{7})")
_JOINED_PARAGRAPHS = re.compile(r"(?<=\}\}[.?!])(?=[A-Z])")
_REPLACEMENTS = {"cite": "[CIT]", "formula": "[MATH]"}
_TEXT_EXTRA = {"license": "license", "language": "language", "comments": "comments"}


def recognizes(head: FileHead) -> bool:
    """Return whether a file is unarXive JSON lines."""
    # the first line is often longer than the head, so only its beginning can be checked
    has_text = starts_as_json(head, "paper_id", "metadata", "body_text|sections|bib_entries|_source_name")
    return has_text and starts_as_json(head, "_source_hash|update_date")


def read(source: Source, tally: Tally) -> Iterator[Record]:
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
