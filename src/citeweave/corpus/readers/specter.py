"""Training and evaluation files of SPECTER (also SciDocs' metadata) and of SciRepEval.

    metadata.json  {"<id>": {"paper_id": "<id>", "title": "T", "abstract": "A"}}
    data.json      {"<id>": {"<id of another>": {"count": 5}}}

In SPECTER's `data.json` a count of 5 is a citation. A count of 1 is a citation of a citation, meant as a hard negative: it
is no citation and counted as rejected, as is any other count, whose meaning the file does not say. `references` and
`cited_by` of SciDocs' metadata are citations. Ids stay as they are given; one of 40 hex digits is also known as `s2sha:`,
which is what citations use. The id lists (`train.txt`, `sample.ids`) and the pickled training instances are not read.

    triplet         {"query": {...}, "pos": {...}, "neg": {...}}
    ranking         {"query": {...} or "words", "candidates": [{..., "score": 1}]}
    classification  {"corpus_id": 121676082, "title": "T", "abstract": "A", "labels_text": ["Mathematics"]}
    where {...} is  {"corpus_id": 12871252, "sha": "<40 hex digits>", "title": "T", "abstract": "A"}

SciRepEval has one JSON list or JSON lines. Every paper of every row is yielded, however often it appears: merging is a later
step. Labels of a paper go to `extra` under the names of their task, fields of study also to `fields`. The query of a triplet
cites its positive: SciRepEval's triplets are those of citation prediction. What belongs to a pair and not to a paper
(`score`) and queries made of words are noted, not read.
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
    filled,
    list_of,
    names_of,
    number_of,
    strip_markup,
    year_of,
)
from citeweave.corpus.readers.json_records import read_json_objects, starts_as_json, value_at
from citeweave.corpus.readers.paper_records import accepted, spell_ids

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
        yield from _citation(_id(own), _id(reference), tally)
    for citing in cited_by:
        yield from _citation(_id(citing), _id(own), tally)


def _read_counts(key: str, others: dict[str, object], tally: Tally) -> Iterator[Record]:
    for other, value in others.items():
        count = count_of(value_at(value, "count"))
        if count == 5:
            yield from _citation(_id(key), _id(other), tally)
        else:
            tally.reject("citations", NOT_DIRECT if count == 1 else UNKNOWN_COUNT)


def _citation(citing: str | None, cited: str | None, tally: Tally) -> Iterator[Citation]:
    if citing and cited:
        yield Citation(citing, cited)
    else:
        tally.reject("citations", "no cited paper" if citing else "no citing paper")


# SciRepEval.

_KNOWN = {
    *("corpus_id", "doc_id", "paper_id", "sha", "mag_id", "title", "abstract", "venue", "year"),
    *("author_names", "authors", "n_citations", "score", "query", "candidates"),
}
_HAS_TITLES = re.compile(rb'"title"\s*:')
_MAX_LABELS = 32
_MAX_LABEL_LIST = 1000


def recognizes_scirepeval(head: FileHead) -> bool:
    """Return whether a file holds rows of SciRepEval."""
    known = (("query", "pos", "neg"), ("query", "candidates"), ("corpus_id",))
    return any(starts_as_json(head, *keys) for keys in known) and _HAS_TITLES.search(head.data) is not None


def read_scirepeval(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of SciRepEval rows."""
    for row in read_json_objects(source, tally, "papers"):
        if "query" not in row:
            yield from _row_papers([row], tally)
            continue
        query = row["query"]
        if isinstance(query, str):
            tally.note("query of words, not a paper")
        else:
            yield from _row_papers([query], tally)
        if "pos" in row:
            yield from _row_papers([row["pos"], row.get("neg")], tally)
            citing, cited = (next(iter(_row_ids(dict_of(paper))), None) for paper in (query, row["pos"]))
            yield from _citation(citing, cited, tally)
        candidates = list_of(row.get("candidates"))
        if any("score" in dict_of(candidate) for candidate in candidates):
            tally.note("scores of query and candidates belong to a task, not to papers")
        yield from _row_papers(candidates, tally)


def _row_papers(values: list[object], tally: Tally) -> Iterator[Paper]:
    for value in values:
        paper = _row_paper(dict_of(value))
        if accepted(paper, tally):
            yield paper


def _row_ids(record: dict[str, object]) -> tuple[str, ...]:
    own = spell_ids(s2=record.get("corpus_id"), s2sha=record.get("sha"))
    # the evaluation sets name papers by hash or by corpus id in one field
    doc = spell_ids(s2sha=record.get("doc_id"), s2=record.get("doc_id"))[:1]
    return distinct([*own, *doc, *spell_ids(s2sha=record.get("paper_id"), mag=record.get("mag_id"))])


def _row_paper(record: dict[str, object]) -> Paper | None:
    ids = _row_ids(record)
    if not ids:
        return None
    authors = list_of(record.get("author_names") or record.get("authors"))
    return Paper(
        ids[0],
        strip_markup(record.get("title")),
        strip_markup(record.get("abstract")),
        year_of(record.get("year")),
        clean_text(record.get("venue")),
        names_of([value_at(author, "name") or author for author in authors]),
        names_of(record.get("labels_text")),
        ids[1:],
        count_of(record.get("n_citations")),
        extra=_labels(record),
    )


def _labels(record: dict[str, object]) -> dict[str, object]:
    """Return what a task says about a paper, under any name: `labels`, `descriptor`, `log_citations`, ..."""
    names = [name for name in record if name not in _KNOWN and name.isidentifier() and len(name) < 64]
    return filled({clean_text(name): _label(record[name]) for name in names[:_MAX_LABELS]})


def _label(value: object) -> object:
    """Return texts, finite numbers, booleans and lists of them as they are, None for anything else."""
    if isinstance(value, list):
        plain = [_label(item) for item in value[:_MAX_LABEL_LIST] if not isinstance(item, list)]
        return [item for item in plain if item is not None]
    if isinstance(value, bool):
        return value
    return clean_text(value) if isinstance(value, str) else number_of(value)
