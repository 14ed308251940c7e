"""Training files of SPECTER (also SciDocs' metadata).

    metadata.json  {"<id>": {"paper_id": "<id>", "title": "T", "abstract": "A"}}
    data.json      {"<id>": {"<id of another>": {"count": 5}}}

In SPECTER's `data.json` a count of 5 is a citation. A count of 1 is a citation of a citation, meant as a hard negative: it
is no citation and counted as rejected, as is any other count, whose meaning the file does not say. `references` and
`cited_by` of SciDocs' metadata are citations. Ids stay as they are given; one of 40 hex digits is also known as `s2sha:`,
which is what citations use. The id lists (`train.txt`, `sample.ids`) and the pickled training instances are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, sha_id
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import clean_text, count_of, list_of, names_of, strip_markup, year_of
from citeweave.corpus.readers.json_records import value_at
from citeweave.corpus.readers.paper_records import accepted, cite_pair

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
    is_metadata = _METADATA.match(data) is not None and starts_as_json(head, "title", "abstract")
    return is_metadata or _DATA.match(data) is not None


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
    inner = clean_text(record.get("paper_id"))[:500]
    own = clean_text(key)[:500] or inner
    references, cited_by = list_of(record.get("references")), list_of(record.get("cited_by"))
    if not own:
        tally.reject("papers", "no id")
        tally.reject("citations", "paper rejected that cites or is cited", len(references) + len(cited_by))
        return
    paper = Paper(
        own,
        strip_markup(record.get("title")),
        strip_markup(record.get("abstract")),
        year_of(record.get("year")),
        clean_text(record.get("venue")),
        names_of(record.get("author-names")),
        ids=tuple(other for other in distinct([sha_id(own), inner, sha_id(inner)]) if other != own),
    )
    if accepted(paper, tally):
        yield paper
    for reference in references:
        yield from cite_pair(_id(own), _id(reference), tally)
    for citing in cited_by:
        yield from cite_pair(_id(citing), _id(own), tally)


def _read_counts(key: str, others: dict[str, object], tally: Tally) -> Iterator[Record]:
    for other, value in others.items():
        count = count_of(value_at(value, "count"))
        if count == 5:
            yield from cite_pair(_id(key), _id(other), tally)
        else:
            tally.reject("citations", NOT_DIRECT if count == 1 else UNKNOWN_COUNT)
