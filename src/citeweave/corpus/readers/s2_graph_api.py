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
from collections.abc import Generator, Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_values, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, semantic_scholar_ids, sha_id, title_key
from citeweave.corpus.paper import Citation, Context, Intent, Paper, Record, parse_intents
from citeweave.corpus.plain_text import clean_text, count_of, dict_of, filled, list_of, names_of, strip_markup, year_of
from citeweave.corpus.readers.json_records import extra_of, first_text, names_at
from citeweave.corpus.readers.paper_records import accepted

_SHA_IN_NAME = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_ENVELOPE_LISTS = ("data", "recommendedPapers")
_EXTRA = {
    "types": "publicationTypes[]",
    "date": "publicationDate",
    "tldr": "tldr.text",
    "topics": "topics[].topic",
}

NO_CITING = "the file does not name the citing paper"
NO_CITED = "the file does not name the cited paper"


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds responses of the Semantic Scholar Graph API."""
    return starts_as_json(head, "paperId")


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield papers, citations and contexts of Semantic Scholar Graph API responses."""
    for value in read_json_values(source, tally, "papers"):
        response = dict_of(value)
        lists = [response[key] for key in _ENVELOPE_LISTS if isinstance(response.get(key), list)]
        owner = _owner(response if lists else {}, source.name)
        for entry in list_of(lists[0]) if lists else [value]:
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
    own = yield from _read_end(record, tally)
    for reference in map(dict_of, list_of(record.get("references"))):
        cited = yield from _read_end(reference, tally, is_cited=True)
        yield from _link(reference, own, cited, tally)
    for citation in map(dict_of, list_of(record.get("citations"))):
        citing = yield from _read_end(citation, tally)
        yield from _link(citation, citing, own, tally)


def _read_end(record: dict[str, object], tally: Tally, is_cited: bool = False) -> Generator[Record, None, str | None]:
    """Yield the paper of one end of a citation and return its id; one that does not become a record can still be cited."""
    paper = _paper(record, is_cited)
    if not accepted(paper, tally):
        return next(iter(_ids(record)), None)
    yield paper
    return paper.id


def _read_link(entry: dict[str, object], owner: str | None, tally: Tally) -> Iterator[Record]:
    """Yield the records of one entry of a references or citations page."""
    ends: dict[str, str | None] = {}
    for end in ("citingPaper", "citedPaper"):
        if end not in entry:
            ends[end] = owner
            continue
        ends[end] = yield from _read_end(dict_of(entry[end]), tally, is_cited=end == "citedPaper")
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


def _paper(record: dict[str, object], is_cited: bool) -> Paper | None:
    title, abstract = strip_markup(record.get("title")), strip_markup(record.get("abstract"))
    year = year_of(record.get("year")) or year_of(record.get("publicationDate"))
    ids = _ids(record) or distinct([title_key(title, year)])
    if not ids:
        return None
    cited_by, is_open = count_of(record.get("citationCount")), record.get("isOpenAccess")
    known: dict[str, object] = {
        "open_access": is_open if isinstance(is_open, bool) else None,
        "influential_citations": count_of(record.get("influentialCitationCount")),
        "reference_count": count_of(record.get("referenceCount")),
    }
    return Paper(
        ids[0],
        title,
        abstract,
        year,
        first_text(record, "venue", "journal.name", "publicationVenue.name"),
        names_at(record, "authors[].name"),
        names_of([*list_of(record.get("fieldsOfStudy")), *names_at(record, "s2FieldsOfStudy[].category")]),
        ids[1:],
        citation_count=count_of(record.get("numCitedBy")) if cited_by is None else cited_by,
        extra=extra_of(record, _EXTRA) | filled(known),
        stub=is_cited and not abstract,
    )
