"""Saved responses of the Semantic Scholar Graph API: papers, their references, their citations.

    {"paperId": "<40 hex digits>", "title": "T", "abstract": null, "references": [{"paperId": ..., "title": ...}]}
    {"offset": 0, "next": 100, "data": [{"citedPaper": {...}, "contexts": ["..."], "intents": ["background"]}]}

One response per file, or one per line: /paper/{id} (with `references` and `citations` inside), /paper/batch (null for an
id that was not found), search, recommendations, an author's papers, the retired v1 papers, and the pages of
/paper/{id}/references and /paper/{id}/citations.

Such a page does not say whose references it lists. Its papers are read in any case; its citations and contexts only
where the other paper can be known: from a `paperId`, `corpusId` or `externalIds` that was saved with the envelope,
from a `citingPaper` and a `citedPaper` side by side in one entry, or from the one 40-digit paper id in the file's
name (`<paper id>.references.json`). Otherwise they are counted as rejected, with a reason that says so.

A cited paper without an abstract is a stub; one that was asked for with its abstract is as good as any other record.
Does not read `embedding` vectors, `citationStyles` or authors' statistics, nor references of references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, semantic_scholar_ids, sha_id, title_key
from citeweave.corpus.paper import Citation, Context, Intent, Paper, Record, parse_intents
from citeweave.corpus.plain_text import (
    clean_text,
    count_of,
    dict_of,
    filled,
    list_of,
    names_of,
    strip_markup,
    year_of,
)
from citeweave.corpus.readers.json_records import read_json_values, starts_as_json

_SHA_IN_NAME = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_ENVELOPE_LISTS = ("data", "recommendedPapers")

NO_CITING = "the file does not name the citing paper"
NO_CITED = "the file does not name the cited paper"


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds responses of the Semantic Scholar Graph API."""
    return starts_as_json(head) and b'"paperId"' in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of Semantic Scholar Graph API responses."""
    for value in read_json_values(source, tally, "papers"):
        if not isinstance(value, dict):
            tally.reject("papers", "id not found at the source" if value is None else "not a JSON object")
            continue
        entries = next((value[key] for key in _ENVELOPE_LISTS if isinstance(value.get(key), list)), None)
        if entries is None:
            yield from _read_entry(value, _owner({}, source.name), tally)
            continue
        owner = _owner(value, source.name)
        for entry in list_of(entries):
            if isinstance(entry, dict):
                yield from _read_entry(entry, owner, tally)
            else:
                tally.reject("papers", "id not found at the source" if entry is None else "not a JSON object")


def _owner(envelope: dict[str, object], name: str) -> str | None:
    """Return the id of the paper whose references or citations a page lists, None where it cannot be known."""
    in_name = _SHA_IN_NAME.findall(name.lower())
    return next(iter(_ids(envelope)), sha_id(in_name[0]) if len(in_name) == 1 else None)


def _read_entry(entry: dict[str, object], owner: str | None, tally: Tally) -> Iterator[Record]:
    if "citedPaper" in entry or "citingPaper" in entry:
        yield from _read_link(entry, owner, tally)
    elif not _ids(entry) and ("error" in entry or "message" in entry):
        tally.reject("papers", "error response of the API")
    else:
        yield from _read_paper(entry, tally)


def _read_paper(record: dict[str, object], tally: Tally) -> Iterator[Record]:
    paper = _paper(record, tally)
    if paper:
        yield paper
    own = paper.id if paper else next(iter(_ids(record)), None)
    for reference in list_of(record.get("references")):
        cited = _paper(dict_of(reference), tally, is_cited=True)
        if cited:
            yield cited
        yield from _link(dict_of(reference), own, cited.id if cited else _any_id(reference), tally)
    for citation in list_of(record.get("citations")):
        citing = _paper(dict_of(citation), tally)
        if citing:
            yield citing
        yield from _link(dict_of(citation), citing.id if citing else _any_id(citation), own, tally)


def _read_link(entry: dict[str, object], owner: str | None, tally: Tally) -> Iterator[Record]:
    """Yield the records of one entry of a references or citations page."""
    ends: dict[str, str | None] = {}
    for end in ("citingPaper", "citedPaper"):
        if end not in entry:
            ends[end] = owner
            continue
        record = dict_of(entry[end])
        paper = _paper(record, tally, is_cited=end == "citedPaper")
        if paper:
            yield paper
        ends[end] = paper.id if paper else _any_id(record)
        if not ends[end]:
            _reject_link(entry, "reference without a usable id" if end == "citedPaper" else "no citing paper", tally)
            return
    missing = NO_CITING if "citingPaper" not in entry else NO_CITED
    yield from _link(entry, ends["citingPaper"], ends["citedPaper"], tally, missing)


def _link(
    entry: dict[str, object],
    citing: str | None,
    cited: str | None,
    tally: Tally,
    missing: str = "reference without a usable id",
) -> Iterator[Record]:
    if not citing or not cited:
        _reject_link(entry, missing, tally)
        return
    contexts = _contexts(entry)
    intents = parse_intents(entry.get("intents")) | parse_intents(entry.get("intent"))
    for _, of_context in contexts:
        intents |= of_context
    yield Citation(citing, cited, intents, float(max(1, len(contexts))), entry.get("isInfluential") is True)
    for text, of_context in contexts:
        if text:
            # the intents of the entry belong to a context for certain only where there is no other one
            yield Context(citing, text, (cited,), intents=intents if len(contexts) == 1 else of_context)
        else:
            tally.reject("contexts", "empty context")


def _reject_link(entry: dict[str, object], reason: str, tally: Tally) -> None:
    tally.reject("citations", reason)
    tally.reject("contexts", reason, len(_contexts(entry)))


def _contexts(entry: dict[str, object]) -> list[tuple[str, Intent]]:
    """Return the citing sentences with their known intents; `contextsWithIntent` repeats `contexts` and says more."""
    with_intent = [dict_of(item) for item in list_of(entry.get("contextsWithIntent"))]
    plain = list_of(entry.get("contexts"))
    if with_intent and len(with_intent) >= len(plain):
        return [(clean_text(item.get("context")), parse_intents(item.get("intents"))) for item in with_intent]
    return [(clean_text(text), Intent.UNKNOWN) for text in plain]


def _ids(record: dict[str, object]) -> tuple[str, ...]:
    """Return every id of a paper, the API's own first; v1 gave DOI and arXiv id outside `externalIds`."""
    own = [sha_id(record.get("paperId")), number_id("s2", record.get("corpusId"))]
    others = semantic_scholar_ids(record.get("externalIds"))
    return distinct([*own, *others, doi_id(record.get("doi")), arxiv_id(record.get("arxivId"))])


def _any_id(record: object) -> str | None:
    """Return an id for a paper that did not become a record: it can still be cited."""
    return next(iter(_ids(dict_of(record))), None)


def _paper(record: dict[str, object], tally: Tally, is_cited: bool = False) -> Paper | None:
    title, abstract = strip_markup(record.get("title")), strip_markup(record.get("abstract"))
    year = year_of(record.get("year")) or year_of(record.get("publicationDate"))
    ids = _ids(record) or distinct([title_key(title, year)])
    if not ids or not (title or abstract):
        tally.reject("papers", "no title and no abstract" if ids else "no id")
        return None
    cited_by = count_of(record.get("citationCount"))
    return Paper(
        ids[0],
        title,
        abstract,
        year,
        _venue(record),
        names_of([dict_of(author).get("name") for author in list_of(record.get("authors"))]),
        _fields(record),
        ids[1:],
        citation_count=count_of(record.get("numCitedBy")) if cited_by is None else cited_by,
        extra=_extra(record),
        stub=is_cited and not abstract,
    )


def _venue(record: dict[str, object]) -> str:
    """Return the venue, or the journal where `venue` is empty."""
    journal = clean_text(dict_of(record.get("journal")).get("name"))
    return clean_text(record.get("venue")) or journal or clean_text(dict_of(record.get("publicationVenue")).get("name"))


def _fields(record: dict[str, object]) -> tuple[str, ...]:
    categories = [dict_of(field).get("category") for field in list_of(record.get("s2FieldsOfStudy"))]
    return names_of([*list_of(record.get("fieldsOfStudy")), *categories])


def _extra(record: dict[str, object]) -> dict[str, object]:
    is_open = record.get("isOpenAccess")
    return filled(
        {
            "types": list(names_of(record.get("publicationTypes"))),
            "date": clean_text(record.get("publicationDate")),
            "tldr": clean_text(dict_of(record.get("tldr")).get("text")),
            "topics": list(names_of([dict_of(topic).get("topic") for topic in list_of(record.get("topics"))])),
            "open_access": is_open if isinstance(is_open, bool) else None,
            "influential_citations": count_of(record.get("influentialCitationCount")),
            "reference_count": count_of(record.get("referenceCount")),
        }
    )
