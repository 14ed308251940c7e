"""SPECTER training files: `metadata.json` (papers) and `data.json` (citations); also the metadata of SciDocs.

    metadata.json  {"<id>": {"paper_id": "<id>", "title": "T", "abstract": "A"}}
    data.json      {"<id>": {"<id of another>": {"count": 5}}}

In `data.json` a count of 5 is a citation. A count of 1 is a citation of a citation, meant as a hard negative: it is
no citation and counted as rejected, as is any other count, whose meaning the file does not say. `references` and
`cited_by` of SciDocs' metadata are citations.

Ids stay as they are given; one of 40 hex digits is also known as `s2sha:`, which is what citations use. Does not read
the id lists (`train.txt`, `sample.ids`) nor the pickled training instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, sha_id
from citeweave.corpus.paper import Citation, Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    count_of,
    dict_of,
    list_of,
    names_of,
    strip_markup,
    year_of,
)

_PAPER_KEYS = ("paper_id", "title", "abstract")
_METADATA = re.compile(
    rb'\{\s*"[^"]{1,200}"\s*:\s*\{\s*"(?:paper_id|title|abstract|authors|author-names|body|year|venue|references|cited_by)"'
)
_DATA = re.compile(rb'\{\s*"[^"]{1,200}"\s*:\s*\{\s*"[^"]{1,200}"\s*:\s*\{\s*"count"\s*:')

NOT_DIRECT = "citation of a citation (count 1), not a citation"
UNKNOWN_COUNT = "count that is neither 5 (citation) nor 1"


def recognizes(head: FileHead) -> bool:
    """Return whether a file is SPECTER metadata or citation counts."""
    data = head.data.lstrip()
    if _DATA.match(data):
        return True
    return _METADATA.match(data) is not None and b'"title"' in data and b'"abstract"' in data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of SPECTER training files."""
    document = source.json()
    if not isinstance(document, dict):
        raise InputError(f"{source.path} is not one JSON object of papers or citations by id; is it another format?")
    for key, value in document.items():
        if not isinstance(value, dict):
            tally.reject("papers", "not a JSON object")
        elif any(name in value and not isinstance(value[name], dict) for name in _PAPER_KEYS):
            yield from _read_paper(key, value, tally)
        else:
            yield from _read_counts(key, value, tally)


def _id(value: object) -> str:
    """Return the id that citations use, empty where there is none."""
    return sha_id(value) or clean_text(value)[:500]


def _read_paper(key: str, record: dict[str, object], tally: Tally) -> Iterator[Record]:
    own, inner = clean_text(key)[:500], clean_text(record.get("paper_id"))[:500]
    own = own or inner
    title, abstract = strip_markup(record.get("title")), strip_markup(record.get("abstract"))
    if not own:
        links = [*list_of(record.get("references")), *list_of(record.get("cited_by"))]
        tally.reject("papers", "no id")
        tally.reject("citations", "paper rejected that cites or is cited", len(links))
        return
    if title or abstract:
        others = distinct([sha_id(own), inner, sha_id(inner)])
        yield Paper(
            own,
            title,
            abstract,
            year_of(record.get("year")),
            clean_text(record.get("venue")),
            names_of(record.get("author-names")),
            ids=tuple(other for other in others if other != own),
        )
    else:
        tally.reject("papers", "no title and no abstract")
    pairs: list[tuple[object, object]] = [(own, other) for other in list_of(record.get("references"))]
    pairs += [(other, own) for other in list_of(record.get("cited_by"))]
    for citing, cited in pairs:
        yield from _citation(citing, cited, tally)


def _read_counts(key: str, others: dict[str, object], tally: Tally) -> Iterator[Record]:
    for other, value in others.items():
        count = count_of(dict_of(value).get("count"))
        if count == 5:
            yield from _citation(key, other, tally)
        else:
            tally.reject("citations", NOT_DIRECT if count == 1 else UNKNOWN_COUNT)


def _citation(citing: object, cited: object, tally: Tally) -> Iterator[Citation]:
    ends = _id(citing), _id(cited)
    if all(ends):
        yield Citation(*ends)
    else:
        tally.reject("citations", "no citing paper" if not ends[0] else "no cited paper")
